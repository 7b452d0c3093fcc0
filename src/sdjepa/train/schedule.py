"""The learning rate at a step, and which parameters decay."""

import math

import torch

from sdjepa.config import Train
from sdjepa.model.world_model import WorldModel
from sdjepa.train.muon import Muon


def learning_rate(step: int, total: int, *, peak: float, warmup_share: float) -> float:
    """Linear from 0 over the warm-up, then a cosine to 0 at `total`.

    With any warm-up the first step has rate 0, as in the reference; a share of 0 means none at all.
    """
    warmup = max(1, int(total * warmup_share)) if warmup_share > 0 else 0
    if step < warmup:
        return peak * step / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def make_optimizer(model: WorldModel, settings: Train) -> torch.optim.Optimizer:
    """AdamW or Muon; with `decay_on` = matrices, biases, norms and tables are not decayed."""
    turned, decayed, free = [], [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.ndim == 2 and not name.startswith("split.")
        if settings.optimizer == "muon" and matrix and ".blocks." in name:
            turned.append(parameter)
        else:
            (decayed if matrix or settings.decay_on == "all" else free).append(parameter)
    groups = [
        {"params": turned, "weight_decay": settings.weight_decay, "matrices": True},
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    device = next(model.parameters()).device
    cuda, betas = device.type == "cuda", (0.9, settings.beta2)
    # On a GPU the rate is a tensor: a recorded step reads what the host last put there.
    rate = torch.tensor(settings.learning_rate, device=device) if cuda else settings.learning_rate
    if settings.optimizer == "muon":
        return Muon(groups, lr=rate, betas=betas)
    return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=1e-8, fused=cuda, capturable=cuda)
