"""Panels of what the model foresees, and of signals against true events."""

from collections.abc import Iterator

from sdjepa.report import shape_figures, signal_figures
from sdjepa.report.blocks import escape
from sdjepa.report.panel import Panel, Record
from sdjepa.report.style import THETA


def horizon(record: Record) -> Iterator[Panel]:
    for part in ("latent", "content", "angle"):
        yield Panel(
            part,
            f"Error of the imagined {part} by horizon",
            "<b>Blue: the model imagining, grey: assuming that nothing moves.</b> A useful "
            "model stays "
            "below the grey line."
            if part == "latent"
            else "",
            lambda part=part: shape_figures.error_by_horizon(record["results"], part=part),
        )


def ranking(record: Record) -> Iterator[Panel]:
    kinds = {"broad": "wide guesses", "nearby": "guesses near the recorded actions"}
    for kind, words in kinds.items():
        if kind in record["results"]:
            yield Panel(
                kind,
                f"Rank correlation of cost and distance, {words}",
                f"<b>{words.capitalize()}.</b> Small dots: single tasks; large: their mean "
                "and 95 % "
                "interval; grey: where 95 % of shuffled orders stay. A planner needs the first row "
                "far to the right.",
                lambda kind=kind: shape_figures.rank_agreement(
                    record["results"][kind], record["nulls"].get(kind, {})
                ),
            )


def events(record: Record) -> Iterator[Panel]:
    pair = ("latent_error", "angle_error")
    for kind, found in record["results"].get("kinds", {}).items():
        if "at" not in found:
            continue
        tolerance = next(iter(found["at"]))
        yield Panel(
            f"auroc-{kind}",
            f"AUROC of every signal at {kind} events",
            f"<b>Telling {escape(kind)} events from ordinary steps,</b> within {tolerance} "
            "step. Right "
            "of the middle a signal rises at events, left of it it falls.",
            lambda found=found, tolerance=tolerance: signal_figures.auroc_rows(
                found["at"][tolerance]["signals"]
            ),
        )
        yield Panel(
            f"tolerance-{kind}",
            "AUROC as the tolerance widens",
            f"<b>A wider net.</b> Vermilion: prediction error of {THETA}, blue: of the latent.",
            lambda found=found: signal_figures.auroc_tolerances(found["at"], signals=pair),
        )
        yield Panel(
            f"around-{kind}",
            "Signals around events",
            "<b>Before and after.</b> Mean over events; inside the band is where chance keeps it.",
            lambda found=found: signal_figures.around_events(found["around"], signals=pair),
        )
    for example in record["results"].get("examples", [])[:4]:
        yield Panel(
            f"example-{example['episode']}",
            f"Signals and events of episode {example['episode']}",
            f"Episode {example['episode']}, events dashed",
            lambda example=example: signal_figures.example(example),
            row=1,
            size="small",
        )


def changes(record: Record) -> Iterator[Panel]:
    for kind, found in record["results"].get("kinds", {}).items():
        tolerance = str(record["results"]["tolerances"][-1])
        yield Panel(
            f"f1-{kind}",
            f"Change points against {kind} events",
            f"<b>Change points that meet {escape(kind)} events.</b> Ring: told how many there "
            "are, as "
            "published; dot: told nothing. Grey bars reach to where 95 % of random placements end.",
            lambda kind=kind, found=found, tolerance=tolerance: signal_figures.change_scores(
                found, record["nulls"][kind], tolerance=tolerance
            ),
        )
        for example in found.get("examples", [])[:4]:
            yield Panel(
                f"example-{kind}-{example['episode']}",
                f"Signals, events and change points of episode {example['episode']}",
                f"Episode {example['episode']}; dashed: events, triangles: change points",
                lambda example=example: signal_figures.example(example),
                row=1,
                size="small",
            )


def corruption(record: Record) -> Iterator[Panel]:
    for mode, found in record["results"].get("modes", {}).items():
        yield Panel(
            mode,
            f"AUROC of every signal when actions are replaced: {mode}",
            f"<b>Wrong actions: {escape(mode.replace('_', ' '))}.</b> Can the signal tell the "
            "steps "
            "whose actions were tampered with?",
            lambda found=found: signal_figures.auroc_rows(found["corrected_labels"]["signals"]),
            size="large",
        )


_MODES = {
    "splice": "cut to another episode",
    "teleport": "one foreign frame",
    "reverse": "ten frames backwards",
}


def surprise(record: Record) -> Iterator[Panel]:
    found = record["results"]
    if "modes" not in found:
        return
    yield Panel(
        "auroc",
        "AUROC of every readout at random cuts",
        f"<b>Telling a cut from no cut,</b> {found['pairs']} random pairs of episodes. Grey "
        "band: what "
        "the angle of a random plane gives. Vermilion reads the angle, blue the whole latent.",
        lambda: signal_figures.auroc_rows(
            found["modes"]["splice"], null=record["nulls"]["splice"]["random_planes"]
        ),
    )
    for mode, words in _MODES.items():
        if mode in found.get("chosen_pair", {}).get("modes", {}):
            yield Panel(
                mode,
                f"{THETA} and its jumps, {words}",
                f"<b>One pair: {words}.</b> Blue: the episode, vermilion: the other one. The "
                "encoder "
                "sees single frames, so after a cut it must show the other&rsquo;s angle."
                if mode == "splice"
                else f"<b>One pair: {words}.</b>",
                lambda mode=mode: signal_figures.cut_trace(found["chosen_pair"]["modes"][mode]),
                row=1,
            )
