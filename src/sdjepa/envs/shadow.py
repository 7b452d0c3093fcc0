"""Where shadows are cast: a MuJoCo scene in, the parts of its shadow map that each geom needs out.

MuJoCo clears and fills the whole shadow map for every frame, on a GPU with few drawing units most
of a frame's time. Only where something moves does the map ever change, and boxes around geoms, as
the light sees them, tell where that is. The ground has none: it is everywhere and stands still. It
could be left out of the map but for a few samples at the edge of a triangle, whose place is taken
from beside it and may lie below the ground.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

MARGIN_TEXELS = 4  # for rounding and for the filter that reads four texels
SQUARELY = 0.5  # a ground's normal and the light that falls on it are within 60 degrees
MOST_DEGREES = 160  # a spot light opens no wider than this in its map
HIDDEN_GROUP = 3  # geoms of this group and above are not drawn

Box = tuple[int, int, int, int]  # left, low, right and upper edge, in texels
NOTHING: Box = (0, 0, 0, 0)
Light = tuple[np.ndarray, np.ndarray, float | None]  # place, axes, tangent of half its opening


class Casters:
    """Where a model's shadows can fall; its lights must stand still."""

    def __init__(self, model: Any, *, size: int, clip: float, scale: float) -> None:
        self._mujoco: Any = importlib.import_module("mujoco")
        self._model, self._size, self._clip, self._scale = model, size, clip, scale
        self.lights: list[Light] = []
        self.grounds: list[int] | None = None  # their places in a scene; known from the first

    def note(self, scene: Any, data: Any) -> Int[np.ndarray, "lights geoms 4"]:
        """Boxes of all geoms, empty for grounds and what casts no shadow."""
        self.look(scene)
        boxes = np.zeros((len(self.lights), len(self._casts), 4), dtype=np.int64)
        for number, frame in enumerate(self.lights):
            boxes[number, self._casts] = self._boxes(*frame, data=data)
        return boxes

    def look(self, scene: Any) -> list[int]:
        """The scene's grounds; at the first, note what stays: lights, and the sizes of all else."""
        if self.grounds is not None:
            return self.grounds
        geoms = [scene.geoms[i] for i in range(scene.ngeom)]
        lights = [scene.lights[i] for i in range(scene.nlight) if scene.lights[i].castshadow]
        places = np.array([geom.pos for geom in geoms], dtype=np.float64)
        self._middle, self._half = np.split(np.array(self._model.geom_aabb, np.float64), 2, axis=1)
        self._casts = self._model.geom_group < HIDDEN_GROUP
        self.grounds = []
        for number, geom in enumerate(geoms):
            if geom.type != self._mujoco.mjtGeom.mjGEOM_PLANE:
                continue
            normal = np.asarray(geom.mat, dtype=np.float64).reshape(3, 3)[:, 2]
            faces = all(-float(np.dot(light.dir, normal)) > SQUARELY for light in lights)
            if faces and ((places - np.asarray(geom.pos)) @ normal > -1e-9).all():
                self.grounds.append(number)
                self._casts[geom.objid] = False
            sides = np.asarray(geom.size, dtype=np.float64)[:2]
            self._half[geom.objid] = [*np.where(sides > 0, sides, 1e3), 0]
            self._middle[geom.objid] = 0
        directional = self._mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
        for light in lights:
            forward = np.array(light.dir, dtype=np.float64)
            across = np.cross(forward, upward(forward))
            axes = np.stack([across, np.cross(across, forward), forward])
            degrees = min(2 * light.cutoff * self._scale, MOST_DEGREES)
            opening = np.tan(np.radians(degrees) / 2)
            wide = None if light.type == directional else opening
            self.lights.append((np.array(light.pos, dtype=np.float64), axes, wide))
        return self.grounds

    def _boxes(
        self,
        position: Float[np.ndarray, "3"],
        axes: Float[np.ndarray, "3 3"],
        wide: float | None,
        *,
        data: Any,
    ) -> Int[np.ndarray, "casters 4"]:
        turn = axes @ data.geom_xmat[self._casts].reshape(-1, 3, 3)
        middle = (data.geom_xpos[self._casts] - position) @ axes.T
        middle += np.einsum("nij,nj->ni", turn, self._middle[self._casts])
        half = np.einsum("nij,nj->ni", np.abs(turn), self._half[self._casts])
        low, high = middle - half, middle + half
        if wide is None:
            left, right = low[:, :2] / self._clip, high[:, :2] / self._clip
        elif (low[:, 2] <= 0).any():  # beside the light: it may fall anywhere
            return np.array([[0, 0, self._size, self._size]])
        else:
            near, far = wide * low[:, 2:], wide * high[:, 2:]
            left = np.minimum(low[:, :2] / near, low[:, :2] / far)
            right = np.maximum(high[:, :2] / near, high[:, :2] / far)
        # MuJoCo leaves a texel free at every edge of the map.
        scale = (self._size - 2) / 2
        start = np.floor(1 + scale * (1 + left) - MARGIN_TEXELS).clip(0, self._size)
        stop = np.ceil(1 + scale * (1 + right) + MARGIN_TEXELS).clip(0, self._size)
        return np.hstack([start, stop]).astype(np.int64)


def around(boxes: Int[np.ndarray, "boxes 4"]) -> Box:
    """The box around all; an empty one has no place."""
    boxes = boxes[(boxes[:, :2] < boxes[:, 2:]).all(1)]
    if not len(boxes):
        return NOTHING
    left, low = boxes[:, :2].min(0).tolist()
    right, high = boxes[:, 2:].max(0).tolist()
    return (left, low, right, high)


def area(boxes: Sequence[Box]) -> int:
    """Texels in boxes that lie beside one another."""
    return sum((right - left) * (high - low) for left, low, right, high in boxes)


def upward(forward: Float[np.ndarray, "3"]) -> Float[np.ndarray, "3"]:
    """The direction MuJoCo calls up when it looks along a light."""
    up = np.cross(forward, [-1.0, 0.0, 0.0])
    if np.square(up).sum() <= 0.01:
        up = np.cross(forward, [0.0, 1.0, 0.0])
    return up / np.linalg.norm(up)
