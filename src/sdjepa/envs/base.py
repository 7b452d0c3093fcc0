"""Where episodes come from: everything that is known about a task, and by nobody else.

An `Env` is one simulated scene: its state can be set from recorded columns, it steps, draws itself,
measures its distance to a goal and says when the benchmark calls it solved. The same class knows,
without a simulator, what the recorded columns mean: progress measures, events and a path to draw.
Simulators are imported when an environment is made, never when this module is.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int, UInt8

from sdjepa.errors import UserError

Columns = Mapping[str, np.ndarray]
# The raw action for the environment's present state; None ends the episode.
Policy = Callable[[], np.ndarray | None]

NATIVE_SIZE = 224  # pixels; the benchmark's own picture, from which smaller ones are reduced
_CLASSES = {
    "tworoom": "tworoom:TwoRoom",
    "pusht": "pusht:PushT",
    "reacher": "reacher:Reacher",
    "cube": "cube:Cube",
}
NAMES: tuple[str, ...] = tuple(_CLASSES)
NONE = "none"  # how a person says that a dataset is of no environment here
UNKNOWN = "unknown"  # what a dataset's environment is then called


class Env(ABC):
    """One simulated environment; a row is a mapping from recorded column to its value."""

    name: ClassVar[str]
    action_dim: ClassVar[int]
    policies: ClassVar[tuple[str, ...]]  # the first is the default
    noiseless: ClassVar[tuple[str, ...]] = ("random",)  # policies that noise does not change
    state_columns: ClassVar[dict[str, tuple[int, ...]]]  # recorded beside pixels and action: shape
    needed: ClassVar[tuple[str, ...]]  # columns without which no state or goal can be restored
    signature: ClassVar[
        tuple[str, int]
    ]  # a column and its width that only this environment records
    # Left, right, top and bottom edge of the picture in the units of `path`; None where the camera
    # does not look straight down.
    extent: ClassVar[tuple[float, float, float, float] | None] = None
    controlled: ClassVar[tuple[str, ...]]  # columns that actions move at once
    distance_is: ClassVar[str]  # what `distance` measures, its unit first
    action_is: ClassVar[str]  # what the numbers of an action mean, and how they are scaled
    # Things that move by themselves, and which numbers of the signature column say where.
    parts: ClassVar[dict[str, slice]] = {}
    shadows: ClassVar[bool] = False  # whether it draws any, by a map whose size may be chosen
    rows_between_saves: ClassVar[int] = 512  # that a killed collection loses, about
    action_low: np.ndarray
    action_high: np.ndarray

    @abstractmethod
    def __init__(self, *, shadow: int = 0) -> None:
        self._shots: list[np.ndarray] = []

    @abstractmethod
    def reset(self, rng: np.random.Generator) -> None:
        """Draw a scene; it depends on `rng` and on nothing else."""

    @abstractmethod
    def set_state(self, row: Columns) -> None:
        """Go exactly to a recorded state."""

    @abstractmethod
    def set_goal(self, row: Columns) -> None:
        """Make the state of `row` the goal; its names carry no `goal_` prefix."""

    @abstractmethod
    def step(self, action: Float[np.ndarray, "action"]) -> None:
        """Advance by one raw action, clipped only as the benchmark clips."""

    @abstractmethod
    def observe(self) -> dict[str, np.ndarray]:
        """The recorded columns of the present state."""

    @abstractmethod
    def frame(self) -> UInt8[np.ndarray, "224 224 3"]:
        """The benchmark's own picture of the present state."""

    @abstractmethod
    def plain(self) -> UInt8[np.ndarray, "224 224 3"]:
        """The same, drawn by the simulator without any of our ways: slow, and what is right."""

    @abstractmethod
    def distance(self) -> float:
        """How far the goal is, in the benchmark's own unit."""

    @abstractmethod
    def solved(self) -> bool:
        """The benchmark's own success test on the present state."""

    @abstractmethod
    def policy(
        self, name: str, *, noise: float, rng: np.random.Generator, demos_given: Path | None = None
    ) -> Policy:
        """A policy for an episode that begins now; it may set the scene first."""

    def shortfall(self) -> float:
        """How far success is: the distance, and whatever else the test of success asks for."""
        return self.distance()

    def succeeded(self) -> bool:
        """Whether the policy has just done what it set out to do."""
        return self.solved()

    def other_success(self) -> dict[str, bool]:
        """Other readings of success than the benchmark's, by name."""
        return {}

    @classmethod
    def default_policy(cls, demos_given: Path | None) -> str:
        return cls.policies[0]

    @classmethod
    def describe_policy(cls, name: str, demos_given: Path | None) -> dict[str, str]:
        """What else decided the policy's actions, to be recorded with the data."""
        return {}

    def render(self, size: int) -> UInt8[np.ndarray, "size size 3"]:
        """The benchmark's picture, reduced to `size` pixels by area averaging."""
        return reduce(self.frame(), size)

    def shoot(self) -> None:
        """Take a frame of the present state, to be had from `develop`."""
        self._shots.append(self.frame())

    def finished(self) -> list[UInt8[np.ndarray, "224 224 3"]]:
        """Frames taken and not yet had that can be had without further work, in order."""
        shots, self._shots = self._shots, []
        return shots

    def develop(self) -> list[UInt8[np.ndarray, "224 224 3"]]:
        """All frames taken and not yet had; on a GPU cheaper than `frame` after `frame`."""
        return self.finished()

    def close(self) -> None:  # noqa: B027 (most environments hold nothing to give back)
        """Give back what the simulator holds."""

    @classmethod
    @abstractmethod
    def measures(cls, columns: Columns) -> dict[str, Float[np.ndarray, "rows"]]:
        """How far along an episode is, row by row; the most goal-like measure first."""

    @classmethod
    @abstractmethod
    def events(cls, columns: Columns) -> dict[str, Int[np.ndarray, "events"]]:
        """Rows of an episode at which something has just happened."""

    @classmethod
    @abstractmethod
    def path(cls, columns: Columns) -> Float[np.ndarray, "rows 2"]:
        """Where the episode went, as points to draw."""

    @classmethod
    def exchange(cls, row: Columns, other: Columns, part: str) -> dict[str, np.ndarray]:
        """The state of `row` with one of `parts` as it is in `other`."""
        column, where = cls.signature[0], cls.parts[part]
        state = np.array(row[column], dtype=np.float64)
        state[where] = np.asarray(other[column], dtype=np.float64)[where]
        return {**row, column: state}

    def agent_at(self, row: Columns, point: Float[np.ndarray, "2"]) -> dict[str, np.ndarray]:
        """The state of `row` with the agent brought to where somebody points; units of `path`."""
        raise UserError(f"in {self.name} one cannot point at a place; draw another task instead")

    def goal_at(self, row: Columns, point: Float[np.ndarray, "2"]) -> dict[str, np.ndarray]:
        """The goal state `row` brought to where somebody points; units of `path`."""
        return self.agent_at(row, point)

    @classmethod
    def check_shadow(cls, shadow: int) -> None:
        if shadow and not cls.shadows:
            raise UserError(f"{cls.name} draws no shadows; leave collect.shadow at 0")

    @classmethod
    def check_policy(cls, name: str) -> None:
        if name not in cls.policies:
            raise UserError(f"{cls.name} has no policy {name!r}; it has {', '.join(cls.policies)}")


def env_class(name: str) -> type[Env]:
    """The environment's class, without starting a simulator."""
    if name not in _CLASSES:
        raise UserError(f"unknown environment {name!r}; there are {', '.join(NAMES)}")
    module, _, leaf = _CLASSES[name].partition(":")
    return getattr(importlib.import_module(f"sdjepa.envs.{module}"), leaf)


def called(word: str) -> str:
    """The environment that a person's word means: one of ours, or "none" for no simulator here."""
    if word not in (*NAMES, NONE):
        raise UserError(f"unknown environment {word!r}; there are {', '.join(NAMES)} and {NONE}")
    return UNKNOWN if word == NONE else word


def make(name: str, *, shadow: int = 0) -> Env:
    """One environment, ready to reset; `shadow` is the side of the shadow map, 0 the benchmark's.

    A smaller shadow map is faster to draw without a GPU, and changes pixels.
    """
    return env_class(name)(shadow=shadow)


def reduce(frame: UInt8[np.ndarray, "224 224 3"], size: int) -> UInt8[np.ndarray, "size size 3"]:
    """A native frame at `size` pixels, by area averaging."""
    if size == NATIVE_SIZE:
        return frame
    if size > NATIVE_SIZE:
        raise UserError(f"size {size} exceeds the environment's {NATIVE_SIZE} pixels")
    import cv2

    return cv2.resize(frame, (size, size), interpolation=cv2.INTER_AREA)


def guess(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The environment whose recording has columns of these shapes; "unknown" where none fits."""
    for name in NAMES:
        env = env_class(name)
        column, width = env.signature
        if shapes.get(column) == (width,) and shapes.get("action") in (None, (env.action_dim,)):
            return name
    return UNKNOWN


def fits(name: str, shapes: Mapping[str, tuple[int, ...]], action_dim: int) -> str | None:
    """What columns of these shapes lack, or have of another kind, to be of environment `name`.

    Reads on after the words "DATA has"; None where nothing is amiss. Columns that other programs
    leave out are not asked for.
    """
    env = env_class(name)
    for column in env.needed:
        wanted, found = env.state_columns[column], shapes.get(column)
        if found is None:
            return f"no column {column!r}, which {name} needs"
        if tuple(found) != wanted:
            have, need = (" x ".join(map(str, shape)) or "1" for shape in (found, wanted))
            return f"a column {column!r} of shape {have}, where {name}'s is {need}"
    if action_dim != env.action_dim:
        return f"actions of {action_dim} numbers, where {name}'s are of {env.action_dim}"
    return None


def speed(positions: Float[np.ndarray, "rows dim"]) -> Float[np.ndarray, "rows"]:
    """Distance covered since the previous row; 0 at the first."""
    steps = np.linalg.norm(np.diff(positions.astype(np.float64), axis=0), axis=-1)
    return np.concatenate([np.zeros(min(1, len(positions))), steps])
