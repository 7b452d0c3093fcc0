"""Does a signal change its level where the task changes its phase? Change points against events.

As published: a detector told the true number of events, on a grid of five steps. Added: a detector
that is told nothing, on every step, matched as well as can be, and the F1 that the same detections
reach when the events are turned to another time.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from sdjepa.compass.association import standardised
from sdjepa.compass.nulls import shifted_totals, summary
from sdjepa.compass.result import Diagnosis, Status, below, judge, said, said_p
from sdjepa.compass.segmentation import (
    bic_penalty,
    binary,
    f1,
    match_best,
    match_published,
    penalised,
)
from sdjepa.compass.trace import EpisodeTrace, Trace
from sdjepa.seeds import numpy_stream

TOLERANCES = (1, 2, 3)
JUMP_PUBLISHED = 5
DRAWS = 999
SIGNALS = ("angular_velocity", "latent_error", "angle_error", "progress", "content")
PUBLISHED_SIGNALS = SIGNALS[:3]
_TITLE = "Change points against true events"
_QUESTION = "Does the latent switch its way of moving where the task enters a new phase?"


def changes(trace: Trace, *, seed: int, draws: int = DRAWS) -> Diagnosis:
    """Pooled F1 of every signal, told the number of events and told nothing, beside chance."""
    results: dict[str, Any] = {"kinds": {}, "signals": list(SIGNALS), "tolerances": TOLERANCES}
    nulls: dict[str, Any] = {}
    for kind in trace.event_names:
        truths = {e.index: e.event_steps(kind) for e in trace.episodes}
        kept = [e for e in trace.episodes if len(truths[e.index])]
        if not kept:
            continue
        record: dict[str, Any] = {
            "num_events": int(sum(len(truths[e.index]) for e in kept)),
            "num_episodes": len(kept),
            "told": {},
            "untold": {},
        }
        nulls[kind] = {"told": {}, "untold": {}}
        for name in SIGNALS:
            series = [_series(e, name) for e in kept]
            for way, matching in (("told", match_published), ("untold", match_best)):
                if way == "told" and name not in PUBLISHED_SIGNALS:
                    continue
                rng = numpy_stream(seed, "compass", "changes", kind, name, way)
                found = [
                    _detect(own, offset, len(truths[e.index]), told=way == "told")
                    for e, (own, offset) in zip(kept, series, strict=True)
                ]
                scored = _score(found, [truths[e.index] for e in kept], kept, matching, draws, rng)
                record[way][name], nulls[kind][way][name] = scored
        record["examples"] = [_example(e, truths[e.index]) for e in kept[:8]]
        results["kinds"][kind] = record
    status, reason = _verdict(results, nulls)
    return Diagnosis("changes", _TITLE, _QUESTION, status, reason, results, nulls)


def _series(e: EpisodeTrace, name: str) -> tuple[ndarray, int]:
    """The signal and the step its first entry belongs to."""
    if name == "angular_velocity":
        return e.angular_velocity, 1
    if name == "latent_error":
        return e.latent_error, e.history
    if name == "angle_error":
        return e.angle_error, e.history
    part = e.steps[:, : e.k] if name == "progress" else e.steps[:, e.k :]
    return part.astype(float), 0


def _detect(series: ndarray, offset: int, count: int, *, told: bool) -> ndarray | None:
    """Change points on the step base; None when the series is too short for the published rule."""
    if told:
        if len(series) < 3 * (count + 1):
            return None
        return binary(series, count, jump=JUMP_PUBLISHED) + offset
    scaled = standardised(series.T).T if series.ndim == 2 else standardised(series)
    return penalised(scaled, bic_penalty(scaled)) + offset


def _score(
    found: list[ndarray | None],
    truths: list[ndarray],
    kept: list[EpisodeTrace],
    matching: Callable[[ndarray, ndarray, int], int],
    draws: int,
    rng: np.random.Generator,
) -> tuple[dict[str, Any], dict[str, Any]]:
    used = [i for i, own in enumerate(found) if own is not None]
    detected = [own for own in found if own is not None]
    num_found = sum(map(len, detected))
    num_true = sum(len(truths[i]) for i in used)
    record: dict[str, Any] = {"num_found": num_found, "num_true": num_true, "f1": {}}
    record |= {"matched": {}, "per_episode": {}, "episodes": [kept[i].index for i in used]}
    nulls: dict[str, Any] = {}
    for tolerance in TOLERANCES:
        turned = []  # matches of each episode for every circular shift of its events
        for place, i in enumerate(used):
            steps = kept[i].num_steps
            shifts = [
                matching(detected[place], (truths[i] + shift) % steps, tolerance)
                for shift in range(steps)
            ]
            turned.append(np.array(shifts, float))
        matched = int(sum(own[0] for own in turned))
        record["matched"][str(tolerance)] = matched
        record["f1"][str(tolerance)] = f1(matched, num_found, num_true)
        record["per_episode"][str(tolerance)] = [
            f1(own[0], len(detected[place]), len(truths[i]))
            for place, (i, own) in enumerate(zip(used, turned, strict=True))
        ]
        if turned:
            chance = f1(shifted_totals(turned, draws, rng=rng), num_found, num_true)
            observed = float(record["f1"][str(tolerance)])
            nulls[str(tolerance)] = summary(observed, np.asarray(chance))
    return record, nulls


def _example(e: EpisodeTrace, truth: ndarray) -> dict[str, Any]:
    velocity, offset = _series(e, "angular_velocity")
    return {
        "episode": e.index,
        "events": truth,
        "theta": e.theta[e.step_rows],
        "signals": {
            name: {"first_step": own[1], "values": own[0]}
            for name, own in ((name, _series(e, name)) for name in PUBLISHED_SIGNALS)
        },
        "untold": _detect(velocity, offset, len(truth), told=False),
    }


def _verdict(results: dict[str, Any], nulls: dict[str, Any]) -> tuple[Status, str]:
    if not results["kinds"]:
        return "not tested", "these episodes hold no event"
    kind = next(iter(results["kinds"]))
    record = results["kinds"][kind]
    told = {name: record["told"][name]["f1"]["3"] for name in PUBLISHED_SIGNALS}
    untold = {name: record["untold"][name]["f1"]["3"] for name in PUBLISHED_SIGNALS}
    if not record["told"]["angular_velocity"]["num_true"]:
        return "not tested", f"episodes are too short for as many change points as {kind} events"
    first = "angular_velocity"
    chance_told = nulls[kind]["told"][first]["3"]
    chance = nulls[kind]["untold"][first]["3"]
    others = PUBLISHED_SIGNALS[1:]
    status = judge(
        effect=told[first] > max(told[name] for name in others),
        control=below(chance["p"]) and untold[first] > max(untold[name] for name in others),
    )
    reason = (
        f"told the number of {kind} events, change points of the angular velocity reach F1 "
        f"{said(told[first])} within three steps (latent error {said(told['latent_error'])}, "
        f"chance {said(chance_told['mean'])}); told nothing, {said(untold[first])} (latent error "
        f"{said(untold['latent_error'])}, chance {said(chance['mean'])}, {said_p(chance['p'])})"
    )
    return status, reason
