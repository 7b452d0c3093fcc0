"""Is the model surprised when the actions it is told are not the ones that were taken?

A quarter of an episode's action blocks is replaced while the frames stay; the prediction error
should rise there and only there. Labels as published are one step early: block t first matters for
step t + 1. Corrected labels mark every step whose prediction read a replaced block.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray
from numpy.random import Generator

from sdjepa.compass.detection import auroc, bootstrap_auroc, pair_table, rank_sum, shift_null
from sdjepa.compass.nulls import interval, p_value, random_frames, summary
from sdjepa.compass.reader import Dynamics
from sdjepa.compass.result import Diagnosis, Status, below, judge, said, said_p
from sdjepa.compass.signals import errors, plane_errors
from sdjepa.compass.trace import EpisodeTrace, Trace
from sdjepa.seeds import numpy_stream

MODES = ("shuffle", "other_episode", "reverse", "random")
SHARE = 0.25
MIN_BLOCKS = 4
DRAWS = 999
PLANES = 99
_TITLE = "Surprise at false actions"
_QUESTION = "Does the model notice when it is told actions that were not taken?"


def choose_band(num_steps: int, *, rng: Generator) -> tuple[int, int] | None:
    """Which blocks to replace, as [low, high); None when the episode is too short."""
    size = min(max(MIN_BLOCKS, round(SHARE * num_steps)), num_steps - MIN_BLOCKS)
    if size < 1 or num_steps - size <= 3:
        return None
    low = int(rng.integers(3, num_steps - size))
    return low, low + size


def corrupt(
    actions: Float[ndarray, "steps block"],
    band: tuple[int, int],
    *,
    mode: str,
    other: Float[ndarray, "others block"],
    rng: Generator,
) -> Float[ndarray, "steps block"]:
    """The actions with those of `band` replaced; nothing else changes."""
    low, high = band
    size, changed = high - low, actions.copy()
    if mode == "shuffle":
        changed[low:high] = actions[rng.permutation(len(actions))[:size]]
    elif mode == "other_episode":
        start = int(rng.integers(0, max(1, len(other) - size + 1)))
        changed[low:high] = np.resize(other[start : start + size], (size, actions.shape[1]))
    elif mode == "reverse":
        changed[low:high] = actions[low:high][::-1]
    elif mode == "random":
        changed[low:high] = rng.uniform(actions.min(0), actions.max(0), (size, actions.shape[1]))
    else:
        raise ValueError(f"unknown corruption {mode!r}")
    return changed


def band_labels(
    band: tuple[int, int], num_steps: int, history: int, *, corrected: bool
) -> Bool[ndarray, "scored"]:
    """Which scored steps count as corrupted."""
    step, (low, high) = np.arange(history, num_steps), band
    if not corrected:
        return (step >= low) & (step < high)
    return (step > low) & (step < high + history)


def corruption(
    trace: Trace,
    dynamics: Dynamics,
    *,
    seed: int,
    draws: int = DRAWS,
    planes: int = PLANES,
    modes: Sequence[str] = MODES,
) -> Diagnosis:
    """AUROC of prediction errors for the corrupted band, labels as published and corrected."""
    bands = {
        e.index: choose_band(e.num_steps, rng=numpy_stream(seed, "compass", "band", e.index))
        for e in trace.episodes
    }
    kept = [e for e in trace.episodes if bands[e.index] is not None]
    results: dict[str, Any] = {"modes": {}, "episodes": [e.index for e in kept]}
    nulls: dict[str, Any] = {}
    if len(kept) >= 2:
        width = kept[0].latents.shape[1]
        rng = numpy_stream(seed, "compass", "planes")
        frames = random_frames(width, 2, planes, rng=rng)
        for mode in modes:
            found = _one_mode(kept, bands, dynamics, mode, frames, seed=seed, draws=draws)
            results["modes"][mode], nulls[mode] = found
    status, reason = _verdict(results, nulls)
    return Diagnosis("corruption", _TITLE, _QUESTION, status, reason, results, nulls)


def _one_mode(
    kept: list[EpisodeTrace],
    bands: dict[int, Any],
    dynamics: Dynamics,
    mode: str,
    frames: ndarray,
    *,
    seed: int,
    draws: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    windows_z, windows_a = [], []
    for number, e in enumerate(kept):
        # As published the donor is the first other episode of the list.
        donor = kept[1] if number == 0 else kept[0]
        rng = numpy_stream(seed, "compass", "corrupt", mode, e.index)
        actions = corrupt(e.actions, bands[e.index], mode=mode, other=donor.actions, rng=rng)
        index = np.arange(e.num_steps - e.history)[:, None] + np.arange(e.history)
        windows_z.append(e.steps[index])
        windows_a.append(actions[index])
    predicted = dynamics.following(np.concatenate(windows_z), np.concatenate(windows_a))
    parts = np.split(predicted, np.cumsum([len(w) for w in windows_z])[:-1])
    own = [errors(e.steps[e.history :], p, k=e.k) for e, p in zip(kept, parts, strict=True)]
    columns = {name: [scores[name] for scores in own] for name in own[0]}
    columns["rank_sum"] = rank_sum(columns["angle_error"], columns["latent_error"])
    drawn = [
        plane_errors(e.steps[e.history :], p, frames) for e, p in zip(kept, parts, strict=True)
    ]
    found: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for name, corrected in (("published_labels", False), ("corrected_labels", True)):
        labels = [
            band_labels(bands[e.index], e.num_steps, e.history, corrected=corrected) for e in kept
        ]
        rng = numpy_stream(seed, "compass", "corruption", mode, name)
        found[name], nulls[name] = _detect(columns, drawn, labels, draws=draws, rng=rng)
    return found, nulls


def _detect(
    columns: dict[str, list[ndarray]],
    drawn: list[ndarray],
    labels: list[ndarray],
    *,
    draws: int,
    rng: Generator,
) -> tuple[dict[str, Any], dict[str, Any]]:
    every = np.concatenate(labels)
    tables = [pair_table(scores, labels) for scores in columns.values()]
    resampled = dict(
        zip(columns, bootstrap_auroc(tables, labels, draws=draws, rng=rng), strict=True)
    )
    found: dict[str, Any] = {"prevalence": float(every.mean()), "signals": {}}
    nulls: dict[str, Any] = {"circular_shift": {}}
    for name, scores in columns.items():
        value = float(auroc(np.concatenate(scores), every))
        found["signals"][name] = {"auroc": value, "ci95": interval(resampled[name])}
        chance = shift_null(scores, labels, draws=draws, rng=rng)
        nulls["circular_shift"][name] = summary(value, chance)
    planes = auroc(np.concatenate(drawn, axis=-1), every)
    nulls["random_planes"] = summary(found["signals"]["angle_error"]["auroc"], planes)
    gain = resampled["latent_error"] - resampled["angle_error"]
    values = found["signals"]
    nulls["latent_minus_angle"] = {
        "observed": values["latent_error"]["auroc"] - values["angle_error"]["auroc"],
        "ci95": interval(gain),
        "p": p_value(0.0, -gain),
    }
    return found, nulls


def _verdict(results: dict[str, Any], nulls: dict[str, Any]) -> tuple[Status, str]:
    if not results["modes"]:
        return "not tested", "fewer than two episodes are long enough to replace a quarter of"
    as_published = results["modes"]["shuffle"]["published_labels"]["signals"]
    corrected = results["modes"]["shuffle"]["corrected_labels"]["signals"]
    chance = nulls["shuffle"]["corrected_labels"]
    p_shift, p_gain = (
        chance["circular_shift"]["latent_error"]["p"],
        chance["latent_minus_angle"]["p"],
    )
    latent, angle = as_published["latent_error"]["auroc"], as_published["angle_error"]["auroc"]
    status = judge(effect=latent > angle, control=below(p_shift) and below(p_gain))
    reason = (
        f"where a quarter of the actions is shuffled, the latent's prediction error has AUROC "
        f"{said(corrected['latent_error']['auroc'])} and the angle's "
        f"{said(corrected['angle_error']['auroc'])} ({said(latent)} and {said(angle)} with the "
        f"published labels); shifted labels {said_p(p_shift)}, latent above angle {said_p(p_gain)}"
    )
    return status, reason
