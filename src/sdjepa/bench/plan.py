"""Plans of ours and of stable-worldmodel's CEMSolver with its LeWM, in one process, way after way.

A plan is timed from frames on the host to actions on the host. Besides seconds, every way's plan is
priced by one cost in float32, so that speed bought with worse plans would show; and its latents are
compared with those of the plain rollout. Every figure is handed out as soon as it is known.
"""

import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sdjepa.bench.train import SMALL
from sdjepa.bench.ways import Price, Way, awake, programme
from sdjepa.config import Model, Plan
from sdjepa.model.world_model import build
from sdjepa.runs import provenance

TASKS = (1, 50)
SMALL_SEARCH: dict[str, Any] = {"tasks": (1, 3), "candidates": 40, "iterations": 4}
PUBLISHED_SECONDS = 0.37  # a plan of LeWM in a batch of 100, 300 x 30, as measured by others


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
    only: Sequence[str] = (),  # ways whose names contain one of these; all, unless given
) -> Iterator[PlanBench]:
    """Time every way; what is known so far comes out after each."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = {"action_dim": 2, "frame_skip": 5, "k": 0, "dropout": 0.0} | (SMALL if small else {})
    config = Model.model_validate(shape)
    model = awake(build(config, seed=0)).to(device).eval()
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
    for way, price in programme(model, settings, tasks):
        if only and not any(word in way.who for word in only):
            continue
        # Theirs does at 50 tasks what it does at 1, fifty times: nothing is left to warm up.
        ready = way.who.startswith("theirs") and way.who in warm
        timing = _timed(way, price, repeats=repeats, seconds=seconds, ready=ready)
        if timing.seconds is not None:
            warm.add(way.who)
        known = replace(known, timings=(*known.timings, timing))
        yield known


def _timed(way: Way, price: Price, *, repeats: int, seconds: float, ready: bool) -> Timing:
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
