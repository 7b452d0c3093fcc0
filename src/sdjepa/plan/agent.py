"""A checkpoint that acts: frames in, raw actions out. No environment, no dataset.

planner = Planner(load_checkpoint(RUN))
actions = planner.plan(frames, goals, streams=...)
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from sdjepa.config import Plan as Settings
from sdjepa.model.split import Parts
from sdjepa.plan.costs import candidate_cost
from sdjepa.plan.solvers import SOLVERS
from sdjepa.train.checkpoint import Checkpoint


class Planner:
    """Plans for many tasks at once; each task's plan is what it would be alone."""

    def __init__(self, checkpoint: Checkpoint, settings: Settings | None = None) -> None:
        self.model = checkpoint.model
        self.stats = checkpoint.stats
        self.settings = settings or checkpoint.config.plan
        self.frame_skip = checkpoint.config.model.frame_skip
        self.device = next(self.model.parameters()).device

    @torch.no_grad()
    def plan(
        self,
        frames: UInt8[np.ndarray, "tasks height width 3"],
        goals: UInt8[np.ndarray, "tasks height width 3"],
        *,
        streams: Sequence[torch.Generator],
    ) -> Float[np.ndarray, "tasks steps action"]:
        """Raw actions of the whole horizon for each task, to be executed in order."""
        # One task at a time on the CPU: batching gains nothing there, and a matrix product's last bit
        # may depend on how many rows it has.
        chunk = 1 if self.device.type == "cpu" else len(frames)
        plans = [
            self._plan_chunk(frames[i : i + chunk], goals[i : i + chunk], streams[i : i + chunk])
            for i in range(0, len(frames), chunk)
        ]
        return np.concatenate(plans)

    def _plan_chunk(
        self,
        frames: UInt8[np.ndarray, "tasks height width 3"],
        goals: UInt8[np.ndarray, "tasks height width 3"],
        streams: Sequence[torch.Generator],
    ) -> Float[np.ndarray, "tasks steps action"]:
        both = torch.from_numpy(np.stack([frames, goals], axis=1)).to(self.device)
        latents = self.model.encode(both)
        start, goal = latents[:, :1], self.model.split(latents[:, 1])

        def cost(
            candidates: Float[Tensor, "tasks candidates horizon block"],
        ) -> Float[Tensor, "tasks candidates"]:
            tasks, count = candidates.shape[:2]
            reached = self.model.rollout(
                start.repeat_interleave(count, dim=0),
                candidates.new_zeros(tasks * count, 0, self.model.block),
                candidates.flatten(0, 1),
            )
            parts = self.model.split(reached.view(tasks, count, *reached.shape[1:]))
            return candidate_cost(parts, goal, settings=self.settings)

        solve = SOLVERS[self.settings.solver]
        found = solve(
            cost, self.settings, streams=streams, block=self.model.block, device=self.device
        )
        return self.raw_actions(found.actions)

    def raw_actions(
        self, blocks: Float[Tensor, "tasks horizon block"]
    ) -> Float[np.ndarray, "tasks steps action"]:
        """Normalised blocks as raw actions, one per environment step."""
        tasks = len(blocks)
        flat = blocks.double().cpu().numpy().reshape(tasks, -1, len(self.stats.mean))
        return flat * self.stats.std + self.stats.mean

    @torch.no_grad()
    def read(self, frames: UInt8[np.ndarray, "count height width 3"]) -> Parts:
        """Progress and content of single frames."""
        latents = self.model.encode(torch.from_numpy(frames)[:, None].to(self.device))
        return self.model.split(latents[:, 0])
