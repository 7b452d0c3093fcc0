"""Plans of ours and of stable-worldmodel's CEMSolver with its LeWM, interleaved in one process.

Same frames, same weights, same search (300 candidates, 30 elites, 30 rounds, 5 blocks). A plan is
timed from frames on the host to actions on the host. Theirs plans one task after another, which is
the only batch size its LeWM supports. Besides seconds, every way's plan is priced by one cost in
float32, so that speed bought with worse plans would show.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from sdjepa.bench import SMALL
from sdjepa.config import Model, Plan
from sdjepa.data.episodes import ActionStats
from sdjepa.model.world_model import WorldModel, build
from sdjepa.plan.batch import BatchPlanner, Situation
from sdjepa.runs import Progress, provenance, silent
from sdjepa.seeds import numpy_stream, stream

TASKS = (1, 50)
SMALL_SEARCH: dict[str, Any] = {"tasks": (1, 3), "candidates": 40, "iterations": 4}
OURS_ON_GPU = (("eager", "fp32"), ("graph", "fp32"), ("graph", "tf32"), ("graph", "bf16"))
COMPILED = (("compile", "tf32"), ("compile", "bf16"))  # a minute of compilation each
SLOW_SECONDS = 5.0  # a way this slow is timed once
PUBLISHED_SECONDS = 0.37  # a plan of LeWM in a batch of 100, 300 x 30, as measured by others
Way = Callable[[], Float[Tensor, "tasks horizon block"]]  # a timed plan, normalised


@dataclass(frozen=True)
class Timing:
    """One way of planning for so many tasks."""

    who: str
    tasks: int
    first_seconds: float  # compilation and recording included
    seconds: float  # median over rounds
    spread: tuple[float, float]
    cost_of_plan: float  # mean over tasks, by our model in float32

    @property
    def seconds_per_task(self) -> float:
        return self.seconds / self.tasks


@dataclass(frozen=True)
class PlanBench:
    device: str
    settings: dict[str, int]
    parameters: int
    timings: tuple[Timing, ...]

    def ratio(self, timing: Timing) -> float:
        """How many times faster than theirs in its published precision, same tasks, same run."""
        theirs = next(t for t in self.timings if t.who == "theirs fp32" and t.tasks == timing.tasks)
        return theirs.seconds / timing.seconds

    def lines(self) -> list[str]:
        """For people."""
        said = ", ".join(f"{value} {name}" for name, value in self.settings.items())
        lines = [f"{self.device}; {said}; {self.parameters / 1e6:.1f} million parameters"]
        for t in self.timings:
            lines.append(
                f"{t.tasks:3d} tasks  {t.who:<20}{1000 * t.seconds:10.1f} ms a plan"
                f"{1000 * t.seconds_per_task:10.2f} ms a task{self.ratio(t):8.2f} x"
                f"   cost {t.cost_of_plan:.3f}"
            )
        return lines

    def as_json(self) -> dict[str, object]:
        rows = [
            asdict(t) | {"seconds_per_task": t.seconds_per_task, "ratio": self.ratio(t)}
            for t in self.timings
        ]
        return {
            "device": self.device,
            "settings": self.settings,
            "parameters": self.parameters,
            "published_seconds_per_task": PUBLISHED_SECONDS,
            "timings": rows,
            **provenance(),
        }


def bench_plan(
    *,
    repeats: int = 5,
    small: bool = False,
    tasks: Sequence[int] = TASKS,
    candidates: int = 300,
    iterations: int = 30,
    compiled: bool = False,
    progress: Progress = silent,
) -> PlanBench:
    """Time every way in turn; the first round warms up and is reported apart."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = {"action_dim": 2, "frame_skip": 5, "k": 0, "dropout": 0.0} | (SMALL if small else {})
    config = Model.model_validate(shape)
    ours = _awake(build(config, seed=0)).to(device).eval()
    settings = Plan(
        cost="full",
        candidates=candidates,
        elites=max(2, candidates // 10),
        iterations=iterations,
    )
    timings: list[Timing] = []
    for done, count in enumerate(tasks):
        frames, goals = _frames(count, config.image_size)
        kinds = OURS_ON_GPU + (COMPILED if compiled else ())
        ways = _our_ways(ours, settings, frames, goals, kinds=kinds)
        ways |= _their_ways(ours, settings, frames, goals)
        price = _Price(ours, settings, frames, goals)
        timings += _race(ways, price, tasks=count, repeats=repeats, device=device)
        progress(done + 1, len(tasks))
    return PlanBench(
        device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        settings={
            "candidates": candidates,
            "elites": settings.elites,
            "iterations": iterations,
            "horizon": settings.horizon,
        },
        parameters=sum(p.numel() for p in ours.parameters()),
        timings=tuple(timings),
    )


def _race(
    ways: dict[str, Way],
    price: "_Price",
    *,
    tasks: int,
    repeats: int,
    device: torch.device,
) -> list[Timing]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    plans: dict[str, Tensor] = {}
    for _ in range(repeats + 1):
        for name, way in ways.items():
            if seconds[name][1:] and seconds[name][-1] > SLOW_SECONDS:
                continue
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            plans[name] = way()
            seconds[name].append(time.perf_counter() - began)  # the plan is on the host: it is done
    return [
        Timing(
            who=name,
            tasks=tasks,
            first_seconds=spent[0],
            seconds=statistics.median(spent[1:]),
            spread=(min(spent[1:]), max(spent[1:])),
            cost_of_plan=price(plans[name]),
        )
        for name, spent in seconds.items()
    ]


def _awake(model: WorldModel) -> WorldModel:
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


STATS = ActionStats(mean=np.zeros(2), std=np.ones(2))


def _planner(model: WorldModel, settings: Plan) -> BatchPlanner:
    device = next(model.parameters()).device
    return BatchPlanner(model, STATS, settings=settings, frame_skip=5, device=device)


def _our_ways(
    model: WorldModel,
    settings: Plan,
    frames: np.ndarray,
    goals: np.ndarray,
    *,
    kinds: Sequence[tuple[str, str]],
) -> dict[str, Way]:
    cuda = next(model.parameters()).is_cuda
    ways: dict[str, Way] = {}
    for engine, precision in kinds if cuda else kinds[:1]:
        said = {"engine": engine, "precision": precision, "batch": len(frames)}
        chosen = settings.model_copy(update=said)
        planner = _planner(model, chosen)

        def way(planner: BatchPlanner = planner) -> Tensor:
            streams = [stream(0, "bench", i, device=planner.device) for i in range(len(frames))]
            return planner.blocks(planner.plan(frames, goals, streams=streams)).cpu()

        ways[f"ours {engine} {precision}"] = way
    return ways


def _their_ways(
    model: WorldModel, settings: Plan, frames: np.ndarray, goals: np.ndarray
) -> dict[str, Way]:
    from gymnasium.spaces import Box
    from stable_worldmodel.policy import PlanConfig
    from stable_worldmodel.solver import CEMSolver

    from sdjepa.interop.lewm_keys import lewm_config, to_lewm
    from sdjepa.interop.lewm_peer import instantiate

    device = next(model.parameters()).device
    lewm: Any = instantiate(lewm_config(model.config))
    lewm.load_state_dict(to_lewm(model), strict=True)
    lewm = lewm.to(device).eval()
    mean = np.array((0.485, 0.456, 0.406), dtype=np.float32)
    std = np.array((0.229, 0.224, 0.225), dtype=np.float32)

    def seen(images: np.ndarray) -> Tensor:
        scaled = (images.astype(np.float32) / 255 - mean) / std
        return torch.from_numpy(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)))[:, None]

    # Their policy prepares pictures before it calls the solver: not counted, to their benefit.
    info = {"pixels": seen(frames), "goal": seen(goals)}
    info["action"] = torch.zeros(len(frames), 1, model.block)
    ways: dict[str, Way] = {}
    for precision in ("fp32", "tf32") if device.type == "cuda" else ("fp32",):
        solver = CEMSolver(
            model=lewm,
            batch_size=1,
            num_samples=settings.candidates,
            n_steps=settings.iterations,
            topk=settings.elites,
            device=device,
        )
        solver.configure(
            action_space=Box(-1.0, 1.0, (len(frames), 2)),
            n_envs=len(frames),
            config=PlanConfig(horizon=5, receding_horizon=5, action_block=5),
        )

        def way(solver: Any = solver, tf32: bool = precision == "tf32") -> Tensor:
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            try:
                with redirect_stdout(StringIO()):  # it prints at every plan
                    return solver.solve(dict(info))["actions"]
            finally:
                torch.set_float32_matmul_precision(before)

        ways[f"theirs {precision}"] = way
    return ways


class _Price:
    """What plans cost by our model in float32, whoever made them."""

    def __init__(
        self, model: WorldModel, settings: Plan, frames: np.ndarray, goals: np.ndarray
    ) -> None:
        planner = _planner(model, settings)
        self._device, self._engine = planner.device, planner._engine
        start = planner.encode(frames)[:, None]
        past = start.new_zeros(len(frames), 0, planner.block)
        self._situation = Situation(start=start, past=past, goal=planner.encode(goals))

    @torch.no_grad()
    def __call__(self, plans: Float[Tensor, "tasks horizon block"]) -> float:
        here = self._situation
        cost, _ = self._engine.prepare(here.start, here.past, here.goal)
        return float(cost(plans[:, None].to(self._device)).mean())
