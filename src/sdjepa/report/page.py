"""Run directories come in, one self-contained HTML page goes out.

The page needs no network, opens from a mail attachment and prints. It answers in order: does it
plan, what does the latent know, how was it made.
"""

from collections.abc import Sequence
from pathlib import Path

import sdjepa
from sdjepa.report import published
from sdjepa.report.blocks import escape, figure
from sdjepa.report.course_figures import plane
from sdjepa.report.export import export
from sdjepa.report.knowing import knowing
from sdjepa.report.making import making, minutes, parameters
from sdjepa.report.planning import MANY_RUNS, planning
from sdjepa.report.read import RunFiles, Score, read_runs
from sdjepa.report.shell import asset, document
from sdjepa.report.style import to_svg
from sdjepa.runs import write_atomic


def report(
    runs: Sequence[Path], *, out: Path, figures: Path | None = None, select: str | None = None
) -> Path:
    """Write the page of `runs` to `out`; with `figures`, also every figure and table as files."""
    read = read_runs(runs, select=select)
    if figures is not None:
        export(read, figures)
    return write_atomic(out, render(read))


def render(runs: Sequence[RunFiles]) -> str:
    """The page as one HTML string."""
    title = "SD-JEPA report: " + ", ".join(run.label for run in runs)
    body = _masthead(runs) + planning(runs) + knowing(runs) + making(runs) + _footer()
    return document(
        title,
        f'<a class="skip" href="#plan">Skip to the results</a><div class="page">{body}</div>',
        styles=[asset("style.css")],
        scripts=[asset("page.js"), asset("draw.js"), asset("player.js")],
    )


def _masthead(runs: Sequence[RunFiles]) -> str:
    names = ", ".join(escape(run.label) for run in runs)
    headline, standfirst = _lead(runs)
    return (
        '<header><div class="bar"><span class="name">SD-JEPA report</span><nav '
        'aria-label="Sections">'
        '<a href="#plan">Planning</a><a href="#know">Compass</a><a href="#made">Making</a></nav>'
        '<button class="theme" type="button">Dark</button></div>'
        f'<div class="lead"><div><p class="kicker">{names}</p><h1>{headline}</h1>'
        f'<p class="standfirst">{standfirst}</p></div>{_dial(runs)}</div></header>'
    )


def _dial(runs: Sequence[RunFiles]) -> str:
    """The first run's compass beside the headline, when there is one."""
    whose, found = next(
        ((run, item) for run in runs for item in run.compass if item.name == "course"),
        (None, None),
    )
    if whose is None or found is None:
        return ""
    episodes = found.record["results"]["episodes"]
    drawing = to_svg(
        plane(episodes),
        alt=f"Compass dial: the progress part of the latent over {len(episodes)} held-out episodes",
        name="dial",
        zoom=2,
    )
    its = "Its" if len(runs) == 1 else f"{escape(whose.label)}&rsquo;s"
    caption = (
        f"{its} compass: every line is one episode the model never saw, from square to star, where "
        "the angle is what the model takes for progress."
    )
    return figure(drawing, caption)


def _solves(member: tuple[RunFiles, Score]) -> str:
    run, score = member
    return (
        f"<b>{escape(run.label)}</b> solves {score.num_solved} of {len(score.tasks)} tasks in "
        f"{escape(published.title(score.env))}"
    )


def _standing(ranked: Sequence[tuple[RunFiles, Score]]) -> str:
    """Of many runs in an environment only the first and the last."""
    said = []
    for env in dict.fromkeys(score.env for _, score in ranked):
        members = [member for member in ranked if member[1].env == env]
        told = _solves(members[0])
        if len(members) > 1:
            run, score = members[-1]
            told += (
                f", the most of {len(members)}, and <b>{escape(run.label)}</b> "
                f"{score.num_solved} of {len(score.tasks)}, the fewest"
            )
        said.append(told)
    return "; ".join(said)


def _lead(runs: Sequence[RunFiles]) -> tuple[str, str]:
    """Headline and standfirst, both generated from the numbers."""
    scored = [(run, run.headline) for run in runs if run.headline is not None]
    scored.sort(key=lambda member: -member[1].rate.value)
    if len(runs) > 1:
        said = _standing(scored) if len(scored) > MANY_RUNS else "; ".join(map(_solves, scored))
        return f"{len(runs)} runs, side by side", (said or "None has been scored yet") + "."
    run = runs[0]
    score = run.headline
    size, spent = parameters(run), minutes(run)
    made = f"A world model of {size} numbers" if size else "A world model"
    made += f", trained in {spent:.0f} minutes," if spent is not None else ""
    if score is None:
        return "Trained, not yet scored", made.rstrip(",") + ". The planner has not been tried."
    tasks = "held-out tasks" if score.protocol == "strict" else "tasks"
    standfirst = (
        f"{made} plans its way through {escape(published.title(score.env))} from pixels. It solves "
        f"<b>{score.rate.value:.3g}&nbsp;%</b> of {len(score.tasks)} {tasks}; so few leave room "
        "for a true "
        f"rate anywhere from {score.rate.low:.0f} to {score.rate.high:.0f}&nbsp;%."
    )
    said = {"noop": "Doing nothing", "random": "acting at random"}
    below = [
        f"{said[n]} solves {score.floors[n].value:.3g}&nbsp;%" for n in said if n in score.floors
    ]
    if below:
        standfirst += " " + ", ".join(below) + "."
    return f"It reaches {score.num_solved} of {len(score.tasks)} goals", standfirst


def _footer() -> str:
    return (
        f"<footer>Made by sdjepa {escape(sdjepa.__version__)} from the result files of the "
        "runs alone. "
        "Nothing on this page was typed by hand; nothing is loaded from elsewhere.</footer>"
    )
