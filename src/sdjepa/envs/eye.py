"""Where a picture is taken from: a MuJoCo scene in, the matrix from places to pixels out."""

from typing import Any

import numpy as np
from jaxtyping import Float


def looking(scene: Any) -> list[Any]:
    """All that decides from where a picture is taken."""
    found: list[Any] = []
    for camera in (scene.camera[0], scene.camera[1]):
        found += [each.tobytes() for each in (camera.pos, camera.forward, camera.up)]
        found += [camera.frustum_top, camera.frustum_near, camera.frustum_far]
        found += [camera.frustum_bottom, camera.frustum_width]
    return found


class Eye:
    """The camera of square pictures; it is looked at again only when it has moved."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._where: list[Any] = []
        self._view = np.zeros((3, 4))

    def view(self, scene: Any) -> Float[np.ndarray, "3 4"]:
        """From places to x w, y w (in pixels) and w."""
        where = looking(scene)
        if where != self._where:
            self._where, self._view = where, self._find(scene)
        return self._view

    def _find(self, scene: Any) -> Float[np.ndarray, "3 4"]:
        camera, half = scene.camera[0], self._size / 2
        eye = np.mean([np.asarray(scene.camera[i].pos, np.float64) for i in (0, 1)], axis=0)
        forward = np.asarray(camera.forward, dtype=np.float64)
        up = np.asarray(camera.up, dtype=np.float64)
        high = 0.5 * (camera.frustum_top - camera.frustum_bottom)
        wide = camera.frustum_width or high  # the picture is square
        across = np.stack([np.cross(forward, up) / wide, up / high]) * camera.frustum_near
        view = np.vstack([half * (across + forward), forward])
        return np.hstack([view, -(view @ eye)[:, None]])
