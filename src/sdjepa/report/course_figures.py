"""The needle over whole episodes: plane, angle, length and the paths they belong to."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy import ndarray

from sdjepa.report.style import (
    BLUE,
    FAINT,
    INK,
    MUTED,
    PANEL,
    PAPER,
    RULE,
    THETA,
    angle_colours,
    cyclic,
    panel,
    quiet,
    styled,
)

Episode = Mapping[str, Any]
SHOWN = 8  # episodes drawn as small multiples


def chosen(episodes: Sequence[Episode], count: int = SHOWN) -> list[Episode]:
    """Evenly spaced episodes, so that the selection is nobody's choice."""
    if len(episodes) <= count:
        return list(episodes)
    index = np.linspace(0, len(episodes) - 1, count).round().astype(int)
    return [episodes[i] for i in index]


def coloured_line(axes: Axes, points: Float[ndarray, "n 2"], theta: Float[ndarray, "n"]) -> None:
    """A path whose colour is the angle at each step."""
    segments = np.stack([points[:-1], points[1:]], axis=1)
    middle = (theta[:-1] + theta[1:]) / 2
    lines = LineCollection(list(segments), colors=angle_colours(middle), linewidths=2.0)
    lines.set_capstyle("round")
    axes.add_collection(lines)


@styled
def plane(episodes: Sequence[Episode]) -> Figure:
    """The progress plane seen as a dial: every episode one line, coloured by its angle."""
    figure = Figure(figsize=(2.75, 2.75))
    draw_dial(figure.add_axes((0.02, 0.02, 0.96, 0.96)), episodes)
    return figure


def draw_dial(axes: Axes, episodes: Sequence[Episode]) -> None:
    """The dial of `plane`: rim, circles, at most two dozen episodes."""
    everything = np.concatenate([np.asarray(e["plane"], float) for e in episodes])
    reach = float(np.quantile(np.linalg.norm(everything, axis=1), 0.995)) * 1.08 or 1.0
    turn = np.linspace(0, 2 * np.pi, 121)
    for share in (1 / 3, 2 / 3, 1):
        axes.plot(share * reach * np.cos(turn), share * reach * np.sin(turn), color=RULE, lw=0.6)
    ring = np.stack([np.cos(turn), np.sin(turn)], axis=1) * reach * 1.08
    coloured_line(axes, ring, turn)
    axes.collections[-1].set_linewidth(5)
    axes.plot([-reach, reach], [0, 0], color=RULE, lw=0.6)
    axes.plot([0, 0], [-reach, reach], color=RULE, lw=0.6)
    for episode in chosen(episodes, 24):
        points = np.asarray(episode["plane"], float)
        coloured_line(axes, points, np.arctan2(points[:, 1], points[:, 0]))
        axes.collections[-1].set(linewidth=0.9, alpha=0.75)
        axes.plot(*points[0], "s", ms=3.2, mfc=PAPER, mec=INK, mew=0.8)
        axes.plot(*points[-1], "*", ms=5.5, mfc=INK, mec=PAPER, mew=0.4)
    for angle, label in (
        (0, "0"),
        (np.pi / 2, "\u03c0/2"),
        (np.pi, "\u03c0"),
        (-np.pi / 2, "\u2212\u03c0/2"),
    ):
        axes.text(
            1.21 * reach * np.cos(angle), 1.21 * reach * np.sin(angle), label,
            ha="center", va="center", color=MUTED, fontsize=8,
        )  # fmt: skip
    axes.set(xlim=(-1.3 * reach, 1.3 * reach), ylim=(-1.3 * reach, 1.3 * reach), aspect="equal")
    axes.axis("off")


@styled
def over_time(episodes: Sequence[Episode], *, name: str) -> Figure:
    """`theta` (from its first value) or `radius` of every episode, a few of them strong."""
    figure, axes = panel(3.1, 2.2)
    quiet(axes)
    strong = {id(episode) for episode in chosen(episodes, 3)}
    for episode in episodes:
        values = np.asarray(episode[name], float)
        values = values - values[0] if name == "theta" else values
        if id(episode) in strong:
            axes.plot(values, color=BLUE, lw=1.4, zorder=3)
        else:
            axes.plot(values, color=FAINT, lw=0.6, alpha=0.7)
    if name == "theta":
        axes.set_title(f"{THETA} since the start, radians")
        axes.axhline(0, color=MUTED, lw=0.7)
    else:
        axes.set_title("r, length of the needle")
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("frame of the episode")
    axes.margins(x=0.01)
    return figure


@styled
def path(episode: Episode, *, view: Sequence[float]) -> Figure:
    """Where one episode went, coloured by the angle of its latent at that moment."""
    figure = Figure(figsize=(1.75, 1.75))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.set_facecolor(PANEL)
    points = np.asarray(episode["path"], float)
    coloured_line(axes, points, np.asarray(episode["theta"], float))
    axes.plot(*points[0], "s", ms=5, mfc=PAPER, mec=INK, mew=1.0)
    axes.plot(*points[-1], "*", ms=9, mfc=INK, mec=PAPER, mew=0.6)
    left, right, top, bottom = view
    axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal", xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def bounds(episodes: Sequence[Episode]) -> tuple[float, float, float, float]:
    """Left, right, top and bottom of a square around every path, y upwards as on graph paper."""
    points = np.concatenate([np.asarray(e["path"], float) for e in episodes])
    low, high = points.min(0), points.max(0)
    middle, half = (low + high) / 2, float((high - low).max()) * 0.56 or 1.0
    return (middle[0] - half, middle[0] + half, middle[1] + half, middle[1] - half)


@styled
def colour_wheel() -> Figure:
    """Which colour is which angle."""
    figure = Figure(figsize=(0.8, 0.8))
    axes = figure.add_axes((0, 0, 1, 1))
    edges = np.linspace(0, 2 * np.pi, 49)
    colours = cyclic()(edges[:-1] / (2 * np.pi))
    for low, high, colour in zip(edges[:-1], edges[1:], colours, strict=True):
        turn = np.linspace(low, high + 0.01, 3)
        outer = np.stack([np.cos(turn), np.sin(turn)], 1)
        axes.fill(*np.concatenate([outer, 0.62 * outer[::-1]]).T, color=colour, lw=0)
    axes.text(0, 0, THETA, ha="center", va="center", fontsize=11, color=INK)
    axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
    axes.axis("off")
    return figure
