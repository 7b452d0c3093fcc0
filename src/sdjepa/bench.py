"""A training step of ours and one of stable-worldmodel's LeWM, interleaved in one process.

Same frames, same batch, same widths, same loss (prediction + SIGReg), each in the precision it is
run with: ours as `train.loop` takes it, theirs as its script does (autocast over its modules). The
result is a ratio; the floor is the step's arithmetic at the rate of a measured matrix product.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sdjepa.config import Model, Objectives
from sdjepa.model.world_model import build
from sdjepa.objectives.total import draws, losses, observe
from sdjepa.runs import Progress, provenance, silent
from sdjepa.seeds import stream

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
Step = Callable[[int], None]


@dataclass(frozen=True)
class TrainBench:
    """Seconds per step, median and spread over rounds."""

    device: str
    batch: int
    ours_seconds: float
    ours_spread: tuple[float, float]
    theirs_seconds: float
    theirs_spread: tuple[float, float]
    matmul_flops_per_second: float
    step_flops: float

    @property
    def ratio(self) -> float:
        return self.theirs_seconds / self.ours_seconds

    def lines(self) -> list[str]:
        """For people."""
        frames = 4 * self.batch / self.ours_seconds
        share = self.step_flops / self.ours_seconds / self.matmul_flops_per_second
        return [
            f"{self.device}, batch {self.batch} windows of 4 frames",
            f"ours    {1 / self.ours_seconds:8.2f} steps/s  ({frames:,.0f} frames/s)",
            f"theirs  {1 / self.theirs_seconds:8.2f} steps/s  (stable-worldmodel's LeWM, same run)",
            f"ratio   {self.ratio:8.2f} x",
            f"share of the measured matrix-product rate: {100 * share:.1f} %",
        ]

    def as_json(self) -> dict[str, object]:
        ours = self.ours_seconds
        return asdict(self) | {
            "steps_per_second": 1 / ours,
            "frames_per_second": 4 * self.batch / ours,
            "ratio_to_stable_worldmodel": self.ratio,
            "share_of_matmul_rate": self.step_flops / ours / self.matmul_flops_per_second,
            **provenance(),
        }


def bench_train(
    *, repeats: int = 5, small: bool = False, progress: Progress = silent
) -> TrainBench:
    """Time both steps in turn; the first round warms up and is not counted."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = Model.model_validate(
        {"action_dim": 2, "frame_skip": 5, "k": 0} | (SMALL if small else {})
    )
    batch = 32 if small else 128
    generator = stream(0, "bench")
    size = config.image_size
    frames = torch.randint(
        0, 256, (batch, 4, size, size, 3), generator=generator, dtype=torch.uint8
    ).to(device)
    actions = torch.randn(batch, 4, 10, generator=generator).to(device)
    steps = {
        "ours": _our_step(config, frames, actions),
        "theirs": _their_step(config, frames, actions),
    }
    per_round = 10 if device.type == "cuda" else 1
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(repeats + 1):
        for name, step in steps.items():
            spent = _time(step, per_round, device=device)
            if number:
                seconds[name].append(spent)
        progress(number + 1, repeats + 1)
    ours, theirs = seconds["ours"], seconds["theirs"]
    return TrainBench(
        device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        batch=batch,
        ours_seconds=statistics.median(ours),
        ours_spread=(min(ours), max(ours)),
        theirs_seconds=statistics.median(theirs),
        theirs_spread=(min(theirs), max(theirs)),
        matmul_flops_per_second=matmul_rate(device),
        step_flops=step_flops(config, batch),
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


def matmul_rate(device: torch.device) -> float:
    """Floating-point operations per second of a large product, in the precision training uses."""
    cuda = device.type == "cuda"
    n, dtype = (8192, torch.bfloat16) if cuda else (1024, torch.float32)
    a = torch.randn(n, n, generator=stream(0, "matmul")).to(device, dtype)

    def product(_: int) -> None:
        torch.mm(a, a)

    _time(product, 3, device=device)
    return 2 * n**3 / min(_time(product, 5, device=device) for _ in range(3))


def step_flops(config: Model, batch: int) -> float:
    """Matrix products of a forward and backward pass (backward counts twice)."""
    tokens = (config.image_size // config.patch) ** 2 + 1
    w, m = config.encoder_width, config.encoder_mlp
    layer = 2 * tokens * (4 * w * w + 2 * w * m) + 4 * tokens * tokens * w
    frame = config.encoder_depth * layer + 2 * tokens * 3 * config.patch**2 * w
    inner = config.predictor_heads * config.predictor_head_dim
    pw = config.predictor_width
    token = 2 * (4 * pw * inner + 2 * pw * config.predictor_mlp + 6 * pw * pw)
    return 3 * batch * (4 * frame + 3 * config.predictor_depth * token)


def _our_step(config: Model, frames: torch.Tensor, actions: torch.Tensor) -> Step:
    device = frames.device
    model = build(config, seed=0).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=device.type == "cuda")
    settings = Objectives(triplet_weight=0.0)
    rows = torch.zeros(len(frames), dtype=torch.int64, device=device)
    times = torch.zeros(len(frames), 4, dtype=torch.int64, device=device)

    def step(number: int) -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            scene = observe(
                model,
                settings,
                frames=frames,
                actions=actions,
                episode=rows,
                step=times,
                draw=draws(0, number, device=device),
            )
        optimizer.zero_grad(set_to_none=True)
        losses(scene)["loss"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def _their_step(config: Model, frames: torch.Tensor, actions: torch.Tensor) -> Step:
    from sdjepa.interop.lewm_peer import make_lewm

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
