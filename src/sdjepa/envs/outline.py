"""Where in a shadow map something stood: places of geoms in, upright strips of the map out.

What moved is wiped out of the map before it is drawn again, and wiping takes as long as drawing. So
a geom's outline is taken closely: a body with 26 faces around it, seen from the light as a polygon
with 16 sides, and of that what lies in each strip. Boxes along the map's edges hold twice as much.
"""

import itertools
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial import HalfspaceIntersection, QhullError

from sdjepa.envs.shadow import MARGIN_TEXELS, Box, Light

STRIP_TEXELS, TILE_TEXELS = 64, 16  # the width of strips, and what their ends keep to
SIDES = 16

Spans = Int[np.ndarray, "geoms strips 2"]  # lower and upper end; an empty one ends before it begins


class Outlines:
    """Outlines of geoms, as a light whose rays are parallel sees them."""

    def __init__(
        self, model: Any, objects: Int[np.ndarray, "geoms"], *, light: Light, size: int, clip: float
    ) -> None:
        self._objects, self._size = objects, size
        bodies = [body(model, number) for number in objects]
        most = max(map(len, bodies))
        # As many points each, some of them twice.
        self._points = np.stack([np.resize(points, (most, 3)) for points in bodies])
        position, axes, _ = light
        half = (size - 2) / 2
        angle = 2 * np.pi * np.arange(SIDES) / SIDES
        self._sides = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        self._rays = self._sides @ axes[:2] * half / clip
        self._start = self._sides.sum(1) * (1 + half) - self._rays @ position
        left = STRIP_TEXELS * np.arange(-(-size // STRIP_TEXELS))
        self._left, self._right = left, np.minimum(left + STRIP_TEXELS, size)

    def spans(self, data: Any) -> Spans:
        """What of each strip each geom may touch."""
        turns = data.geom_xmat[self._objects].reshape(-1, 3, 3)
        reach = (self._points @ (self._rays @ turns).swapaxes(1, 2)).max(1)
        reach += data.geom_xpos[self._objects] @ self._rays.T + self._start + MARGIN_TEXELS
        across, along = self._sides[:, 0], self._sides[:, 1]
        # A side bounds what is above or below it, in a strip at the end where it is farther out.
        inward = np.minimum(across[:, None] * self._left, across[:, None] * self._right)
        quarter = SIDES // 2
        above, below = slice(1, quarter), slice(quarter + 1, SIDES)
        high, low = (
            (reach[:, which, None] - inward[which]) / along[which, None] for which in (above, below)
        )
        ends = np.stack([low.max(1), high.min(1)], axis=-1)
        ends[..., 0] = np.floor(ends[..., 0] / TILE_TEXELS) * TILE_TEXELS
        ends[..., 1] = np.ceil(ends[..., 1] / TILE_TEXELS) * TILE_TEXELS
        beside = (self._left > reach[:, :1]) | (self._right < -reach[:, quarter : quarter + 1])
        # MuJoCo leaves a texel free at every edge of the map.
        found = ends.clip(1, self._size - 1).astype(np.int64)
        found[beside] = (self._size, 0)
        return found

    def strips(self, spans: Spans, moved: Bool[np.ndarray, "geoms"]) -> list[Box]:
        """Few boxes that lie apart and hold all that `moved` touched."""
        if not moved.any():
            return []
        low, high = spans[moved, :, 0].min(0), spans[moved, :, 1].max(0)
        return [
            (max(int(left), 1), int(low_), min(int(right), self._size - 1), int(high_))
            for left, right, low_, high_ in zip(self._left, self._right, low, high, strict=True)
            if low_ < high_
        ]


def body(model: Any, number: int) -> Float[np.ndarray, "points 3"]:
    """Corners of a simple body around a geom."""
    middle, half = np.split(np.array(model.geom_aabb[number], np.float64), 2)
    signs = np.array(list(itertools.product((-1, 1), repeat=3)))
    box = middle + signs * half
    mesh = model.geom_dataid[number]
    if mesh < 0:
        return box
    start = model.mesh_vertadr[mesh]
    points = model.mesh_vert[start : start + model.mesh_vertnum[mesh]].astype(np.float64)
    faces = np.array([each for each in itertools.product((-1, 0, 1), repeat=3) if any(each)])
    faces = faces / np.linalg.norm(faces, axis=1, keepdims=True)
    levels = (points @ faces.T).max(0)
    planes = np.concatenate([faces, -levels[:, None]], axis=1)
    try:
        return HalfspaceIntersection(planes, points.mean(0)).intersections
    except QhullError:  # too flat
        return box
