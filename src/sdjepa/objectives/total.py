"""Latents to one loss: each term by its name, weighted and summed.

A term `x` is active when `objectives.x_weight` > 0; an inactive one is neither computed nor logged.
To add one: its pure function and its line in TERMS in the file of its idea, and a weight to the
configuration.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from sdjepa.config import Model, Objectives
from sdjepa.model.world_model import WorldModel
from sdjepa.objectives import progress, sigreg, trajectory
from sdjepa.objectives.scene import Draw, Extent, Scene, Term
from sdjepa.seeds import stream

TERMS: dict[str, Term] = trajectory.TERMS | sigreg.TERMS | progress.TERMS
DRAWS: dict[str, Draw] = sigreg.DRAWS | progress.DRAWS


def weights(settings: Objectives) -> dict[str, float]:
    """Weight of each active term; refuses to start when terms and weights do not match by name."""
    said = {
        name.removesuffix("_weight"): value
        for name, value in settings.model_dump().items()
        if name.endswith("_weight")
    }
    if set(said) != set(TERMS):
        raise RuntimeError(
            f"terms without a weight: {sorted(set(TERMS) - set(said))}, "
            f"weights without a term: {sorted(set(said) - set(TERMS))}"
        )
    return {name: value for name, value in said.items() if value > 0}


def observe(
    model: WorldModel,
    settings: Objectives,
    *,
    frames: UInt8[Tensor, "batch time *frame"],
    actions: Float[Tensor, "batch time block"],
    episode: Int[Tensor, "batch"],
    step: Int[Tensor, "batch time"],
    drawn: Mapping[str, tuple[Tensor, ...]],
    parts: int = 1,
) -> Scene:
    """Encode a batch of windows and predict each frame from those before it.

    All that runs the networks happens here, in the caller's precision: terms are float32.
    """
    encoded = model.encode(frames, parts=parts)
    predicted = model.teacher_forced(encoded, actions[:, : frames.shape[1] - 1]).float()
    latents, imagined = encoded.float(), None
    if settings.rollout_weight:
        imagined = _imagined(model, latents, predicted, actions[:, : settings.rollout_blocks])
    return Scene(
        model=model,
        settings=settings,
        latents=latents,
        predicted=predicted,
        imagined=imagined,
        parts=model.split(latents),
        actions=actions,
        episode=episode,
        step=step,
        drawn=drawn,
    )


def _imagined(
    model: WorldModel,
    latents: Float[Tensor, "batch time latent"],
    predicted: Float[Tensor, "batch steps latent"],
    actions: Float[Tensor, "batch blocks block"],
) -> Float[Tensor, "batch blocks latent"]:
    """What the first frame and all actions lead to."""
    first = predicted[:, :1]  # made already, from the one true latent
    if actions.shape[1] == 1:
        return first
    begun = torch.cat([latents[:, :1], first], dim=1)
    later = model.rollout(begun, actions[:, :1], actions[:, 1:])
    return torch.cat([first, later.float()], dim=1)


def losses(
    scene: Scene, *, active: Mapping[str, float] | None = None
) -> dict[str, Float[Tensor, ""]]:
    """Each active term, unweighted, and `loss`, their weighted sum."""
    active = weights(scene.settings) if active is None else active
    terms = {name: TERMS[name](scene) for name in active}
    terms["loss"] = torch.stack([active[name] * term for name, term in terms.items()]).sum()
    return terms


def draws(
    settings: Objectives, extent: Extent, *, seed: int, step: int, device: torch.device
) -> dict[str, tuple[Tensor, ...]]:
    """The random numbers of one training step: functions of seed, term and step alone."""
    return {
        name: DRAWS[name](settings, extent, stream(seed, name, step, device=device))
        for name in weights(settings)
        if name in DRAWS
    }


def extent(config: Model, *, rows: int, time: int) -> Extent:
    """Of a batch of `rows` windows on all ranks together."""
    return Extent(rows=rows, time=time, content=config.latent - config.k)
