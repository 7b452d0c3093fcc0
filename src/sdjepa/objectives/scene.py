"""What a term may look at: one batch of windows, encoded and predicted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sdjepa.config import Objectives
from sdjepa.model.split import Parts
from sdjepa.model.world_model import WorldModel


@dataclass(frozen=True)
class Scene:
    """All a term may look at."""

    model: WorldModel
    settings: Objectives
    latents: Float[Tensor, "batch time latent"]  # float32
    predicted: Float[Tensor, "batch steps latent"]  # of frames 1..steps
    imagined: Float[Tensor, "batch blocks latent"] | None  # likewise, from frame 0 and actions
    parts: Parts
    actions: Float[Tensor, "batch time block"]
    episode: Int[Tensor, "batch"]
    step: Int[Tensor, "batch time"]  # raw step of each frame in its episode
    drawn: Mapping[str, tuple[Tensor, ...]]  # random numbers of each term, see `Draw`

    def target(self, name: str) -> Float[Tensor, "batch time dim"]:
        """The latents, or one part of them."""
        return {
            "full": self.latents,
            "progress": self.parts.progress,
            "content": self.parts.content,
        }[name]


Term = Callable[[Scene], Float[Tensor, ""]]


@dataclass(frozen=True)
class Extent:
    """What decides how many random numbers a batch needs."""

    rows: int  # windows of all ranks: draws are made for all and sliced, so ranks change nothing
    time: int
    content: int  # width of the content part


# A term's random numbers are drawn before it is evaluated: what is compiled is then a function of
# tensors, and the same numbers reach every way of running it.
Draw = Callable[[Objectives, Extent, torch.Generator], tuple[Tensor, ...]]
