"""Planning across the border: our model under stable-worldmodel's solvers, its LeWM under ours.

    solver = CEMSolver(model=CostModel(Planner(load_checkpoint(RUN))), batch_size=50)
    policy = WorldModelPolicy(solver, plan_config(model.planner), process=scalers(model.planner))
    world.set_policy(policy); world.evaluate(...)

`CostModel` takes frames as the simulator draws them (uint8, channels last): give the policy no
`transform` for them. Any number of tasks may share a batch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from sdjepa.config import Plan, Score
from sdjepa.data.episodes import ActionStats, Episodes
from sdjepa.errors import UserError
from sdjepa.model.split import Parts
from sdjepa.plan.agent import Camera, Planner, Receding
from sdjepa.plan.batch import BatchPlanner
from sdjepa.score import play, task_list
from sdjepa.scoring.simulation import simulate
from sdjepa.scoring.stage import Actor
from sdjepa.statistics import Paired, paired
from sdjepa.tasks import Outcome
from sdjepa.train.checkpoint import load_checkpoint

KEPT = "sdjepa_cost"  # a solver hands over the same dict at every iteration: room to remember


class CostModel(nn.Module):
    """Our checkpoint as something their solvers can ask for costs."""

    def __init__(self, planner: Planner) -> None:
        super().__init__()
        self.planner = planner
        self.model = planner.model  # so that a solver finds the type of its parameters

    def get_cost(
        self,
        info_dict: dict[str, Any],
        action_candidates: Float[Tensor, "tasks candidates horizon block"],
    ) -> Float[Tensor, "tasks candidates"]:
        """Costs of candidates; start and goal are encoded at the first call with this dict."""
        if KEPT not in info_dict:
            start = self.planner.encode(self._frames(info_dict, "pixels"))[:, None]
            goal = self.planner.encode(self._frames(info_dict, "goal"))
            past = start.new_zeros(len(start), 0, self.planner.block)
            info_dict[KEPT] = self.planner._engine.cost(start, past, goal)
        return info_dict[KEPT](action_candidates.to(self.planner.device))

    def criterion(self, info_dict: dict[str, Any], action_candidates: Tensor) -> Tensor:
        return self.get_cost(info_dict, action_candidates)

    def _frames(self, info: dict[str, Any], name: str) -> UInt8[np.ndarray, "tasks h w 3"]:
        """The last frame of each task; every candidate of a task has the same one."""
        frames = torch.as_tensor(info[name])
        size = self.model.config.image_size
        if frames.dtype != torch.uint8 or tuple(frames.shape[-3:]) != (size, size, 3):
            raise UserError(
                f"{name} has {frames.dtype} frames of {tuple(frames.shape[-3:])}; this model takes "
                f"uint8 of ({size}, {size}, 3): use World(image_shape=({size}, {size})) and give "
                "the policy no transform for pixels and goal"
            )
        return frames[:, 0, -1].cpu().numpy()


class Scaler:
    """The checkpoint's action normaliser with the methods their policy calls."""

    def __init__(self, stats: ActionStats) -> None:
        self._stats = stats

    def transform(self, x: np.ndarray) -> np.ndarray:
        return (x - self._stats.mean) / self._stats.std

    def inverse_transform(self, x: np.ndarray) -> np.ndarray:
        return x * self._stats.std + self._stats.mean


def scalers(planner: BatchPlanner) -> dict[str, Scaler]:
    """For their policy's `process`."""
    return {"action": Scaler(planner.stats)}


def plan_config(planner: BatchPlanner) -> Any:
    """Their `PlanConfig` with our horizon, replanning and block."""
    from stable_worldmodel.policy import PlanConfig

    settings = planner.settings
    return PlanConfig(
        horizon=settings.horizon,
        receding_horizon=settings.replan,
        action_block=planner.frame_skip,
        warm_start=settings.warm_start,
    )


class LeWMDynamics:
    """stable-worldmodel's LeWM as a world model our planner can imagine with."""

    MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def __init__(self, lewm: Any, *, block: int) -> None:
        self.block = block
        self._lewm = lewm.eval()
        self._history = lewm.predictor.pos_embedding.shape[1]

    def encode(
        self, frames: UInt8[Tensor, "batch time height width 3"]
    ) -> Float[Tensor, "batch time latent"]:
        mean = 255 * torch.tensor(self.MEAN, device=frames.device)
        std = 255 * torch.tensor(self.STD, device=frames.device)
        pixels = ((frames.float() - mean) / std).movedim(-1, -3)
        return self._lewm.encode({"pixels": pixels})["emb"]

    def rollout(
        self,
        latents: Float[Tensor, "batch context latent"],
        past_actions: Float[Tensor, "batch past block"],
        actions: Float[Tensor, "batch horizon block"],
    ) -> Float[Tensor, "batch horizon latent"]:
        context = latents.shape[1]
        embedded = self._lewm.action_encoder(torch.cat([past_actions, actions], dim=1))
        path = list(latents.unbind(dim=1))
        for step in range(actions.shape[1]):
            low = max(0, context + step - self._history)
            window = torch.stack(path[low:], dim=1)
            path.append(self._lewm.predict(window, embedded[:, low : context + step])[:, -1])
        return torch.stack(path[context:], dim=1)

    def split(self, latents: Float[Tensor, "*shape latent"]) -> Parts:
        return Parts(progress=latents[..., :0], content=latents)


def lewm_planner(
    lewm: nn.Module, stats: ActionStats, *, settings: Plan, frame_skip: int = 5
) -> BatchPlanner:
    """Their LeWM behind our planner."""
    return BatchPlanner(
        LeWMDynamics(lewm, block=frame_skip * len(stats.mean)),
        stats,
        settings=settings,
        frame_skip=frame_skip,
        device=next(lewm.parameters()).device,
    )


class TheirCEM:
    """Acts as their policy does, but under our protocol: their CEMSolver with our cost."""

    def __init__(
        self,
        planner: Planner,
        camera: Camera,
        *,
        goals: UInt8[np.ndarray, "tasks height width 3"],
        seed: int,
    ) -> None:
        from gymnasium.spaces import Box
        from stable_worldmodel.solver import CEMSolver

        settings = planner.settings
        self._planner, self._camera, self._goals = planner, camera, goals
        self._solver = CEMSolver(
            model=CostModel(planner),
            num_samples=settings.candidates,
            n_steps=settings.iterations,
            topk=settings.elites,
            var_scale=settings.initial_std,
            device=planner.device,
            seed=seed,
        )
        width = len(planner.stats.mean)
        self._solver.configure(
            action_space=Box(-1.0, 1.0, (len(goals), width)),
            n_envs=len(goals),
            config=plan_config(planner),
        )

    def __call__(self, active: list[int]) -> Float[np.ndarray, "active steps action"]:
        frames = torch.from_numpy(self._camera(active))[:, None]
        goals = torch.from_numpy(self._goals[active])[:, None]
        found = self._solver.solve({"pixels": frames, "goal": goals})["actions"]
        return self._planner.raw_actions(found[:, : self._planner.settings.replan])


def compare_solvers(
    run: Path, data_path: Path, *, settings: Score, plan: Plan, seed: int = 1234
) -> tuple[list[Outcome], list[Outcome], Paired]:
    """Our CEM and theirs with one cost on one task list: outcomes of both, and the difference."""
    loaded = load_checkpoint(run)
    size = loaded.config.model.image_size
    data = Episodes.open(data_path, size=size).require(size)
    tasks = task_list(data, settings).tasks
    goals = data.frames(np.array([task.rows(data)[1] for task in tasks]))
    planner = Planner(loaded, plan)
    names: Sequence[tuple[int | str, ...]] = [(task.episode, task.start) for task in tasks]
    found = []
    with simulate(data, tasks, settings) as scenes:
        actors: list[Actor] = [
            Receding(planner, scenes.render, goals=goals, names=names),
            TheirCEM(planner, scenes.render, goals=goals, seed=seed),
        ]
        for actor in actors:
            scenes.place()
            found.append(play(scenes, actor, count=len(tasks), budget=settings.budget))
    ours, theirs = found
    test = paired([o.success for o in ours], [o.success for o in theirs])
    return ours, theirs, test
