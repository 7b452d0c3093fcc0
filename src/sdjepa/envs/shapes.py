"""Display lists of geoms, of places alone: MuJoCo's geoms in, a list for each out.

Meshes are made anew with equal corners shared; simple shapes are MuJoCo's lists, called with the
matrices with which it calls them, as rounding is part of the picture.
"""

import importlib
from typing import Any

import numpy as np

from sdjepa.envs.gl_calls import Unsupported
from sdjepa.envs.triangles import compile_triangles, corners, merge

# MuJoCo's lists of simple shapes, in its order.
SPHERE, TOP, BOTTOM, CYLINDER, OPEN_CYLINDER, _HAZE, BOX = range(7)


class Shapes:
    """A list for every geom, which leaves the matrix as it was before the geom's own."""

    def __init__(self, model: Any, context: Any, geoms: list[Any]) -> None:
        from OpenGL import GL

        self._gl, gl = GL, GL
        kinds: Any = importlib.import_module("mujoco").mjtGeom
        self._lists: list[int] = []
        meshes: dict[int, int] = {}
        self.meshes: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.drawn = [self._name() for _ in geoms]
        for geom in geoms:
            if geom.type != kinds.mjGEOM_MESH or geom.dataid in meshes:
                continue
            if geom.dataid % 2:
                raise Unsupported("a convex hull is drawn")
            found, index = merge(corners(model, geom.dataid // 2).reshape(-1, 3))
            # Depths do not depend on the order; in this one a GPU meets a vertex again soon.
            triangles = index.reshape(-1, 3)
            index = triangles[np.argsort(triangles.min(1), kind="stable")].reshape(-1)
            meshes[geom.dataid] = self._name()
            compile_triangles(meshes[geom.dataid], found, index)
            self.meshes[geom.dataid] = (found, index.reshape(-1, 3))
        simple = context.baseBuiltin
        for name, geom in zip(self.drawn, geoms, strict=True):
            size = [float(side) for side in geom.size]
            gl.glNewList(name, gl.GL_COMPILE)
            if geom.type == kinds.mjGEOM_MESH:
                gl.glCallList(meshes[geom.dataid])
            elif geom.type == kinds.mjGEOM_PLANE and geom.dataid >= 0 and min(size[:2]) > 0:
                gl.glCallList(context.basePlane + geom.dataid + 1)
            elif geom.type == kinds.mjGEOM_CAPSULE:
                middle = np.float32(0.5 * (size[0] + size[1]))
                length = np.float32(size[2])
                gl.glScalef(*size)
                gl.glCallList(simple + OPEN_CYLINDER)
                gl.glScalef(1, 1, middle / length)
                gl.glTranslatef(0, 0, (length - middle) / middle)
                gl.glCallList(simple + TOP)
                gl.glTranslatef(0, 0, 2 * (middle - length) / middle)
                gl.glCallList(simple + BOTTOM)
            else:
                shapes = {
                    int(kinds.mjGEOM_SPHERE): SPHERE,
                    int(kinds.mjGEOM_ELLIPSOID): SPHERE,
                    int(kinds.mjGEOM_CYLINDER): CYLINDER,
                    int(kinds.mjGEOM_BOX): BOX,
                }
                if int(geom.type) not in shapes:
                    gl.glEndList()
                    raise Unsupported(f"a geom of type {geom.type}")
                gl.glScalef(*size)
                gl.glCallList(simple + shapes[int(geom.type)])
            gl.glPopMatrix()
            gl.glPushMatrix()
            gl.glEndList()

    def _name(self) -> int:
        self._lists.append(int(self._gl.glGenLists(1)))
        return self._lists[-1]

    def close(self) -> None:
        """Give the lists back to OpenGL."""
        for name in self._lists:
            self._gl.glDeleteLists(name, 1)
