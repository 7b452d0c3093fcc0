"""A training step of ours and one of stable-worldmodel's LeWM, interleaved in one process.

Same frames, same batch, same widths, same loss (prediction + SIGReg), each in the precision it is
run with: ours as `train.step` takes it, eagerly and recorded, theirs as its script does (autocast
over its modules). The result is a ratio; the floor is the step's arithmetic at the rate of a
measured matrix product.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from sdjepa.config import Config, Model, change
from sdjepa.data.loader import Batch
from sdjepa.data.patches import Reading
from sdjepa.model.world_model import build
from sdjepa.runs import Progress, provenance, silent
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
FEW = 31  # patches of the reduced model: with the class token, 32
Step = Callable[[int], None]


@dataclass(frozen=True)
class Timing:
    """Seconds per step of one way, over rounds."""

    who: str
    seconds: float  # median
    spread: tuple[float, float]
    first_seconds: float  # the first step: compilation and recording
    flops: float  # of the model that is trained

    @property
    def steps_per_second(self) -> float:
        return 1 / self.seconds


@dataclass(frozen=True)
class TrainBench:
    device: str
    batch: int
    timings: tuple[Timing, ...]
    matmul_flops_per_second: float

    def _of(self, who: str) -> Timing:
        return next(t for t in self.timings if t.who == who)

    @property
    def ours(self) -> Timing:
        """The way a run takes on this device, with the paper's model."""
        return self._of("recorded" if any(t.who == "recorded" for t in self.timings) else "eager")

    @property
    def ratio(self) -> float:
        return self._of(THEIRS).seconds / self.ours.seconds

    def share(self, timing: Timing) -> float:
        """Of the measured matrix-product rate."""
        return timing.flops / timing.seconds / self.matmul_flops_per_second

    def lines(self) -> list[str]:
        """For people."""
        rate = self.matmul_flops_per_second / 1e12
        lines = [f"{self.device}, batch {self.batch} windows of 4 frames, {rate:.1f} TFLOP/s"]
        theirs = self._of(THEIRS)
        for t in self.timings:
            low, high = (1 / s for s in reversed(t.spread))
            lines.append(
                f"{t.who:<26}{t.steps_per_second:8.2f} steps/s ({low:.2f} to {high:.2f})"
                f"{4 * self.batch / t.seconds:10,.0f} frames/s"
                f"{theirs.seconds / t.seconds:8.2f} x"
                f"{100 * self.share(t):7.1f} % of the product rate"
                f"   first step {t.first_seconds:.1f} s"
            )
        return lines

    def as_json(self) -> dict[str, object]:
        rows = [
            asdict(t)
            | {"steps_per_second": t.steps_per_second, "share_of_matmul_rate": self.share(t)}
            for t in self.timings
        ]
        ours = self.ours
        return {
            "device": self.device,
            "batch": self.batch,
            "way": ours.who,
            "steps_per_second": ours.steps_per_second,
            "steps_per_second_spread": [1 / s for s in reversed(ours.spread)],
            "frames_per_second": 4 * self.batch / ours.seconds,
            "ratio_to_stable_worldmodel": self.ratio,
            "share_of_matmul_rate": self.share(ours),
            "matmul_flops_per_second": self.matmul_flops_per_second,
            "timings": rows,
            **provenance(),
        }


THEIRS = "stable-worldmodel"
LIBRARY = "recorded, library kernels"


def bench_train(
    *, repeats: int = 5, small: bool = False, progress: Progress = silent
) -> TrainBench:
    """Time every way in turn; the first round warms up and is not counted."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = lewm(device, small=small)
    rows = 32 if small else 128
    batch = _batch(rows, config.model.image_size, device=device)
    steps: dict[str, Step] = {"eager": _our_step(config, batch, engine="eager")}
    flops = {"eager": step_flops(config.model, batch=rows)}
    if device.type == "cuda":
        few = lewm(device, small=small, tokens=FEW)
        steps["recorded"] = _our_step(config, batch, engine="recorded")
        steps[LIBRARY] = _our_step(config, batch, engine="recorded", kernels="off")
        steps[f"recorded, {FEW} patches"] = _our_step(few, _packed(batch, few), engine="recorded")
        flops |= {"recorded": flops["eager"], LIBRARY: flops["eager"]}
        flops |= {f"recorded, {FEW} patches": step_flops(few.model, batch=rows)}
    steps[THEIRS] = _their_step(config.model, batch)
    flops[THEIRS] = flops["eager"]
    per_round = 20 if device.type == "cuda" else 1
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    first: dict[str, float] = {}
    for number in range(repeats + 1):
        for name, step in steps.items():
            if name not in first:
                first[name] = _time(step, 1, device=device)
            spent = _time(step, per_round, device=device)
            if number:
                seconds[name].append(spent)
        progress(number + 1, repeats + 1)
    return TrainBench(
        device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        batch=rows,
        timings=tuple(
            Timing(
                who=name,
                seconds=statistics.median(spent),
                spread=(min(spent), max(spent)),
                first_seconds=first[name],
                flops=flops[name],
            )
            for name, spent in seconds.items()
        ),
        matmul_flops_per_second=matmul_rate(device),
    )


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
