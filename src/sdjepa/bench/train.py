"""A training step of ours and one of stable-worldmodel's LeWM, interleaved in one process.

Same frames, same batch, same widths, same loss (prediction + SIGReg), each in the precision it is
run with: ours as `train.step` takes it, eagerly and recorded, theirs as its script does (autocast
over its modules). The result is a ratio; the floor is the step's arithmetic at the rate of a
measured matrix product.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from sdjepa.bench.rates import THEIRS, Timing, TrainBench
from sdjepa.config import Config, Model
from sdjepa.data.loader import Batch
from sdjepa.data.patches import Reading
from sdjepa.errors import UserError
from sdjepa.model.world_model import build
from sdjepa.resolve import change
from sdjepa.runs import provenance
from sdjepa.seeds import stream
from sdjepa.train.arithmetic import matmul_rate, step_flops
from sdjepa.train.schedule import make_optimizer
from sdjepa.train.step import make_stepper

SMALL = {
    "image_size": 64,
    "patch": 8,
    "encoder_width": 96,
    "encoder_depth": 4,
    "encoder_mlp": 384,
    "latent": 96,
    "projector_hidden": 256,
    "predictor_width": 96,
    "predictor_depth": 3,
    "predictor_heads": 4,
    "predictor_mlp": 384,
}
LIBRARY = "recorded, library kernels"
FEW = 31  # patches of the reduced model: with the class token, 32
Step = Callable[[int], None]


def bench_train(
    *,
    repeats: int = 5,
    small: bool = False,
    only: Sequence[str] = (),  # as `chosen` reads them
) -> Iterator[TrainBench]:
    """Time every way in turn; the first round warms up and is not counted.

    What is known so far comes out after every first step and after every round, when all ways have
    been timed as often: whoever is cut off has what was measured.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = 32 if small else 128
    ways = _ways(device, rows=rows, small=small)
    steps = {name: ways[name][0]() for name in chosen(list(ways), only)}
    known = TrainBench(
        device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        batch=rows,
        origin=provenance(),
    )
    per_round = 20 if device.type == "cuda" else 1
    for name, step in steps.items():
        first = _time(step, 1, device=device)
        timing = Timing(who=name, first_seconds=first, flops=ways[name][1])
        known = replace(known, timings=(*known.timings, timing))
        yield known
        _time(step, per_round, device=device)
    known = replace(known, matmul_flops_per_second=matmul_rate(device))
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            spent[name].append(_time(step, per_round, device=device))
        timings = tuple(_over_rounds(timing, spent[timing.who]) for timing in known.timings)
        known = replace(known, timings=timings)
        yield known


def chosen(names: Sequence[str], only: Sequence[str]) -> list[str]:
    """The names that a word of `only` is or, if it is none, is part of; all, without a word."""
    for word in only:
        if not any(word in name for name in names):
            raise UserError(f"no way is called {word!r} here; there are: {'; '.join(names)}")
    return [
        name
        for name in names
        if not only or any(word == name or (word in name and word not in names) for word in only)
    ]


def _over_rounds(timing: Timing, spent: Sequence[float]) -> Timing:
    spread = (min(spent), max(spent))
    return replace(timing, seconds=statistics.median(spent), spread=spread, rounds=len(spent))


def _ways(
    device: torch.device, *, rows: int, small: bool
) -> dict[str, tuple[Callable[[], Step], float]]:
    """How the step of each way is made, and its arithmetic."""
    config = lewm(device, small=small)
    batch = _batch(rows, config.model.image_size, device=device)
    flops = step_flops(config.model, batch=rows)
    ways: dict[str, tuple[Callable[[], Step], float]] = {
        "eager": (lambda: _our_step(config, batch, engine="eager"), flops)
    }
    if device.type == "cuda":
        few = lewm(device, small=small, tokens=FEW)
        ways["recorded"] = (lambda: _our_step(config, batch, engine="recorded"), flops)
        ways[LIBRARY] = (
            lambda: _our_step(config, batch, engine="recorded", kernels="off"),
            flops,
        )
        ways[f"recorded, {FEW} patches"] = (
            lambda: _our_step(few, _packed(batch, few), engine="recorded"),
            step_flops(few.model, batch=rows),
        )
    ways[THEIRS] = (lambda: _their_step(config.model, batch), flops)
    return ways


def lewm(device: torch.device, *, small: bool, tokens: int = 0) -> Config:
    """What both train: the paper's baseline, in the precision of the device."""
    sizes = SMALL if small else {}
    return Config.model_validate(
        {
            "model": {"action_dim": 2, "frame_skip": 5, "k": 0, "tokens": tokens} | sizes,
            "objectives": {"triplet_weight": 0.0},
            "train": {"precision": "bf16" if device.type == "cuda" else "fp32"},
            "plan": {"cost": "full"},
        }
    )


def _batch(rows: int, size: int, *, device: torch.device) -> Batch:
    generator = stream(0, "bench")
    frames = torch.randint(0, 256, (rows, 4, size, size, 3), generator=generator, dtype=torch.uint8)
    return Batch(
        frames=frames.to(device),
        actions=torch.randn(rows, 4, 10, generator=generator).to(device),
        episode=torch.zeros(rows, dtype=torch.int64, device=device),
        step=torch.zeros(rows, 4, dtype=torch.int64, device=device),
    )


def _time(step: Step, count: int, *, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for number in range(count):
        step(number)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / count


def _packed(batch: Batch, config: Config) -> Batch:
    """As frames wait for a model that reads few patches."""
    size = config.model.image_size
    still = torch.zeros(size, size, 3, dtype=torch.uint8)
    reading = Reading(still, patch=config.model.patch, kept=config.model.tokens)
    frames = reading.pack(batch.frames.flatten(0, 1)).view(*batch.frames.shape[:2], *reading.shape)
    return replace(batch, frames=frames)


def _our_step(config: Config, batch: Batch, *, engine: str, kernels: str = "auto") -> Step:
    config = change(config, [f"train.engine={engine}", f"train.kernels={kernels}"])
    model = build(config.model, seed=0).to(batch.frames.device).train()
    optimizer = make_optimizer(model, config.train)
    take = make_stepper(model, config, optimizer=optimizer, average=None)

    def step(number: int) -> None:
        take(batch, step=number, rate=5e-5)

    return step


def _their_step(config: Model, batch: Batch) -> Step:
    from sdjepa.interop.lewm_peer import make_lewm

    frames, actions = batch.frames, batch.actions
    device = frames.device
    model, sigreg = make_lewm(config)
    lewm: Any = model  # their methods are not typed
    model, sigreg = model.to(device).train(), sigreg.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=1e-3)
    mean = 255 * torch.tensor((0.485, 0.456, 0.406), device=device)
    std = 255 * torch.tensor((0.229, 0.224, 0.225), device=device)

    def step(number: int) -> None:
        # Their loader hands over normalised floats; done on the device here, to their benefit.
        pixels = ((frames.float() - mean) / std).permute(0, 1, 4, 2, 3)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            info = lewm.encode({"pixels": pixels, "action": actions})
            latents = info["emb"]
            predicted = lewm.predict(latents[:, :3], info["act_emb"][:, :3])
            loss = (predicted - latents[:, 1:]).square().mean()
            loss = loss + 0.09 * sigreg(latents.transpose(0, 1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step
