"""A live film in, a page of its own out: the report's player with one episode."""

import base64
import time
from pathlib import Path

import numpy as np

from sdjepa.report.blocks import escape
from sdjepa.report.course_figures import bounds
from sdjepa.report.player import Item, markup, rounded, series
from sdjepa.report.shell import asset, document
from sdjepa.report.style import THETA
from sdjepa.runs import write_atomic
from sdjepa.watch.film import Film
from sdjepa.watch.world import World


def record(world: World, out: Path) -> Path:
    """Write the film so far to a new file in `out`."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    item = film_item(
        world.film, extent=world.env.extent, frame_skip=world.checkpoint.config.model.frame_skip
    )
    path, number = out / f"episode-{stamp}.html", 1
    while path.exists():
        path, number = out / f"episode-{stamp}-{number}.html", number + 1
    return write_atomic(path, page(item))


def page(item: Item) -> str:
    """The page of one recorded episode."""
    body = (
        '<div class="page"><header><div class="bar"><span class="name">SD-JEPA, recorded live'
        "</span>"
        '<button class="theme" type="button" style="margin-left:auto">Dark</button></div></header>'
        f'<section style="border-top:0;margin-top:0"><header><h2>{escape(item["label"])}</h2>'
        "</header>"
        f"{markup([item])}</section></div>"
    )
    scripts = [asset("page.js"), asset("draw.js"), asset("player.js")]
    return document(item["label"], body, styles=[asset("style.css")], scripts=scripts)


def film_item(
    film: Film, *, extent: tuple[float, float, float, float] | None, frame_skip: int
) -> Item:
    """The film as the player wants it."""
    moments, goal = list(film.moments), film.goals[-1]
    path = [list(moment.place) for moment in moments]
    theta = [moment.theta for moment in moments]
    radius = [moment.radius for moment in moments]
    has_needle = None not in theta
    traces = []
    if has_needle:
        unwrapped = np.unwrap(np.array(theta, dtype=float))
        traces += [series(f"{THETA}, radians", unwrapped), series("r, length", radius)]
    traces += [
        series("way to the goal in the latent", [moment.to_goal for moment in moments]),
        series("way to the goal in truth", [moment.distance for moment in moments]),
    ]
    foreseen = [moment for moment in moments if moment.surprise is not None]
    first = len(moments) - len(foreseen)
    if foreseen:
        traces.append(
            series("surprise of the latent", [moment.surprise for moment in foreseen], first=first)
        )
        if has_needle:
            traces.append(
                series(f"surprise of {THETA}", [moment.turn for moment in foreseen], first=first)
            )
    ending = f"goal reached at step {film.solved_at}" if film.solved_at else "goal not reached"
    return {
        "group": "Recorded live",
        "label": f"{film.label}, {ending}",
        "path": rounded(path, 1),
        "view": list(extent or bounds([{"path": [*path, list(goal.place)]}])),
        "overlay": extent is not None,
        "theta": rounded(theta, 3) if has_needle else None,
        "radius": rounded(radius, 3) if has_needle else None,
        "traces": traces,
        "marks": [{"row": mark.row, "kind": "cut", "label": mark.label} for mark in film.marks],
        "frames": [base64.b64encode(moment.picture).decode() for moment in moments],
        "every": 1,
        "goal": rounded(goal.place, 1),
        "goal_frame": base64.b64encode(goal.picture).decode(),
        "note": "Dashed: somebody interfered (hover to read what). Surprise is how wrong the model "
        f"was about this frame {frame_skip} steps before it.",
    }
