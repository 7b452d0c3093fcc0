"""The simulator as a world model: candidates are lived through in it, not imagined.

It fits where a trained model fits, so search, replanning and warm starts are the very same. Its
"latent" is one number, how far the goal is by the environment's own measure; at the goal that is 0,
and the planner's squared difference of latents is the squared distance. A planner that fails with
this model fails for another reason than its model.
"""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from sdjepa.config import Plan as Settings
from sdjepa.data.episodes import ActionStats
from sdjepa.envs.base import Env
from sdjepa.errors import UserError
from sdjepa.model.split import Parts
from sdjepa.plan.agent import Receding
from sdjepa.plan.batch import BatchPlanner, Bounds

# The distance, or the distance with what else success asks for; mostly they are the same.
Measure = Literal["distance", "success"]
NOTHING_TO_SEE = np.zeros((1, 1, 1, 3), dtype=np.uint8)  # the simulator knows where it is


class Simulator:
    """Dynamics of one task: rolls out in `dream` from where `world` stands now.

    `dream` has the task's goal and no memory. `world` is only looked at, so what a state leaves
    out, such as contacts a physics engine remembers, goes on there and begins anew in the dream.
    """

    def __init__(
        self,
        world: Env,
        dream: Env,
        *,
        stats: ActionStats,
        frame_skip: int,
        measure: Measure = "distance",
    ) -> None:
        self._world, self._dream = world, dream
        self._far = dream.distance if measure == "distance" else dream.shortfall
        self._stats, self._frame_skip = stats, frame_skip
        self.block = frame_skip * world.action_dim

    def encode(
        self, frames: UInt8[Tensor, "batch time height width 3"]
    ) -> Float[Tensor, "batch time 1"]:
        """The goal's latent, whatever the picture: nothing is read from pixels."""
        return torch.zeros(*frames.shape[:2], 1)

    def rollout(
        self,
        latents: Float[Tensor, "batch context 1"],
        past_actions: Float[Tensor, "batch past block"],
        actions: Float[Tensor, "batch horizon block"],
    ) -> Float[Tensor, "batch horizon 1"]:
        """The distance to the goal after every block of every candidate."""
        here, dream = self._world.observe(), self._dream
        shape = (*actions.shape[:2], self._frame_skip, -1)
        raw = actions.double().numpy().reshape(shape) * self._stats.std + self._stats.mean
        distances = np.empty(raw.shape[:2], dtype=np.float32)
        for candidate, blocks in enumerate(raw):
            dream.set_state(here)
            for number, block in enumerate(blocks):
                for action in block:
                    dream.step(action)
                distances[candidate, number] = self._far()
        return torch.from_numpy(distances)[..., None]

    def split(self, latents: Float[Tensor, "*shape 1"]) -> Parts:
        return Parts(progress=latents[..., :0], content=latents)


def simulator_planner(
    world: Env,
    dream: Env,
    *,
    stats: ActionStats,
    settings: Settings,
    frame_skip: int,
    measure: Measure = "distance",
) -> BatchPlanner:
    """Plans for the one task at which `world` and `dream` were placed."""
    check(settings)
    return BatchPlanner(
        Simulator(world, dream, stats=stats, frame_skip=frame_skip, measure=measure),
        stats,
        # Which parts of a latent count is a question for models that have parts.
        settings=settings.model_copy(update={"cost": "content"}),
        frame_skip=frame_skip,
        device=torch.device("cpu"),
        bounds=Bounds(world.action_low, world.action_high),
    )


def check(settings: Settings) -> None:
    """Refuse a search that needs more than costs."""
    if settings.solver == "gradient":
        raise UserError("a simulator has no gradients; choose cem, icem or mppi for plan.solver")


def receding(planner: BatchPlanner, name: tuple[int | str, ...]) -> Receding:
    """What acts on that task; its random numbers depend on `name` as those of a model's planner."""
    return Receding(planner, lambda active: NOTHING_TO_SEE, goals=NOTHING_TO_SEE, names=[name])
