"""Only triangles that the camera can see: where it stands in, display lists of parts of meshes out.

MuJoCo sends every triangle of every mesh through every pass. Left out here, without a pixel's
change: meshes outside the picture, and triangles that show the camera their back, which OpenGL
would drop after the work on their corners. What is left is drawn from display lists of our own, in
MuJoCo's order, with equal corners shared; a geom is directed at its list by its number alone.

Which triangles show their back is settled for all cameras within a cell of the space around a mesh,
and a list made when the camera, seen from the mesh, first enters the cell. OpenGL rounds corners to
a part of a pixel before it decides, by which a thin triangle may turn around: such a one is kept
until it is turned away so far that it cannot.
"""

import collections
import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from sdjepa.envs.gl_calls import Unsupported, forgive
from sdjepa.envs.triangles import compile_triangles, corners, merge

CELL_M = 0.3  # with smaller ones many a frame needs a list that was not yet made
ROUNDED = 1.5  # of a part of a pixel: two corners may both move by half its diagonal
AROUND = 1.03  # the picture's edges are moved out by 3 %
MOST_LISTS = 64  # of a mesh
SMOOTH = 0.8  # cosine below which MuJoCo replaces a corner's normal by its triangle's

Key = tuple[int, int, int, int]  # a mesh and a cell


@dataclass
class Mesh:
    """Triangles with what is needed to choose among them."""

    places: Float[np.ndarray, "vertices 3"]
    normals: Float[np.ndarray, "vertices 3"]
    index: Int[np.ndarray, "triangles 3"]
    facing: Float[np.ndarray, "triangles 3"]
    level: Float[np.ndarray, "triangles"]  # of its plane along `facing`
    height: Float[np.ndarray, "triangles"]
    first: Float[np.ndarray, "triangles 3"]

    def kept(
        self, camera: Float[np.ndarray, "3"], *, half: float, pixel: float
    ) -> Bool[np.ndarray, "triangles"]:
        """Triangles some camera of a cube of side 2 `half` may see, around `camera`.

        `pixel` is the least length that is told apart in the picture at 1 m.
        """
        before = self.facing @ camera - self.level + half * np.abs(self.facing).sum(1)
        far = np.linalg.norm(self.first - camera, axis=1) + half * np.sqrt(3)
        # A triangle's height in the picture is height * |sine| / (pixel * distance).
        with np.errstate(divide="ignore", invalid="ignore"):
            sine = ROUNDED * pixel * far / self.height
        return ~(before < -sine * far)


def read_mesh(model: Any, number: int) -> Mesh:
    """A mesh as MuJoCo draws one without texture coordinates."""
    places = corners(model, number)
    faces = slice(
        model.mesh_faceadr[number], model.mesh_faceadr[number] + model.mesh_facenum[number]
    )
    normals = model.mesh_normal[model.mesh_normaladr[number] + model.mesh_facenormal[faces]]
    flat = _facing(places)
    cosine = _dot(normals, flat[:, None])
    shown = np.where((cosine < np.float32(SMOOTH))[..., None], flat[:, None], normals)
    rows, index = merge(np.concatenate([places, shown], axis=-1).reshape(-1, 6))
    exact = places.astype(np.float64)
    sides = np.roll(exact, -1, axis=1) - exact
    across = np.cross(sides[:, 0], sides[:, 1])
    area = np.linalg.norm(across, axis=1)
    facing = across / np.maximum(area, 1e-30)[:, None]
    return Mesh(
        places=np.ascontiguousarray(rows[:, :3]),
        normals=np.ascontiguousarray(rows[:, 3:]),
        index=index.reshape(-1, 3),
        facing=facing,
        level=(facing * exact[:, 0]).sum(1),
        height=area / np.maximum(np.linalg.norm(sides, axis=-1).max(1), 1e-30),
        first=exact[:, 0],
    )


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rounded to 32 bits after every step, from left to right."""
    return a[..., 0] * b[..., 0] + a[..., 1] * b[..., 1] + a[..., 2] * b[..., 2]


def _facing(places: Float[np.ndarray, "triangles 3 3"]) -> Float[np.ndarray, "triangles 3"]:
    """Normals of triangles in 32 bits, step by step as MuJoCo rounds them."""
    one, two = places[:, 1] - places[:, 0], places[:, 2] - places[:, 0]
    across = np.stack(
        [one[:, i] * two[:, j] - one[:, j] * two[:, i] for i, j in ((1, 2), (2, 0), (0, 1))],
        axis=1,
    )
    length = np.sqrt(_dot(across, across))[:, None]
    nothing = length < np.float32(1e-10)
    scale = np.float32(1) / np.where(nothing, np.float32(1), length)
    return np.where(nothing, np.array([0, 0, 1], dtype=np.float32), across * scale)


@dataclass
class View:
    """What one frame shows of each mesh: whether any, and the cell the camera is in."""

    seen: list[bool]
    cells: list[tuple[int, int, int]]


class Visible:
    """Directs geoms of scenes like the first at lists of what can be seen of them."""

    def __init__(self, model: Any, context: Any, *, scene: Any, size: int) -> None:
        from OpenGL import GL

        mujoco: Any = importlib.import_module("mujoco")
        camera = scene.camera[0]
        if abs(camera.frustum_top + camera.frustum_bottom) > 1e-6 * camera.frustum_top:
            raise Unsupported("a camera that looks askew")
        if camera.orthographic or scene.enabletransform or scene.stereo:
            raise Unsupported("an unusual camera")
        if not scene.flags[mujoco.mjtRndFlag.mjRND_CULL_FACE]:
            raise Unsupported("backs are drawn")
        geoms = [(i, scene.geoms[i]) for i in range(scene.ngeom)]
        if any(geom.reflectance > 0 for _, geom in geoms):
            raise Unsupported("a mirror shows other sides")
        meshes = [
            (place, geom)
            for place, geom in geoms
            if geom.type == mujoco.mjtGeom.mjGEOM_MESH
            and geom.objtype == mujoco.mjtObj.mjOBJ_GEOM
            and geom.dataid % 2 == 0
            and model.mesh_texcoordadr[geom.dataid // 2] < 0
        ]
        if not meshes:
            raise Unsupported("nothing to leave out")
        self._context = context
        self._places = [place for place, _ in meshes]
        self._objects = np.array([geom.objid for _, geom in meshes])
        self._meshes = [geom.dataid // 2 for _, geom in meshes]
        self._middle, self._half = np.split(
            np.array(model.geom_aabb[self._objects], np.float64), 2, axis=1
        )
        self._read = {number: read_mesh(model, number) for number in set(self._meshes)}
        half = 0.5 * (camera.frustum_top - camera.frustum_bottom)
        parts = 2 ** int(np.ravel(GL.glGetIntegerv(GL.GL_SUBPIXEL_BITS))[0])
        self._pixel = 2 * half / camera.frustum_near / size / parts
        self._lists: dict[int, collections.OrderedDict[Key, int]] = {}
        self.made = 0

    def view(self, scene: Any, data: Any) -> View:
        """What of it a noted scene shows."""
        pair = [scene.camera[0], scene.camera[1]]
        eye = np.mean([np.asarray(camera.pos, np.float64) for camera in pair], axis=0)
        turns = data.geom_xmat[self._objects].reshape(-1, 3, 3)
        places = data.geom_xpos[self._objects] - eye
        local = -np.einsum("nij,ni->nj", turns, places)
        cells = np.rint(local / CELL_M).astype(int)
        middle = places + np.einsum("nij,nj->ni", turns, self._middle)
        planes = _edges(pair[0])
        reach = np.einsum("pi,nij->npj", planes, turns)
        room = middle @ planes.T + (np.abs(reach) * self._half[:, None]).sum(-1)
        return View((room > 0).all(1).tolist(), [(a, b, c) for a, b, c in cells.tolist()])

    def dress(self, scene: Any, view: View) -> None:
        """Direct the scene's meshes at their lists, made now where missing."""
        base, geoms = self._context.baseMesh, scene.geoms
        for place, mesh, seen, cell in zip(
            self._places, self._meshes, view.seen, view.cells, strict=True
        ):
            geoms[place].dataid = self._list((mesh, *cell)) - base if seen else -1

    def undress(self, scene: Any) -> None:
        """As MuJoCo has it."""
        geoms = scene.geoms
        for place, mesh in zip(self._places, self._meshes, strict=True):
            geoms[place].dataid = 2 * mesh

    def chosen(self, key: Key) -> Int[np.ndarray, "triangles 3"]:
        """Corners, by vertex, of the triangles of a mesh that a camera in a cell may see."""
        mesh = self._read[key[0]]
        camera = np.array(key[1:], dtype=np.float64) * CELL_M
        kept = mesh.kept(camera, half=CELL_M / 2, pixel=self._pixel)
        return mesh.index[kept]

    @property
    def triangles(self) -> int:
        """Of all meshes of a scene."""
        return sum(len(self._read[mesh].index) for mesh in self._meshes)

    def count(self, view: View) -> int:
        """Triangles that are left of them."""
        each = zip(self._meshes, view.seen, view.cells, strict=True)
        return sum(len(self.chosen((mesh, *cell))) for mesh, seen, cell in each if seen)

    def _list(self, key: Key) -> int:
        lists = self._lists.setdefault(key[0], collections.OrderedDict())
        if key in lists:
            lists.move_to_end(key)
            return lists[key]
        from OpenGL import GL

        forgive()
        if len(lists) >= MOST_LISTS:
            _, name = lists.popitem(last=False)
        else:
            name: Any = GL.glGenLists(1)
        mesh, index = self._read[key[0]], self.chosen(key).reshape(-1)
        used = np.zeros(len(mesh.places), dtype=bool)
        used[index] = True
        again = (np.cumsum(used) - 1).astype(np.uint32)[index]
        compile_triangles(name, mesh.places[used], again, normals=mesh.normals[used])
        lists[key] = name
        self.made += 1
        return name

    def close(self) -> None:
        """Give the lists back to OpenGL."""
        from OpenGL import GL

        forgive()
        for lists in self._lists.values():
            for name in lists.values():
                GL.glDeleteLists(name, 1)
        self._lists.clear()


def _edges(camera: Any) -> Float[np.ndarray, "5 3"]:
    """Normals, pointing inward, of the planes through the camera that bound what it sees."""
    forward = np.asarray(camera.forward, dtype=np.float64)
    up = np.asarray(camera.up, dtype=np.float64)
    right = np.cross(forward, up)
    high = 0.5 * (camera.frustum_top - camera.frustum_bottom)
    wide = camera.frustum_width or high  # the picture is square
    slopes = AROUND * np.array([high, wide]) / camera.frustum_near
    sides = [
        slope * forward + sign * axis
        for slope, axis in zip(slopes, (up, right), strict=True)
        for sign in (1, -1)
    ]
    return np.array([forward, *sides])
