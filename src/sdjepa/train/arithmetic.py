"""How much arithmetic a step is, and how fast this machine does arithmetic at its best."""

import time

import torch

from sdjepa.config import Model
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
