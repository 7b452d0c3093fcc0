"""How a path through latent space should look: predictable, and perhaps straight."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from sdjepa.objectives.scene import Scene, Term


def prediction_error(
    predicted: Float[Tensor, "*shape latent"], reached: Float[Tensor, "*shape latent"]
) -> Float[Tensor, ""]:
    """Mean over everything, coordinates included; gradients reach both sides.

    The paper writes a squared norm, which is `latent` times larger; its weights fit the mean.
    """
    return (predicted - reached).square().mean()


def bend(latents: Float[Tensor, "batch time dim"]) -> Float[Tensor, ""]:
    """Mean of 1 - cos between successive steps: 0 straight, 1 right angle, 2 reversal.

    0 for fewer than three frames. The paper's form is smaller by exactly 1.
    """
    if latents.shape[1] < 3:
        return latents.sum() * 0
    steps = latents.diff(dim=1)
    return (1 - F.cosine_similarity(steps[:, :-1], steps[:, 1:], dim=-1, eps=1e-6)).mean()


def _prediction(scene: Scene) -> Tensor:
    return prediction_error(scene.predicted, scene.latents[:, 1:])


def _straighten(scene: Scene) -> Tensor:
    return bend(scene.target(scene.settings.straighten_on))


def _rollout(scene: Scene) -> Tensor:
    assert scene.imagined is not None
    blocks = scene.imagined.shape[1]
    return prediction_error(scene.imagined, scene.latents[:, 1 : blocks + 1])


TERMS: dict[str, Term] = {
    "prediction": _prediction,
    "straighten": _straighten,
    "rollout": _rollout,
}
