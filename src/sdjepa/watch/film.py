"""The live episode as it grows: what was seen, what the model made of it, where it was interfered.

A film only ever grows, so a reader that knows how long it was may read up to there while the
simulation adds to it; a new episode is a new film.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from sdjepa.envs.base import Columns

MOST_ROWS = 600  # an episode ends here at the latest, so that memory does not grow for ever


@dataclass(frozen=True)
class Goal:
    """Where the planner is to go."""

    row: Columns  # a state the environment can be asked to reach
    latent: Float[Tensor, "latent"]
    theta: float | None
    radius: float | None
    place: tuple[float, float]
    picture: bytes  # PNG of what the planner is shown


@dataclass(frozen=True)
class Moment:
    """One frame and what the model made of it; None where there is nothing to say."""

    columns: Columns
    action: Float[ndarray, "action"]  # raw, led here; zeros where no action did
    latent: Float[Tensor, "latent"]
    place: tuple[float, float]
    theta: float | None
    radius: float | None
    to_goal: float  # length of the latent's difference to the goal's
    distance: float  # to the goal, in the benchmark's own unit
    surprise: float | None  # squared error of the latent foreseen one block ago
    turn: float | None  # the same as an angle, radians
    picture: bytes  # PNG of the whole scene
    seen: bytes  # PNG of what the model is given


@dataclass(frozen=True)
class Mark:
    """Somebody or something stepped in before the frame of `row`."""

    row: int
    label: str


@dataclass
class Film:
    """An episode; lists grow and are never changed otherwise."""

    number: int
    label: str
    budget: int  # steps a task may take in a score
    moments: list[Moment] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)  # the last one holds
    plans: list[int] = field(default_factory=list)  # rows at which a plan was made
    solved_at: int | None = None

    @property
    def steps(self) -> int:
        return len(self.moments) - 1

    @property
    def full(self) -> bool:
        return len(self.moments) >= MOST_ROWS

    def block(self, start: int, count: int) -> Float[ndarray, "count action"]:
        """The actions that led from row `start` to `start + count`."""
        return np.stack([moment.action for moment in self.moments[start + 1 : start + count + 1]])
