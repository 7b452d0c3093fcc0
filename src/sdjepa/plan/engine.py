"""Start, goal and candidates in, costs out: where a plan's time goes.

On a GPU a round of the search can be recorded once as a CUDA graph and replayed, because a single
task is bound by the launching of some hundred small kernels and not by their arithmetic.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from sdjepa.config import Plan as Settings
from sdjepa.errors import UserError
from sdjepa.model.split import Parts
from sdjepa.model.world_model import WorldModel
from sdjepa.plan.costs import candidate_cost
from sdjepa.plan.rollout import rollout
from sdjepa.plan.solvers import Cost, Step, as_it_is

SHARE_OF_FREE_MEMORY = 0.6
MOST_TASKS = 256


class Dynamics(Protocol):
    """What a world model must offer to be planned with."""

    block: int  # numbers in one action block

    def encode(
        self, frames: UInt8[Tensor, "batch time height width 3"]
    ) -> Float[Tensor, "batch time latent"]: ...

    def rollout(
        self,
        latents: Float[Tensor, "batch context latent"],
        past_actions: Float[Tensor, "batch past block"],
        actions: Float[Tensor, "batch horizon block"],
    ) -> Float[Tensor, "batch horizon latent"]: ...

    def split(self, latents: Float[Tensor, "*shape latent"]) -> Parts: ...


def _repeat(x: Tensor, count: int) -> Tensor:
    return x[:, None].expand(-1, count, *x.shape[1:]).flatten(0, 1)


def _without_repetition(dynamics: Dynamics) -> Callable[..., Tensor]:
    if not isinstance(dynamics, WorldModel):
        return dynamics.rollout

    def roll(latents: Tensor, past_actions: Tensor, actions: Tensor) -> Tensor:
        return rollout(dynamics, latents, past_actions, actions)

    return roll


class Engine:
    """Evaluates candidates of many tasks at once."""

    def __init__(self, dynamics: Dynamics, settings: Settings, *, device: torch.device) -> None:
        self._dynamics, self._settings, self._device = dynamics, settings, device
        self._rollout = _without_repetition(dynamics)
        self._recording = settings.engine != "eager" and device.type == "cuda"
        if self._recording and isinstance(dynamics, WorldModel) and dynamics.split.tilt is not None:
            raise UserError("a learned split cannot be recorded; use --set plan.engine=eager")
        if self._recording and settings.engine == "compile":
            self._rollout = torch.compile(self._rollout, dynamic=False)
        self._held: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}
        self._replays: dict[tuple[Any, ...], _Replay] = {}
        self._fits: dict[tuple[int, int], int] = {}
        # Recordings never run at the same time, so all may use the memory of the largest.
        self._pool = torch.cuda.graph_pool_handle() if self._recording else None

    def prepare(
        self,
        start: Float[Tensor, "tasks context latent"],
        past: Float[Tensor, "tasks past block"],
        goal: Float[Tensor, "tasks latent"],
    ) -> tuple[Cost, Callable[[Step], Step]]:
        """The cost of candidates from here to there, and what speeds up a round that uses it."""
        if not self._recording or self._settings.solver == "gradient":
            return partial(self._cost, start, past, goal), as_it_is
        # A recorded round reads fixed places in memory: new tasks are copied there.
        key = (start.shape, past.shape)
        if key not in self._held:
            self._held[key] = (start.clone(), past.clone(), goal.clone())
        for held, new in zip(self._held[key], (start, past, goal), strict=True):
            held.copy_(new)
        return partial(self._cost, *self._held[key]), partial(self._accelerate, key)

    def _accelerate(self, key: tuple[Any, ...], step: Step) -> Step:
        def replayed(*inputs: Tensor) -> tuple[Tensor, ...]:
            place = (*key, *(tuple(x.shape) for x in inputs))
            if place not in self._replays:
                self._replays[place] = _Replay(step, inputs, pool=self._pool)
            return self._replays[place](*inputs)

        return replayed

    def _cost(
        self,
        start: Float[Tensor, "tasks context latent"],
        past: Float[Tensor, "tasks past block"],
        goal: Float[Tensor, "tasks latent"],
        candidates: Float[Tensor, "tasks candidates horizon block"],
    ) -> Float[Tensor, "tasks candidates"]:
        tasks, count = candidates.shape[:2]
        with self.precision():
            reached = self._rollout(
                _repeat(start, count), _repeat(past, count), candidates.flatten(0, 1)
            )
        reached = reached.to(goal.dtype).view(tasks, count, *reached.shape[1:])
        split = self._dynamics.split
        return candidate_cost(split(reached), split(goal), settings=self._settings)

    @contextmanager
    def precision(self) -> Iterator[None]:
        """The arithmetic of the rollout; costs are always float32."""
        if self._device.type != "cuda":
            yield
            return
        before = torch.get_float32_matmul_precision()
        exact = self._settings.precision == "fp32"
        torch.set_float32_matmul_precision("highest" if exact else "high")
        half = self._settings.precision == "bf16"
        try:
            with torch.autocast("cuda", torch.bfloat16) if half else nullcontext():
                yield
        finally:
            torch.set_float32_matmul_precision(before)

    def tasks_at_once(
        self, cost: Cost, *, candidates: int, horizon: int, block: int, like: Tensor
    ) -> int:
        """How many tasks share a batch: one on the CPU, as many as fit on a GPU.

        On the CPU batching gains nothing, and the last bit of a matrix product may depend on how
        many rows it has.
        """
        if self._device.type != "cuda":
            return 1
        if self._settings.batch:
            return self._settings.batch
        if (candidates, horizon) not in self._fits:
            trial = like.new_zeros(1, candidates, horizon, block)
            trial.requires_grad_(self._settings.solver == "gradient")
            torch.cuda.reset_peak_memory_stats(self._device)
            before = torch.cuda.memory_allocated(self._device)
            with torch.set_grad_enabled(trial.requires_grad):
                cost(trial)
            needed = torch.cuda.max_memory_allocated(self._device) - before
            free, _ = torch.cuda.mem_get_info(self._device)
            fitting = int(SHARE_OF_FREE_MEMORY * free / max(needed, 1))
            self._fits[candidates, horizon] = max(1, min(MOST_TASKS, fitting))
        return self._fits[candidates, horizon]


class _Replay:
    """A function of tensors recorded as a CUDA graph; its outputs live until the next call."""

    def __init__(self, step: Step, inputs: tuple[Tensor, ...], *, pool: Any) -> None:
        self._inputs = tuple(x.clone() for x in inputs)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # libraries choose kernels and compilers compile before recording
                step(*self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._outputs = step(*self._inputs)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        for held, new in zip(self._inputs, inputs, strict=True):
            held.copy_(new)
        self._graph.replay()
        return self._outputs
