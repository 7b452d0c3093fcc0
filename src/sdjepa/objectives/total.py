"""Latents to one loss: each term by its name, weighted and summed.

A term `x` is active when `objectives.x_weight` > 0; an inactive one is neither computed nor logged.
To add one: write its pure function, add a line to TERMS, and a weight to the configuration.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from sdjepa.config import Objectives
from sdjepa.model.split import Parts
from sdjepa.model.world_model import WorldModel
from sdjepa.objectives import progress, trajectory
from sdjepa.objectives.sigreg import directions, sigreg
from sdjepa.seeds import stream


@dataclass(frozen=True)
class Scene:
    """All a term may look at."""

    model: WorldModel
    settings: Objectives
    latents: Float[Tensor, "batch time latent"]  # float32
    predicted: Float[Tensor, "batch steps latent"]  # of frames 1..steps
    parts: Parts
    actions: Float[Tensor, "batch time block"]
    episode: Int[Tensor, "batch"]
    step: Int[Tensor, "batch time"]  # raw step of each frame in its episode
    draw: Callable[[str], torch.Generator]  # a random stream by name

    def target(self, name: str) -> Float[Tensor, "batch time dim"]:
        """The latents, or one part of them."""
        return {
            "full": self.latents,
            "progress": self.parts.progress,
            "content": self.parts.content,
        }[name]


def _prediction(scene: Scene) -> Tensor:
    return trajectory.prediction_error(scene.predicted, scene.latents[:, 1:])


def _sigreg(scene: Scene) -> Tensor:
    content, s = scene.parts.content, scene.settings
    along = directions(content.shape[-1], s.sigreg_directions, scene.draw("sigreg"))
    return sigreg(content, along.to(content.device), knots=s.sigreg_knots)


def _triplet(scene: Scene) -> Tensor:
    s, generator = scene.settings, scene.draw("triplet")
    latents = scene.target(s.triplet_on)
    if s.triplet_sampler == "ref":
        return progress.triplet_ref(
            latents, margin=s.triplet_margin, radius=s.triplet_radius, generator=generator
        )
    return progress.triplet_paper(
        latents,
        scene.episode,
        margin=s.triplet_margin,
        radius=s.triplet_radius,
        other_share=s.triplet_other_share,
        generator=generator,
    )


def _straighten(scene: Scene) -> Tensor:
    return trajectory.bend(scene.target(scene.settings.straighten_on))


def _prototype(scene: Scene) -> Tensor:
    return progress.prototypes(scene.parts.progress)


def _first_anchor(scene: Scene) -> Tensor:
    steps = scene.settings.first_anchor_steps
    return progress.first_anchor(scene.parts.progress, scene.step, steps=steps)


def _rollout(scene: Scene) -> Tensor:
    blocks = scene.settings.rollout_blocks
    reached = scene.model.rollout(
        scene.latents[:, :1], scene.actions[:, :0], scene.actions[:, :blocks]
    )
    return trajectory.prediction_error(reached.float(), scene.latents[:, 1 : blocks + 1])


def _progress_head(scene: Scene) -> Tensor:
    assert scene.model.progress_head is not None
    return progress.order(scene.model.progress_head(scene.parts.progress)[..., 0].float())


TERMS: dict[str, Callable[[Scene], Tensor]] = {
    "prediction": _prediction,
    "sigreg": _sigreg,
    "triplet": _triplet,
    "straighten": _straighten,
    "prototype": _prototype,
    "first_anchor": _first_anchor,
    "rollout": _rollout,
    "progress_head": _progress_head,
}


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
    frames: UInt8[Tensor, "batch time height width 3"],
    actions: Float[Tensor, "batch time block"],
    episode: Int[Tensor, "batch"],
    step: Int[Tensor, "batch time"],
    draw: Callable[[str], torch.Generator],
) -> Scene:
    """Encode a batch of windows and predict each frame from those before it."""
    encoded = model.encode(frames)
    predicted = model.teacher_forced(encoded, actions[:, : frames.shape[1] - 1]).float()
    latents = encoded.float()
    return Scene(
        model=model,
        settings=settings,
        latents=latents,
        predicted=predicted,
        parts=model.split(latents),
        actions=actions,
        episode=episode,
        step=step,
        draw=draw,
    )


def losses(scene: Scene) -> dict[str, Float[Tensor, ""]]:
    """Each active term, unweighted, and `loss`, their weighted sum."""
    active = weights(scene.settings)
    terms = {name: TERMS[name](scene) for name in active}
    terms["loss"] = torch.stack([active[name] * term for name, term in terms.items()]).sum()
    return terms


def draws(seed: int, step: int, *, device: torch.device) -> Callable[[str], torch.Generator]:
    """The random streams of one training step: functions of seed, name and step alone."""
    return lambda name: stream(seed, name, step, device=device)
