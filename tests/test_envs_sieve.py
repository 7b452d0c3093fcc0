"""What is dropped could not be seen: no sample in it, or something nearer all over it."""

import ctypes
from typing import Any

import numpy as np
import pytest

from sdjepa.envs import base, gl, gl_calls, lit, seen, sieve

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
    places = np.concatenate([triangles, np.zeros((*triangles.shape[:2], 1))], axis=-1)
    made = seen.Seen(
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
    found = corners_kept(made, counts[0])
    made.close()
    return found


def corners_kept(made: sieve.Sieve, count: int) -> np.ndarray:
    """Numbers of triangles whose corners are three of their own, counted up."""
    from OpenGL import GL
    from OpenGL.raw.GL.VERSION.GL_1_5 import glGetBufferSubData

    found = np.empty(3 * count, dtype=np.uint32)
    kind = GL.GL_SHADER_STORAGE_BUFFER
    GL.glBindBuffer(kind, made._buffers[4])
    glGetBufferSubData(kind, 0, found.nbytes, ctypes.c_void_p(found.ctypes.data))
    GL.glBindBuffer(kind, 0)
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


def sheet(depth: float, *, cells: int, off: tuple[float, float] = (0, 0)) -> np.ndarray:
    """Triangles that cover a square of 12 pixels or texels without a gap, all equally far."""
    ticks = np.linspace(2, 14, cells + 1)
    corner = np.stack(np.meshgrid(ticks, ticks), axis=-1) + off
    a, b, c, d = corner[:-1, :-1], corner[:-1, 1:], corner[1:, 1:], corner[1:, :-1]
    flat = np.stack([np.stack([a, b, c], -2), np.stack([a, c, d], -2)]).reshape(-1, 3, 2)
    return np.concatenate([flat, np.full((len(flat), 3, 1), depth)], axis=-1)


def shown(places: np.ndarray, matrices: np.ndarray) -> tuple[seen.Seen, np.ndarray]:
    """Triangles of corners in pixels and how far away they are, and how many stay by geom."""
    far = places[..., 2:]
    triangles = np.concatenate([places[..., :2] * far, far], axis=-1)
    made = seen.Seen(
        [triangles.reshape(-1, 3)],
        [np.arange(3 * len(triangles)).reshape(-1, 3)],
        geoms=[0],
        samples=SAMPLES,
        size=SIDE,
        near=0.1,
    )
    made.sift(matrices)
    return made, made.counts(len(matrices))[:, 0]


def test_what_is_hidden_in_the_picture_goes_unless_it_reaches_out_or_comes_near(context):
    front = sheet(1.0, cells=1)
    behind = sheet(2.0, cells=4)
    small, large = behind[5:6], sheet(2.0, cells=1)
    out = small + np.array([-5.0, 0, 0])
    near = behind[6:7] * [1, 1, 0.4]
    through = behind[7:8] * np.array([[1, 1, 1], [1, 1, 0.4], [1, 1, 1]])
    touching = behind[9:10] * [1, 1, 0.5]
    every = np.concatenate([front, small, out, near, through, touching, large])
    made, _ = shown(every, np.eye(3, 4)[None, None])
    # The large ones are kept unseen.
    assert corners_kept(made, made.counts(1)[0, 0]).tolist() == [0, 1, 3, 4, 5, 6, 7, 8]
    made.close()
    made, counts = shown(np.concatenate([front[:, ::-1], behind]), np.eye(3, 4)[None, None])
    assert counts[0] == len(behind)  # a back hides nothing
    made.close()


def test_notes_of_before_do_not_count(context):
    """Ages go around, scenes come and go, and what hid something has moved away."""
    front, behind = sheet(1.0, cells=1), sheet(2.0, cells=4)[6:7]
    there = np.eye(3, 4)
    away = there.copy()
    away[0, 3] = 40.0
    places = [front * [1, 1, 1], behind * [2, 2, 1]]
    for made, args in (
        (
            seen.Seen(
                [each.reshape(-1, 3) for each in places],
                [np.arange(3 * len(each)).reshape(-1, 3) for each in places],
                geoms=[0, 1],
                samples=SAMPLES,
                size=SIDE,
                near=0.1,
            ),
            lambda scenes: (),
        ),
        (
            lit.Lit(
                [(each * [1, 1, -0.2] + [0, 0, 0.8]).reshape(-1, 3) for each in (front, behind)],
                [np.arange(3 * len(each)).reshape(-1, 3) for each in places],
                geoms=[0, 1],
                texels=1.0,
            ),
            lambda scenes: ([(0, 0, 64, 64)] * scenes,),
        ),
    ):
        for scenes in (2, 1, 2, 4, 2, 1, 2):
            if scenes == 4:
                made.sift(np.stack([[there, there]] * 4), *args(4))
                made._age = sieve.AGES - 2
            hidden = np.stack([there, there])
            bare = np.stack([away, there])
            for order in ([hidden, bare], [bare, hidden]):
                matrices = np.stack((order * scenes)[:scenes])
                made.sift(matrices, *args(scenes))
                stays = made.counts(scenes)[:, 1]
                assert stays.tolist() == [int(each is bare) for each in (order * scenes)[:scenes]]
        made.close()


def test_backs_are_dropped(context):
    front = np.array([[2.0, 2], [9, 2], [2, 9]])
    assert kept(np.stack([front, front[::-1]])).tolist() == [0]


MAP = (40, 24, 440, 344)  # a box of a map, neither square nor at its corner


def lit_of(triangles: np.ndarray) -> np.ndarray:
    """Those the light reaches, in order; corners given in texels and depths, larger is nearer."""
    made = lit.Lit(
        [triangles.reshape(-1, 3)],
        [np.arange(3 * len(triangles)).reshape(-1, 3)],
        geoms=[0],
        texels=1.0,
    )
    made.sift(np.eye(3, 4)[None, None], [MAP])
    found = np.sort(corners_kept(made, made.counts(1)[0, 0]))
    made.close()
    return found


def covers(triangle: np.ndarray, margin: float) -> bool:
    """Whether a texel of the box lies in a triangle, or within about `margin` of it, in 64 bits."""
    left, low, right, high = MAP
    first = np.maximum(np.floor(triangle.min(0) - 1), [left, low]).astype(int)
    last = np.minimum(np.ceil(triangle.max(0) + 1), [right, high]).astype(int)
    texels = np.stack(
        np.meshgrid(*(np.arange(a, b) + 0.5 for a, b in zip(first, last, strict=True))), -1
    ).reshape(-1, 2)
    steps = np.roll(triangle, -1, axis=0) - triangle
    around = steps[0, 0] * steps[1, 1] - steps[0, 1] * steps[1, 0]
    inside = np.ones(len(texels), dtype=bool)
    for corner, step in zip(triangle, steps, strict=True):
        side = step[0] * (texels[:, 1] - corner[1]) - step[1] * (texels[:, 0] - corner[0])
        room = margin * np.abs(step).sum()
        inside &= (side >= min(0, around) - room) & (side <= max(0, around) + room)
    return bool(inside.any())


@pytest.mark.parametrize("length", [3.0, 20.0, 60.0, 300.0])
def test_whatever_covers_a_texel_stays_where_nothing_is_noted(context, length):
    """Slivers too, along and across lines, whose texels are found line by line."""
    rng = np.random.default_rng(0)
    count = 400
    angle = rng.choice([0, np.pi / 2, 1.0], count) + rng.choice([0, 1e-5, 1e-2, 2], count)
    along = length * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    middle = rng.uniform(MAP[:2], MAP[2:], (count, 2))
    third = middle + rng.uniform(-0.5, 0.5, (count, 1)) * along
    third += rng.choice([1e-3, 0.3, 0.5 * length], (count, 1)) * rng.uniform(-1, 1, (count, 2))
    flat = np.stack([middle - along / 2, middle + along / 2, third], axis=1).astype(np.float32)
    one, two = flat[:, 1] - flat[:, 0], flat[:, 2] - flat[:, 0]
    fronts = one[:, 0] * two[:, 1] > one[:, 1] * two[:, 0]
    flat[fronts] = flat[fronts][:, ::-1]  # of which none is noted
    triangles = np.concatenate([flat, np.full((count, 3, 1), 0.5)], axis=-1)
    found = np.isin(np.arange(count), lit_of(triangles))
    exact = flat.astype(np.float64)
    sure = np.array([covers(each, 0.0) for each in exact])
    perhaps = np.array([covers(each, 1 / 32) for each in exact])
    assert sure.sum() > 50
    assert not (sure & ~found).any()
    assert not (found & ~perhaps).any()


def test_what_lies_behind_goes_unless_it_reaches_out_or_comes_near(context):
    front = np.array([[100.0, 100, 0.6], [300, 100, 0.6], [100, 300, 0.6]])
    behind = np.array([[130.0, 130, 0.3], [150, 130, 0.3], [130, 150, 0.3]])
    before = behind + np.array([0, 0, 0.5])
    beside = behind - [40, 0, 0]  # by an edge
    through = behind + np.array([[0, 0, 0], [0, 0, 0.4], [0, 0, 0]])
    steep = np.array([[150.0, 150, 0.1], [170, 150, 0.5], [150, 170, 0.3]])
    away = np.stack([behind, before, beside, through, steep])[:, ::-1]
    assert lit_of(np.concatenate([front[None], away])).tolist() == [0, 2, 3, 4]
    assert lit_of(np.concatenate([away, front[None, ::-1]])).tolist() == list(range(6))


@pytest.mark.parametrize("off", [(100.5, 100), (100, 100.5), (100, 100)])
@pytest.mark.parametrize("stretch", [(1, 1), (3, 1), (1, 3)])
def test_a_mesh_hides_what_lies_below_its_edges_too(context, off, stretch):
    """Also where texels lie on edges that two share; a gap between two hides nothing."""
    for gap, left in ((0.0, 0), (0.01, 1)):
        front = sheet(0.8, cells=6, off=off)
        beside = front.mean(1, keepdims=True)[..., :2] > np.array(off) + 8
        front[..., :2] += gap * beside
        front[..., :2] = np.array(stretch) * (front[..., :2] - 60) + 60
        places, index = np.unique(front.reshape(-1, 3), axis=0, return_inverse=True)
        below = np.array([[104.2, 104.2, 0.3], [104.3, 112.4, 0.3], [112.4, 104.3, 0.3]])
        below[:, :2] = np.array(stretch) * (below[:, :2] - 60) + 60
        made = lit.Lit(
            [places, below],
            [index.reshape(-1, 3), np.array([[0, 1, 2]])],
            geoms=[0, 1],
            texels=1.0,
        )
        made.sift(np.tile(np.eye(3, 4), (1, 2, 1, 1)), [MAP])
        assert made.counts(1).tolist() == [[len(front), left if 100.5 in off else 0]]
        made.close()


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(
    ("third", "left"), [((200, 230, 0.8), 0), ((110, 225, 0.2), 1), ((152.5, 230, 0.2), 1)]
)
def test_an_edge_hides_what_lies_below_if_both_sides_do(context, third, left, mirrored):
    """Beyond it the surface goes on, folds back, or falls off so that it may be drawn far away."""
    mesh = np.array([[100, 230, 0.8], [150.5, 200, 0.8], [150.5, 260, 0.8], third])
    below = np.array([[140, 225, 0.7], [151, 220, 0.7], [151, 240, 0.7]])
    index = np.array([[0, 1, 2], [2, 1, 3]])
    if mirrored:
        mesh, below = mesh[:, [1, 0, 2]], below[:, [1, 0, 2]]
        index = index[:, ::-1]
    made = lit.Lit([mesh, below], [index, np.array([[0, 1, 2]])], geoms=[0, 1], texels=1.0)
    made.sift(np.tile(np.eye(3, 4), (1, 2, 1, 1)), [MAP])
    assert made.counts(1)[0, 1] == left
    made.close()
