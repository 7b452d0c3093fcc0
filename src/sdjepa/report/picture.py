"""The one picture of a run: planned paths in the environment, success over its floors, the dial."""

import base64
import io
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.image
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from sdjepa.errors import UserError
from sdjepa.report import published
from sdjepa.report.course_figures import draw_dial
from sdjepa.report.figures import draw_path, draw_success
from sdjepa.report.read import RunFiles, Score, read_runs
from sdjepa.report.style import INK, MUTED, PAPER, styled, to_bytes
from sdjepa.runs import write_atomic


def picture(run: Path, out: Path) -> Path:
    """Write a wide PNG of `run` to `out`; needs a score with recorded episodes and a compass."""
    (read,) = read_runs([run])
    score = read.headline
    if score is None or not score.rollouts:
        raise UserError(f"{run} has no recorded planned episodes; run: sdjepa score {run}")
    course = next((item for item in read.compass if item.name == "course"), None)
    if course is None:
        raise UserError(f"{run} has no compass; run: sdjepa compass {run}")
    figure = _draw(read, score, course.record["results"]["episodes"])
    return write_atomic(out, to_bytes(figure, "png", dpi=160, facecolor=PAPER))


@styled
def _draw(run: RunFiles, score: Score, episodes: Any) -> Figure:
    figure = Figure(figsize=(12, 4.5), facecolor=PAPER)
    room = figure.add_gridspec(1, 3, width_ratios=(4.6, 4.0, 3.4))
    left, middle, right = (figure.add_subfigure(room[0, i]) for i in range(3))
    for part in (left, middle, right):
        part.set_facecolor(PAPER)
    _paths(left, score)
    _bars(middle, run, score)
    axes = right.add_axes((0.04, 0.1, 0.92, 0.74))
    draw_dial(axes, episodes)
    _heading(
        right,
        "It carries a compass",
        "its progress part in unseen episodes, square to star",
    )
    return figure


def _heading(part: SubFigure, title: str, below: str) -> None:
    part.text(0.04, 0.94, title, fontsize=13, fontweight="bold", color=INK, va="center")
    part.text(0.04, 0.875, below, fontsize=8.5, color=MUTED, va="center")


def _paths(part: SubFigure, score: Score) -> None:
    _heading(part, "It plans from pixels", "start, what the planner did, goal")
    shown = score.rollouts[:6]
    grid = part.subplots(
        2, 3, gridspec_kw={"left": 0.04, "right": 0.96, "bottom": 0.06, "top": 0.82,
                           "wspace": 0.06, "hspace": 0.06},
    )  # fmt: skip
    for number, axes in enumerate(grid.flat):
        axes.axis("off")
        if number < len(shown):
            _path(axes, shown[number])


def _path(axes: Axes, rollout: Any) -> None:
    draw_path(axes, rollout)
    extent = rollout.get("extent")
    if extent is None:
        axes.axis("on")
        return
    left, right, top, bottom = extent
    image = matplotlib.image.imread(
        io.BytesIO(base64.b64decode(rollout["frames"][0])), format="png"
    )
    axes.imshow(image, extent=(left, right, bottom, top), zorder=-1, interpolation="antialiased")
    axes.set(xlim=(left, right), ylim=(bottom, top))


def _bars(part: SubFigure, run: RunFiles, score: Score) -> None:
    title = published.title(score.env)
    _heading(
        part,
        f"It solves {score.num_solved} of {len(score.tasks)} tasks",
        f"success in {title}, %, with 95 % intervals",
    )
    axes = part.add_axes((0.36, 0.2, 0.54, 0.56))
    draw_success(axes, [("This run", score)], published=(), wide=True)
