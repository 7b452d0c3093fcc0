"""Where in a picture anything moves: places of geoms in, boxes of pixels out.

A geom is within its bounds, and its shadow on the ground within theirs, as the light throws them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sdjepa.envs.gl_calls import Unsupported
from sdjepa.envs.shadow import NOTHING, Box, Light, around

MARGIN_PIXELS = 3  # for rounding, and for shadows that are read from texels beside


@dataclass(frozen=True)
class Extent:
    """What of a picture is not as if there were no geoms but the ground."""

    shadows: Box  # around all on the ground
    everything: Box  # around these and all geoms, a pixel at least


class Reach:
    """Where in a picture geoms, and their shadows on a ground, can be."""

    def __init__(self, model: Any, objects: list[int], *, light: Light, size: int) -> None:
        _, axes, wide = light
        if wide is not None:
            raise Unsupported("rays that are not parallel")
        self._forward, self._size, self._objects = axes[2], size, objects
        middle, half = np.split(np.array(model.geom_aabb, np.float64)[objects], 2, axis=1)
        signs = np.stack(np.meshgrid(*[[-1, 1]] * 3), axis=-1).reshape(8, 3)
        self._corners = middle[:, None] + signs * half[:, None]

    def extent(
        self,
        data: Any,
        *,
        view: Float[np.ndarray, "3 4"],
        near: float,
        ground: tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]],
    ) -> Extent:
        """Of the geoms where they are now; `ground` is a place of it and its normal."""
        turns = data.geom_xmat[self._objects].reshape(-1, 3, 3)
        corners = self._corners @ turns.swapaxes(1, 2) + data.geom_xpos[self._objects][:, None]
        place, normal = ground
        height = (corners - place) @ normal / (self._forward @ normal)
        fallen = corners - height[..., None] * self._forward
        boxes = self._boxes(np.stack([fallen, corners]), view, near)
        everything = around(boxes.reshape(-1, 4))
        return Extent(around(boxes[0]), everything if everything != NOTHING else (0, 0, 1, 1))

    def _boxes(
        self, places: Float[np.ndarray, "2 geoms 8 3"], view: Float[np.ndarray, "3 4"], near: float
    ) -> Int[np.ndarray, "2 geoms 4"]:
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
