"""How the cloud of latents should look: Gaussian along every direction (SIGReg).

The Epps-Pulley statistic compares the empirical characteristic function of one-dimensional
projections with the standard Gaussian's, per time step, over the windows of the batch.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from sdjepa import ranks
from sdjepa.config import Objectives
from sdjepa.objectives.scene import Draw, Extent, Scene, Term

LAST_KNOT = 3.0


def quadrature(
    knots: int, *, device: torch.device | str = "cpu"
) -> tuple[Float[Tensor, "knots"], Float[Tensor, "knots"]]:
    """Knots on [0, 3] and their weights.

    Inner weights are doubled: the integrand is even, so the half line stands for all of [-3, 3].
    """
    at = torch.linspace(0, LAST_KNOT, knots, device=device)
    spacing = LAST_KNOT / (knots - 1)
    trapezoid = torch.full((knots,), 2 * spacing, device=device)
    trapezoid[0] = trapezoid[-1] = spacing
    return at, trapezoid * torch.exp(-at.square() / 2)


def directions(dim: int, count: int, generator: torch.Generator) -> Float[Tensor, "dim count"]:
    """Unit vectors, uniform on the sphere."""
    drawn = torch.randn(dim, count, generator=generator, device=generator.device)
    return drawn / drawn.norm(dim=0)


def sigreg(
    latents: Float[Tensor, "batch time dim"],
    along: Float[Tensor, "dim count"],
    *,
    knots: int = 17,
) -> Float[Tensor, ""]:
    """Mean statistic over time steps and directions; 1.0525 for Gaussian latents at any batch size.

    Multiplied by the batch size as in the reference, so its gradient grows with the batch. In
    float32 even inside autocast. The batch is that of all ranks.
    """
    with torch.autocast(latents.device.type, enabled=False):
        at, weights = quadrature(knots, device=latents.device)
        projected = latents.float() @ along.float()
        phases = projected.unsqueeze(-1) * at
        batch = latents.shape[0] * ranks.world_size()
        cosine = ranks.total(phases.cos().sum(dim=0)) / batch
        sine = ranks.total(phases.sin().sum(dim=0)) / batch
        gap = (cosine - torch.exp(-at.square() / 2)).square() + sine.square()
        return batch * (gap @ weights).mean()


def _draw(settings: Objectives, extent: Extent, generator: torch.Generator) -> tuple[Tensor, ...]:
    return (directions(extent.content, settings.sigreg_directions, generator),)


def _sigreg(scene: Scene) -> Tensor:
    (along,) = scene.drawn["sigreg"]
    return sigreg(scene.parts.content, along, knots=scene.settings.sigreg_knots)


TERMS: dict[str, Term] = {"sigreg": _sigreg}
DRAWS: dict[str, Draw] = {"sigreg": _draw}
