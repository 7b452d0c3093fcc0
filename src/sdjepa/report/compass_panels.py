"""Which figures belong to which diagnostic, each with the sentence that reads it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from sdjepa.report import course_figures, readout_figures, shape_figures, signal_figures
from sdjepa.report.blocks import escape, spoken
from sdjepa.report.read import Diagnostic
from sdjepa.report.style import RHO, THETA


@dataclass(frozen=True)
class Panel:
    """One drawing of a diagnostic; equal `row` means side by side, `size` is that of the row."""

    name: str
    alt: str
    caption: str  # HTML
    draw: Callable[[], Figure]
    row: int = 0
    size: str = "medium"


Record = Mapping[str, Any]


def _course(record: Record) -> Iterator[Panel]:
    episodes = record["results"]["episodes"]
    yield Panel(
        "plane",
        f"The progress plane of {len(episodes)} held-out episodes, drawn as a dial",
        "<b>The dial.</b> Each line is one held-out episode in the plane of the first two progress "
        "numbers; square: start, star: end. The rim gives every angle its colour.",
        lambda: course_figures.plane(episodes),
    )
    yield Panel(
        "theta",
        f"{THETA} over time for every episode",
        f"<b>{THETA} over time,</b> counted from each episode&rsquo;s start. Three episodes "
        "stand out "
        "only to be followed by eye.",
        lambda: course_figures.over_time(episodes, name="theta"),
    )
    yield Panel(
        "radius",
        "r over time for every episode",
        "<b>r over time.</b> Near 0 the needle has no direction and the angle means nothing.",
        lambda: course_figures.over_time(episodes, name="radius"),
    )
    view = record.get("extent") or course_figures.bounds(episodes)
    for i, episode in enumerate(course_figures.chosen(episodes)):
        yield Panel(
            f"path-{episode['episode']}",
            f"Path of episode {episode['episode']} coloured by {THETA}",
            f"Episode {episode['episode']}" + (f", path coloured by {THETA}" if i == 0 else ""),
            lambda episode=episode: course_figures.path(episode, view=view),
            row=1,
            size="small",
        )


def _correlation(record: Record) -> Iterator[Panel]:
    yield Panel(
        "strength",
        f"Mean absolute rank correlation of {THETA} with each measure, against chance",
        f"<b>How closely {THETA} follows each quantity.</b> Dot: mean |{RHO}| over episodes "
        "with its "
        "95 % interval. Grey bars, top to bottom, reach to where 95 % of each null ends: "
        + "; ".join(readout_figures.NULL_NAMES.values())
        + ". A finding lies to the right of all of them.",
        lambda: readout_figures.strength(record),
    )
    yield Panel(
        "episodes",
        f"Signed rank correlation of {THETA} in every episode",
        "<b>Every episode by itself.</b> Dots on both sides of zero mean that the needle "
        "turns one way "
        "in some episodes and the other way in others.",
        lambda: readout_figures.per_episode(record),
    )


def _probe(record: Record) -> Iterator[Panel]:
    if not record["results"].get("per_episode"):
        return
    target = escape(spoken(record["results"]["target"]))
    yield Panel(
        "means",
        "Mean explained variance per feature, two ways of holding out",
        f"<b>How much of {target} each feature explains.</b> Ring: one step held out, as "
        "published, "
        "which any smooth curve passes. Dot: whole blocks held out with a gap.",
        lambda: readout_figures.probe_means(record),
    )
    yield Panel(
        "episodes",
        "Explained variance of every episode",
        "<b>Every episode by itself,</b> blocks held out; the stroke is the median. The "
        "claim needs "
        "the first row to lie right of the others.",
        lambda: readout_figures.probe_episodes(record),
    )


def _geometry(record: Record) -> Iterator[Panel]:
    found = record["results"]["cosine"]
    for name, title, caption in (
        (
            "plain",
            "cosine between episodes",
            "<b>As published.</b> Vermilion: progress, blue: content. A common offset alone makes "
            "vectors look alike.",
        ),
        (
            "centred",
            "cosine, common mean removed",
            "<b>With the control.</b> What is left when the average latent is taken away is what "
            "episodes truly share.",
        ),
    ):
        yield Panel(
            name,
            f"{title}, progress and content, at three moments",
            caption,
            lambda name=name, title=title: shape_figures.cosines(
                found[name], rows=found["rows"], title=title
            ),
        )


def _embedding(record: Record) -> Iterator[Panel]:
    found = record["results"]
    lengths = [len(points["rows"]) for points in found["points"]]
    shown = [
        ("plane", found["plane"], "<b>Progress,</b> its first two numbers as they are."),
        ("tsne-progress", found["tsne"]["progress"]["2d"], "<b>Progress,</b> flattened by t-SNE."),
        ("tsne-content", found["tsne"]["content"]["2d"], "<b>Content,</b> flattened by t-SNE."),
        ("pca", found["pca"]["coordinates"], "<b>All of it,</b> two main directions."),
    ]
    for name, points, caption in shown:
        yield Panel(
            name,
            f"{name.replace('-', ' ')} of {len(lengths)} episodes",
            caption + " One colour per episode; square: start, star: end." * (name == "plane"),
            lambda points=points: shape_figures.cloud(np.asarray(points, float), lengths),
            size="small",
        )


_MODES = {
    "splice": "cut to another episode",
    "teleport": "one foreign frame",
    "reverse": "ten frames backwards",
}


def _surprise(record: Record) -> Iterator[Panel]:
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


def _events(record: Record) -> Iterator[Panel]:
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


def _corruption(record: Record) -> Iterator[Panel]:
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


def _changes(record: Record) -> Iterator[Panel]:
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


def _horizon(record: Record) -> Iterator[Panel]:
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


PANELS: dict[str, Callable[[Record], Iterator[Panel]]] = {
    "course": _course,
    "correlation": _correlation,
    "probe": _probe,
    "horizon": _horizon,
    "events": _events,
    "changes": _changes,
    "corruption": _corruption,
    "surprise": _surprise,
    "geometry": _geometry,
    "embedding": _embedding,
}
TERMS: dict[str, tuple[str, ...]] = {
    "course": ("split", "theta", "r", "held_out"),
    "film": ("theta",),
    "correlation": ("spearman", "clock", "null"),
    "probe": ("probe", "r2", "clock", "null"),
    "horizon": ("latent", "block"),
    "events": ("event", "surprise", "auroc", "null"),
    "changes": ("change_point", "f1", "event", "null"),
    "corruption": ("surprise", "auroc"),
    "surprise": ("surprise", "auroc", "null"),
    "geometry": ("cosine", "split", "null"),
    "embedding": ("tsne", "split"),
}


def diagnostic_panels(found: Diagnostic) -> list[Panel]:
    """The figures of one result file; none for a diagnostic the page has no drawing for."""
    if found.name not in PANELS:
        return []
    return list(PANELS[found.name]({**found.record, "extent": found.extent}))
