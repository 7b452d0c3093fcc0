"""Does surprise find the moments that matter? Signals against the environment's true events.

As published: steps near an event are positive, and the angle's prediction error is compared with
the latent's by pooled AUROC. Otherwise than published: an event of any row counts, also one that is
undone before the next observed step. Added: the sign (below 0.5 a signal is anti-aligned, not
winning), precision against prevalence, shifted labels, intervals over episodes, random planes.
"""

from typing import Any

import numpy as np
from numpy import ndarray

from sdjepa.compass.association import standardised
from sdjepa.compass.detection import (
    auroc,
    average_precision,
    bootstrap_auroc,
    labels_near,
    pair_table,
    rank_sum,
    shift_null,
)
from sdjepa.compass.nulls import interval, p_value, random_frames, summary
from sdjepa.compass.result import Diagnosis, Status, below, judge, said, said_p
from sdjepa.compass.signals import plane_errors, scored_signals
from sdjepa.compass.trace import EpisodeTrace, Trace
from sdjepa.seeds import numpy_stream

TOLERANCES = (1, 2, 3)
LAGS = 5
PLANES = 199
DRAWS = 999
_TITLE = "Surprise against true events"
_QUESTION = "Does the model's surprise rise when something happens in the task?"


def events(trace: Trace, *, seed: int, draws: int = DRAWS, planes: int = PLANES) -> Diagnosis:
    """AUROC of every signal for every kind of event, with sign, nulls and intervals."""
    signals = [scored_signals(e) for e in trace.episodes]
    frames = random_frames(
        trace.episodes[0].latents.shape[1], 2, planes, rng=numpy_stream(seed, "compass", "planes")
    )
    drawn = [plane_errors(e.steps[e.history :], e.predicted, frames) for e in trace.episodes]
    columns = {name: [own[name] for own in signals] for name in signals[0]}
    columns["rank_sum"] = rank_sum(columns["angle_error"], columns["latent_error"])
    results: dict[str, Any] = {"kinds": {}, "signals": list(columns), "tolerances": TOLERANCES}
    nulls: dict[str, Any] = {}
    for kind in trace.event_names:
        steps = [_scored_events(e, kind) for e in trace.episodes]
        if not sum(map(len, steps)):
            continue
        record: dict[str, Any] = {
            "num_events": int(sum(map(len, steps))),
            "num_steps": int(sum(len(own["clock"]) for own in signals)),
            "at": {},
        }
        nulls[kind] = {}
        for tolerance in TOLERANCES:
            labels = [
                labels_near(own, len(s["clock"]), tolerance)
                for own, s in zip(steps, signals, strict=True)
            ]
            rng = numpy_stream(seed, "compass", "events", kind, tolerance)
            found, chance = _detect(columns, drawn, labels, draws=draws, rng=rng)
            record["at"][str(tolerance)], nulls[kind][str(tolerance)] = found, chance
        record["around"] = _around(columns, steps, draws=draws, rng=numpy_stream(seed, "lags"))
        results["kinds"][kind] = record
    results["examples"] = [
        _example(e, s) for e, s in zip(trace.episodes[:8], signals, strict=False)
    ]
    status, reason = _verdict(results, nulls)
    return Diagnosis("events", _TITLE, _QUESTION, status, reason, results, nulls)


def _scored_events(e: EpisodeTrace, kind: str) -> ndarray:
    """Events on scored steps, counted from the first scored one."""
    steps = e.event_steps(kind)
    return steps[steps >= e.history] - e.history


def _detect(
    columns: dict[str, list[ndarray]],
    drawn: list[ndarray],
    labels: list[ndarray],
    *,
    draws: int,
    rng: np.random.Generator,
) -> tuple[dict[str, Any], dict[str, Any]]:
    every = np.concatenate(labels)
    found: dict[str, Any] = {"prevalence": float(every.mean()), "signals": {}}
    nulls: dict[str, Any] = {"circular_shift": {}}
    tables = [pair_table(scores, labels) for scores in columns.values()]
    resampled = dict(
        zip(columns, bootstrap_auroc(tables, labels, draws=draws, rng=rng), strict=True)
    )
    for name, scores in columns.items():
        value = float(auroc(np.concatenate(scores), every))
        per_episode = [float(auroc(s, own)) for s, own in zip(scores, labels, strict=True)]
        found["signals"][name] = {
            "auroc": value,
            "ci95": interval(resampled[name]),
            "effect": value - 0.5,
            "average_precision": average_precision(np.concatenate(scores), every),
            "per_episode": per_episode,
        }
        shifted = shift_null(scores, labels, draws=draws, rng=rng)
        # Two-sided: a signal that falls at events tells as much as one that rises.
        nulls["circular_shift"][name] = summary(abs(value - 0.5), np.abs(shifted - 0.5))
    own = found["signals"]
    angle, latent = own["angle_error"], own["latent_error"]
    left, right = np.array(angle["per_episode"]), np.array(latent["per_episode"])
    found["wins"] = {
        "published": int((left > right).sum()),
        "by_effect": int((np.abs(left - 0.5) > np.abs(right - 0.5)).sum()),
        "ties": int((left == right).sum()),
        "undefined": int(np.isnan(left).sum()),
        "episodes": len(left),
    }
    planes = np.abs(auroc(np.concatenate(drawn, axis=-1), every) - 0.5)
    nulls["random_planes"] = summary(abs(angle["effect"]), planes)
    gain = np.abs(resampled["angle_error"] - 0.5) - np.abs(resampled["latent_error"] - 0.5)
    nulls["angle_minus_latent"] = {
        "observed": abs(angle["effect"]) - abs(latent["effect"]),
        "ci95": interval(gain),
        # The share of resampled data sets in which the latent is at least as telling.
        "p": p_value(0.0, -gain),
    }
    return found, nulls


def _around(
    columns: dict[str, list[ndarray]], steps: list[ndarray], *, draws: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Mean signal, in units of its spread within the episode, from LAGS before to after events."""
    lags = np.arange(-LAGS, LAGS + 1)
    found: dict[str, Any] = {"lags": lags}
    for name in ("angle_error", "latent_error", "angular_velocity", "latent_speed"):
        series = [standardised(s) for s in columns[name]]
        mean = []
        for lag in lags:
            moved = [at + lag for at in steps]
            values = [s[at[(at >= 0) & (at < len(s))]] for s, at in zip(series, moved, strict=True)]
            joined = np.concatenate(values)
            mean.append(float(joined.mean()) if joined.size else float("nan"))
        chance = np.zeros(draws)
        for s, at in zip(series, steps, strict=True):
            turned = (at[None, :] + rng.integers(len(s), size=(draws, 1))) % len(s)
            chance += s[turned].sum(-1)
        chance /= max(1, sum(map(len, steps)))
        found[name] = {"mean": mean, "chance95": interval(chance)}
    return found


def _example(e: EpisodeTrace, signals: dict[str, ndarray]) -> dict[str, Any]:
    return {
        "episode": e.index,
        "first_step": e.history,
        "signals": {name: signals[name] for name in ("angle_error", "latent_error")},
        "events": {name: e.event_steps(name) for name in e.events},
    }


def _verdict(results: dict[str, Any], nulls: dict[str, Any]) -> tuple[Status, str]:
    kinds = results["kinds"]
    if not kinds:
        return "not tested", "no event falls on a scored step of these episodes"
    kind = next(iter(kinds))
    at, chance = kinds[kind]["at"]["1"], nulls[kind]["1"]
    angle, latent = (at["signals"][name]["auroc"] for name in ("angle_error", "latent_error"))
    if not np.isfinite(angle):
        return "not tested", f"every scored step is within one step of a {kind} event"
    p_shift = chance["circular_shift"]["angle_error"]["p"]
    p_plane, p_gain = chance["random_planes"]["p"], chance["angle_minus_latent"]["p"]
    status = judge(
        effect=angle > latent, control=below(p_shift) and below(p_plane) and below(p_gain)
    )
    reason = (
        f"within one step of {kinds[kind]['num_events']} {kind} events the angle's prediction "
        f"error has AUROC {said(angle)} and the latent's {said(latent)} (0.50 tells nothing, below "
        f"it a signal falls at events); shifted labels {said_p(p_shift)}, random planes "
        f"{said_p(p_plane)}, angle more telling than latent {said_p(p_gain)}"
    )
    return status, reason
