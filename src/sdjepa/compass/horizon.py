"""How far ahead the model sees: rollout error against the number of blocks, with two baselines.

An error is a share of the latent's own variance, so 1 means no better than the mean latent, and the
error of standing still says how much there was to predict at all.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from sdjepa.compass.nulls import bootstrap_mean
from sdjepa.compass.result import Diagnosis, said
from sdjepa.compass.trace import EpisodeTrace, Trace, plane_angle, wrap
from sdjepa.seeds import numpy_stream

_TITLE = "How far ahead the model sees"
_QUESTION = "How does the error grow when the model imagines more and more steps without looking?"


def horizon(trace: Trace, *, seed: int) -> Diagnosis:
    """Error of rollouts and of standing still, per horizon, for the latent and its parts."""
    k = trace.k
    parts = {"latent": slice(None), "progress": slice(k), "content": slice(k, None)}
    pooled = np.concatenate([e.steps for e in trace.episodes]).astype(float)
    spread = {name: float(pooled[:, part].var(0).sum()) for name, part in parts.items()}
    blocks = trace.episodes[0].rollouts.shape[1]
    longest = max(e.num_steps - 1 for e in trace.episodes)
    reach = [h for h in range(1, blocks + 1) if h <= longest]
    results: dict[str, Any] = {"blocks": reach, "rows": [h * trace.frame_skip for h in reach]}
    for name, part in parts.items():
        rolled = _per_episode(trace, reach, part, spread[name], still=False)
        still = _per_episode(trace, reach, part, spread[name], still=True)
        results[name] = {"rollout": _mean(rolled, seed), "standing_still": _mean(still, seed)}
    results["angle"] = {
        "rollout": _mean(np.array([_angles(e, reach, still=False) for e in trace.episodes]), seed),
        "standing_still": _mean(
            np.array([_angles(e, reach, still=True) for e in trace.episodes]), seed
        ),
    }
    results["variance"] = spread
    own = np.array(results["latent"]["rollout"]["mean"])
    still = np.array(results["latent"]["standing_still"]["mean"])
    better = [h for h, a, b in zip(reach, own, still, strict=True) if a < b]
    useful = [h for h, a in zip(reach, own, strict=True) if a < 1]
    reason = (
        f"one block ahead the error is {said(own[0])} of the latent's variance (standing still "
        f"{said(still[0])}), {reach[-1]} blocks ahead {said(own[-1])} ({said(still[-1])}); "
        f"rollouts beat standing still at {len(better)} and the mean latent at {len(useful)} of "
        f"{len(reach)} horizons"
    )
    return Diagnosis("horizon", _TITLE, _QUESTION, "shown", reason, results)


def _pairs(e: EpisodeTrace, h: int, *, still: bool) -> tuple[ndarray, ndarray]:
    """Truth and guess, `h` blocks after every start that has them."""
    starts = np.arange(e.num_steps - h)
    guess = e.steps[starts] if still else e.rollouts[starts, h - 1]
    return e.steps[starts + h], guess


def _per_episode(
    trace: Trace, reach: list[int], part: slice, spread: float, *, still: bool
) -> Float[ndarray, "episodes horizons"]:
    found = np.full((len(trace.episodes), len(reach)), np.nan)
    for i, e in enumerate(trace.episodes):
        for j, h in enumerate(reach):
            if h < e.num_steps:
                truth, guess = _pairs(e, h, still=still)
                wrong = ((truth - guess)[:, part] ** 2).sum(-1).mean()
                found[i, j] = wrong / max(spread, 1e-12)
    return found


def _angles(e: EpisodeTrace, reach: list[int], *, still: bool) -> Float[ndarray, "horizons"]:
    found = np.full(len(reach), np.nan)
    for j, h in enumerate(reach):
        if h < e.num_steps:
            truth, guess = _pairs(e, h, still=still)
            found[j] = np.abs(wrap(plane_angle(truth) - plane_angle(guess))).mean()
    return found


def _mean(table: Float[ndarray, "episodes horizons"], seed: int) -> dict[str, Any]:
    rng = numpy_stream(seed, "compass", "horizon")
    return {
        "mean": np.nanmean(table, axis=0),
        "ci95": [bootstrap_mean(column, rng=rng) for column in table.T],
    }
