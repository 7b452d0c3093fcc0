"""One person who watches: which part of the show they have, and what to tell them next.

Numbers are sent for every row that was missed, the picture only of the newest: a slow viewer sees
fewer frames and the same curves. At most two messages are under way, so nothing piles up.
"""

import asyncio
import base64
from typing import Any

from sdjepa.watch.film import Film, Goal, Moment
from sdjepa.watch.search import Sketch
from sdjepa.watch.session import PLAN_KEYS, Snapshot

UNDER_WAY = 2  # states sent and not yet drawn
NOTES = 4
COLUMNS = ("theta", "radius", "to_goal", "distance", "surprise", "turn")


class Viewer:
    """The slot of one viewer; all calls from the server's event loop."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._behind = True
        self._under_way = 0
        self._notes: list[dict[str, Any]] = []
        self._film, self._rows = 0, 0
        self._goal: Goal | None = None
        self._sketch: Sketch | None = None

    def wake(self) -> None:
        """There is a newer state than the one last told."""
        self._behind = True
        self._changed.set()

    def note(self, said: dict[str, Any]) -> None:
        """Tell an error or an answer, before the next state; of many the last few."""
        self._notes = [*self._notes[1 - NOTES :], said]
        self._changed.set()

    def seen(self) -> None:
        """The viewer has drawn a state."""
        self._under_way = max(0, self._under_way - 1)
        self._changed.set()

    async def turn(self) -> list[dict[str, Any]]:
        """Wait until it is our turn to speak; notes to tell, or nothing: then tell the state."""
        while not self._notes and not (self._behind and self._under_way < UNDER_WAY):
            self._changed.clear()
            await self._changed.wait()
        notes, self._notes = self._notes, []
        if not notes:
            self._behind = False
            self._under_way += 1
        return notes

    def state(self, now: Snapshot) -> dict[str, Any]:
        """What this viewer does not have yet."""
        film = now.film
        first = self._rows if film.number == self._film else 0
        if film.number != self._film:
            self._goal, self._sketch = None, None
        moments = film.moments[first : now.rows]
        newest = film.moments[now.rows - 1]
        said = _scalars(now) | {
            "first": first,
            "rows": {name: [_short(getattr(m, name)) for m in moments] for name in COLUMNS},
            "places": [[round(v, 2) for v in m.place] for m in moments],
            "picture": _text(newest.picture),
            "seen": _text(newest.seen),
        }
        goal = film.goals[-1]
        if goal is not self._goal:
            said["goal"] = _goal(goal)
        if now.sketch is not self._sketch or self._film != film.number:
            said["sketch"] = _sketch(now.sketch)
        self._film, self._rows, self._goal, self._sketch = film.number, now.rows, goal, now.sketch
        return said


def _scalars(now: Snapshot) -> dict[str, Any]:
    film: Film = now.film
    newest: Moment = film.moments[now.rows - 1]
    return {
        "kind": "state",
        "film": film.number,
        "label": film.label,
        "budget": film.budget,
        "row": now.rows - 1,
        "theta": _short(newest.theta),
        "radius": _short(newest.radius),
        "solved_at": film.solved_at,
        "marks": [{"row": mark.row, "label": mark.label} for mark in list(film.marks)],
        "plans": list(film.plans),
        "task": now.task,
        "running": now.running,
        "planning": now.planning,
        "endless": now.endless,
        "pace": now.pace,
        "rate": _short(now.rate),
        "settings": {name: getattr(now.settings, name) for name in PLAN_KEYS},
    }


def _goal(goal: Goal) -> dict[str, Any]:
    return {
        "theta": _short(goal.theta),
        "radius": _short(goal.radius),
        "place": list(goal.place),
        "picture": _text(goal.picture),
    }


def _sketch(sketch: Sketch | None) -> dict[str, Any] | None:
    if sketch is None:
        return None
    paths = {"first": sketch.first, "last": sketch.last}
    return {"row": sketch.row, "seconds": round(sketch.seconds, 3), **paths}


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _text(png: bytes) -> str:
    return base64.b64encode(png).decode()
