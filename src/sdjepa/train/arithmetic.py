"""How much arithmetic a step is, and how fast this machine does arithmetic at its best."""

import time

import torch

from sdjepa import ranks
from sdjepa.config import Config, Model
from sdjepa.seeds import stream


def step_flops(config: Model, *, batch: int, frames: int = 4) -> float:
    """Matrix products of a forward and backward pass over windows (backward counts twice).

    The model's own arithmetic, whatever the way it is run: what is left out or done twice to save
    time or memory does not change the count. Rollout terms are not in it.
    """
    tokens = (config.tokens or config.grid**2) + 1
    w, m = config.encoder_width, config.encoder_mlp
    layer = 2 * tokens * (4 * w * w + 2 * w * m) + 4 * tokens * tokens * w
    frame = config.encoder_depth * layer + 2 * tokens * 3 * config.patch**2 * w
    inner = config.predictor_heads * config.predictor_head_dim
    pw = config.predictor_width
    token = 2 * (4 * pw * inner + 2 * pw * config.predictor_mlp + 6 * pw * pw)
    return 3 * batch * (frames * frame + (frames - 1) * config.predictor_depth * token)


def matmul_rate(device: torch.device) -> float:
    """Floating-point operations per second of a large product, in the precision training uses."""
    cuda = device.type == "cuda"
    n, dtype = (8192, torch.bfloat16) if cuda else (1024, torch.float32)
    a = torch.randn(n, n, generator=stream(0, "matmul")).to(device, dtype)

    def once(count: int) -> float:
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            torch.mm(a, a)
        if cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    once(3)
    return 2 * n**3 / min(once(5) for _ in range(3))


class Pace:
    """How fast a run goes, and which share of the chip that is."""

    def __init__(self, config: Config, *, device: torch.device, step: int) -> None:
        frames, batch = config.data.window_frames, config.train.batch
        self._frames = frames * batch
        self._flops = step_flops(config.model, batch=batch, frames=frames)
        self._chip = matmul_rate(device) * ranks.world_size() if device.type == "cuda" else None
        self.restart(step)

    def restart(self, step: int) -> None:
        """Count from here: what is done between two steps is not training."""
        self._clock, self._since = time.monotonic(), step

    def __call__(self, step: int) -> dict[str, float]:
        """Rates since the last restart; the caller has just waited for the device."""
        rate = (step - self._since) / max(time.monotonic() - self._clock, 1e-9)
        found = {"steps_per_second": rate, "frames_per_second": rate * self._frames}
        if self._chip is not None:
            found["share_of_chip"] = rate * self._flops / self._chip
        return found

    def words(self, record: dict[str, float]) -> str:
        """For the progress bar."""
        said = f"steps, loss {record['loss']:.4f}, {record['frames_per_second']:,.0f} frames/s"
        share = record.get("share_of_chip")
        return said if share is None else f"{said}, {100 * share:.0f} % of the chip"
