"""Figures of planning and training: result files in, one figure out; no files, no models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullLocator

from sdjepa.config import Objectives
from sdjepa.report.published import Published
from sdjepa.report.read import FLOORS, Rate, Score
from sdjepa.report.style import (
    BLUE,
    FAINT,
    INK,
    MUTED,
    PANEL,
    PAPER,
    RULE,
    SERIES,
    VERMILION,
    panel,
    quiet,
    styled,
)

FLOOR_NAMES = {
    "noop": "Do nothing",
    "random": "Random actions",
    "gaussian": "Random, data-scaled",
    "replay": "Replay the recording",
}


@dataclass(frozen=True)
class _Row:
    label: str
    kind: str  # run, floor, published
    rate: Rate
    colour: str


@styled
def success(
    runs: Sequence[tuple[str, Score]],
    *,
    published: Sequence[Published] = (),
    wide: bool = True,
) -> Figure:
    """Success of each run with its interval, above the floors and the published numbers."""
    num_rows = len(runs) + len(runs[0][1].floors) + len(published)
    pitch = 0.29 if wide else 0.44
    gaps = 0.55 * (bool(runs[0][1].floors) + bool(published))
    figure = Figure(figsize=(7.2 if wide else 3.55, pitch * (num_rows + gaps) + 0.45))
    bottom = 0.3 / figure.get_figheight()
    left, width = (0.235, 0.70) if wide else (0.01, 0.88)
    axes = figure.add_axes((left, bottom, width, 1 - bottom))
    draw_success(axes, runs, published=published, wide=wide)
    return figure


def draw_success(
    axes: Axes,
    runs: Sequence[tuple[str, Score]],
    *,
    published: Sequence[Published],
    wide: bool,
) -> None:
    """The bars of `success`; `wide` puts labels beside them, else above."""
    rows = [
        _Row(label, "run", score.rate, SERIES[i % len(SERIES)])
        for i, (label, score) in enumerate(runs)
    ]
    floors = runs[0][1].floors
    rows += [
        _Row(FLOOR_NAMES[name], "floor", floors[name], FAINT) for name in FLOORS if name in floors
    ]
    rows += [
        _Row(item.name, "published", Rate(item.value, item.value, item.value), MUTED)
        for item in published
    ]
    heights = _row_positions(rows, gap=0.55)
    for row, y in zip(rows, heights, strict=True):
        _success_row(axes, row, y, wide=wide)
    axes.set(xlim=(0, 100), ylim=(heights[-1] + 0.55, -0.5), yticks=[])
    axes.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
    quiet(axes, grid="x")


def _row_positions(rows: Sequence[_Row], *, gap: float) -> list[float]:
    positions, y = [], 0.0
    for before, row in zip([None, *rows[:-1]], rows, strict=True):
        y += gap if before is not None and before.kind != row.kind else 0.0
        positions.append(y)
        y += 1.0
    return positions


def _success_row(axes: Axes, row: _Row, y: float, *, wide: bool) -> None:
    thickness = {"run": 0.66, "floor": 0.4, "published": 0.0}[row.kind] * (1 if wide else 0.5)
    bold = "bold" if row.kind == "run" else "normal"
    colour = row.colour if row.kind == "run" else MUTED
    y_bar = y if wide else y + 0.22
    value, low, high = row.rate.value, row.rate.low, row.rate.high
    if thickness:
        axes.barh(y_bar, value, height=thickness, color=row.colour, alpha=0.28, linewidth=0)
        line = {"solid_capstyle": "butt", "clip_on": False, "color": colour}
        axes.plot([low, high], [y_bar, y_bar], lw=2.0 if row.kind == "run" else 1.2, **line)
        edge = [y_bar - thickness / 2, y_bar + thickness / 2]
        axes.plot([value, value], edge, lw=3.2 if row.kind == "run" else 2.0, **line)
    else:
        axes.plot([0, value], [y_bar, y_bar], color=RULE, lw=1.0, zorder=2)
        axes.plot(value, y_bar, "D", ms=4.6, mfc=PAPER, mec=MUTED, mew=1.1, clip_on=False, zorder=4)
    if wide:
        axes.text(-1.6, y, row.label, ha="right", va="center", fontweight=bold, color=colour)
    else:
        axes.text(0, y - 0.18, row.label, ha="left", va="center", fontweight=bold, color=colour)
    x = max(value, high) + 1.8
    axes.text(x, y_bar, f"{value:.3g}", ha="left", va="center", fontweight=bold, color=colour)


def apart(heights: Sequence[float], *, least: float = 10.0) -> list[float]:
    """Heights for words beside curves, moved down where two would stand on each other."""
    placed, above = list(heights), float("inf")
    for i in sorted(range(len(heights)), key=lambda i: -heights[i]):
        placed[i] = above = min(heights[i], above - least)
    return placed


@styled
def solved_by_step(runs: Sequence[tuple[str, Score]]) -> Figure:
    """Share of tasks solved within so many environment steps."""
    figure, axes = panel(3.6, 1.9)
    quiet(axes)
    last = max(score.budget or 1 for _, score in runs)
    ends = apart([100 * score.num_solved / max(len(score.tasks), 1) for _, score in runs])
    for i, (label, score) in enumerate(runs):
        steps = np.sort([t.steps_to_success for t in score.tasks if t.steps_to_success is not None])
        last = max(last, int(steps[-1]) if len(steps) else 1)
        share = 100 * np.arange(len(steps) + 1) / max(len(score.tasks), 1)
        axes.step([0, *steps, last], [*share, share[-1]], where="post", color=SERIES[i % 6])
        if len(runs) > 1:
            axes.text(last * 1.02, ends[i], label, color=SERIES[i % 6], va="center", fontsize=8)
    axes.set(
        xlim=(0, last),
        ylim=(0, 100),
        xlabel="environment steps",
        title="% of tasks solved within so many steps",
    )
    axes.set_yticks([0, 25, 50, 75, 100])
    return figure


@styled
def planned_path(rollout: Mapping[str, Any]) -> Figure:
    """One planned episode seen from above: where it began, what it did, where the goal was.

    With the rollout's `extent` (left, right, top, bottom of the picture in path units) it lies
    exactly over the environment's own picture; without, it stands alone.
    """
    figure = Figure(figsize=(1.75, 1.75))
    draw_path(figure.add_axes((0, 0, 1, 1)), rollout)
    return figure


def draw_path(axes: Axes, rollout: Mapping[str, Any]) -> None:
    """Path, start and goal of `planned_path`."""
    path = np.asarray(rollout["path"], dtype=float).reshape(-1, 2)
    start, goal = np.asarray(rollout["start"], float), np.asarray(rollout["goal"], float)
    axes.plot(path[:, 0], path[:, 1], color=PAPER, lw=3.4)
    axes.plot(path[:, 0], path[:, 1], color=BLUE, lw=1.7)
    axes.plot(*start[:2], "o", ms=5.5, mfc=INK, mec=PAPER, mew=0.8)
    axes.plot(*goal[:2], "*", ms=11, mfc=VERMILION, mec=PAPER, mew=0.8)
    extent = rollout.get("extent")
    if extent is None:
        axes.set_facecolor(PANEL)
        everything = np.concatenate([path, start[None, :2], goal[None, :2]])
        middle = (everything.min(0) + everything.max(0)) / 2
        half = float(np.ptp(everything, axis=0).max()) * 0.6 or 1.0
        extent = (middle[0] - half, middle[0] + half, middle[1] + half, middle[1] - half)
    left, right, top, bottom = extent
    axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)


_OBJECTIVES = {
    name.removesuffix("_weight") for name in Objectives.model_fields if name.endswith("_weight")
}


def loss_terms(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """The logged training terms, total first, then in the order they were first written."""
    terms = [name for name in _numbers(metrics) if name == "loss" or name in _OBJECTIVES]
    return sorted(terms, key=lambda term: term != "loss")


def health_terms(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """What else was logged about the model: spread, rank, rollouts, conflict between terms."""
    aside = {"step", "epoch", "learning_rate", "steps_per_second", "seconds", "loss"}
    aside |= {"frames_per_second", "share_of_chip", "token_cover"}
    return [
        name
        for name in _numbers(metrics)
        if name not in aside | _OBJECTIVES and not name.startswith("validation_")
    ]


def _numbers(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(
        dict.fromkeys(
            key
            for record in metrics
            for key, value in record.items()
            if isinstance(value, int | float)
        )
    )


@styled
def loss_curve(runs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], *, term: str) -> Figure:
    """One term over training: line for training, dots for held-out episodes."""
    figure, axes = panel(2.9, 1.95)
    quiet(axes)
    values: list[float] = []
    for i, (_, metrics) in enumerate(runs):
        colour = SERIES[i % len(SERIES)]
        train = _series(metrics, term)
        held_out = _series(metrics, f"validation_{term}")
        if len(train):
            alone = "o" if len(train) < 3 else None  # one point makes no line
            axes.plot(*train.T, color=colour, linewidth=1.2, marker=alone, markersize=3.6)
        if len(held_out):
            axes.plot(
                *held_out.T, color=colour, marker="o", markersize=3.6, markerfacecolor=PAPER,
                linewidth=0.8, linestyle=(0, (1, 2)),
            )  # fmt: skip
        values += [*train[:, 1], *held_out[:, 1]]
    positive = [value for value in values if value > 0]
    if positive and len(positive) == len(values) and max(positive) > 20 * min(positive):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=6))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_title(term.replace("_", " "))
    axes.set_xlabel("training step")
    return figure


def _series(metrics: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    points = [(record["step"], record[key]) for record in metrics if record.get(key) is not None]
    return np.asarray(points, dtype=float).reshape(-1, 2)
