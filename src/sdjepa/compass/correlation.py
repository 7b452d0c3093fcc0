"""What the angle runs with: rank correlations with the clock and the environment's measures.

Four nulls stand beside every number: the angle of another episode, the angle of random planes of
the same latent, curves of the same smoothness, and (for the direction of time) random signs.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from sdjepa.compass.association import (
    circular_linear,
    distances,
    mutual_information,
    on_circle,
    partial_spearman,
    pearson,
    ranks,
    resample,
    spearman,
    standardised,
)
from sdjepa.compass.nulls import (
    bootstrap_mean,
    p_value,
    phase_randomised,
    random_frames,
    sign_flipped,
    summary,
    swapped,
)
from sdjepa.compass.result import Diagnosis, below, judge, said, said_p
from sdjepa.compass.trace import EpisodeTrace, Trace, plane_angle
from sdjepa.seeds import numpy_stream

CLOCK = "clock"
DRAWS = 499
PLANES = 199
GRID = 48  # moments at which mutual information is estimated: its cost grows with their square


def correlation(trace: Trace, *, seed: int, draws: int = DRAWS, planes: int = PLANES) -> Diagnosis:
    """Rank correlation of theta with the clock and every measure, beside four nulls."""
    episodes = trace.episodes
    series = {CLOCK: [np.arange(float(e.num_rows)) for e in episodes]}
    series |= {
        name: [np.asarray(e.measures[name], float) for e in episodes]
        for name in trace.measure_names
    }
    thetas = [e.theta for e in episodes]
    frames = random_frames(
        episodes[0].latents.shape[1], 2, planes, rng=numpy_stream(seed, "compass", "planes")
    )
    plane_ranks = [_plane_ranks(e, frames) for e in episodes]
    clocks = series[CLOCK]
    results = {
        name: _association(thetas, values, clocks, seed=seed) for name, values in series.items()
    }
    nulls: dict[str, Any] = {"random_planes": {}, "phase_randomised": {}, "swapped_episodes": {}}
    plane_draws, swap_draws = {}, {}
    for name, values in series.items():
        observed = results[name]["mean_abs_rho"]
        plane_draws[name] = _plane_null(plane_ranks, values)
        nulls["random_planes"][name] = summary(observed, plane_draws[name])
        rng = numpy_stream(seed, "compass", "phase", name)
        nulls["phase_randomised"][name] = summary(
            observed, _phase_null(thetas, values, draws, rng=rng)
        )
        if name != CLOCK:
            rng = numpy_stream(seed, "compass", "swap", name)
            # One stream for all measures would tie their draws together; the maximum below wants
            # exactly that, so it uses its own common order.
            table = _swap_table(thetas, values)
            nulls["swapped_episodes"][name] = summary(
                observed, swapped(np.abs(table), draws, rng=rng)
            )
            common = numpy_stream(seed, "compass", "swap")
            swap_draws[name] = swapped(np.abs(table), draws, rng=common)
            results[name]["mutual_information"] = _information(
                thetas, values, draws, rng=numpy_stream(seed, "compass", "mi", name)
            )
    direction = np.array(results[CLOCK]["rho"])
    rng = numpy_stream(seed, "compass", "signs")
    flips = np.abs(sign_flipped(direction, draws, rng=rng))
    nulls["direction"] = summary(float(np.abs(np.nanmean(direction))), flips)
    claims = _claims(results, nulls, plane_draws, swap_draws)
    order = sorted(
        (n for n in results if n != CLOCK), key=lambda n: -_or_zero(results[n]["mean_abs_rho"])
    )
    return Diagnosis(
        diagnostic="correlation",
        title="What the angle runs with",
        question="Does the angle follow the clock or the task more closely than two random "
        "directions of the latent would?",
        status=claims["task"]["status"],
        reason=_sentence(results, nulls, claims, order),
        results={
            "measures": results,
            "order": [CLOCK, *order],
            "episodes": [e.index for e in episodes],
            "claims": claims,
        },
        nulls=nulls,
    )


def _association(
    thetas: list[ndarray], values: list[ndarray], clocks: list[ndarray], *, seed: int
) -> dict[str, Any]:
    rho = np.array([spearman(t, v) for t, v in zip(thetas, values, strict=True)])
    partial = np.array(
        [partial_spearman(t, v, c) for t, v, c in zip(thetas, values, clocks, strict=True)]
    )
    circular = np.array([circular_linear(t, v) for t, v in zip(thetas, values, strict=True)])
    rng = numpy_stream(seed, "compass", "bootstrap")
    return {
        "rho": rho,
        "mean_abs_rho": _mean(np.abs(rho)),
        "mean_abs_rho_ci95": bootstrap_mean(np.abs(rho), rng=rng),
        "mean_rho": _mean(rho),
        "mean_abs_partial_rho_given_clock": _mean(np.abs(partial)),
        "mean_circular_linear": _mean(circular),
        "circular_linear": circular,
    }


def _plane_ranks(e: EpisodeTrace, frames: Float[ndarray, "planes latent 2"]) -> ndarray:
    points = np.einsum("td,pdk->ptk", e.latents.astype(float), frames)
    return ranks(np.unwrap(plane_angle(points), axis=-1))


def _plane_null(plane_ranks: list[ndarray], values: list[ndarray]) -> Float[ndarray, "planes"]:
    rho = [pearson(r, ranks(v)) for r, v in zip(plane_ranks, values, strict=True)]
    return _mean_over_episodes(np.abs(np.stack(rho)))


def _phase_null(
    thetas: list[ndarray], values: list[ndarray], draws: int, *, rng: np.random.Generator
) -> Float[ndarray, "draws"]:
    rho = [
        pearson(ranks(phase_randomised(t, draws, rng=rng)), ranks(v))
        for t, v in zip(thetas, values, strict=True)
    ]
    return _mean_over_episodes(np.abs(np.stack(rho)))


def _swap_table(
    thetas: list[ndarray], values: list[ndarray]
) -> Float[ndarray, "episodes episodes"]:
    """Row i: the measure of episode i against the theta of every episode, stretched to fit."""
    rows = []
    for i, own in enumerate(values):
        others = np.stack([t if j == i else resample(t, own.size) for j, t in enumerate(thetas)])
        rows.append(spearman(others, np.broadcast_to(own, others.shape)))
    return np.stack(rows)


def _information(
    thetas: list[ndarray], values: list[ndarray], draws: int, *, rng: np.random.Generator
) -> dict[str, Any]:
    """Mutual information of the wrapped angle with a measure, against swapped episodes."""
    angles = distances(on_circle(np.stack([resample(t, GRID) for t in thetas])))
    levels = distances(standardised(np.stack([resample(v, GRID) for v in values]))[..., None])
    table = np.stack([mutual_information(angles, np.broadcast_to(d, angles.shape)) for d in levels])
    observed = _mean(np.diagonal(table))
    return {"nats": observed, "swapped_episodes": summary(observed, swapped(table, draws, rng=rng))}


def _claims(
    results: dict[str, Any],
    nulls: dict[str, Any],
    plane_draws: dict[str, ndarray],
    swap_draws: dict[str, ndarray],
) -> dict[str, Any]:
    """The paper's two claims: theta is a clock; theta follows a task quantity."""
    clock_link = nulls["phase_randomised"][CLOCK]["p"]
    clock_plane = nulls["random_planes"][CLOCK]["p"]
    claims: dict[str, Any] = {
        CLOCK: {
            "p_link": clock_link,
            "p_random_planes": clock_plane,
            "status": judge(effect=below(clock_link), control=below(clock_plane)),
        }
    }
    tested = {
        n: results[n]["mean_abs_rho"] for n in swap_draws if np.isfinite(results[n]["mean_abs_rho"])
    }
    if not tested:
        return claims | {"task": {"status": "not tested", "best": None}}
    best = max(tested, key=lambda name: tested[name])
    # The best of several measures meets the best of several in every draw: choosing is chance too.
    link = p_value(tested[best], np.max([swap_draws[n] for n in tested], axis=0))
    plane = p_value(tested[best], np.max([plane_draws[n] for n in tested], axis=0))
    return claims | {
        "task": {
            "best": best,
            "p_link": link,
            "p_random_planes": plane,
            "beats_clock": tested[best] > results[CLOCK]["mean_abs_rho"],
            "status": judge(effect=below(link), control=below(plane)),
        }
    }


def _sentence(
    results: dict[str, Any], nulls: dict[str, Any], claims: dict[str, Any], order: list[str]
) -> str:
    clock, task = claims[CLOCK], claims["task"]
    against_clock = (
        f"with the clock mean |rho| is {said(results[CLOCK]['mean_abs_rho'])} (random planes "
        f"{said(nulls['random_planes'][CLOCK]['mean'])}, {said_p(clock['p_random_planes'])}; "
        f"smooth chance {said(nulls['phase_randomised'][CLOCK]['mean'])})"
    )
    if task["best"] is None:
        return f"{against_clock}; this environment gives no measure that varies"
    best = task["best"]
    return (
        f"mean |rho| of theta with {best} is {said(results[best]['mean_abs_rho'])} "
        f"(angle of another episode {said(nulls['swapped_episodes'][best]['mean'])}, "
        f"{said_p(task['p_link'])}; random planes {said(nulls['random_planes'][best]['mean'])}, "
        f"{said_p(task['p_random_planes'])}), and {against_clock}"
    )


def _mean(values: ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")


def _mean_over_episodes(values: Float[ndarray, "episodes draws"]) -> Float[ndarray, "draws"]:
    known = np.isfinite(values)
    count = known.sum(0)
    total = np.where(known, values, 0.0).sum(0)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def _or_zero(value: float) -> float:
    return value if np.isfinite(value) else 0.0
