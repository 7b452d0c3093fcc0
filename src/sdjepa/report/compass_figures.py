"""Which figures belong to which diagnostic; one without any still shows its numbers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from sdjepa.report import course_figures, readout_figures
from sdjepa.report.blocks import escape, figure, grid, number, table
from sdjepa.report.read import Diagnostic
from sdjepa.report.style import RHO, THETA, to_svg


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
    bounds = course_figures.bounds(episodes)
    for i, episode in enumerate(course_figures.chosen(episodes)):
        yield Panel(
            f"path-{episode['episode']}",
            f"Path of episode {episode['episode']} coloured by {THETA}",
            f"Episode {episode['episode']}" + (f", path coloured by {THETA}" if i == 0 else ""),
            lambda episode=episode: course_figures.path(episode, bounds=bounds),
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
    target = escape(record["results"]["target"])
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


PANELS: dict[str, Callable[[Record], Iterator[Panel]]] = {
    "course": _course,
    "correlation": _correlation,
    "probe": _probe,
}
TERMS: dict[str, tuple[str, ...]] = {
    "course": ("split", "theta", "r", "held_out"),
    "correlation": ("spearman", "clock", "null"),
    "probe": ("probe", "r2", "clock", "null"),
}


def ordered(names: Iterable[str]) -> list[str]:
    """Diagnostics in reading order; those without figures last, by name."""
    known = list(PANELS)
    return sorted(names, key=lambda name: (known.index(name) if name in PANELS else 99, name))


def terms(found: Diagnostic) -> tuple[str, ...]:
    """The words a reader of this diagnostic needs."""
    return TERMS.get(found.name, ("null",))


def diagnostic_panels(found: Diagnostic) -> list[Panel]:
    """The figures of one result file; none for a diagnostic the page has no drawing for."""
    return list(PANELS[found.name](found.record)) if found.name in PANELS else []


def panels(found: Diagnostic, *, unique: str) -> str:
    """The figures as HTML rows, or the plain numbers; `unique` keeps ids of two runs apart."""
    drawn = diagnostic_panels(found)
    if not drawn:
        return _numbers(found)
    rows: dict[int, list[str]] = {}
    sizes: dict[int, str] = {}
    for panel in drawn:
        svg = to_svg(panel.draw(), alt=panel.alt, name=f"{unique}-{panel.name}")
        rows.setdefault(panel.row, []).append(figure(svg, panel.caption))
        sizes[panel.row] = panel.size
    return "".join(grid(items, size=sizes[row]) for row, items in rows.items())


def _numbers(found: Diagnostic) -> str:
    rows = [
        [escape(name), number(value)]
        for part in ("results", "nulls", "published")
        for name, value in leaves(found.record.get(part), part)
    ]
    return table(["Quantity", "Value"], rows[:60], numeric=[1])


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every single number of a nested record with a readable name; long lists are left out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{name}, {str(key).replace('_', ' ')}")
    elif isinstance(value, bool | int | float | str):
        yield name, value
