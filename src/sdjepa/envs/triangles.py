"""Meshes as OpenGL takes them: MuJoCo's corners in, shared vertices and lists of them out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt32

NOBODY = 0xFFFF_FFFF  # lies across an edge
SMOOTH = 0.8  # cosine below which MuJoCo replaces a corner's normal by its triangle's


@dataclass(frozen=True)
class Mesh:
    """A mesh as MuJoCo draws one without texture coordinates, equal corners shared."""

    places: Float[np.ndarray, "vertices 3"]
    normals: Float[np.ndarray, "vertices 3"]
    index: Int[np.ndarray, "triangles 3"]


def read_mesh(model: Any, number: int) -> Mesh:
    """What MuJoCo uploads of a mesh, to the bit."""
    places = corners(model, number)
    faces = slice(
        model.mesh_faceadr[number], model.mesh_faceadr[number] + model.mesh_facenum[number]
    )
    normals = model.mesh_normal[model.mesh_normaladr[number] + model.mesh_facenormal[faces]]
    flat = _facing(places)
    cosine = _dot(normals, flat[:, None])
    shown = np.where((cosine < np.float32(SMOOTH))[..., None], flat[:, None], normals)
    rows, index = merge(np.concatenate([places, shown], axis=-1).reshape(-1, 6))
    return Mesh(
        places=np.ascontiguousarray(rows[:, :3]),
        normals=np.ascontiguousarray(rows[:, 3:]),
        index=index.reshape(-1, 3),
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


def merge(rows: np.ndarray) -> tuple[np.ndarray, UInt32[np.ndarray, "corners"]]:
    """Different rows, in the order in which they first occur, and which of them each row is."""
    plain = np.ascontiguousarray(rows, dtype=np.float32)
    key = plain.view(np.uint32).reshape(len(plain), -1)
    # Sorting whole rows takes ten times as long as sorting a number made of each.
    odd = np.array([2 * (number * 0x1234_5678_9ABC_DEF1 % 2**62) + 1 for number in range(1, 7)])
    mixed = (key * odd[: key.shape[1]].astype(np.uint64)).sum(1, dtype=np.uint64)
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    if not np.array_equal(key[first][inverse.reshape(-1)], key):  # two rows made the same number
        _, first, inverse = np.unique(key, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), dtype=np.uint32)
    rank[order] = np.arange(len(order), dtype=np.uint32)
    return plain[first[order]], rank[inverse.reshape(-1)]


def across(triangles: Int[np.ndarray, "triangles 3"]) -> UInt32[np.ndarray, "triangles 3"]:
    """Of the edge from each corner, the third corner of a triangle that has it the other way."""
    begin, end = triangles.astype(np.int64), np.roll(triangles, -1, axis=1).astype(np.int64)
    count = int(begin.max(initial=0)) + 1
    forth, back = (begin * count + end).reshape(-1), (end * count + begin).reshape(-1)
    order = np.argsort(forth, kind="stable")
    place = order[np.searchsorted(forth, back, sorter=order).clip(max=len(order) - 1)]
    third = np.roll(triangles, 1, axis=1).reshape(-1)[place]
    return np.where(forth[place] == back, third, NOBODY).astype(np.uint32).reshape(-1, 3)


def corners(model: Any, mesh: int) -> Float[np.ndarray, "triangles 3 3"]:
    """Places of a mesh's corners."""
    faces = slice(model.mesh_faceadr[mesh], model.mesh_faceadr[mesh] + model.mesh_facenum[mesh])
    return model.mesh_vert[model.mesh_vertadr[mesh] + model.mesh_face[faces]]


def compile_triangles(name: int, places: np.ndarray, index: np.ndarray) -> None:
    """A display list of indexed triangles, between glNewList and glEndList of the caller or alone.

    OpenGL copies the arrays when the list is made.
    """
    from OpenGL import GL

    GL.glEnableClientState(GL.GL_VERTEX_ARRAY)
    GL.glVertexPointer(3, GL.GL_FLOAT, 0, places)
    GL.glNewList(name, GL.GL_COMPILE)
    GL.glDrawElements(GL.GL_TRIANGLES, len(index), GL.GL_UNSIGNED_INT, index)
    GL.glEndList()
    GL.glDisableClientState(GL.GL_VERTEX_ARRAY)
