"""What is left out of a shadow map is never seen."""

import dataclasses

import numpy as np
import pytest

from sdjepa.envs import base, gl, outline, shadow

DRAWN = [name for name in base.NAMES if issubclass(base.env_class(name), gl.Filmed)]


@pytest.fixture(scope="module", params=DRAWN)
def env(request):
    return base.make(request.param)


def painter_of(env) -> gl.Painter:
    return gl.painter(env.name, env.subject()[0], size=base.NATIVE_SIZE, shadow=0)


def scatter(env, seed):
    rng = np.random.default_rng(seed)
    env.reset(rng)
    policy = env.policy(env.policies[0], noise=1.0, rng=rng)
    for _ in range(12):
        env.step(policy())


def test_the_frame_is_mujocos_own_although_its_ground_is_drawn_only_where_something_moved(env):
    painter = painter_of(env)
    for seed in range(2):
        scatter(env, seed)
        frame = env.frame()
        assert painter.casters.grounds == [0]
        _, data, camera = env.subject()
        assert np.array_equal(painter.plain(data, camera), frame)


def test_nothing_casts_a_shadow_outside_the_box_and_the_box_is_small(env):
    from OpenGL import GL

    painter = painter_of(env)
    for seed in range(2):
        scatter(env, seed)
        env.frame()
        size, pose, maps = painter.context.shadowSize, painter._scene.pose, []
        for order in ([], pose.order):  # the ground alone, and everything
            painter.caster.use(True)
            painter.caster.draw(dataclasses.replace(pose, order=order))
            maps.append(np.empty((size, size), dtype=np.float32))
            GL.glBindTexture(GL.GL_TEXTURE_2D, painter.context.shadowTex)
            GL.glGetTexImage(GL.GL_TEXTURE_2D, 0, GL.GL_DEPTH_COMPONENT, GL.GL_FLOAT, maps[-1])
        rows, columns = np.nonzero(maps[0] != maps[1])
        left, low, right, high = painter._scene.shadows
        assert left < columns.min() <= columns.max() < right
        assert low < rows.min() <= rows.max() < high
        assert (right - left) * (high - low) < 0.5 * size**2


def test_a_map_cleared_in_parts_is_a_map_drawn_anew(env):
    painter = painter_of(env)
    maps = []
    env.frame()
    for anew in (False, True):
        for seed in range(2):
            scatter(env, seed)
            painter.note(*env.subject()[1:], scene=painter._scene)
            painter.make_current()
            if anew:
                painter.caster.use(True)
            painter.caster.draw(painter._scene.pose)
            painter.caster.slate.bind()
            maps.append(painter.caster.slate.read(0, 0, *[painter.context.shadowSize] * 2))
            painter.restore()
        whole = shadow.area(painter.caster.cleared) == painter.context.shadowSize**2
        assert whole == anew
    assert np.array_equal(maps[0], maps[2])
    assert np.array_equal(maps[1], maps[3])
    assert not np.array_equal(maps[0], maps[1])


def test_only_a_ground_the_light_falls_straight_upon_has_one_depth(env):
    painter = painter_of(env)
    env.reset(np.random.default_rng(0))
    env.frame()
    light = next(
        painter._scene.mjv.lights[i]
        for i in range(painter._scene.mjv.nlight)
        if painter._scene.mjv.lights[i].castshadow
    )
    straight = light.type == 1 and np.array_equal(light.dir, [0, 0, -1])  # 1: directional
    assert (painter.caster.slate.level is not None) == straight


def test_strips_hold_what_is_drawn_lie_apart_and_are_smaller_than_the_box_around(env):
    painter = painter_of(env)
    env.reset(np.random.default_rng(0))
    env.frame()
    if painter.caster._outlines is None:
        pytest.skip("rays that are not parallel")
    size, pose = painter.context.shadowSize, painter._scene.pose
    moved = np.ones(len(pose.places), dtype=bool)
    moved[painter.casters.grounds] = False
    strips = painter.caster._outlines.strips(pose.spans, moved)
    mask = np.zeros((size, size), dtype=int)
    for left, low, right, high in strips:
        mask[low:high, left:right] += 1
    assert mask.max() == 1
    assert mask.sum() == shadow.area(strips) < 0.6 * shadow.area([painter._scene.shadows])
    maps = []
    for order in ([], pose.order):  # the ground alone, and everything
        painter.make_current()
        painter.caster.use(True)
        painter.caster.draw(dataclasses.replace(pose, order=order))
        painter.caster.slate.bind()
        maps.append(painter.caster.slate.read(0, 0, size, size))
        painter.restore()
    touched = maps[0] != maps[1]
    assert touched.any()
    assert not (touched & (mask == 0)).any()
    assert painter.caster._outlines.strips(pose.spans, ~moved & False) == []


def test_the_body_around_a_mesh_holds_it_and_is_no_larger_than_the_box(env):
    from scipy.spatial import ConvexHull

    model = env.subject()[0]
    for number in np.flatnonzero(model.geom_dataid >= 0)[:5]:
        points = outline.body(model, number)
        hull = ConvexHull(points)
        start = model.mesh_vertadr[model.geom_dataid[number]]
        mesh = model.mesh_vert[start : start + model.mesh_vertnum[model.geom_dataid[number]]]
        assert (mesh @ hull.equations[:, :3].T + hull.equations[:, 3]).max() < 1e-6
        assert hull.volume <= 1.001 * np.prod(2 * model.geom_aabb[number, 3:])
