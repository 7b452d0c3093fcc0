"""Section two: what does the latent know? The compass's verdicts first, figures on demand."""

from collections.abc import Sequence
from pathlib import Path

from sdjepa.report.blocks import columns, escape, missing, series_variable, spoken
from sdjepa.report.compass_figures import in_print, ordered, panels, terms
from sdjepa.report.player import player
from sdjepa.report.read import Diagnostic, RunFiles
from sdjepa.report.style import RHO, THETA
from sdjepa.report.words import words


def knowing(runs: Sequence[RunFiles]) -> str:
    """The whole section; a diagnostic that several runs have is shown side by side."""
    head = (
        '<section id="know"><header><span class="number">2</span><h2>What does the latent '
        "know?</h2>"
        "<p>Nobody told the model where it is or how far it has come. The compass asks its "
        "latent, on "
        "episodes it never saw, and gives every finding a control that could have broken it.</p>"
        "</header>"
    )
    players = [(run, player(run)) for run in runs]
    watch = "".join(
        f"<h4>{escape(run.label if len(runs) > 1 else 'Watch an episode')}</h4>{shown}"
        for run, shown in players
        if shown
    )
    for run in runs:
        if any(found.record.get("stand_in") for found in run.compass):
            watch += (
                f'<p class="note"><b>{escape(run.label)} has no progress part</b> (k = 0): the '
                "first two numbers of its latent stand in for one, as a baseline.</p>"
            )
    names = ordered({found.name for run in runs for found in run.compass})
    body = "".join(_diagnostic(name, runs, opened=i == 0) for i, name in enumerate(names))
    beside = {
        Path(str(found.record["against"]["run"])).name
        for run in runs
        for found in run.compass
        if found.record.get("against")
    }
    for run in runs:
        if not run.compass and run.path.name not in beside:
            body += missing(f"{run.label} has no compass yet.", f"sdjepa compass {run.label}")
    return head + watch + body + "</section>"


def _diagnostic(name: str, runs: Sequence[RunFiles], *, opened: bool) -> str:
    found: list[tuple[int, RunFiles, Diagnostic]] = [
        (i, run, item) for i, run in enumerate(runs) for item in run.compass if item.name == name
    ]
    first = found[0][2]
    verdicts, figures = [], []
    for i, run, item in found:
        tag = f'<span class="run">{escape(run.label)}</span>' if len(runs) > 1 else ""
        verdicts.append(_verdict(item, tag=tag, colour=series_variable(i)))
        figures.append((tag and f"<h4>{tag}</h4>") + panels(item, unique=f"{name}-{i}"))
    drawn = columns(figures)
    note = words(*terms(first))
    beside = first.record.get("against")
    if beside:
        verdicts.append(
            '<p class="verdict open"><span class="run">'
            f"Baseline {escape(Path(str(beside['run'])).name)}</span>"
            f"{escape(spoken(beside['verdict']))}</p>"
        )
    return (
        f'<article class="diagnostic"><h3>{escape(spoken(first.title))}</h3>'
        f'<p class="question">{escape(spoken(first.question))}</p>{columns(verdicts)}'
        f"<details{' open' if opened else ''}><summary>Figures and controls</summary>"
        f"{drawn}{in_print(first)}{note}</details></article>"
    )


_MARKS = {"holds": "holds", "only without the control": "partly", "does not hold": "fails"}


def _verdict(found: Diagnostic, *, tag: str, colour: str) -> str:
    """The verdict with its first words as the answer and a mark for those who skim."""
    answer, _, reason = spoken(found.verdict).partition(": ")
    mark = _MARKS.get(str(found.record.get("status")), "open")
    # A Greek capital would be another letter.
    first = reason[:1] if reason.startswith((THETA, RHO)) else reason[:1].upper()
    rest = f" {escape(first + reason[1:])}." if reason else ""
    return (
        f'<p class="verdict {mark}" style="--c:{colour}">{tag}<b>{escape(answer)}.</b>'
        f"{rest.replace('..', '.')}</p>"
    )
