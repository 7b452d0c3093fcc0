"""Two series in, one number out: how strongly they go together.

Rank correlation with and without the clock, circular-linear correlation for an angle, and nearest-
neighbour mutual information, which sees a cyclic phase that a monotone measure is blind to. Every
function works along the last axis and broadcasts over the others, so that a thousand surrogates
cost one call. A constant series is associated with nothing: NaN, never an accidental 0 or 1.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from scipy.special import digamma

_FLAT = 1e-12  # spread, relative to the largest value, below which a series is called constant


def ranks(series: Float[ndarray, "*batch time"]) -> Float[ndarray, "*batch time"]:
    """Ranks from 1, ties sharing their mean rank."""
    size = series.shape[-1]
    order = np.argsort(series, axis=-1)
    ordered = np.take_along_axis(series, order, axis=-1)
    differs = ordered[..., 1:] != ordered[..., :-1]
    edge = np.ones((*series.shape[:-1], 1), bool)
    place = np.arange(size)
    # Of every run of equals, the place of its first and of its last member.
    first = np.where(np.concatenate([edge, differs], axis=-1), place, 0)
    last = np.where(np.concatenate([differs, edge], axis=-1), place, size)
    first = np.maximum.accumulate(first, axis=-1)
    last = np.minimum.accumulate(last[..., ::-1], axis=-1)[..., ::-1]
    found = np.empty(series.shape)
    np.put_along_axis(found, order, (first + last) / 2 + 1, axis=-1)
    return found


def pearson(
    left: Float[ndarray, "*batch time"], right: Float[ndarray, "*batch time"]
) -> Float[ndarray, "*batch"]:
    """Linear correlation along time; NaN where one side is constant."""
    left = left - left.mean(-1, keepdims=True)
    right = right - right.mean(-1, keepdims=True)
    return _ratio((left * right).sum(-1), _norm(left) * _norm(right))


def spearman(
    left: Float[ndarray, "*batch time"], right: Float[ndarray, "*batch time"]
) -> Float[ndarray, "*batch"]:
    """Rank correlation along time; NaN where one side is constant."""
    return np.where(_is_flat(left) | _is_flat(right), np.nan, pearson(ranks(left), ranks(right)))


def partial_spearman(
    left: Float[ndarray, "*batch time"],
    right: Float[ndarray, "*batch time"],
    given: Float[ndarray, "*batch time"],
) -> Float[ndarray, "*batch"]:
    """Rank correlation of what `given` does not explain; NaN when it explains one side wholly."""
    both, left_given, right_given = (
        spearman(left, right),
        spearman(left, given),
        spearman(right, given),
    )
    rest = np.clip(1 - left_given**2, 0, None) * np.clip(1 - right_given**2, 0, None)
    # 1e-9: a rest of rounding errors would turn into a correlation of anything between -1 and 1.
    return np.where(rest > 1e-9, _ratio(both - left_given * right_given, np.sqrt(rest)), np.nan)


def circular_linear(
    angle: Float[ndarray, "*batch time"], series: Float[ndarray, "*batch time"]
) -> Float[ndarray, "*batch"]:
    """Multiple correlation of `series` with the cosine and sine of `angle`, in [0, 1]."""
    cosine, sine = np.cos(angle), np.sin(angle)
    with_cosine, with_sine, between = (
        pearson(series, cosine),
        pearson(series, sine),
        pearson(cosine, sine),
    )
    top = with_cosine**2 + with_sine**2 - 2 * with_cosine * with_sine * between
    squared = _ratio(top, 1 - between**2)
    return np.where(_is_flat(series), np.nan, np.sqrt(np.clip(squared, 0, 1)))


def distances(points: Float[ndarray, "*batch time dim"]) -> Float[ndarray, "*batch time time"]:
    """Largest coordinate difference between every two steps."""
    return np.abs(points[..., :, None, :] - points[..., None, :, :]).max(-1)


def mutual_information(
    left: Float[ndarray, "*batch time time"],
    right: Float[ndarray, "*batch time time"],
    neighbours: int = 3,
) -> Float[ndarray, "*batch"]:
    """Mutual information in nats from two distance matrices (Kraskov's first estimator).

    It may come out slightly negative for independent series; only comparison with a null means
    something at the length of one episode.
    """
    size = left.shape[-1]
    if size <= neighbours + 1:
        return np.full(left.shape[:-2], np.nan)
    itself = np.eye(size, dtype=bool)
    joint = np.where(itself, np.inf, np.maximum(left, right))
    reach = np.partition(joint, neighbours - 1, axis=-1)[..., neighbours - 1, None]
    near_left = ((left < reach) & ~itself).sum(-1)
    near_right = ((right < reach) & ~itself).sum(-1)
    counted = (digamma(near_left + 1) + digamma(near_right + 1)).mean(-1)
    return digamma(neighbours) + digamma(size) - counted


def on_circle(angle: Float[ndarray, "*batch time"]) -> Float[ndarray, "*batch time 2"]:
    """An angle as a point, so that -pi and pi are the same place."""
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def standardised(series: Float[ndarray, "*batch time"]) -> Float[ndarray, "*batch time"]:
    """Mean 0 and standard deviation 1 along time; a constant series becomes 0."""
    centred = series - series.mean(-1, keepdims=True)
    spread = centred.std(-1, keepdims=True)
    return np.divide(centred, spread, out=np.zeros_like(centred), where=spread > _FLAT)


def resample(
    series: Float[ndarray, "*batch time"], num_steps: int
) -> Float[ndarray, "*batch steps"]:
    """The series read at `num_steps` evenly spaced moments, first and last included."""
    old = series.shape[-1]
    position = np.linspace(0, old - 1, num_steps)
    below = np.clip(np.floor(position).astype(int), 0, max(old - 2, 0))
    above = np.minimum(below + 1, old - 1)
    share = position - below
    return series[..., below] * (1 - share) + series[..., above] * share


def _is_flat(series: Float[ndarray, "*batch time"]) -> ndarray:
    spread = series.max(-1) - series.min(-1)
    return spread <= _FLAT * np.maximum(np.abs(series).max(-1), 1.0)


def _norm(series: ndarray) -> ndarray:
    return np.sqrt((series**2).sum(-1))


def _ratio(top: ndarray, bottom: ndarray) -> ndarray:
    top, bottom = np.broadcast_arrays(top, bottom)
    found = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=found, where=np.asarray(bottom > _FLAT))
    return found
