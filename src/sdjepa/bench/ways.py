"""The ways of planning that `bench plan` times, and the one price all of their plans are given.

Same frames, same weights, same search. Theirs plans one task after another, which is the only batch
size its LeWM supports.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from sdjepa.config import Plan
from sdjepa.data.episodes import ActionStats
from sdjepa.model.world_model import WorldModel
from sdjepa.plan.batch import BatchPlanner
from sdjepa.seeds import numpy_stream, stream

# In the order in which they are timed: compilation takes longest and comes when the rest is known.
RECORDED = (("graph", "bf16"), ("graph", "tf32"), ("graph", "fp32"), ("eager", "fp32"))
COMPILED = (("compile", "bf16"),)
STATS = ActionStats(mean=np.zeros(2), std=np.ones(2))


@dataclass(frozen=True)
class Way:
    """One way of planning for so many tasks."""

    who: str
    tasks: int
    plan: Callable[[], Float[Tensor, "tasks horizon block"]]  # normalised, on the host
    planner: BatchPlanner | None = None  # of ours


def programme(
    model: WorldModel, settings: Plan, tasks: Sequence[int]
) -> Iterator[tuple[Way, "Price"]]:
    """Ways in the order in which their figures are worth having, should time run out."""
    cuda = next(model.parameters()).is_cuda
    lewm = _lewm(model)
    prices: dict[int, Price] = {}

    def ours(count: int, kind: tuple[str, str]) -> tuple[Way, Price]:
        return _our_way(model, settings, prices[count], kind), prices[count]

    def theirs(count: int, precision: str) -> tuple[Way, Price]:
        return _their_way(lewm, settings, prices[count], precision), prices[count]

    few, *many = tasks
    for count in tasks:
        frames, goals = _frames(count, model.config.image_size)
        prices[count] = Price(model, settings, frames, goals)
    yield theirs(few, "fp32")
    for count in tasks:
        for kind in RECORDED if cuda else RECORDED[-1:]:
            yield ours(count, kind)
    for kind in COMPILED if cuda else ():
        # Kernels are chosen for the batch seen first: the largest is the one that needs it.
        for count in sorted(tasks, reverse=True):
            yield ours(count, kind)
    for count in many:
        yield theirs(count, "fp32")
    if cuda:
        yield theirs(few, "tf32")


def awake(model: WorldModel) -> WorldModel:
    """A new predictor ignores its actions (gates start at 0), which would make every plan equal."""
    generator = stream(0, "bench", "awake")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return model


def _frames(tasks: int, size: int) -> tuple[UInt8[np.ndarray, "tasks h w 3"], ...]:
    rng = numpy_stream(0, "bench", "frames")
    both = rng.integers(0, 256, (2, tasks, size, size, 3), dtype=np.uint8)
    return both[0], both[1]


def _planner(model: WorldModel, settings: Plan) -> BatchPlanner:
    device = next(model.parameters()).device
    return BatchPlanner(model, STATS, settings=settings, frame_skip=5, device=device)


def _our_way(model: WorldModel, settings: Plan, price: "Price", kind: tuple[str, str]) -> Way:
    engine, precision = kind
    count = len(price.frames)
    said = {"engine": engine, "precision": precision, "batch": count}
    planner = _planner(model, settings.model_copy(update=said))

    def plan() -> Tensor:
        streams = [stream(0, "bench", i, device=planner.device) for i in range(count)]
        return planner.blocks(planner.plan(price.frames, price.goals, streams=streams)).cpu()

    return Way(f"ours {engine} {precision}", count, plan, planner)


def _lewm(model: WorldModel) -> Any:
    from sdjepa.interop.lewm_keys import lewm_config, to_lewm
    from sdjepa.interop.lewm_peer import instantiate

    lewm: Any = instantiate(lewm_config(model.config))
    lewm.load_state_dict(to_lewm(model), strict=True)
    return lewm.to(next(model.parameters()).device).eval()


def _their_way(lewm: Any, settings: Plan, price: "Price", precision: str) -> Way:
    from gymnasium.spaces import Box
    from stable_worldmodel.policy import PlanConfig
    from stable_worldmodel.solver import CEMSolver

    mean = np.array((0.485, 0.456, 0.406), dtype=np.float32)
    std = np.array((0.229, 0.224, 0.225), dtype=np.float32)

    def seen(images: np.ndarray) -> Tensor:
        scaled = (images.astype(np.float32) / 255 - mean) / std
        return torch.from_numpy(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)))[:, None]

    # Their policy prepares pictures before it calls the solver: not counted, to their benefit.
    count = len(price.frames)
    info = {"pixels": seen(price.frames), "goal": seen(price.goals)}
    info["action"] = torch.zeros(count, 1, 10)
    solver = CEMSolver(
        model=lewm,
        batch_size=1,
        num_samples=settings.candidates,
        n_steps=settings.iterations,
        topk=settings.elites,
        device=next(lewm.parameters()).device,
    )
    solver.configure(
        action_space=Box(-1.0, 1.0, (count, 2)),
        n_envs=count,
        config=PlanConfig(horizon=5, receding_horizon=5, action_block=5),
    )

    def plan() -> Tensor:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        try:
            with redirect_stdout(StringIO()):  # it prints at every plan
                return solver.solve(dict(info))["actions"]
        finally:
            torch.set_float32_matmul_precision(before)

    return Way(f"theirs {precision}", count, plan)


class Price:
    """What plans cost by our model in float32, whoever made them."""

    def __init__(
        self, model: WorldModel, settings: Plan, frames: np.ndarray, goals: np.ndarray
    ) -> None:
        self.frames, self.goals = frames, goals
        self._model = model
        planner = _planner(model, settings.model_copy(update={"engine": "eager"}))
        self._device, engine = planner.device, planner._engine
        start = planner.encode(frames)[:, None]
        past = start.new_zeros(len(frames), 0, planner.block)
        self._start, self._cost = start, engine.cost(start, past, planner.encode(goals))
        shape = (settings.candidates, settings.horizon, planner.block)
        self._trial = torch.randn(shape, generator=stream(0, "bench", "trial")).to(self._device)

    @torch.no_grad()
    def __call__(self, plans: Float[Tensor, "tasks horizon block"]) -> float:
        return float(self._cost(plans[:, None].to(self._device)).mean())

    @torch.no_grad()
    def latent_error(self, planner: BatchPlanner) -> float:
        """How far a planner's latents are from the plain rollout's, for one task's candidates."""
        trial = self._trial
        start = self._start[:1].expand(len(trial), -1, -1)
        plain = self._model.rollout(start, trial[:, :0], trial)
        with planner._engine.precision():
            found = planner._engine._rollout(start, trial[:, :0], trial)
        return float(
            (found - plain).square().mean().sqrt() / plain.std(dim=0).square().mean().sqrt()
        )
