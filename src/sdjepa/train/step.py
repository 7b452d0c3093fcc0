"""One optimiser step: a batch and its random numbers come in, the terms go out, weights move.

Two ways to run the same functions. Eager is the reference and what a CPU runs. Recorded is for a
GPU: forward and backward compiled as one graph, then the whole step, optimiser included, recorded
as a CUDA graph and replayed, so that nothing waits for the host to launch some thousand kernels.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from sdjepa import ranks
from sdjepa.config import Config
from sdjepa.data.loader import Batch
from sdjepa.errors import UserError
from sdjepa.model.world_model import WorldModel
from sdjepa.objectives.scene import Scene
from sdjepa.objectives.total import draws, extent, losses, observe, weights
from sdjepa.seeds import derive
from sdjepa.train.average import Average

WARM_UPS = 3  # kernels are chosen and memory is found before recording
Terms = dict[str, Float[Tensor, ""]]
Drawn = dict[str, tuple[Tensor, ...]]
Seen = tuple[Tensor, Tensor, Tensor | None]  # a scene's latents, predicted and imagined


@dataclass(frozen=True)
class Outcome:
    """What a step leaves behind, still on the device; the next step may overwrite it."""

    terms: Terms
    scene: Scene


class Stepper(Protocol):
    def __call__(self, batch: Batch, *, step: int, rate: float) -> Outcome:
        """Take optimiser step number `step` at learning rate `rate`."""
        ...


def mixed(config: Config, device: torch.device) -> AbstractContextManager:
    """The precision of a run's forward pass; losses are float32 in either."""
    if config.train.precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def cut(batch: Batch, frames: int) -> Batch:
    """The first `frames` frames of every window."""
    return Batch(
        frames=batch.frames[:, :frames],
        actions=batch.actions[:, :frames],
        episode=batch.episode,
        step=batch.step[:, :frames],
    )


def numbers(config: Config, batch: Batch, *, step: int) -> Drawn:
    """The random numbers of `step`; dropout, which has no place to be handed some, is seeded."""
    rows, time = batch.frames.shape[:2]
    seed = config.train.seed
    # Dropout reads torch's global state and nothing else does: set it per step, and per rank.
    torch.manual_seed(derive(seed, "dropout", step, ranks.rank()))
    return draws(
        config.objectives,
        extent(config.model, rows=rows * ranks.world_size(), time=time),
        seed=seed,
        step=step,
        device=batch.frames.device,
    )


def look(model: WorldModel, config: Config, batch: Batch, *, drawn: Drawn) -> Scene:
    """Encode and predict one batch in the run's precision."""
    with mixed(config, batch.frames.device):
        return observe(
            model,
            config.objectives,
            frames=batch.frames,
            actions=batch.actions,
            episode=batch.episode,
            step=batch.step,
            drawn=drawn,
            parts=config.train.accumulate,
        )


def descend(
    model: WorldModel,
    loss: Float[Tensor, ""],
    *,
    optimizer: torch.optim.Optimizer,
    clip: float,
    average: Average | None,
) -> Float[Tensor, ""]:
    """Backward, mean over ranks, clip, step; returns the gradient's norm before clipping."""
    loss.backward()
    ranks.average_gradients(model)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    if average is not None:
        average.update(model)
    return norm


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """In place where the rate is a tensor, which a recorded step reads."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class _Way:
    """What both ways hold, and what they do alike."""

    def __init__(
        self,
        model: WorldModel,
        config: Config,
        *,
        optimizer: torch.optim.Optimizer,
        average: Average | None,
    ) -> None:
        self._model, self._config, self._optimizer = model, config, optimizer
        self._average = average

    def _begin(self, step: int, rate: float) -> None:
        """Tell the optimiser and the average which step comes."""
        set_rate(self._optimizer, rate)
        if self._average is not None:
            self._average.advance(step)

    def _descend(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        return descend(
            self._model,
            loss,
            optimizer=self._optimizer,
            clip=self._config.train.clip,
            average=self._average,
        )


class Eager(_Way):
    """Operation by operation."""

    def __call__(self, batch: Batch, *, step: int, rate: float) -> Outcome:
        self._begin(step, rate)
        drawn = numbers(self._config, batch, step=step)
        scene = look(self._model, self._config, batch, drawn=drawn)
        terms = losses(scene)
        self._optimizer.zero_grad(set_to_none=True)
        norm = self._descend(terms["loss"])
        return Outcome(terms | {"gradient_norm": norm}, scene)


class Recorded(_Way):
    """The same step, compiled and replayed; recorded at its first call."""

    def __init__(
        self,
        model: WorldModel,
        config: Config,
        *,
        optimizer: torch.optim.Optimizer,
        average: Average | None,
    ) -> None:
        super().__init__(model, config, optimizer=optimizer, average=average)
        active = weights(config.objectives)

        def forward(batch: tuple[Tensor, ...], drawn: Drawn) -> tuple[Terms, Seen]:
            scene = look(model, config, Batch(*batch), drawn=drawn)
            return losses(scene, active=active), (scene.latents, scene.predicted, scene.imagined)

        # fallback_random: dropout draws the numbers it would draw eagerly.
        self._forward = torch.compile(
            forward, fullgraph=True, dynamic=False, options={"fallback_random": True}
        )
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, batch: Batch, *, step: int, rate: float) -> Outcome:
        drawn = numbers(self._config, batch, step=step)
        if self._graph is None:
            self._record(batch, drawn)
        for held, new in zip(self._batch, _tensors(batch), strict=True):
            held.copy_(new)
        for name, new in drawn.items():
            for held, number in zip(self._drawn[name], new, strict=True):
                held.copy_(number)
        self._begin(step, rate)
        # Recording and drawing moved torch's state; dropout reads it again during the replay.
        torch.manual_seed(derive(self._config.train.seed, "dropout", step, ranks.rank()))
        assert self._graph is not None
        self._graph.replay()
        return self._outcome

    def _record(self, batch: Batch, drawn: Drawn) -> None:
        """Warm up, put everything back as it was, record."""
        self._batch = tuple(tensor.clone() for tensor in _tensors(batch))
        self._drawn = {name: tuple(t.clone() for t in group) for name, group in drawn.items()}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with _quick(self._model, self._config):
            with torch.cuda.stream(side), _undone(self._model, self._optimizer, self._average):
                for _ in range(WARM_UPS):
                    self._optimizer.zero_grad(set_to_none=True)
                    self._take()
            torch.cuda.current_stream().wait_stream(side)
            self._optimizer.zero_grad(set_to_none=True)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                terms, (latents, predicted, imagined) = self._take()
        with torch.no_grad():
            parts = self._model.split(latents)
        self._outcome = Outcome(
            terms,
            Scene(
                model=self._model,
                settings=self._config.objectives,
                latents=latents,
                predicted=predicted,
                imagined=imagined,
                parts=parts,
                actions=self._batch[1],
                episode=self._batch[2],
                step=self._batch[3],
                drawn=self._drawn,
            ),
        )

    def _take(self) -> tuple[Terms, Seen]:
        terms, seen = self._forward(self._batch, self._drawn)
        norm = self._descend(terms["loss"])
        detached = {name: term.detach() for name, term in terms.items()}
        latents, predicted, imagined = seen
        imagined = None if imagined is None else imagined.detach()
        seen = (latents.detach(), predicted.detach(), imagined)
        return detached | {"gradient_norm": norm}, seen


def _quick(model: WorldModel, config: Config) -> AbstractContextManager:
    """Inside, where the run wants it, the encoder runs as kernels of our own."""
    wish = config.train.kernels
    # Block sizes were chosen on this generation; another may lack the shared memory.
    if wish == "off" or (wish == "auto" and torch.cuda.get_device_capability()[0] != 9):
        return nullcontext()
    from sdjepa.train import fast  # needs Triton, which comes with CUDA only

    if config.train.precision == "bf16" and fast.fits(model.encoder):
        return fast.installed(model.encoder)
    if wish == "on":
        raise UserError(
            "train.kernels = on needs train.precision = bf16 and an encoder of the paper's widths "
            "with 256 patches, or model.tokens below 64; auto uses them where they fit"
        )
    return nullcontext()


def _tensors(batch: Batch) -> tuple[Tensor, ...]:
    return tuple(getattr(batch, field.name) for field in fields(batch))


@contextmanager
def _undone(
    model: WorldModel, optimizer: torch.optim.Optimizer, average: Average | None
) -> Iterator[None]:
    """Whatever steps are taken inside leave no trace but memory that has been found.

    In place: what is recorded afterwards must read and write these very tensors.
    """
    tensors = [*model.state_dict().values(), *(average.tensors() if average else ())]
    kept = [tensor.detach().clone() for tensor in tensors]
    state = {p: {k: v.clone() for k, v in s.items()} for p, s in optimizer.state.items()}
    yield
    with torch.no_grad():
        for tensor, value in zip(tensors, kept, strict=True):
            tensor.copy_(value)
        for parameter, moments in optimizer.state.items():
            for name, value in moments.items():
                known = state.get(parameter, {})
                value.copy_(known[name]) if name in known else value.zero_()


def make_stepper(
    model: WorldModel,
    config: Config,
    *,
    optimizer: torch.optim.Optimizer,
    average: Average | None,
) -> Stepper:
    """Recorded on one GPU, eager elsewhere, unless the configuration insists."""
    cuda = next(model.parameters()).is_cuda
    wish = config.train.engine
    recorded = wish == "recorded" or (wish == "auto" and cuda and ranks.world_size() == 1)
    kind = Recorded if recorded and cuda else Eager
    return kind(model, config, optimizer=optimizer, average=average)
