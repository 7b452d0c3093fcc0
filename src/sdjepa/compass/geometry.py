"""The shape of the two parts: do episodes share their progress and keep content to themselves?

Cosines between episodes at the same moment, as published and centred (a common mean alone makes
cosines large), how straight paths are, and whose frames lie next to whose.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray
from numpy.random import Generator

from sdjepa.compass.nulls import episode_weights, interval, random_frames, summary
from sdjepa.compass.result import Diagnosis, Status, below, judge, said, said_p
from sdjepa.compass.trace import Trace
from sdjepa.seeds import numpy_stream

ROWS_PUBLISHED = (5, 25, 50)
DRAWS = 499
PROJECTIONS = 199
NEIGHBOURS = 10
APART = 2  # steps of the same episode this close are no neighbours: they are the same moment
_TITLE = "The shape of progress and content"
_QUESTION = "Is the progress part alike in all episodes while the content part tells them apart?"


def curvature(path: Float[ndarray, "time dim"]) -> Float[ndarray, "time-2"]:
    """One minus the cosine between successive moves: 0 straight on, 1 a right angle, 2 back."""
    moves = np.diff(path, axis=0)
    sizes = np.linalg.norm(moves, axis=-1)
    return 1 - (moves[:-1] * moves[1:]).sum(-1) / (sizes[:-1] * sizes[1:] + 1e-8)


def cosines(vectors: Float[ndarray, "*batch episodes dim"]) -> Float[ndarray, "*batch e e"]:
    """Cosine between every two vectors."""
    unit = vectors / (np.linalg.norm(vectors, axis=-1, keepdims=True) + 1e-8)
    return unit @ unit.swapaxes(-1, -2)


def mean_off_diagonal(table: Float[ndarray, "*batch e e"]) -> Float[ndarray, "*batch"]:
    """Mean over pairs of different episodes."""
    size = table.shape[-1]
    return (table.sum((-1, -2)) - np.trace(table, axis1=-2, axis2=-1)) / (size * (size - 1))


def neighbourhood(
    points: Float[ndarray, "count dim"],
    episode: Int[ndarray, "count"],
    step: Int[ndarray, "count"],
) -> dict[str, float]:
    """Whose points lie next to whose: share of own episode, and how mixed the episodes are."""
    square = (points**2).sum(-1)
    apart = square[:, None] + square[None, :] - 2 * points @ points.T
    same = episode[:, None] == episode[None, :]
    near_in_time = same & (np.abs(step[:, None] - step[None, :]) <= APART)
    apart[near_in_time] = np.inf
    count = min(NEIGHBOURS, len(points) - 1)
    nearest = np.argpartition(apart, count - 1, axis=-1)[:, :count]
    owners = episode[nearest]
    purity = float((owners == episode[:, None]).mean())
    ordered = np.sort(owners, axis=-1)
    entropy = np.zeros(len(points))
    for owner in np.unique(episode):
        share = (ordered == owner).mean(-1)
        entropy -= np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0)
    return {"purity": purity, "mixing_entropy": float(entropy.mean() / np.log(max(count, 2)))}


def geometry(
    trace: Trace, *, seed: int, draws: int = DRAWS, projections: int = PROJECTIONS
) -> Diagnosis:
    """Cross-episode cosines with controls, curvature, neighbourhoods, radius."""
    episodes = trace.episodes
    shortest = min(e.num_rows for e in episodes)
    rows = [row for row in ROWS_PUBLISHED if row < shortest]
    similar, nulls = _similarity(trace, rows, seed=seed, draws=draws, projections=projections)
    parts = {"latent": slice(None), "progress": slice(trace.k), "content": slice(trace.k, None)}
    bend = {
        name: np.array([curvature(e.latents[:, part].astype(float)).mean() for e in episodes])
        for name, part in parts.items()
    }
    results: dict[str, Any] = {
        "cosine": similar,
        "curvature": {
            name: {"mean": float(values.mean()), "per_episode": values}
            for name, values in bend.items()
        },
        "neighbours": _neighbours(trace, seed=seed),
        "radius": {
            "mean": [float(e.radius.mean()) for e in episodes],
            "std": [float(e.radius.std()) for e in episodes],
            "plane_mean": [float(e.plane_radius.mean()) for e in episodes],
        },
        "theta_span": [float(np.ptp(e.theta)) for e in episodes],
        "episodes": [e.index for e in episodes],
    }
    status, reason = _verdict(results, nulls)
    return Diagnosis("geometry", _TITLE, _QUESTION, status, reason, results, nulls)


def _similarity(
    trace: Trace, rows: list[int], *, seed: int, draws: int, projections: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Mean cosine between episodes at each row, for the parts, plain and centred."""
    k, episodes = trace.k, trace.episodes
    stacked = np.stack([e.latents[rows] for e in episodes], axis=1).astype(float)  # rows e latent
    centre = np.concatenate([e.latents for e in episodes]).astype(float).mean(0)
    parts = {"latent": slice(None), "progress": slice(k), "content": slice(k, None)}
    rng = numpy_stream(seed, "compass", "cosine")
    weights = episode_weights(len(episodes), draws, rng=rng).astype(float)
    results: dict[str, Any] = {"rows": rows, "plain": {}, "centred": {}}
    for name, part in parts.items():
        for how, shift in (("plain", 0.0), ("centred", centre[part])):
            tables = cosines(stacked[..., part] - shift)
            results[how][name] = {
                "mean": mean_off_diagonal(tables),
                "ci95": [_resampled(table, weights) for table in tables],
            }
    nulls: dict[str, Any] = {}
    observed = float(np.mean(results["centred"]["progress"]["mean"]))
    nulls["time_shuffled"] = summary(observed, _shuffled(trace, centre, len(rows), draws, rng=rng))
    frames = random_frames(len(centre) - k, k, projections, rng=rng)
    for how, shift in (("plain", 0.0), ("centred", centre[k:])):
        projected = np.einsum("red,pdk->prek", stacked[..., k:] - shift, frames)
        drawn = mean_off_diagonal(cosines(projected)).mean(-1)
        own = float(np.mean(results[how]["progress"]["mean"]))
        nulls[f"random_projections_{how}"] = summary(own, drawn)
    return results, nulls


def _resampled(table: Float[ndarray, "e e"], weights: Float[ndarray, "draws e"]) -> list[float]:
    """Interval of the mean over pairs; a pair of one episode with itself is no pair."""
    off = table - np.diag(np.diag(table))
    pairs = weights.sum(-1) ** 2 - (weights**2).sum(-1)
    total = np.einsum("de,ef,df->d", weights, off, weights, optimize=True)
    return interval(np.divide(total, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0))


def _shuffled(
    trace: Trace, centre: ndarray, moments: int, draws: int, *, rng: Generator
) -> Float[ndarray, "draws"]:
    """The centred cosine of progress when every episode is read at a moment of its own."""
    size = len(trace.episodes)
    picked = np.empty((draws, moments, size, trace.k))
    for place, e in enumerate(trace.episodes):
        rows = rng.integers(e.num_rows, size=(draws, moments))
        picked[:, :, place] = e.progress[rows] - centre[: trace.k]
    return mean_off_diagonal(cosines(picked)).mean(-1)


def _neighbours(trace: Trace, *, seed: int) -> dict[str, Any]:
    """Neighbourhoods on the step base, content also at the width of progress."""
    z = np.concatenate([e.steps for e in trace.episodes]).astype(float)
    episode = np.concatenate([np.full(e.num_steps, i) for i, e in enumerate(trace.episodes)])
    step = np.concatenate([np.arange(e.num_steps) for e in trace.episodes])
    most = 2000  # distances between all pairs: more points would cost seconds and tell the same
    if len(z) > most:
        kept = np.sort(numpy_stream(seed, "compass", "points").permutation(len(z))[:most])
        z, episode, step = z[kept], episode[kept], step[kept]
    k = trace.k
    rng = numpy_stream(seed, "compass", "neighbours")
    frames = random_frames(z.shape[1] - k, k, 8, rng=rng)
    drawn = [neighbourhood(z[:, k:] @ frame, episode, step) for frame in frames]
    mixed = neighbourhood(z[rng.permutation(len(z))], episode, step)
    return {
        "latent": neighbourhood(z, episode, step),
        "progress": neighbourhood(z[:, :k], episode, step),
        "content": neighbourhood(z[:, k:], episode, step),
        "content_random_k": {
            key: float(np.mean([own[key] for own in drawn])) for key in ("purity", "mixing_entropy")
        },
        "chance": mixed,
        "neighbours": NEIGHBOURS,
    }


def _verdict(results: dict[str, Any], nulls: dict[str, Any]) -> tuple[Status, str]:
    similar = results["cosine"]
    if not similar["rows"]:
        return "not tested", "no episode reaches the first row at which cosines are taken"
    plain = {name: float(np.mean(found["mean"])) for name, found in similar["plain"].items()}
    centred = float(np.mean(similar["centred"]["progress"]["mean"]))
    p_time = nulls["time_shuffled"]["p"]
    p_projection = nulls["random_projections_centred"]["p"]
    near = results["neighbours"]
    status = judge(
        # Larger than content by more than episodes drawn anew would make it.
        effect=float(np.mean([low for low, _ in similar["plain"]["progress"]["ci95"]]))
        > plain["content"],
        control=below(p_time) and below(p_projection),
    )
    reason = (
        f"between episodes at the same moment the progress part has cosine "
        f"{said(plain['progress'])} and the content part {said(plain['content'])}; with the common "
        f"mean removed progress has {said(centred)} (other moments "
        f"{said(nulls['time_shuffled']['mean'])}, {said_p(p_time)}; content projections "
        f"{said(nulls['random_projections_centred']['mean'])}, {said_p(p_projection)}). "
        f"{100 * near['progress']['purity']:.0f} % of progress neighbours are of the same episode, "
        f"{100 * near['content']['purity']:.0f} % of content neighbours, "
        f"{100 * near['content_random_k']['purity']:.0f} % at equal width"
    )
    return status, reason
