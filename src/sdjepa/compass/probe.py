"""How much of the task's progress a straight line reads out of each part of the latent.

The published probe leaves out one step at a time and sets 8 dimensions against controls of 1 or 2.
Here it stands as published, and beside it the same question asked fairly: blocks held out with a
gap, the future held out, features standardised, the penalty nested, and controls of equal width.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from sdjepa.compass.nulls import bootstrap_mean, random_frames, sign_flipped, summary
from sdjepa.compass.result import Diagnosis, below, judge, said, said_p
from sdjepa.compass.ridge import (
    blocked,
    cross_validated_r2,
    fit_predict,
    forward,
    leave_one_out,
    r2,
)
from sdjepa.compass.trace import EpisodeTrace, Trace, plane_angle
from sdjepa.seeds import numpy_stream

MIN_ROWS = 20
PROJECTIONS = 199
RESPLITS = 30
ALPHA_PUBLISHED = 1e-3
SCHEMES = ("leave_one_out", "blocked", "forward")

Features = Float[ndarray, "batch steps dim"]


def progress_target(measure: Float[ndarray, "steps"]) -> Float[ndarray, "steps"]:
    """Share of the way from the first value to the smallest, as the paper normalises."""
    return (measure[0] - measure) / max(abs(measure[0] - measure.min()), 1e-3)


def clock_polynomials(num_steps: int, dim: int) -> Float[ndarray, "steps dim"]:
    """Legendre polynomials of time, degrees 1 to `dim`: a clock as wide as the progress part."""
    time = np.linspace(-1, 1, num_steps)
    return np.polynomial.legendre.legvander(time, dim)[:, 1:]


def probe(
    trace: Trace,
    *,
    seed: int,
    against: Trace | None = None,
    projections: int = PROJECTIONS,
    draws: int = 1999,
    resplits: int = RESPLITS,
) -> Diagnosis:
    """Per-episode and pooled probes of the first measure, with controls of equal width."""
    kept = [e for e in trace.episodes if e.num_rows >= MIN_ROWS]
    names = trace.measure_names
    question = "How much of the task's progress can a straight line read from the progress part?"
    if not names or not kept:
        reason = f"no episode of at least {MIN_ROWS} frames has a measure"
        return Diagnosis("probe", _TITLE, question, "not tested", reason, {})
    name = names[0]
    targets = [progress_target(np.asarray(e.measures[name], float)[e.step_rows]) for e in kept]
    usable = [i for i, target in enumerate(targets) if np.ptp(target) > 1e-9]
    kept, targets = [kept[i] for i in usable], [targets[i] for i in usable]
    features = _features(trace, kept, seed=seed, projections=projections, against=against)
    table = {
        label: _per_episode(sets, targets, drawn=label in _DRAWN)
        for label, sets in features.items()
    }
    pooled = _pooled(features, targets, seed=seed, resplits=resplits)
    results: dict[str, Any] = {
        "target": f"progress towards the smallest {name}",
        "dims": {label: int(sets[0].shape[-1]) for label, sets in features.items()},
        "episodes": [e.index for e in kept],
        "skipped": sorted({e.index for e in trace.episodes} - {e.index for e in kept}),
        "per_episode": {label: _summarise(scores, seed) for label, scores in table.items()},
        "pooled": pooled,
    }
    nulls = _nulls(table, seed=seed, draws=draws)
    return Diagnosis(
        "probe",
        _TITLE,
        question,
        *_verdict(results, nulls, k=trace.k),
        results,
        nulls,
    )


_TITLE = "Task progress read by a straight line"
_DRAWN = ("random_k", "content_random_k")  # features that are many draws of one kind
_WIDE = ("content", "latent")  # too wide for the published per-episode probe


def _features(
    trace: Trace,
    kept: list[EpisodeTrace],
    *,
    seed: int,
    projections: int,
    against: Trace | None,
) -> dict[str, list[Features]]:
    """Per feature name one array (batch, steps, dim) per episode."""
    width, k = kept[0].latents.shape[1], trace.k
    rng = numpy_stream(seed, "compass", "probe")
    frames = random_frames(width, k, projections, rng=rng)
    content_frames = random_frames(width - k, k, projections, rng=rng)
    two = rng.standard_normal((width, 2))
    two /= np.linalg.norm(two, axis=0)
    pooled = np.concatenate([e.steps for e in kept]).astype(float)
    centre = pooled.mean(0)
    axes = np.linalg.svd(pooled - centre, full_matrices=False)[2][:k].T
    others = {e.index: e for e in against.episodes} if against else {}
    found: dict[str, list[Features]] = {}

    def put(name: str, value: ndarray) -> None:
        found.setdefault(name, []).append(value if value.ndim == 3 else value[None])

    for e in kept:
        z = e.steps.astype(float)
        theta = plane_angle(z)
        turned = np.unwrap(theta)
        put("clock", np.arange(e.num_steps, dtype=float)[:, None])
        put("theta", theta[:, None])
        put("theta_from_start", (turned - turned[0])[:, None])
        put("sin_cos_theta", np.stack([np.sin(theta), np.cos(theta)], -1))
        put("progress", z[:, :k])
        put("progress_from_start", z[:, :k] - z[0, :k])
        put("content", z[:, k:])
        put("latent", z)
        put("random_2", z @ two)
        put("clock_polynomial_k", clock_polynomials(e.num_steps, k))
        put("first_pcs_k", (z - centre) @ axes)
        put("random_k", np.einsum("td,pdk->ptk", z, frames))
        put("content_random_k", np.einsum("td,pdk->ptk", z[:, k:], content_frames))
        if e.index in others:
            put("against_first_k", others[e.index].steps[:, :k].astype(float))
    return {name: sets for name, sets in found.items() if len(sets) == len(kept)}


def _per_episode(
    sets: list[Features], targets: list[ndarray], *, drawn: bool
) -> dict[str, Float[ndarray, "batch episodes"]]:
    """Scores of every draw and episode; episodes of equal length are probed in one batch."""
    shape = (len(sets[0]), len(sets))
    scores = {scheme: np.full(shape, np.nan) for scheme in SCHEMES}
    for length in sorted({len(target) for target in targets}):
        at = [i for i, target in enumerate(targets) if len(target) == length]
        x = np.concatenate([sets[i] for i in at])
        y = np.repeat(np.stack([targets[i] for i in at]), shape[0], axis=0)

        def spread(values: ndarray, among: int = len(at)) -> ndarray:
            return values.reshape(among, shape[0]).T

        # The published rule: at least four steps, and fewer dimensions than steps less one.
        if length >= 4 and x.shape[-1] < length - 1:
            lenient = r2(leave_one_out(x, y, ALPHA_PUBLISHED), y)
            scores["leave_one_out"][:, at] = spread(lenient)
        scores["blocked"][:, at] = spread(cross_validated_r2(x, y, blocked(length)))
        if not drawn:  # drawn controls are compared in the blocked scheme only
            scores["forward"][:, at] = spread(cross_validated_r2(x, y, forward(length)))
    return scores


def _summarise(scores: dict[str, ndarray], seed: int) -> dict[str, Any]:
    """Mean over draws first, then over episodes; episodes where the probe does not fit are out."""
    found: dict[str, Any] = {}
    for scheme, values in scores.items():
        per_episode = values.mean(0)
        finite = per_episode[np.isfinite(per_episode)]
        if finite.size == 0:
            continue
        rng = numpy_stream(seed, "compass", "probe", "bootstrap")
        found[scheme] = {
            "mean": float(finite.mean()),
            "ci95": bootstrap_mean(finite, rng=rng),
            "median": float(np.median(finite)),
            "quartiles": [float(q) for q in np.quantile(finite, [0.25, 0.75])],
            "share_positive": float((finite > 0).mean()),
            "values": per_episode,
        }
    return found


def _pooled(
    features: dict[str, list[Features]], targets: list[ndarray], *, seed: int, resplits: int
) -> dict[str, Any]:
    """A quarter of the episodes held out, many times: as published, and standardised and nested."""
    count = len(targets)
    held = max(1, round(0.25 * count))
    if count - held < 2:
        return {}
    rng = numpy_stream(seed, "compass", "probe", "resplit")
    orders = [rng.permutation(count) for _ in range(resplits)]
    names = [name for name in features if name not in _DRAWN]
    found: dict[str, Any] = {}
    for name in names:
        published, fair, wrong = [], [], []
        for order in orders:
            test, train = order[:held], order[held:]
            x = np.concatenate([features[name][i][0] for i in train])[None]
            y = np.concatenate([targets[i] for i in train])[None]
            x_test = np.concatenate([features[name][i][0] for i in test])[None]
            y_test = np.concatenate([targets[i] for i in test])[None]
            plain = fit_predict(x, y, x_test, alphas=(ALPHA_PUBLISHED,), standardise=False)
            published.append(float(r2(plain, y_test)[0]))
            wrong.append(float(np.abs(plain - y_test).mean()))
            fair.append(float(r2(fit_predict(x, y, x_test), y_test)[0]))
        found[name] = {
            "published": {"mean": float(np.mean(published)), "std": float(np.std(published))},
            "published_absolute_error": float(np.mean(wrong)),
            "nested": {"mean": float(np.mean(fair)), "std": float(np.std(fair))},
        }
    return found


def _nulls(table: dict[str, Any], *, seed: int, draws: int) -> dict[str, Any]:
    """Where the progress part stands among drawn controls, and against each fixed one, paired."""
    nulls: dict[str, Any] = {}
    for scheme in ("leave_one_out", "blocked"):
        own = table["progress"][scheme][0]
        known = np.isfinite(own)
        if not known.any():
            continue
        found: dict[str, Any] = {}
        for control in _DRAWN:
            found[control] = summary(
                float(own[known].mean()), table[control][scheme][:, known].mean(-1)
            )
        for control in ("clock", "clock_polynomial_k", "first_pcs_k", "against_first_k"):
            if control not in table:
                continue
            gain = (own - table[control][scheme][0])[known]
            rng = numpy_stream(seed, "compass", "probe", "flip", control)
            found[control] = summary(float(gain.mean()), sign_flipped(gain, draws, rng=rng))
        nulls[scheme] = found
    return nulls


def _verdict(results: dict[str, Any], nulls: dict[str, Any], *, k: int) -> tuple[Any, str]:
    per = results["per_episode"]
    means = {
        name: per[name].get("leave_one_out", {}).get("mean", float("nan"))
        for name in ("progress", "clock", "random_2")
    }
    if "blocked" not in nulls or not np.isfinite(means["progress"]):
        return "not tested", f"episodes are too short for a probe of {k} dimensions"
    strict = nulls["blocked"]
    p_random, p_clock = strict["random_k"]["p"], strict["clock_polynomial_k"]["p"]
    status = judge(
        effect=means["progress"] > max(means["clock"], means["random_2"], 0.0),
        control=below(p_random) and below(p_clock),
    )
    reason = (
        f"one step left out, the progress part explains {said(means['progress'])} of the variance "
        f"of {results['target']} (clock {said(means['clock'])}, random pair "
        f"{said(means['random_2'])}); blocks left out, it explains "
        f"{said(per['progress']['blocked']['mean'])} against {said(strict['random_k']['mean'])} "
        f"for random projections of equal width ({said_p(p_random)}) and "
        f"{said(per['clock_polynomial_k']['blocked']['mean'])} for a clock of equal width "
        f"({said_p(p_clock)})"
    )
    return status, reason
