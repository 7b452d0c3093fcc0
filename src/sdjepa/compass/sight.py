"""How far the cost sees: pairs of frames in, latent distance against true distance out.

A planner that makes a latent distance small needs one that still grows where the goal is. A cloud
kept Gaussian in many more directions than the scene has quantities cannot offer that: beyond a few
moves all frames lie equally far apart. `reach` says where a part stops growing, and the rank
correlation beyond the content's reach says which part still tells far from farther.

True distance is the straight line between two points of the recorded path, walls or not.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from numpy.random import Generator

from sdjepa.compass.association import resample, spearman
from sdjepa.compass.nulls import episode_weights, interval, summary
from sdjepa.compass.result import Diagnosis, below, said, said_p
from sdjepa.compass.trace import Trace
from sdjepa.seeds import numpy_stream
from sdjepa.train.monitor import effective_rank

PAIRS = 40_000
RANKED = 5_000  # pairs of the rank correlations, whose null sorts them anew for every draw
NEAR, FAR = 8, 4  # bins of the nearer and of the farther half of the pairs
BINS = NEAR + FAR
CLIMBED = 0.9  # of the farther half's mean: where a curve counts as having stopped
DRAWS = 499
SWAPS = 199
_ENOUGH = 30  # pairs below which a rank correlation says nothing
_TITLE = "How far the cost sees"
_QUESTION = "Up to which true distance does the distance between two latents still grow?"


@dataclass(frozen=True)
class _Pairs:
    """Two different frames each: where they are from, and how far apart they are in truth."""

    left: Int[ndarray, "pairs"]
    right: Int[ndarray, "pairs"]
    distance: Float[ndarray, "pairs"]
    bin: Int[ndarray, "pairs"]
    group: Int[ndarray, "pairs"]  # episode of the left, episode of the right and bin, as one number
    num_episodes: int

    def means(
        self, values: Float[ndarray, "pairs"], weights: Float[ndarray, "draws groups"]
    ) -> Float[ndarray, "draws bins"]:
        """Mean of `values` in each bin, every pair weighted by its two episodes."""
        shape = (self.num_episodes**2, BINS)
        count = np.bincount(self.group, minlength=shape[0] * BINS).reshape(shape)
        total = np.bincount(self.group, values, minlength=shape[0] * BINS).reshape(shape)
        known = weights @ count
        found = np.full(known.shape, np.nan)
        np.divide(weights @ total, known, out=found, where=known > 0)
        return found


def plateau(height: Float[ndarray, "bins"]) -> float:
    """Mean over the farther half of the pairs, whose bins hold equally many."""
    far = height[-FAR:]
    return float(far[np.isfinite(far)].mean()) if np.isfinite(far).any() else float("nan")


def reach(
    distance: Float[ndarray, "bins"], height: Float[ndarray, "bins"], share: float = CLIMBED
) -> float:
    """The smallest distance at which `height` is `share` of its mean over the farther half.

    Between bins the curve is a straight line, and it starts at the origin, because a frame lies at
    0 from itself. A reach within the first bin means that the curve is flat as far as one can see.
    """
    known = np.isfinite(height)
    top = plateau(height)
    if not top > 0:
        return float("nan")
    x = np.concatenate([[0.0], distance[known]])
    y = np.concatenate([[0.0], height[known] / top])
    after = int(np.argmax(y >= share))
    step = (share - y[after - 1]) / (y[after] - y[after - 1])
    return float(x[after - 1] + step * (x[after] - x[after - 1]))


def sight(
    trace: Trace, *, seed: int, pairs: int = PAIRS, draws: int = DRAWS, swaps: int = SWAPS
) -> Diagnosis:
    """Curves of squared latent distance, their reach, and the order of what lies beyond it."""
    rng = numpy_stream(seed, "compass", "sight")
    z = np.concatenate([e.steps for e in trace.episodes]).astype(float)
    path = [e.path[e.step_rows].astype(float) for e in trace.episodes]
    drawn = _draw(path, pairs, rng=rng)
    if drawn is None:
        reason = "no two frames of these episodes are at different places"
        return Diagnosis("sight", _TITLE, _QUESTION, "not tested", reason, {})
    size = len(path)
    weights = episode_weights(size, draws, rng=rng).astype(float)
    block = float(np.median(np.concatenate([_lengths(np.diff(own, axis=0)) for own in path])))
    cuts = {"content": slice(trace.k, None), "progress": slice(trace.k), "latent": slice(None)}
    apart = {name: _apart(z[:, cut], drawn) for name, cut in cuts.items()}
    middle = drawn.means(drawn.distance, _both(np.ones((1, size))))[0]
    results: dict[str, Any] = {
        "distance": middle,
        "count": np.bincount(drawn.bin, minlength=BINS),
        "pairs": len(drawn.distance),
        "points": len(z),
        "block": block,
        "largest": float(drawn.distance.max()),
        "stand_in": trace.stand_in,
    }
    # What the true distance itself would show: no part can be asked for more.
    results["truth"] = _curve(drawn.distance**2, drawn, middle, weights)
    for name, cut in cuts.items():
        own = _curve(apart[name], drawn, middle, weights)
        own["blocks"] = own["reach"] / block if block > 0 else float("nan")
        own["share_of_truth"] = own["reach"] / results["truth"]["reach"]
        own["share_of_largest"] = own["reach"] / results["largest"]
        own["effective_rank"] = effective_rank(torch.from_numpy(z[:, cut]))
        own["width"] = z[:, cut].shape[1]
        results[name] = own
    beyond, null = _beyond(apart, drawn, path, results["content"]["reach"], swaps, rng=rng)
    for name in cuts:
        results[name]["rho_beyond"] = beyond[name]
    nulls = {"swapped_paths": null}
    return Diagnosis("sight", _TITLE, _QUESTION, "shown", _sentence(results, nulls), results, nulls)


def _draw(path: list[Float[ndarray, "steps 2"]], count: int, *, rng: Generator) -> _Pairs | None:
    """Pairs of different frames; None when all of them are at one place."""
    where = np.concatenate(path)
    episode = np.concatenate([np.full(len(own), i) for i, own in enumerate(path)])
    left = rng.integers(len(where), size=count)
    right = (left + rng.integers(1, len(where), size=count)) % len(where)
    distance = _lengths(where[left] - where[right])
    if not distance.max() > 0:
        return None
    # In a plane the pairs within d number as d squared: equal counts would lose what is near, which
    # is where a curve saturates. These bins grow slowly with distance; the first has 1 in 360.
    near = 0.5 * (np.arange(1, NEAR + 1) / NEAR) ** 2.5
    levels = np.append(near, 0.5 + 0.5 * np.arange(1, FAR) / FAR)
    found = np.searchsorted(np.quantile(distance, levels), distance, side="left")
    group = (episode[left] * len(path) + episode[right]) * BINS + found
    return _Pairs(left, right, distance, found, group, len(path))


def _lengths(vectors: Float[ndarray, "count dim"]) -> Float[ndarray, "count"]:
    return np.sqrt((vectors**2).sum(-1))


def _apart(points: Float[ndarray, "points dim"], pairs: _Pairs) -> Float[ndarray, "pairs"]:
    """Squared latent distance of every pair."""
    square = (points**2).sum(-1)
    both = np.einsum("pd,pd->p", points[pairs.left], points[pairs.right])
    return np.clip(square[pairs.left] + square[pairs.right] - 2 * both, 0.0, None)


def _both(weights: Float[ndarray, "draws episodes"]) -> Float[ndarray, "draws groups"]:
    """Weight of a pair of episodes: the product, but each copy of one has only itself within."""
    product = weights[:, :, None] * weights[:, None, :]
    index = np.arange(weights.shape[1])
    product[:, index, index] = weights
    return product.reshape(len(weights), -1)


def _curve(
    apart: Float[ndarray, "pairs"],
    pairs: _Pairs,
    middle: Float[ndarray, "bins"],
    weights: Float[ndarray, "draws episodes"],
) -> dict[str, Any]:
    """Heights in shares of the farther half's mean, with the spread of pairs, and the reach."""
    height = pairs.means(apart, _both(np.ones((1, pairs.num_episodes))))[0]
    top = plateau(height)
    scale = top if top > 0 else float("nan")
    members = [apart[pairs.bin == number] for number in range(BINS)]
    band = [np.quantile(own, [0.1, 0.9]) if own.size else [np.nan, np.nan] for own in members]
    both = _both(weights)
    drawn = zip(pairs.means(pairs.distance, both), pairs.means(apart, both), strict=True)
    return {
        "plateau": top,
        "mean": height / scale,
        "band": np.array(band) / scale,
        "reach": reach(middle, height),
        "reach_ci95": interval(np.array([reach(*one) for one in drawn])),
    }


def _beyond(
    apart: dict[str, Float[ndarray, "pairs"]],
    pairs: _Pairs,
    path: list[Float[ndarray, "steps 2"]],
    limit: float,
    swaps: int,
    *,
    rng: Generator,
) -> tuple[dict[str, float], dict[str, Any]]:
    """Rank correlation of latent with true distance over pairs beyond `limit`, and its null.

    The null gives every episode's latents the path of another episode, stretched to its length:
    frames near in time stay near in both, so a clock alone gains nothing.
    """
    kept = slice(min(RANKED, len(pairs.distance)))
    left, right = pairs.left[kept], pairs.right[kept]
    values = np.stack([own[kept] for own in apart.values()])

    def correlate(order: Int[ndarray, "episodes"]) -> Float[ndarray, "parts"]:
        moved = [resample(path[j].T, len(own)).T for j, own in zip(order, path, strict=True)]
        where = np.concatenate(moved)
        distance = _lengths(where[left] - where[right])
        far = distance > limit
        if far.sum() < _ENOUGH:
            return np.full(len(values), np.nan)
        return spearman(values[:, far], np.broadcast_to(distance[far], (len(values), far.sum())))

    observed = correlate(np.arange(len(path)))
    chance = np.stack([correlate(rng.permutation(len(path))) for _ in range(swaps)])
    return (
        {name: float(observed[i]) for i, name in enumerate(apart)},
        {name: summary(float(observed[i]), chance[:, i]) for i, name in enumerate(apart)},
    )


def _sentence(results: dict[str, Any], nulls: dict[str, Any]) -> str:
    content, progress = results["content"], results["progress"]
    name = "progress"
    if results["stand_in"]:
        name = f"the first {progress['width']} coordinates, which stand in for progress,"
    null = nulls["swapped_paths"]
    found = {
        part: f"rho {said(results[part]['rho_beyond'])} (other paths {said(null[part]['mean'])}, "
        f"{said_p(null[part]['p'])})"
        for part in ("content", "progress")
    }
    orders = "orders" if below(null["progress"]["p"]) else "does not order"
    return (
        f"content distance stops growing {_at(content)}, that of {name} {_at(progress)}; the true "
        f"distance itself would do so at {results['truth']['reach']:.3g}. Where content has "
        f"stopped, {name} {orders} pairs by their true distance, {found['progress']}; content has "
        f"{found['content']}. Effective rank of content {content['effective_rank']:.0f} of "
        f"{content['width']}, of progress {progress['effective_rank']:.1f} of {progress['width']}"
    )


def _at(part: dict[str, Any]) -> str:
    low, high = part["reach_ci95"]
    return (
        f"at {part['reach']:.3g} [{low:.3g}, {high:.3g}] ({part['blocks']:.1f} blocks, "
        f"{100 * part['share_of_largest']:.0f} % of the largest distance)"
    )
