"""Where in a picture anything moves: places of geoms in, boxes of pixels out.

A geom is within its bounds, its shadow between them and where the light throws them on the ground,
and its image in the ground within theirs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sdjepa.envs.shadow import NOTHING, Box, Light, around

MARGIN_PIXELS = 3  # for rounding, and for shadows that are read from texels beside

Ground = tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]]  # a place of it, and its normal


@dataclass(frozen=True)
class Extent:
    """What of a picture is not as if there were no geoms but the ground."""

    shadows: Box  # around all on the ground
    everything: Box  # around these and all geoms, a pixel at least


class Reach:
    """Where in a picture geoms, and their shadows on a ground, can be."""

    def __init__(self, model: Any, objects: list[int], *, light: Light, size: int) -> None:
        self._position, axes, self._wide = light
        self._forward, self._size, self._objects = axes[2], size, objects
        middle, half = np.split(np.array(model.geom_aabb, np.float64)[objects], 2, axis=1)
        signs = np.stack(np.meshgrid(*[[-1, 1]] * 3), axis=-1).reshape(8, 3)
        self._corners = middle[:, None] + signs * half[:, None]

    def extent(
        self, data: Any, *, view: Float[np.ndarray, "3 4"], near: float, ground: Ground
    ) -> Extent:
        """Of the geoms where they are now."""
        corners = self._now(data)
        fallen, bounded = self._fallen(corners, ground)
        boxes = self._boxes(np.stack([fallen, corners]), view, near)
        boxes[0][~bounded] = 0, 0, self._size, self._size
        everything = around(boxes.reshape(-1, 4))
        return Extent(around(boxes[0]), everything if everything != NOTHING else (0, 0, 1, 1))

    def each(
        self,
        data: Any,
        *,
        view: Float[np.ndarray, "3 4"],
        near: float,
        ground: Ground,
        mirror: bool,
    ) -> Int[np.ndarray, "geoms 4"]:
        """Around each geom, its shadow and, if the ground is a mirror, its image."""
        corners = self._now(data)
        fallen, bounded = self._fallen(corners, ground)
        seen = [corners, fallen]
        if mirror:
            place, normal = ground
            seen.append(corners - 2 * ((corners - place) @ normal)[..., None] * normal)
        boxes = self._boxes(np.stack(seen), view, near)
        found = np.concatenate([boxes[..., :2].min(0), boxes[..., 2:].max(0)], axis=1)
        found[~bounded] = 0, 0, self._size, self._size
        return found

    def _now(self, data: Any) -> Float[np.ndarray, "geoms 8 3"]:
        turns = data.geom_xmat[self._objects].reshape(-1, 3, 3)
        return self._corners @ turns.swapaxes(1, 2) + data.geom_xpos[self._objects][:, None]

    def _fallen(
        self, corners: Float[np.ndarray, "geoms 8 3"], ground: Ground
    ) -> tuple[Float[np.ndarray, "geoms 8 3"], np.ndarray]:
        """Where rays through corners meet the ground, and of which geoms all of them do."""
        place, normal = ground
        height = (corners - place) @ normal
        if self._wide is None:
            along = height / (self._forward @ normal)
            return corners - along[..., None] * self._forward, np.ones(len(corners), dtype=bool)
        lamp = float((self._position - place) @ normal)
        bounded: np.ndarray = np.all(height < lamp - 1e-6, axis=1)
        along = np.where(bounded[:, None], lamp / (lamp - np.where(height < lamp, height, 0)), 0)
        return self._position + along[..., None] * (corners - self._position), bounded

    def _boxes(
        self,
        places: Float[np.ndarray, "kinds geoms 8 3"],
        view: Float[np.ndarray, "3 4"],
        near: float,
    ) -> Int[np.ndarray, "kinds geoms 4"]:
        seen = places @ view[:, :3].T + view[:, 3]
        depth = seen[..., 2]
        flat = seen[..., :2] / np.maximum(depth, near)[..., None]
        low = np.floor(flat.min(2) - MARGIN_PIXELS)
        high = np.ceil(flat.max(2) + MARGIN_PIXELS)
        beside = (depth < near).any(2)  # beside the camera: it may be anywhere
        low[beside], high[beside] = 0, self._size
        return np.concatenate([low, high], axis=2).clip(0, self._size).astype(np.int64)


def frame(inner: Box, outer: Box, *, size: int) -> list[Box]:
    """Boxes that make up `outer` and a pixel around `inner`, without `inner`."""
    if inner == NOTHING:
        return [outer]
    start, below, stop, above = inner
    left, low = min(max(start - 1, 0), outer[0]), min(max(below - 1, 0), outer[1])
    right, high = max(min(stop + 1, size), outer[2]), max(min(above + 1, size), outer[3])
    return [
        (left, low, start, high),
        (stop, low, right, high),
        (start, low, stop, below),
        (start, above, stop, high),
    ]
