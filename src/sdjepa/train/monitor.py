"""What a run should watch besides its losses: collapse, spread, order, rollout, conflict."""

import itertools

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from sdjepa import ranks
from sdjepa.data.loader import Batch
from sdjepa.model.split import radius
from sdjepa.model.world_model import WorldModel
from sdjepa.objectives.total import TERMS, Scene, weights


def effective_rank(latents: Float[Tensor, "rows dim"]) -> float:
    """How many directions are used: exp of the entropy of the covariance's eigenvalues."""
    centred = latents - latents.mean(dim=0)
    share = torch.linalg.svdvals(centred.float()).square()
    share = share / share.sum().clamp(min=1e-12)
    return float(torch.exp(-(share * share.clamp(min=1e-12).log()).sum()))


@torch.no_grad()
def latent_health(scene: Scene) -> dict[str, float]:
    """Spread per part, effective rank, mean radius, and how far the triplet is from its margin."""
    latents = scene.latents.flatten(0, 1)
    health = {"effective_rank": effective_rank(latents)}
    for name in ("progress", "content"):
        part = scene.target(name).flatten(0, 1)
        if part.shape[-1]:
            spread = part.std(dim=0)
            health[f"{name}_std_mean"] = float(spread.mean())
            health[f"{name}_std_min"] = float(spread.min())
    if scene.parts.progress.shape[-1] >= 2:
        health["radius_mean"] = float(radius(scene.parts.progress).mean())
    if scene.settings.triplet_weight > 0 and len(scene.latents) > 1:
        part = scene.target(scene.settings.triplet_on)
        middle = part.shape[1] // 2
        anchor, other = part[:, middle], part[:, middle].roll(1, dims=0)
        near = F.cosine_similarity(anchor, part[:, min(middle + 1, part.shape[1] - 1)], dim=-1)
        far = F.cosine_similarity(anchor, other, dim=-1)
        health["triplet_positive_cosine"] = float(near.mean())
        health["triplet_negative_cosine"] = float(far.mean())
        active = far - near + scene.settings.triplet_margin > 0
        health["triplet_active_share"] = float(active.float().mean())
    return health


@torch.no_grad()
def rollout_errors(model: WorldModel, batch: Batch) -> dict[str, float]:
    """Mean squared error per part after 1 block and at the window's end, from frame 0."""
    latents = model.encode(batch.frames).float()
    blocks = latents.shape[1] - 1
    reached = model.rollout(latents[:, :1], batch.actions[:, :0], batch.actions[:, :blocks])
    found, truth = model.split(reached.float()), model.split(latents[:, 1:])
    errors = {}
    for count in (1, blocks):
        for part in ("progress", "content"):
            gap = getattr(found, part)[:, count - 1] - getattr(truth, part)[:, count - 1]
            if gap.shape[-1]:
                errors[f"rollout{count}_{part}"] = float(gap.square().mean())
    return errors


@torch.no_grad()
def token_cover(model: WorldModel, batch: Batch) -> dict[str, float]:
    """The share of all change against the background that lies in the patches a frame is read by.

    1 = nothing that moves is missed. Empty for a model that reads every patch.
    """
    encoder = model.encoder
    if not encoder.kept:
        return {}
    changes = encoder.changes(encoder.unfold(batch.frames.flatten(0, 1))).float()
    seen = changes.topk(encoder.kept, dim=-1).values.sum()
    return {"token_cover": float(seen / changes.sum().clamp(min=1))}


def gradient_cosines(scene: Scene) -> dict[str, Float[Tensor, ""]]:
    """Cosine between the encoder gradients of each pair of active terms; -1 is open conflict."""
    parameters = [p for p in scene.model.encoder.parameters() if p.requires_grad]
    gradients = {}
    for name in weights(scene.settings):
        grads = torch.autograd.grad(
            TERMS[name](scene), parameters, retain_graph=True, allow_unused=True
        )
        flat = [
            torch.zeros_like(p) if g is None else g for g, p in zip(grads, parameters, strict=True)
        ]
        # Over all ranks: the cosine of the joined batch is not the mean of the ranks' cosines.
        gradients[name] = ranks.total(torch.cat([g.flatten() for g in flat]))
    return {
        f"conflict_{a}_{b}": F.cosine_similarity(gradients[a], gradients[b], dim=0)
        for a, b in itertools.combinations(gradients, 2)
    }
