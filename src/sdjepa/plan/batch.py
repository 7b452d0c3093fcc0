"""Frames or latents of many tasks in, a plan for each out; each is what it would be alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from sdjepa.config import Plan as Settings
from sdjepa.data.episodes import ActionStats
from sdjepa.errors import UserError
from sdjepa.plan.engine import Dynamics, Engine
from sdjepa.plan.solvers import SOLVERS, Plan, Problem
from sdjepa.runs import Progress, silent

FRAMES_AT_ONCE = 256  # encoded together on a GPU


@dataclass(frozen=True)
class Bounds:
    """The raw action space."""

    low: Float[np.ndarray, "action"]
    high: Float[np.ndarray, "action"]


@dataclass(frozen=True)
class Situation:
    """Where tasks stand and where they want to go, as latents."""

    start: Float[Tensor, "tasks context latent"]
    past: Float[Tensor, "tasks past block"]  # actions between the latents of `start`
    goal: Float[Tensor, "tasks latent"]

    def cut(self, part: slice) -> "Situation":
        return Situation(self.start[part], self.past[part], self.goal[part])


class BatchPlanner:
    """Plans with any world model that is a `Dynamics`."""

    def __init__(
        self,
        dynamics: Dynamics,
        stats: ActionStats,
        *,
        settings: Settings,
        frame_skip: int,
        device: torch.device,
        bounds: Bounds | None = None,
    ) -> None:
        self.stats, self.settings, self.frame_skip, self.device = (
            stats,
            settings,
            frame_skip,
            device,
        )
        self.block = dynamics.block
        self._dynamics = dynamics
        self._engine = Engine(dynamics, settings, device=device)
        if len(stats.mean) * frame_skip != dynamics.block:
            raise UserError(
                f"the model takes blocks of {dynamics.block} numbers, {frame_skip} actions of "
                f"{len(stats.mean)} make {len(stats.mean) * frame_skip}; give its own statistics"
            )
        self._low = self._high = None
        if settings.bounds == "clip":
            if bounds is None:
                raise UserError(
                    "plan.bounds = clip needs to know the action space: give bounds, or use none"
                )
            self._low, self._high = (self._block(b) for b in (bounds.low, bounds.high))

    def _block(self, bound: Float[np.ndarray, "action"]) -> Float[Tensor, "block"]:
        scaled = (np.asarray(bound, dtype=np.float64) - self.stats.mean) / self.stats.std
        return torch.from_numpy(np.tile(scaled, self.frame_skip)).float().to(self.device)

    @torch.no_grad()
    def encode(
        self, frames: UInt8[np.ndarray, "count height width 3"]
    ) -> Float[Tensor, "count latent"]:
        """Latents of single frames; on the CPU each alone, so that company changes no bit."""
        size = FRAMES_AT_ONCE if self.device.type == "cuda" else 1
        parts = []
        for low in range(0, len(frames), size):
            part = torch.from_numpy(np.ascontiguousarray(frames[low : low + size]))
            parts.append(self._dynamics.encode(part[:, None].to(self.device))[:, 0])
        return torch.cat(parts)

    def plan(
        self,
        frames: UInt8[np.ndarray, "tasks height width 3"],
        goals: UInt8[np.ndarray, "tasks height width 3"],
        *,
        streams: Sequence[torch.Generator],
        progress: Progress = silent,
    ) -> Float[np.ndarray, "tasks steps action"]:
        """Raw actions of the whole horizon for each task, to be executed in order."""
        start, goal = self.encode(np.concatenate([frames, goals])).split(len(frames))
        past = start.new_zeros(len(frames), 0, self.block)
        situation = Situation(start=start[:, None], past=past, goal=goal)
        found = self.search(situation, streams=streams, progress=progress)
        return self.raw_actions(found.actions)

    @torch.no_grad()
    def search(
        self,
        situation: Situation,
        *,
        streams: Sequence[torch.Generator],
        horizon: int | None = None,
        guess: Float[Tensor, "tasks left block"] | None = None,
        progress: Progress = silent,
    ) -> Plan:
        """Normalised blocks for each task; `guess` is the beginning of a plan to start from."""
        tasks, settings = len(situation.goal), self.settings
        horizon = horizon or settings.horizon
        first = situation.start.new_zeros(tasks, horizon, self.block)
        if guess is not None:
            first[:, : guess.shape[1]] = guess[:, :horizon]
        size = self._engine.tasks_at_once(
            situation.start,
            situation.past,
            situation.goal,
            trial=first.new_zeros(1, settings.candidates, horizon, self.block),
        )
        plans = []
        for low in range(0, tasks, size):
            part = slice(low, low + size)
            here = situation.cut(part)
            cost, accelerate = self._engine.prepare(here.start, here.past, here.goal)
            problem = Problem(
                cost=cost,
                streams=streams[part],
                guess=first[part],
                action_dim=len(self.stats.mean),
                low=self._low,
                high=self._high,
                accelerate=accelerate,
            )
            plans.append(SOLVERS[settings.solver](problem, settings))
            progress(min(low + size, tasks), tasks, "plans")
        return Plan(
            actions=torch.cat([plan.actions for plan in plans]),
            best_cost=_join([plan.best_cost for plan in plans]),
        )

    def raw_actions(
        self, blocks: Float[Tensor, "tasks horizon block"]
    ) -> Float[np.ndarray, "tasks steps action"]:
        """Normalised blocks as raw actions, one per environment step."""
        tasks = len(blocks)
        flat = blocks.double().cpu().numpy().reshape(tasks, -1, len(self.stats.mean))
        return flat * self.stats.std + self.stats.mean

    def blocks(
        self, actions: Float[np.ndarray, "tasks steps action"]
    ) -> Float[Tensor, "tasks horizon block"]:
        """Raw actions as normalised blocks; undoes `raw_actions`."""
        scaled = (np.asarray(actions, dtype=np.float64) - self.stats.mean) / self.stats.std
        shaped = scaled.reshape(len(scaled), -1, self.block)
        return torch.from_numpy(shaped).float().to(self.device)


def _join(traces: list[Tensor]) -> Tensor:
    """Traces of searches that a time limit may have given different numbers of rounds."""
    most = max(trace.shape[1] for trace in traces)
    padded = [torch.nn.functional.pad(t, (0, most - t.shape[1]), value=torch.nan) for t in traces]
    return torch.cat(padded)
