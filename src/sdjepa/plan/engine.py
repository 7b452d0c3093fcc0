"""Start, goal and candidates in, costs out: where a plan's time goes.

On a GPU a round of the search can be recorded once as a CUDA graph and replayed, because a single
task is bound by the launching of some hundred small kernels and not by their arithmetic.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any, Protocol

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from sdjepa.config import Plan as Settings
from sdjepa.errors import UserError
from sdjepa.model.split import Parts
from sdjepa.model.world_model import WorldModel
from sdjepa.plan.costs import candidate_cost
from sdjepa.plan.rollout import Cache, KeysValues, rollout, run_block, run_exit
from sdjepa.plan.solvers import Cost, Step, as_it_is
from sdjepa.plan.weights import Exit, Layer, weights_of

SHARE_OF_FREE_MEMORY = 0.6
MOST_TASKS = 256
MOST_RECORDINGS = 32  # kept; tasks that finish leave a smaller batch, which is recorded anew
# A block of 1 to 3 tokens, with and without a cache, in each precision: more than torch's own 8.
MOST_VARIANTS = 64


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


def _split_once(dynamics: Dynamics) -> Callable[[Tensor], Parts]:
    """The model's split with a learned rotation solved for now, not at every round."""
    if not isinstance(dynamics, WorldModel) or dynamics.split.tilt is None:
        return dynamics.split
    with torch.no_grad():
        rotation = dynamics.split.rotation()
    assert rotation is not None
    k = dynamics.split.k

    def split(latents: Tensor) -> Parts:
        turned = latents.float() @ rotation.T
        return Parts(progress=turned[..., :k], content=turned[..., k:])

    return split


@cache
def compiled_parts(backend: str = "inductor") -> dict[str, Callable[..., Any]]:
    """A block and the exit of the predictor, compiled for any batch.

    Not the whole rollout: that is thirty copies of one block, and takes thirty times as long to
    compile, again for every number of tasks and every horizon.
    """
    from torch import _dynamo  # which takes ten seconds to import

    # The batch alone may vary: a token more or less is another kernel.
    settings = {"recompile_limit": MOST_VARIANTS, "automatic_dynamic_shapes": False}
    block = torch.compile(run_block, fullgraph=True, backend=backend)
    leave = torch.compile(run_exit, fullgraph=True, backend=backend)

    def any_block(
        layer: Layer, x: Tensor, modulation: Tensor, before: Cache, last_only: bool
    ) -> tuple[Tensor, KeysValues]:
        for given in (x, modulation, *(part for pair in before for part in pair)):
            _dynamo.mark_dynamic(given, 1)
        with _dynamo.config.patch(settings):
            return block(layer, x, modulation, before, last_only)

    def any_leave(exit: Exit, x: Tensor) -> Tensor:
        _dynamo.mark_dynamic(x, 0)
        with _dynamo.config.patch(settings):
            return leave(exit, x)

    return {"block": any_block, "leave": any_leave}


class Engine:
    """Evaluates candidates of many tasks at once."""

    def __init__(self, dynamics: Dynamics, settings: Settings, *, device: torch.device) -> None:
        self._settings, self._device = settings, device
        cuda = device.type == "cuda"
        ours = dynamics if isinstance(dynamics, WorldModel) else None
        # A rotation inside the predictor's conditions is solved for at every token, on the host.
        solves = ours is not None and ours.polar is not None and ours.split.tilt is not None
        if solves and cuda and settings.engine in ("graph", "compile"):
            raise UserError(
                "a learned split that steers the predictor cannot be recorded; "
                "use --set plan.engine=eager"
            )
        # Whether another's rollout can be recorded only its author knows.
        wanted = (
            settings.engine
            if settings.engine != "auto"
            else ("graph" if ours is not None else "eager")
        )
        self._recording = cuda and wanted != "eager" and not solves
        self._half = cuda and settings.precision == "bf16"
        self._split = _split_once(dynamics)
        self._autocast = self._half and ours is None
        self._plain: Callable[..., Tensor] = dynamics.rollout
        self._rollout: Callable[..., Tensor] = dynamics.rollout
        if ours is not None:
            weights = weights_of(ours, torch.bfloat16 if self._half else None)
            self._plain = self._rollout = partial(rollout, weights)
            if self._recording and settings.engine == "compile" and settings.solver != "gradient":
                self._rollout = partial(rollout, weights, **compiled_parts())
        self._held: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}
        self._replays: dict[tuple[Any, ...], _Replay] = {}
        self._fits: dict[tuple[int, ...], int] = {}
        # Recordings never run at the same time, so all may use the memory of the largest. What one
        # leaves behind is read before another runs.
        self._pool = torch.cuda.graph_pool_handle() if self._recording else None

    def cost(
        self,
        start: Float[Tensor, "tasks context latent"],
        past: Float[Tensor, "tasks past block"],
        goal: Float[Tensor, "tasks latent"],
    ) -> Cost:
        """The cost of candidates from here to there, as long as the caller keeps it."""
        return partial(self._cost, self._rollout, start, past, goal)

    def prepare(
        self,
        start: Float[Tensor, "tasks context latent"],
        past: Float[Tensor, "tasks past block"],
        goal: Float[Tensor, "tasks latent"],
    ) -> tuple[Cost, Callable[[Step], Step]]:
        """The cost of candidates, until the next call, and what speeds up a round that uses it."""
        if not self._recording or self._settings.solver == "gradient":
            return self.cost(start, past, goal), as_it_is
        # A recorded round reads fixed places in memory: new tasks are copied there.
        key = (start.shape, past.shape)
        if key not in self._held:
            self._held[key] = (start.clone(), past.clone(), goal.clone())
        for held, new in zip(self._held[key], (start, past, goal), strict=True):
            held.copy_(new)
        return self.cost(*self._held[key]), partial(self._accelerate, key)

    def _accelerate(self, key: tuple[Any, ...], step: Step) -> Step:
        def replayed(*inputs: Tensor) -> tuple[Tensor, ...]:
            place = (*key, *(tuple(x.shape) for x in inputs))
            if place not in self._replays:
                if len(self._replays) == MOST_RECORDINGS:
                    self._replays.clear()
                    self._pool = torch.cuda.graph_pool_handle()  # an emptied one is not reused
                self._replays[place] = _Replay(step, inputs, pool=self._pool)
            return self._replays[place](*inputs)

        return replayed

    def _cost(
        self,
        roll: Callable[..., Tensor],
        start: Float[Tensor, "tasks context latent"],
        past: Float[Tensor, "tasks past block"],
        goal: Float[Tensor, "tasks latent"],
        candidates: Float[Tensor, "tasks candidates horizon block"],
    ) -> Float[Tensor, "tasks candidates"]:
        tasks, count = candidates.shape[:2]
        with self.precision():
            reached = roll(_repeat(start, count), _repeat(past, count), candidates.flatten(0, 1))
        reached = reached.to(goal.dtype).view(tasks, count, *reached.shape[1:])
        if self._settings.when == "last":
            reached = reached[:, :, -1:]
        cost = candidate_cost(self._split(reached), self._split(goal), settings=self._settings)
        if self._settings.effort:
            # Recorded actions have unit variance: what a model says of ten times that is a guess.
            cost = cost + self._settings.effort * candidates.square().sum((-2, -1))
        return cost

    @contextmanager
    def precision(self) -> Iterator[None]:
        """The arithmetic of the rollout; costs are always float32."""
        if self._device.type != "cuda":
            yield
            return
        before = torch.get_float32_matmul_precision()
        exact = self._settings.precision == "fp32"
        torch.set_float32_matmul_precision("highest" if exact else "high")
        try:
            # Ours has its weights in half precision already; another's are cast at every round.
            with torch.autocast("cuda", torch.bfloat16) if self._autocast else nullcontext():
                yield
        finally:
            torch.set_float32_matmul_precision(before)

    def tasks_at_once(
        self,
        start: Float[Tensor, "tasks context latent"],
        past: Float[Tensor, "tasks past block"],
        goal: Float[Tensor, "tasks latent"],
        *,
        trial: Float[Tensor, "1 candidates horizon block"],
    ) -> int:
        """How many tasks share a batch: one on the CPU, as many as fit on a GPU.

        On the CPU batching gains nothing, and the last bit of a matrix product may depend on how
        many rows it has.
        """
        if self._device.type != "cuda":
            return 1
        if self._settings.batch:
            return self._settings.batch
        key = (start.shape[1], *trial.shape)
        if key not in self._fits:
            trial = trial.detach().requires_grad_(self._settings.solver == "gradient")
            torch.cuda.reset_peak_memory_stats(self._device)
            before = torch.cuda.memory_allocated(self._device)
            with torch.set_grad_enabled(trial.requires_grad):
                self._cost(self._plain, start[:1], past[:1], goal[:1], trial)
            needed = torch.cuda.max_memory_allocated(self._device) - before
            free, _ = torch.cuda.mem_get_info(self._device)
            # torch holds on to memory nobody uses and hands it out again.
            free += torch.cuda.memory_reserved(self._device)
            free -= torch.cuda.memory_allocated(self._device)
            fitting = int(SHARE_OF_FREE_MEMORY * free / max(needed, 1))
            self._fits[key] = max(1, min(MOST_TASKS, fitting))
        return self._fits[key]


class _Replay:
    """A function of tensors recorded as a CUDA graph; its outputs live until the next call."""

    def __init__(self, step: Step, inputs: tuple[Tensor, ...], *, pool: Any) -> None:
        self._inputs = tuple(x.clone() for x in inputs)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(inputs[0].device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):  # libraries choose kernels and compilers compile beforehand
                    step(*self._inputs)
            torch.cuda.current_stream().wait_stream(side)
            # Threads that load data may talk to the GPU meanwhile.
            with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
                self._outputs = step(*self._inputs)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        for held, new in zip(self._inputs, inputs, strict=True):
            held.copy_(new)
        with torch.cuda.device(inputs[0].device):
            self._graph.replay()
        return self._outputs
