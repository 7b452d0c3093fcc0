"""A planner one can look into: which candidates its search tried, and where they would lead.

The candidates are action sequences; the model imagines latents, not places. What is drawn of them
is therefore where each would really lead, found by a second copy of the environment, which the
planner never sees.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float
from torch import Tensor

from sdjepa.config import Plan as Settings
from sdjepa.envs.base import Columns, Env
from sdjepa.plan.agent import Planner
from sdjepa.plan.batch import Bounds
from sdjepa.plan.engine import Dynamics, Engine
from sdjepa.plan.solvers import Cost, Step, as_it_is
from sdjepa.train.checkpoint import Checkpoint

FIRST_SHOWN, LAST_SHOWN = 16, 8  # candidates drawn of the first and of the last round
SECONDS = 0.12  # that drawing them may take

Paths = list[list[list[float]]]


class Interrupted(Exception):
    """The search was given up because somebody wants something else."""


@dataclass(frozen=True)
class Sketch:
    """Where candidates of one search lead, as points of `Env.path`."""

    row: int  # of the frame it was made from
    first: Paths  # the cheapest of the first round
    last: Paths  # the cheapest of the last round
    seconds: float  # the search took


class WatchedEngine(Engine):
    """Keeps the first and the last round of a search, and stops it when asked."""

    def __init__(
        self, dynamics: Dynamics, settings: Settings, *, device, interrupted: Callable[[], bool]
    ) -> None:
        super().__init__(dynamics, settings, device=device)
        self._interrupted = interrupted
        self.rounds: list[tuple[Tensor, Tensor]] = []  # candidates and costs

    def prepare(
        self, start: Tensor, past: Tensor, goal: Tensor
    ) -> tuple[Cost, Callable[[Step], Step]]:
        cost, _ = super().prepare(start, past, goal)
        self.rounds = []
        return partial(self._watched, cost), as_it_is

    def _watched(
        self, cost: Cost, candidates: Float[Tensor, "tasks candidates horizon block"]
    ) -> Float[Tensor, "tasks candidates"]:
        if self._interrupted():
            raise Interrupted
        found = cost(candidates)
        del self.rounds[1:]
        self.rounds.append((candidates.detach(), found.detach()))
        return found


class WatchedPlanner(Planner):
    """A planner whose search can be looked into and stopped."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: Settings,
        *,
        bounds: Bounds,
        interrupted: Callable[[], bool],
    ) -> None:
        # A recorded search runs without us; it could be neither seen nor stopped.
        settings = settings.model_copy(update={"engine": "eager"})
        super().__init__(checkpoint, settings, bounds=bounds)
        self._watched = WatchedEngine(
            checkpoint.model, settings, device=self.device, interrupted=interrupted
        )
        self._engine = self._watched

    def candidates(self, which: int, count: int) -> Float[np.ndarray, "count steps action"]:
        """Raw actions of the cheapest candidates of a round (0 first, -1 last), cheapest first."""
        tried, costs = self._watched.rounds[which]
        best = costs[0].argsort()[:count]
        return self.raw_actions(tried[0][best])


def sketch(
    planner: WatchedPlanner, ghost: Env, *, state: Columns, row: int, seconds: float
) -> Sketch:
    """Follow the search's best candidates in `ghost` from `state`, as many as time allows."""
    ends = time.monotonic() + SECONDS
    found: dict[int, Paths] = {0: [], -1: []}
    for which, count in ((-1, LAST_SHOWN), (0, FIRST_SHOWN)):
        for actions in planner.candidates(which, count):
            if time.monotonic() < ends or not found[which]:  # the best one always
                found[which].append(_follow(ghost, state, actions))
    return Sketch(row=row, first=found[0], last=found[-1], seconds=seconds)


def _follow(
    ghost: Env, state: Columns, actions: Float[np.ndarray, "steps action"]
) -> list[list[float]]:
    ghost.set_state(state)
    seen = [ghost.observe()]
    for action in actions:
        ghost.step(action)
        seen.append(ghost.observe())
    points = ghost.path({name: np.stack([row[name] for row in seen]) for name in seen[0]})
    return np.round(points, 1).tolist()
