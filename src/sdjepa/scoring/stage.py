"""Environments of this process that stand at tasks' starts and are moved by actions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from jaxtyping import Float, UInt8

from sdjepa.envs.base import Columns, Env, make

# Raw actions (active tasks, steps, action) to execute next, for the tasks of these numbers.
Actor = Callable[[list[int]], Float[np.ndarray, "active steps action"]]


@dataclass(frozen=True)
class Place:
    """Where a task begins and where it should end, as recorded rows."""

    start: Columns
    goal: Columns

    def put(self, env: Env) -> None:
        env.set_state(self.start)
        env.set_goal(self.goal)


@dataclass(frozen=True)
class Moved:
    """What some actions did to one task."""

    steps: int  # executed; fewer than asked for when the goal was reached on the way
    solved: bool
    distance: float
    other: dict[str, bool]  # other readings of success: whether met at any of the steps


@dataclass
class Record:
    """A watched task: its columns at every step, a frame at every action block."""

    columns: list[dict[str, np.ndarray]] = field(default_factory=list)
    frames: list[UInt8[np.ndarray, "size size 3"]] = field(default_factory=list)


class Scenes(Protocol):
    """Tasks that can be moved."""

    def measure(self, tasks: Sequence[int]) -> dict[int, Moved]: ...

    def advance(
        self, moves: Mapping[int, Float[np.ndarray, "steps action"]]
    ) -> dict[int, Moved]: ...


class Here:
    """Environments of this process; `watch` is called before the first and after each step."""

    def __init__(
        self, envs: Mapping[int, Env], watch: Callable[[int], None] = lambda number: None
    ) -> None:
        self._envs, self._watch = envs, watch

    def measure(self, tasks: Sequence[int]) -> dict[int, Moved]:
        for number in tasks:
            self._watch(number)
        envs = {number: self._envs[number] for number in tasks}
        return {i: Moved(0, e.solved(), e.distance(), e.other_success()) for i, e in envs.items()}

    def advance(self, moves: Mapping[int, Float[np.ndarray, "steps action"]]) -> dict[int, Moved]:
        """Move each task until its actions end or its goal is reached."""
        done = {}
        for number, actions in moves.items():
            env, steps, solved = self._envs[number], 0, False
            other: dict[str, bool] = {}
            for action in actions:
                env.step(action)
                self._watch(number)
                steps, solved = steps + 1, env.solved()
                other = {name: met or other.get(name, False) for name, met in _others(env)}
                if solved:
                    break
            done[number] = Moved(steps, solved, env.distance(), other)
        return done


def _others(env: Env) -> Iterable[tuple[str, bool]]:
    return env.other_success().items()


class Stage(Here):
    """Makes the environments of some tasks, puts them in place, draws them, keeps records."""

    def __init__(
        self,
        env: str,
        places: Mapping[int, Place],
        *,
        size: int,
        watched: Sequence[int] = (),
        every: int = 5,
    ) -> None:
        self._places, self._size, self._every = places, size, every
        self._made = {number: make(env) for number in places}
        self._watched = set(watched) & set(places)
        self._records: dict[int, Record] = {}
        super().__init__(self._made, self._note)

    def place(self, tasks: Sequence[int], *, watch: bool = False) -> None:
        """Back to the start; with `watch` the watched tasks are recorded from there on."""
        for number in tasks:
            self._places[number].put(self._made[number])
            self._records.pop(number, None)
            if watch and number in self._watched:
                self._records[number] = Record()

    def _note(self, number: int) -> None:
        if number not in self._records:
            return
        record = self._records[number]
        if len(record.columns) % self._every == 0:
            record.frames.append(self._made[number].render(self._size))
        record.columns.append(self._made[number].observe())

    def render(self, tasks: Sequence[int]) -> dict[int, UInt8[np.ndarray, "size size 3"]]:
        return {number: self._made[number].render(self._size) for number in tasks}

    def records(self, tasks: Sequence[int]) -> dict[int, Record]:
        return {number: self._records[number] for number in tasks if number in self._records}

    def close(self) -> None:
        for env in self._made.values():
            env.close()
