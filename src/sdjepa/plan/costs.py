"""How far predicted latents are from the goal: pure functions, one number per candidate.

    content   squared distance of the content parts (the paper's choice when there is a split),
              and, beyond the paper, `pull` times that of the progress parts
    full      squared distance of whole latents (LeWM)
    progress  squared distance of the progress parts (the paper's negative control)
    angular   content + gamma (1 - cos of the angle between) + delta (difference of radii)^2

`ref` scale is the paper's: sums over coordinates, in which the angle (at most 2) hardly counts
beside a content distance of hundreds. `normalised` divides each term by what unrelated latents
give, so gamma = 1 means that the angle weighs as much as the content.
"""

from jaxtyping import Float
from torch import Tensor

from sdjepa.config import Plan
from sdjepa.model.split import Parts, angle, radius


def distance(
    predicted: Parts, goal: Parts, *, settings: Plan
) -> Float[Tensor, "tasks candidates horizon"]:
    """Cost of every predicted latent to the goal of its task."""
    goal = Parts(progress=goal.progress[:, None, None], content=goal.content[:, None, None])
    content = (predicted.content - goal.content).square().sum(-1)
    progress = (predicted.progress - goal.progress).square().sum(-1)
    if settings.cost == "full":
        return content + progress
    if settings.cost == "progress":
        return progress
    if settings.cost == "content":
        return content + settings.pull * progress if settings.pull else content
    turn = 1 - (angle(predicted.progress) - angle(goal.progress)).cos()
    r, r_goal = radius(predicted.progress), radius(goal.progress)
    stretch = (r - r_goal).square()
    if settings.scale == "normalised":
        # Two unrelated unit Gaussians differ by 2 per coordinate, two unrelated angles by 1.
        content = content / (2 * predicted.content.shape[-1])
        stretch = stretch / (r.square() + r_goal.square()).clamp(min=1e-12)
    return content + settings.gamma * turn + settings.delta * stretch


def candidate_cost(
    predicted: Parts, goal: Parts, *, settings: Plan
) -> Float[Tensor, "tasks candidates"]:
    """Cost at the end of the horizon, summed along it, or where it is least."""
    cost = distance(predicted, goal, settings=settings)
    if settings.when == "last":
        return cost[..., -1]
    return cost.sum(-1) if settings.when == "sum" else cost.amin(-1)
