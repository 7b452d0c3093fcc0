"""A latent is progress and content, side by side; the angle and radius of progress are the compass.

The fixed split slices: the first k coordinates are progress. The learned split rotates first, by an
orthogonal matrix that is the identity when training starts, then slices.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn


@dataclass(frozen=True)
class Parts:
    """The two parts of a latent."""

    progress: Float[Tensor, "*shape k"]
    content: Float[Tensor, "*shape rest"]


class Split(nn.Module):
    """Latent to parts and back; `merge` inverts `split`."""

    def __init__(self, latent: int, k: int, *, learned: bool) -> None:
        super().__init__()
        self.latent, self.k = latent, k
        # Rotations inside either part change no part's span, so a rotation that matters is given by
        # a (latent - k) x k block: the Cayley chart around the fixed split.
        self.tilt = nn.Parameter(torch.zeros(latent - k, k)) if learned and k else None

    def rotation(self) -> Float[Tensor, "latent latent"] | None:
        """The orthogonal matrix of a learned split, in float32; None for the fixed one."""
        if self.tilt is None:
            return None
        with torch.autocast(self.tilt.device.type, enabled=False):
            tilt = self.tilt.float()
            skew = tilt.new_zeros(self.latent, self.latent)
            skew[self.k :, : self.k] = tilt
            skew[: self.k, self.k :] = -tilt.T
            eye = torch.eye(self.latent, device=tilt.device)
            return torch.linalg.solve(eye + skew, eye - skew)

    def forward(self, latents: Float[Tensor, "*shape latent"]) -> Parts:
        rotation = self.rotation()
        if rotation is not None:
            with torch.autocast(latents.device.type, enabled=False):
                latents = latents.float() @ rotation.T
        return Parts(progress=latents[..., : self.k], content=latents[..., self.k :])

    def merge(self, parts: Parts) -> Float[Tensor, "*shape latent"]:
        """The latent with these parts."""
        latents = torch.cat([parts.progress, parts.content], dim=-1)
        rotation = self.rotation()
        if rotation is None:
            return latents
        with torch.autocast(latents.device.type, enabled=False):
            return latents.float() @ rotation


def angle(progress: Float[Tensor, "*shape k"]) -> Float[Tensor, "*shape"]:
    """Theta in radians, of the first two coordinates whatever k is."""
    return torch.atan2(progress[..., 1], progress[..., 0])


def radius(progress: Float[Tensor, "*shape k"]) -> Float[Tensor, "*shape"]:
    """r, the length of all k coordinates; for k > 2 not the radius that belongs to `angle`."""
    return progress.norm(dim=-1)


def plane_radius(progress: Float[Tensor, "*shape k"]) -> Float[Tensor, "*shape"]:
    """Length of the two coordinates `angle` is made of; near 0 the angle means nothing."""
    return progress[..., :2].norm(dim=-1)


def polar_features(progress: Float[Tensor, "*shape k"]) -> Float[Tensor, "*shape 3"]:
    """sin(theta), cos(theta) and r, with a finite gradient at zero radius."""
    squares = progress.square()
    # sqrt(x + eps^2): atan2 and norm have no gradient at 0, this has.
    unit = progress[..., :2] / (squares[..., :2].sum(-1, keepdim=True) + 1e-12).sqrt()
    r = (squares.sum(-1, keepdim=True) + 1e-12).sqrt()
    return torch.cat([unit[..., 1:2], unit[..., 0:1], r], dim=-1)
