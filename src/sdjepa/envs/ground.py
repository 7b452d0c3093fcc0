"""The part of the ground that is in the picture: planes and a camera in, display lists out.

MuJoCo makes a plane a grid of quads, as light is reckoned at their corners: Cube's ground has
10,404, half of them beside the picture. The others are drawn here from a list of our own, with
MuJoCo's corners to the last bit and in its order, and as quads, which a driver halves as it does
MuJoCo's. The list holds while neither the camera nor a plane moves; else MuJoCo's is drawn.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from sdjepa.envs.gl_calls import forgive
from sdjepa.envs.visible import AROUND

MOST_QUADS = 200  # on a side of MuJoCo's grid


def _lines(half: float, apart: float) -> Float[np.ndarray, "lines"]:
    """Where a side from -half to half is divided; what is left over is put at both ends."""
    apart = max(apart, half / (MOST_QUADS - 2))
    count = int(np.floor(half / max(apart, 1e-15)))
    count -= count % 2
    over = half - count * apart
    inner = -half + over + np.arange(count + 1) * apart * 2
    return np.array([-half, *inner, max(inner[-1], inner[-1] + over)])


def grid(
    size: Float[np.ndarray, "3"],
) -> tuple[Float32[np.ndarray, "corners 8"], Int[np.ndarray, "quads 4"]]:
    """A plane as MuJoCo has it: of each corner the texture's place, the normal and its own place.

    And the corners of quads. All is rounded once, at the end, as MuJoCo hands over 64 bits.
    """
    sides = [_lines(float(half), float(size[2])) for half in size[:2]]
    u, v = ((side + half) / (2 * half) for side, half in zip(sides, size[:2], strict=True))
    x, y = (each.reshape(-1) for each in np.indices((len(u), len(v))))
    none = np.zeros(len(x))
    rows = [u[x], 1 - v[y], none, none, none + 1, sides[0][x], sides[1][y], none]
    at = np.arange(len(x)).reshape(len(u), len(v))
    around = [at[:-1, :-1], at[1:, :-1], at[1:, 1:], at[:-1, 1:]]
    return np.stack(rows, -1).astype(np.float32), np.stack(around, -1).reshape(-1, 4)


def inside(
    places: Float[np.ndarray, "corners 3"],
    quads: Int[np.ndarray, "quads 4"],
    *,
    matrix: Float[np.ndarray, "3 4"],  # to x w, y w (in pixels) and w
    size: int,
) -> Bool[np.ndarray, "quads"]:
    """Quads that do not lie wholly beyond one edge of the picture, nor behind the camera."""
    x, y, depth = matrix[:, :3] @ places.T + matrix[:, 3:]
    low, high = (1 - AROUND) / 2 * size * depth, (1 + AROUND) / 2 * size * depth
    room = np.stack([depth, x - low, high - x, y - low, high - y])
    return (room[:, quads].max(-1) > 0).all(0)


class Ground:
    """Lists of what is in the picture of a scene's planes, for scenes seen from the same place."""

    def __init__(
        self,
        model: Any,
        scene: Any,
        *,
        planes: dict[int, Float[np.ndarray, "3 4"]],  # by number of geom, from each to pixels
        size: int,
        drawn: list[int],
    ) -> None:
        """`drawn` are lists of all geoms, each of which restores the matrix."""
        from OpenGL import GL

        self._planes, self._where = list(planes), _standing(scene, list(planes))
        self._whole, self._cut = drawn, list(drawn)
        self.kept = self.total = 0  # triangles
        for number, matrix in planes.items():
            corners, quads = grid(model.geom_size[scene.geoms[number].objid])
            kept = quads[inside(corners[:, 5:], quads, matrix=matrix, size=size)]
            self.kept, self.total = self.kept + 2 * len(kept), self.total + 2 * len(quads)
            index = kept.astype(np.uint32).reshape(-1)
            name: Any = GL.glGenLists(1)
            self._cut[number] = int(name)
            GL.glInterleavedArrays(GL.GL_T2F_N3F_V3F, 0, corners)
            GL.glNewList(name, GL.GL_COMPILE)
            GL.glDrawElements(GL.GL_QUADS, len(index), GL.GL_UNSIGNED_INT, index)
            GL.glPopMatrix()
            GL.glPushMatrix()
            GL.glEndList()
        for array in (GL.GL_TEXTURE_COORD_ARRAY, GL.GL_NORMAL_ARRAY, GL.GL_VERTEX_ARRAY):
            GL.glDisableClientState(array)

    def drawn(self, scene: Any) -> list[int]:
        """Lists of a scene's geoms: of planes ours, or MuJoCo's where something has moved."""
        return self._cut if _standing(scene, self._planes) == self._where else self._whole

    def close(self) -> None:
        """Give the lists back to OpenGL."""
        from OpenGL import GL

        forgive()
        for number in self._planes:
            GL.glDeleteLists(self._cut[number], 1)


def _standing(scene: Any, planes: list[int]) -> list[Any]:
    """All that decides what of planes is in the picture."""
    found: list[Any] = []
    for camera in (scene.camera[0], scene.camera[1]):
        found += [each.tobytes() for each in (camera.pos, camera.forward, camera.up)]
        found += [camera.frustum_top, camera.frustum_near, camera.frustum_width]
    for geom in (scene.geoms[number] for number in planes):
        found += [geom.pos.tobytes(), geom.mat.tobytes()]
    return found
