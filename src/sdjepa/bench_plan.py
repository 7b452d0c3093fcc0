"""Plans of ours and of stable-worldmodel's CEMSolver with its LeWM, in one process, way after way.

Same frames, same weights, same search (300 candidates, 30 elites, 30 rounds, 5 blocks). A plan is
timed from frames on the host to actions on the host. Theirs plans one task after another, which is
the only batch size its LeWM supports. Besides seconds, every way's plan is priced by one cost in
float32, so that speed bought with worse plans would show; and its latents are compared with those
of the plain rollout. Every figure is handed out as soon as it is known.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
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
from sdjepa.runs import provenance
from sdjepa.seeds import numpy_stream, stream

TASKS = (1, 50)
SMALL_SEARCH: dict[str, Any] = {"tasks": (1, 3), "candidates": 40, "iterations": 4}
# In the order in which they are timed: compilation takes longest and comes when the rest is known.
RECORDED = (("graph", "bf16"), ("graph", "tf32"), ("graph", "fp32"), ("eager", "fp32"))
COMPILED = (("compile", "bf16"),)
PUBLISHED_SECONDS = 0.37  # a plan of LeWM in a batch of 100, 300 x 30, as measured by others
STATS = ActionStats(mean=np.zeros(2), std=np.ones(2))


@dataclass(frozen=True)
class Way:
    """One way of planning for so many tasks."""

    who: str
    tasks: int
    plan: Callable[[], Float[Tensor, "tasks horizon block"]]  # normalised, on the host
    planner: BatchPlanner | None = None  # of ours


@dataclass(frozen=True)
class Timing:
    """What one way took and what its plans are worth; `error` where it did not come to an end."""

    who: str
    tasks: int
    first_seconds: float | None = None  # compilation and recording included
    seconds: float | None = None  # median
    spread: tuple[float, float] | None = None
    repeats: int = 0
    cost_of_plan: float | None = None  # mean over tasks, by our model in float32
    latent_error: float | None = None  # root mean square, in standard deviations of the latents
    error: str = ""


@dataclass(frozen=True)
class PlanBench:
    device: str
    settings: dict[str, int]
    parameters: int
    origin: dict[str, Any]
    timings: tuple[Timing, ...] = ()

    def ratio(self, timing: Timing) -> float | None:
        """How many times faster than theirs in its published precision, same tasks, same run."""
        theirs = [t for t in self.timings if t.who == "theirs fp32" and t.tasks == timing.tasks]
        if not theirs or theirs[0].seconds is None or timing.seconds is None:
            return None
        return theirs[0].seconds / timing.seconds

    def head(self) -> str:
        said = ", ".join(f"{value} {name}" for name, value in self.settings.items())
        return f"{self.device}; {said}; {self.parameters / 1e6:.1f} million parameters"

    def line(self, t: Timing) -> str:
        """One way, for people."""
        who = f"{t.tasks:3d} tasks  {t.who:<20}"
        if t.seconds is None:
            return f"{who}{t.error}"
        ratio = self.ratio(t)
        line = (
            f"{who}{1000 * t.seconds:10.1f} ms a plan{1000 * t.seconds / t.tasks:10.2f} ms a task"
        )
        line += f"{ratio:8.2f} x" if ratio else " " * 10
        line += f"   cost {t.cost_of_plan:.3f}"
        if t.first_seconds is not None:
            line += f"   first {t.first_seconds:.1f} s"
        if t.latent_error is not None:
            line += f"   latents off by {t.latent_error:.1e}"
        return line

    def lines(self) -> list[str]:
        """All ways, by number of tasks."""
        ordered = sorted(self.timings, key=lambda t: (t.tasks, t.who.startswith("ours")))
        return [self.head(), *(self.line(t) for t in ordered)]

    def as_json(self) -> dict[str, object]:
        rows = [
            asdict(t)
            | {
                "seconds_per_task": None if t.seconds is None else t.seconds / t.tasks,
                "ratio": self.ratio(t),
            }
            for t in self.timings
        ]
        return {
            "device": self.device,
            "settings": self.settings,
            "parameters": self.parameters,
            "published_seconds_per_task": PUBLISHED_SECONDS,
            "timings": rows,
            **self.origin,
        }


def bench_plan(
    *,
    repeats: int = 5,
    seconds: float = 5.0,  # of timed plans per way; one is always timed
    small: bool = False,
    tasks: Sequence[int] = TASKS,
    candidates: int = 300,
    iterations: int = 30,
) -> Iterator[PlanBench]:
    """Time every way; what is known so far comes out after each."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = {"action_dim": 2, "frame_skip": 5, "k": 0, "dropout": 0.0} | (SMALL if small else {})
    config = Model.model_validate(shape)
    model = _awake(build(config, seed=0)).to(device).eval()
    settings = Plan(
        cost="full",
        candidates=candidates,
        elites=max(2, candidates // 10),
        iterations=iterations,
    )
    known = PlanBench(
        device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        settings={
            "candidates": candidates,
            "elites": settings.elites,
            "iterations": iterations,
            "horizon": settings.horizon,
        },
        parameters=sum(p.numel() for p in model.parameters()),
        origin=provenance(),
    )
    warm: set[str] = set()
    for way, price in _programme(model, settings, tasks):
        # Theirs does at 50 tasks what it does at 1, fifty times: nothing is left to warm up.
        ready = way.planner is None and way.who in warm
        timing = _timed(way, price, repeats=repeats, seconds=seconds, ready=ready)
        warm.add(way.who)
        known = replace(known, timings=(*known.timings, timing))
        yield known


def _programme(
    model: WorldModel, settings: Plan, tasks: Sequence[int]
) -> Iterator[tuple[Way, "_Price"]]:
    """Ways in the order in which their figures are worth having, should time run out."""
    cuda = next(model.parameters()).is_cuda
    lewm = _lewm(model)
    prices: dict[int, _Price] = {}

    def ours(count: int, kind: tuple[str, str]) -> tuple[Way, _Price]:
        return _our_way(model, settings, prices[count], kind), prices[count]

    def theirs(count: int, precision: str) -> tuple[Way, _Price]:
        return _their_way(lewm, settings, prices[count], precision), prices[count]

    few, *many = tasks
    for count in tasks:
        frames, goals = _frames(count, model.config.image_size)
        prices[count] = _Price(model, settings, frames, goals)
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


def _timed(way: Way, price: "_Price", *, repeats: int, seconds: float, ready: bool) -> Timing:
    timing = Timing(who=way.who, tasks=way.tasks)
    spent: list[float] = []
    try:
        first = None if ready else _seconds(way)[0]
        while True:
            took, plan = _seconds(way)
            spent.append(took)
            if len(spent) >= repeats or sum(spent) + took > seconds:
                break
        return replace(
            timing,
            first_seconds=first,
            seconds=statistics.median(spent),
            spread=(min(spent), max(spent)),
            repeats=len(spent),
            cost_of_plan=price(plan),
            latent_error=None if way.planner is None else price.latent_error(way.planner),
        )
    except RuntimeError as error:  # out of memory, or a compiler's: the other ways still count
        return replace(timing, error=f"{type(error).__name__}: {str(error).strip()[:400]}")
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _seconds(way: Way) -> tuple[float, Tensor]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    plan = way.plan()
    return time.perf_counter() - began, plan  # which is on the host: it is done


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


def _planner(model: WorldModel, settings: Plan) -> BatchPlanner:
    device = next(model.parameters()).device
    return BatchPlanner(model, STATS, settings=settings, frame_skip=5, device=device)


def _our_way(model: WorldModel, settings: Plan, price: "_Price", kind: tuple[str, str]) -> Way:
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


def _their_way(lewm: Any, settings: Plan, price: "_Price", precision: str) -> Way:
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


class _Price:
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
        self._situation = Situation(start=start, past=past, goal=planner.encode(goals))
        self._cost = engine.cost(start, past, self._situation.goal)
        shape = (settings.candidates, settings.horizon, planner.block)
        self._trial = torch.randn(shape, generator=stream(0, "bench", "trial")).to(self._device)

    @torch.no_grad()
    def __call__(self, plans: Float[Tensor, "tasks horizon block"]) -> float:
        return float(self._cost(plans[:, None].to(self._device)).mean())

    @torch.no_grad()
    def latent_error(self, planner: BatchPlanner) -> float:
        """How far a planner's latents are from the plain rollout's, for one task's candidates."""
        trial = self._trial
        start = self._situation.start[:1].expand(len(trial), -1, -1)
        plain = self._model.rollout(start, trial[:, :0], trial)
        with planner._engine.precision():
            found = planner._engine._rollout(start, trial[:, :0], trial)
        return float(
            (found - plain).square().mean().sqrt() / plain.std(dim=0).square().mean().sqrt()
        )
