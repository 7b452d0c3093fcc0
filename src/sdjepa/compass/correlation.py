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


def correlation(
    trace: Trace, *, seed: int, draws: int = DRAWS, planes: int = PLANES, grid: int = GRID
) -> Diagnosis:
    """Rank correlation of theta with the clock and every measure, beside four nulls."""
    episodes = trace.episodes
    series = {CLOCK: [np.arange(float(e.num_rows)) for e in episodes]}
    series |= {
        name: [np.asarray(e.measures[name], float) for e in episodes]
        for name in trace.measure_names
    }
    thetas = [e.theta for e in episodes]
    results = {
        name: _association(thetas, values, series[CLOCK], seed=seed)
        for name, values in series.items()
    }
    chance = _chance(trace, thetas, series, seed=seed, draws=draws, planes=planes)
    nulls: dict[str, Any] = {
        kind: {name: summary(results[name]["mean_abs_rho"], own) for name, own in found.items()}
        for kind, found in chance.items()
    }
    for name in trace.measure_names:
        rng = numpy_stream(seed, "compass", "information")
        results[name]["mutual_information"] = _information(
            thetas, series[name], draws, grid=grid, rng=rng
        )
    direction = np.array(results[CLOCK]["rho"])
    flips = sign_flipped(direction, draws, rng=numpy_stream(seed, "compass", "signs"))
    nulls["direction"] = summary(float(np.abs(np.nanmean(direction))), np.abs(flips))
    claims = _claims(results, nulls, chance)
    order = sorted(trace.measure_names, key=lambda n: -_or_zero(results[n]["mean_abs_rho"]))
    return Diagnosis(
        diagnostic="correlation",
        title="What the angle runs with",
        question="Does the angle follow the clock or the task more closely than two random "
        "directions of the latent would?",
        status=claims["task"]["status"],
        reason=_sentence(results, nulls, claims),
        results={
            "measures": results,
            "order": [CLOCK, *order],
            "episodes": [e.index for e in episodes],
            "claims": claims,
        },
        nulls=nulls,
    )


def _chance(
    trace: Trace,
    thetas: list[ndarray],
    series: dict[str, list[ndarray]],
    *,
    seed: int,
    draws: int,
    planes: int,
) -> dict[str, dict[str, Float[ndarray, "draws"]]]:
    """Per null and series, mean |rho| of every draw; a draw is the same for all series."""
    width = trace.episodes[0].latents.shape[1]
    frames = random_frames(width, 2, planes, rng=numpy_stream(seed, "compass", "planes"))
    plane_ranks = [_plane_ranks(e, frames) for e in trace.episodes]
    rng = numpy_stream(seed, "compass", "phase")
    phase_ranks = [ranks(phase_randomised(theta, draws, rng=rng)) for theta in thetas]
    found: dict[str, dict[str, ndarray]] = {
        "random_planes": {},
        "phase_randomised": {},
        "swapped_episodes": {},
    }
    for name, values in series.items():
        found["random_planes"][name] = _mean_abs_rho(plane_ranks, values)
        found["phase_randomised"][name] = _mean_abs_rho(phase_ranks, values)
        if name != CLOCK:  # every episode has the same clock: swapping would change nothing
            rng = numpy_stream(seed, "compass", "swap")
            table = np.abs(_swap_table(thetas, values))
            found["swapped_episodes"][name] = swapped(table, draws, rng=rng)
    return found


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


def _mean_abs_rho(
    drawn_ranks: list[Float[ndarray, "draws rows"]], values: list[Float[ndarray, "rows"]]
) -> Float[ndarray, "draws"]:
    rho = [pearson(r, ranks(v)) for r, v in zip(drawn_ranks, values, strict=True)]
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
    thetas: list[ndarray],
    values: list[ndarray],
    draws: int,
    *,
    grid: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Mutual information of the wrapped angle with a measure, against swapped episodes."""
    angles = distances(on_circle(np.stack([resample(t, grid) for t in thetas])))
    levels = distances(standardised(np.stack([resample(v, grid) for v in values]))[..., None])
    table = np.stack([mutual_information(angles, np.broadcast_to(d, angles.shape)) for d in levels])
    observed = _mean(np.diagonal(table))
    return {"nats": observed, "swapped_episodes": summary(observed, swapped(table, draws, rng=rng))}


def _claims(
    results: dict[str, Any], nulls: dict[str, Any], chance: dict[str, dict[str, ndarray]]
) -> dict[str, Any]:
    """The paper's two claims: theta is a clock; theta follows a task quantity.

    The effect is what the paper shows: more than a curve as smooth as theta would reach. Controls:
    random planes for both; for the task also the angle of another episode, which shares the clock.
    """
    p = {kind: nulls[kind][CLOCK]["p"] for kind in ("phase_randomised", "random_planes")}
    claims: dict[str, Any] = {
        CLOCK: {
            "p": p,
            "status": judge(effect=below(p["phase_randomised"]), control=below(p["random_planes"])),
        }
    }
    levels = {name: found["mean_abs_rho"] for name, found in results.items() if name != CLOCK}
    levels = {name: level for name, level in levels.items() if np.isfinite(level)}
    if not levels:
        return claims | {"task": {"status": "not tested", "best": None}}
    best = max(levels, key=lambda name: levels[name])
    # The best of several measures meets the best of several in every draw: choosing is chance too.
    p = {
        kind: p_value(levels[best], np.max([found[name] for name in levels], axis=0))
        for kind, found in chance.items()
    }
    status = judge(
        effect=below(p["phase_randomised"]),
        control=below(p["swapped_episodes"]) and below(p["random_planes"]),
    )
    beats = levels[best] > results[CLOCK]["mean_abs_rho"]
    return claims | {"task": {"best": best, "p": p, "beats_clock": beats, "status": status}}


def _sentence(results: dict[str, Any], nulls: dict[str, Any], claims: dict[str, Any]) -> str:
    clock, task = claims[CLOCK], claims["task"]
    against_clock = (
        f"with the clock mean |rho| is {said(results[CLOCK]['mean_abs_rho'])} (random planes "
        f"{said(nulls['random_planes'][CLOCK]['mean'])}, {said_p(clock['p']['random_planes'])}; "
        f"smooth chance {said(nulls['phase_randomised'][CLOCK]['mean'])})"
    )
    if task["best"] is None:
        return f"{against_clock}; this environment gives no measure that varies"
    best = task["best"]
    return (
        f"mean |rho| of theta with {best} is {said(results[best]['mean_abs_rho'])} "
        f"(angle of another episode {said(nulls['swapped_episodes'][best]['mean'])}, "
        f"{said_p(task['p']['swapped_episodes'])}; random planes "
        f"{said(nulls['random_planes'][best]['mean'])}, {said_p(task['p']['random_planes'])}), "
        f"and {against_clock}"
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
