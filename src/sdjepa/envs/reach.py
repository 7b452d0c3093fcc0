"""Where in a picture anything moves: places of geoms in, boxes of pixels out.

A geom is within its bounds, and its shadow on the ground within theirs, as the light throws them.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from sdjepa.envs.gl_calls import Unsupported
from sdjepa.envs.shadow import NOTHING, Box, Light, around

MARGIN_PIXELS = 3  # for rounding, and for shadows that are read from texels beside


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

    def boxes(
        self,
        data: Any,
        *,
        view: Float[np.ndarray, "3 4"],
        near: float,
        ground: tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]],
    ) -> tuple[Box, Box]:
        """Around all shadows and around everything, a pixel at least.

        `ground` is a place of it and its normal.
        """
        turns = data.geom_xmat[self._objects].reshape(-1, 3, 3)
        corners = self._corners @ turns.swapaxes(1, 2) + data.geom_xpos[self._objects][:, None]
        place, normal = ground
        height = (corners - place) @ normal / (self._forward @ normal)
        shadows = self._around(corners - height[..., None] * self._forward, view, near)
        geoms = self._around(corners, view, near)
        both = around(np.array([shadows, geoms]))
        return shadows, both if both != NOTHING else (0, 0, 1, 1)

    def _around(
        self, places: Float[np.ndarray, "geoms 8 3"], view: Float[np.ndarray, "3 4"], near: float
    ) -> Box:
        seen = places @ view[:, :3].T + view[:, 3]
        if (seen[..., 2] < near).any():  # beside the camera: it may be anywhere
            return (0, 0, self._size, self._size)
        flat = (seen[..., :2] / seen[..., 2:]).reshape(-1, 2)
        low = np.floor(flat.min(0) - MARGIN_PIXELS).clip(0, self._size).astype(int).tolist()
        high = np.ceil(flat.max(0) + MARGIN_PIXELS).clip(0, self._size).astype(int).tolist()
        return (*low, *high) if low[0] < high[0] and low[1] < high[1] else NOTHING


def frame(inner: Box, outer: Box, *, size: int) -> list[Box]:
    """Boxes that make up `outer` and a pixel around `inner`, without `inner`."""
    if inner == NOTHING:
        return [outer]
    grown = np.clip(np.add(inner, [-1, -1, 1, 1]), 0, size)
    left, low, right, high = around(np.array([grown, outer]))
    start, below, stop, above = inner
    return [
        (left, low, start, high),
        (stop, low, right, high),
        (start, low, stop, below),
        (start, above, stop, high),
    ]
