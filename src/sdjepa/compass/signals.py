"""What may mark a moment: per-step signals of a traced episode, all on the same scored steps.

A scored step has a teacher-forced prediction, so the first `history` steps have none. Every signal
is brought to those steps, whatever its own start, so that no comparison is between different steps.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from sdjepa.compass.trace import EpisodeTrace, plane_angle, wrap

SIGNALS = (
    "angle_error",
    "latent_error",
    "progress_error",
    "content_error",
    "angular_velocity",
    "latent_speed",
    "clock",
)


def scored_signals(e: EpisodeTrace) -> dict[str, Float[ndarray, "scored"]]:
    """The named signals at steps history..steps-1."""
    first = e.history
    found = errors(e.steps[first:], e.predicted, k=e.k)
    found["angular_velocity"] = e.angular_velocity[first - 1 :]
    found["latent_speed"] = np.linalg.norm(np.diff(e.steps, axis=0), axis=-1)[first - 1 :]
    found["clock"] = np.arange(first, e.num_steps, dtype=float)
    return found


def errors(
    seen: Float[ndarray, "*batch latent"], predicted: Float[ndarray, "*batch latent"], *, k: int
) -> dict[str, Float[ndarray, "*batch"]]:
    """Prediction error as an angle and as squared distance in the latent and its two parts."""
    squared = (seen - predicted) ** 2
    return {
        "angle_error": np.abs(wrap(plane_angle(seen) - plane_angle(predicted))),
        "latent_error": squared.sum(-1),
        "progress_error": squared[..., :k].sum(-1),
        "content_error": squared[..., k:].sum(-1),
    }


def plane_errors(
    seen: Float[ndarray, "scored latent"],
    predicted: Float[ndarray, "scored latent"],
    frames: Float[ndarray, "planes latent 2"],
) -> Float[ndarray, "planes scored"]:
    """The angle error as every random plane would see it."""
    there = plane_angle(np.einsum("td,pdk->ptk", seen, frames))
    guess = plane_angle(np.einsum("td,pdk->ptk", predicted, frames))
    return np.abs(wrap(there - guess))
