"""What the sieve drops holds no sample, and what it keeps is in order."""

import ctypes
from typing import Any

import numpy as np
import pytest

from sdjepa.envs import base, gl, gl_calls, sieve

SAMPLES = np.array([[0.375, 0.125], [0.875, 0.375], [0.125, 0.625], [0.625, 0.875]])
SIDE = 16


@pytest.fixture(scope="module")
def context():
    name = next(name for name in base.NAMES if issubclass(base.env_class(name), gl.Filmed))
    env: Any = base.make(name)
    env.reset(np.random.default_rng(0))
    env.frame()
    gl.painter(env.name, env.subject()[0], size=base.NATIVE_SIZE, shadow=0).make_current()
    gl_calls.forgive()


def kept(triangles: np.ndarray) -> np.ndarray:
    """The numbers of the triangles that are kept, corners given in pixels."""
    from OpenGL import GL

    places = np.concatenate([triangles, np.zeros((*triangles.shape[:2], 1))], axis=-1)
    made = sieve.Seen(
        [places.reshape(-1, 3)],
        [np.arange(3 * len(triangles)).reshape(-1, 3)],
        geoms=[0],
        samples=SAMPLES,
        size=SIDE,
        near=0.1,
    )
    flat = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
    beside = flat.copy()
    beside[0, 3] = 10 * SIDE
    made.sift(np.stack([flat[None], beside[None]]))
    counts = made.counts(2)[:, 0]
    assert counts[1] == 0  # nothing is left beside the picture
    found = np.empty(3 * counts[0], dtype=np.uint32)
    GL.glBindBuffer(GL.GL_SHADER_STORAGE_BUFFER, made._buffers[4])
    from OpenGL.raw.GL.VERSION.GL_1_5 import glGetBufferSubData

    glGetBufferSubData(
        GL.GL_SHADER_STORAGE_BUFFER, 0, found.nbytes, ctypes.c_void_p(found.ctypes.data)
    )
    made.close()
    assert np.array_equal(found, (3 * (found[::3, None] // 3) + np.arange(3)).reshape(-1))
    return found[::3] // 3


def holds(triangle: np.ndarray) -> bool:
    """Whether a sample of the picture lies in a triangle, in 64 bits."""
    grid = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE)), axis=-1).reshape(-1, 1, 2)
    points = (grid + SAMPLES).reshape(-1, 2)
    sides = []
    for first, second in ((0, 1), (1, 2), (2, 0)):
        (x, y), (dx, dy) = triangle[first], triangle[second] - triangle[first]
        sides.append(dx * (points[:, 1] - y) - dy * (points[:, 0] - x))
    inside = np.stack(sides)
    return bool(((inside >= 0).all(0) | (inside <= 0).all(0)).any())


@pytest.mark.parametrize("size", [0.2, 1.0, 6.0])
def test_a_triangle_that_holds_a_sample_is_kept_and_most_others_are_not(context, size):
    rng = np.random.default_rng(0)
    middle = rng.uniform(-1, SIDE + 1, (1500, 1, 2))
    triangles = middle + size * rng.uniform(-0.5, 0.5, (1500, 3, 2))
    triangles[::5, 2] = triangles[::5, 1] + 1e-3 * rng.uniform(-1, 1, (300, 2))  # slivers
    one, two = triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    backs = one[:, 0] * two[:, 1] < one[:, 1] * two[:, 0]
    triangles[backs] = triangles[backs][:, ::-1]
    found = kept(triangles)
    assert (np.diff(found.astype(int)) > 0).all()  # in order
    true = np.array([holds(triangle) for triangle in triangles])
    assert np.isin(np.flatnonzero(true), found).all()
    inside = ((triangles > 0.1) & (triangles < SIDE - 0.1)).all((1, 2))
    if size < 2:  # a large one is kept unseen
        needless = np.isin(np.arange(1500), found) & ~true & inside
        # The margin, 1/64 of a pixel around a circumference of two, at four samples a pixel: 0.13.
        assert needless.sum() < 0.2 * inside.sum()


def test_backs_are_dropped(context):
    front = np.array([[2.0, 2], [9, 2], [2, 9]])
    assert kept(np.stack([front, front[::-1]])).tolist() == [0]
