"""A checkpoint that acts: frames in, raw actions out. No environment, no dataset.

`Planner` makes single plans. `Receding` follows them: it looks when a plan is due, executes some
blocks of it, remembers what it saw and did, and plans again.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from sdjepa.config import Plan as Settings
from sdjepa.errors import UserError
from sdjepa.model.split import Parts
from sdjepa.plan.batch import BatchPlanner, Bounds, Situation
from sdjepa.runs import Progress, silent
from sdjepa.seeds import stream
from sdjepa.train.checkpoint import Checkpoint

# Frames of the present of the tasks of these numbers.
Camera = Callable[[list[int]], UInt8[np.ndarray, "active height width 3"]]


class Planner(BatchPlanner):
    """Plans with a checkpoint of ours."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: Settings | None = None,
        *,
        bounds: Bounds | None = None,
    ) -> None:
        self.model = checkpoint.model
        super().__init__(
            checkpoint.model,
            checkpoint.stats,
            settings=settings or checkpoint.config.plan,
            frame_skip=checkpoint.config.model.frame_skip,
            device=next(checkpoint.model.parameters()).device,
            bounds=bounds,
        )
        if self.settings.history > self.model.config.history:
            raise UserError(
                f"plan.history = {self.settings.history} exceeds the {self.model.config.history} "
                "latents the model was trained to read; lower --history"
            )

    @torch.no_grad()
    def read(self, frames: UInt8[np.ndarray, "count height width 3"]) -> Parts:
        """Progress and content of single frames."""
        return self.model.split(self.encode(frames))


class Receding:
    """Acts on many tasks in step: plan, execute `replan` blocks, plan again from what is seen.

    With `ahead` = fixed the end of the horizon moves away as fast as one walks, and a planner that
    is only asked to be there at the end never has to arrive. With shrink it stays where the first
    plan put it: the second plan is one block shorter, and so on; then a full horizon begins anew.
    """

    def __init__(
        self,
        planner: BatchPlanner,
        camera: Camera,
        *,
        goals: UInt8[np.ndarray, "tasks height width 3"],
        names: Sequence[tuple[int | str, ...]],  # a task's own: its random numbers depend on it
        progress: Progress = silent,
    ) -> None:
        self._planner, self._camera, self._progress = planner, camera, progress
        self._goals = planner.encode(goals)
        self._names = names
        self._seen: list[list[Tensor]] = [[] for _ in names]  # latents, one block apart
        self._done: list[list[Tensor]] = [[] for _ in names]  # blocks executed between them
        self._plans: list[Tensor] = [torch.empty(0)] * len(names)  # not yet executed
        self._blocks_spent = self._until_plan = 0
        self.num_plans = 0  # of single tasks
        self.seconds = 0.0  # encoding and searching, simulation excluded

    def __call__(self, active: list[int]) -> Float[np.ndarray, "active steps action"]:
        """Raw actions up to the next moment at which a frame is needed."""
        history = self._planner.settings.history
        if self._until_plan < history:
            self._look(active)
        if self._until_plan == 0:
            self._plan(active)
        count = max(1, self._until_plan - history + 1)
        acted = torch.stack([self._plans[i][:count] for i in active])
        for i, blocks in zip(active, acted, strict=True):
            self._plans[i] = self._plans[i][count:]
            # More than one block at a time means that nobody looked in between.
            self._seen[i] = self._seen[i][1 - history :] if count == 1 and history > 1 else []
            self._done[i] = [*self._done[i], blocks[0]][1 - history :] if self._seen[i] else []
        self._until_plan -= count
        self._blocks_spent += count
        return self._planner.raw_actions(acted)

    def _look(self, active: list[int]) -> None:
        frames = self._camera(active)
        began = time.monotonic()
        for i, latent in zip(active, self._planner.encode(frames), strict=True):
            self._seen[i].append(latent)
        self.seconds += time.monotonic() - began

    def _plan(self, active: list[int]) -> None:
        planner, settings = self._planner, self._planner.settings
        horizon = settings.horizon
        if settings.ahead == "shrink":
            horizon -= self._blocks_spent % settings.horizon
        names = (settings.seed, "plan")
        streams = [
            stream(*names, *self._names[i], self._blocks_spent, device=planner.device)
            for i in active
        ]
        began = time.monotonic()
        found = planner.search(
            self._situation(active),
            streams=streams,
            horizon=horizon,
            guess=self._left_over(active) if settings.warm_start else None,
            progress=self._progress,
        )
        for i, blocks in zip(active, found.actions, strict=True):
            self._plans[i] = blocks
        if planner.device.type == "cuda":
            torch.cuda.synchronize(planner.device)
        self.seconds += time.monotonic() - began
        self.num_plans += len(active)
        self._until_plan = min(settings.replan, horizon)

    def _situation(self, active: list[int]) -> Situation:
        start = torch.stack([torch.stack(self._seen[i]) for i in active])
        past = start.new_zeros(len(active), 0, self._planner.block)
        if start.shape[1] > 1:
            past = torch.stack([torch.stack(self._done[i]) for i in active])
        return Situation(start=start, past=past, goal=self._goals[active])

    def _left_over(self, active: list[int]) -> Float[Tensor, "active left block"] | None:
        left = [self._plans[i] for i in active]
        return torch.stack(left) if len(left[0]) else None
