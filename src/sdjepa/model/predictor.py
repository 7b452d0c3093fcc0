"""Latents and actions to the next latent: an action embedding steers a causal transformer."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sdjepa.config import Model
from sdjepa.model.layers import ConditionedBlock

REF_ACTION_WIDTH = (
    10  # LeWM's constant: the block width of 2-d actions, a bottleneck for wider ones
)


class ActionEncoder(nn.Module):
    """One action block to one embedding of the latent's width."""

    def __init__(self, block: int, latent: int, *, width: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(block, width)
        self.up = nn.Linear(width, 4 * latent)
        self.down = nn.Linear(4 * latent, latent)

    def forward(
        self, actions: Float[Tensor, "batch time block"]
    ) -> Float[Tensor, "batch time latent"]:
        return self.down(nn.functional.silu(self.up(self.squeeze(actions))))


def _between(width_in: int, width_out: int) -> nn.Module:
    return nn.Identity() if width_in == width_out else nn.Linear(width_in, width_out)


class Predictor(nn.Module):
    def __init__(self, config: Model) -> None:
        super().__init__()
        latent, width = config.latent, config.predictor_width
        # Standard deviation 1, not the encoder's 0.02: LeWM's choice, its latents have unit scale.
        self.position = nn.Parameter(torch.randn(1, config.history, latent))
        self.enter = _between(latent, width)
        self.enter_condition = _between(latent, width)
        self.blocks = nn.ModuleList(
            ConditionedBlock(
                width,
                config.predictor_heads,
                head_dim=config.predictor_head_dim,
                hidden=config.predictor_mlp,
                dropout=config.dropout,
            )
            for _ in range(config.predictor_depth)
        )
        self.norm = nn.LayerNorm(width)
        self.leave = _between(width, latent)

    def forward(
        self,
        latents: Float[Tensor, "batch time latent"],
        condition: Float[Tensor, "batch time latent"],
    ) -> Float[Tensor, "batch time latent"]:
        x = self.enter(latents + self.position[:, : latents.shape[1]])
        condition = self.enter_condition(condition)
        for block in self.blocks:
            x = block(x, condition)
        return self.leave(self.norm(x))
