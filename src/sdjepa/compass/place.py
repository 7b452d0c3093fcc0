"""Is the angle a property of the scene? Theta over visited places, and over a drawn grid.

Visited: every traced frame, binned by where the episode was. Drawn: one recorded scene in which
only the agent is moved over a grid, rendered by the simulator; an environment whose agent cannot be
moved like that has no drawn map. The number says how well theta agrees between episodes there.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from sdjepa.compass.nulls import random_frames, summary
from sdjepa.compass.reader import Reader
from sdjepa.compass.result import Diagnosis, said, said_p
from sdjepa.compass.trace import Trace, plane_angle
from sdjepa.data.episodes import Episodes
from sdjepa.envs.base import Env, make
from sdjepa.errors import UserError
from sdjepa.seeds import numpy_stream

BINS = 12
DRAWN = 20  # cells of the drawn grid along each side
PLANES = 199


@dataclass(frozen=True)
class _Visits:
    """Every traced frame: its place as a cell, its episode, its latent."""

    cell: Int[ndarray, "frames"]
    episode: Int[ndarray, "frames"]
    latents: Float[ndarray, "frames latent"]
    low: Float[ndarray, "2"]
    high: Float[ndarray, "2"]


def place(
    trace: Trace, reader: Reader, source: Episodes, *, seed: int, planes: int = PLANES
) -> Diagnosis:
    """The map of theta, and its agreement between episodes against random planes."""
    visits = _visits(trace)
    theta = plane_angle(visits.latents)
    here = agreement(theta[None], visits.cell, visits.episode)
    own = here - _anywhere(theta[None], visits)
    frames = random_frames(
        visits.latents.shape[1], 2, planes, rng=numpy_stream(seed, "compass", "planes")
    )
    angles = plane_angle(np.einsum("nd,pdk->pnk", visits.latents, frames))
    chance = agreement(angles, visits.cell, visits.episode) - _anywhere(angles, visits)
    null = summary(float(own[0]), chance)
    drawn, why = drawn_map(trace, reader, source)
    reason = (
        f"at the same place theta agrees with other episodes to {said(float(here[0]))} (1 is the "
        f"same angle), {said(float(own[0]))} more than at any place (random planes "
        f"{said(float(null['mean']))} more, {said_p(null['p'])})"
    )
    reason += "" if drawn else f"; no drawn map: {why}"
    return Diagnosis(
        "place",
        "The compass over the map",
        "Does the same place give the same angle in different episodes?",
        "shown",
        reason,
        {
            "visited": _cells(theta, visits),
            "drawn": drawn,
            "agreement": float(here[0]),
            "agreement_gain": float(own[0]),
        },
        {"random_planes": null},
    )


def _visits(trace: Trace) -> _Visits:
    path = np.concatenate([e.path for e in trace.episodes]).astype(float)
    low, high = path.min(0), path.max(0)
    share = (path - low) / np.maximum(high - low, 1e-9)
    cell = np.clip((share * BINS).astype(int), 0, BINS - 1)
    counts = [np.full(e.num_rows, i) for i, e in enumerate(trace.episodes)]
    latents = np.concatenate([e.latents for e in trace.episodes]).astype(float)
    return _Visits(cell[:, 0] * BINS + cell[:, 1], np.concatenate(counts), latents, low, high)


def agreement(
    angles: Float[ndarray, "planes frames"],
    cell: Int[ndarray, "frames"],
    episode: Int[ndarray, "frames"],
) -> Float[ndarray, "planes"]:
    """Mean cosine of a frame's angle with the mean direction of *other* episodes in its cell."""
    both = cell * (episode.max() + 1) + episode
    unit = np.stack([np.cos(angles), np.sin(angles)])  # 2 planes frames
    in_cell = _grouped(unit, cell)
    in_both = _grouped(unit, both)
    others = in_cell - in_both
    length = np.sqrt((others**2).sum(0))
    visited = np.bincount(cell)[cell] > np.bincount(both)[both]
    cosine = (unit * others).sum(0) / np.maximum(length, 1e-12)
    if not visited.any():
        return np.full(len(angles), np.nan)
    return cosine[:, visited].mean(-1)


def _anywhere(angles: Float[ndarray, "planes frames"], visits: _Visits) -> ndarray:
    """Agreement with other episodes wherever they are: what a common direction alone gives."""
    return agreement(angles, np.zeros_like(visits.cell), visits.episode)


def _grouped(unit: ndarray, group: ndarray) -> ndarray:
    """Each frame's group total."""
    order = np.argsort(group, kind="stable")
    first = np.flatnonzero(np.diff(group[order], prepend=group[order][0] - 1))
    totals = np.add.reduceat(unit[..., order], first, axis=-1)
    which = np.searchsorted(group[order][first], group)
    return totals[..., which]


def _cells(theta: ndarray, visits: _Visits) -> dict[str, Any]:
    shape = (BINS, BINS)
    count = np.bincount(visits.cell, minlength=BINS**2)
    x = np.bincount(visits.cell, np.cos(theta), minlength=BINS**2)
    y = np.bincount(visits.cell, np.sin(theta), minlength=BINS**2)
    known = count > 0
    mean = np.where(known, np.arctan2(y, x), np.nan)
    together = np.where(known, np.hypot(x, y) / np.maximum(count, 1), np.nan)
    return {
        "low": visits.low,
        "high": visits.high,
        "count": count.reshape(shape),
        "theta": mean.reshape(shape),  # first index along x, second along y
        "coherence": together.reshape(shape),
    }


def drawn_map(trace: Trace, reader: Reader, source: Episodes) -> tuple[dict[str, Any] | None, str]:
    """Theta of one scene with the agent moved over a grid, or why there is none."""
    try:
        env = make(source.env)
    except UserError as error:
        return None, str(error)
    try:
        return _draw(env, trace, reader, source)
    finally:
        env.close()


def _draw(
    env: Env, trace: Trace, reader: Reader, source: Episodes
) -> tuple[dict[str, Any] | None, str]:
    first = trace.episodes[0]
    columns = source.episode(first.index)
    # The columns that hold the drawn path are the ones that say where the agent is.
    movable = [
        name
        for name, values in columns.items()
        if values.ndim == 2 and values.shape[1] >= 2 and np.allclose(values[:, :2], first.path)
    ]
    path = np.concatenate([e.path for e in trace.episodes])
    low, high = path.min(0), path.max(0)
    reach = float(np.linalg.norm(high - low))
    xs, ys = (np.linspace(low[i], high[i], DRAWN) for i in range(2))
    theta = np.full((DRAWN, DRAWN), np.nan)
    radius = np.full((DRAWN, DRAWN), np.nan)
    row = {name: np.array(values[0]) for name, values in columns.items()}
    for i, x in enumerate(xs):
        frames, kept = [], []
        for j, y in enumerate(ys):
            for name in movable:
                row[name] = row[name].copy()
                row[name][:2] = (x, y)
            env.set_state(row)
            seen = {name: np.asarray(value)[None] for name, value in env.observe().items()}
            there = type(env).path(seen)[0]
            if np.linalg.norm(there - (x, y)) < 0.01 * reach:
                frames.append(env.render(source.image_size))
                kept.append(j)
        if kept:
            progress = reader.encode(np.stack(frames))[:, : trace.k]
            theta[i, kept] = plane_angle(progress)
            radius[i, kept] = np.linalg.norm(progress[:, :2], axis=-1)
    if np.isfinite(theta).mean() < 0.25:
        return None, "this environment's agent cannot be moved by its recorded position"
    return {"x": xs, "y": ys, "theta": theta, "plane_radius": radius, "scene": first.index}, ""
