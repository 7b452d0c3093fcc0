"""What has not moved need not be drawn again: boxes hold every change, and only they are drawn."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdjepa.envs import base, gl_calls, painter, part
from sdjepa.envs.reach import Reach
from sdjepa.envs.shadow import area

SIZE = base.NATIVE_SIZE
WHOLE = (0, 0, SIZE, SIZE)


def play(name: str, policy: str, *, seed: int, frames: int):
    """An environment at every step of an episode."""
    env: Any = base.make(name)
    rng = np.random.default_rng(seed)
    env.reset(rng)
    act = env.policy(policy, noise=1.0, rng=rng)
    for _ in range(frames):
        yield env
        env.step(act())


class Kept:
    """Boxes by hand, for drivers that know none: what was outside is put back afterwards."""

    own: painter.Painter
    boxes: list[Any]

    def set(self, box) -> None:
        self.boxes.append(box)
        self._before, self._box = self.own.read(), box

    def lift(self) -> None:
        from OpenGL import GL

        frame, (left, low, right, high) = self._before, self._box
        frame[low:high, left:right] = self.own.read()[low:high, left:right]
        gl_calls.forgive()
        GL.glPushAttrib(GL.GL_ALL_ATTRIB_BITS)
        for state in (GL.GL_DEPTH_TEST, GL.GL_LIGHTING, GL.GL_TEXTURE_2D, GL.GL_BLEND):
            GL.glDisable(state)
        GL.glPixelStorei(GL.GL_UNPACK_ALIGNMENT, 1)
        GL.glWindowPos2i(0, 0)
        GL.glDrawPixels(SIZE, SIZE, GL.GL_RGB, GL.GL_UNSIGNED_BYTE, frame)
        GL.glPopAttrib()


@pytest.fixture
def kept(request, monkeypatch):
    """An environment and a painter of its pictures' parts, with the boxes it draws in."""
    env: Any = base.make(getattr(request, "param", "reacher"))
    env.reset(np.random.default_rng(0))
    own = painter.Painter(env.subject()[0], size=SIZE, shadow=0, ways=("cast", "part"))
    monkeypatch.setattr(Kept, "own", own, raising=False)
    monkeypatch.setattr(Kept, "boxes", [], raising=False)
    monkeypatch.setattr(part, "Confines", Kept)
    yield env, own
    own.close()


@pytest.mark.parametrize(
    ("name", "policy", "most"),
    [("reacher", "random", 0.15), ("reacher", "expert", 0.15), ("cube", "expert", 0.7)],
)
def test_a_picture_differs_from_the_one_before_only_within_its_box(name, policy, most):
    """Cube's shadows fall on other geoms, too; Reacher's ground is a mirror."""
    own: Any = None
    before, boxes, changed = None, [], 0
    for env in play(name, policy, seed=0, frames=12):
        model, data, camera = env.subject()
        if own is None:
            own = painter.Painter(model, size=SIZE, shadow=0, ways=("cast",))
            scene = own.blank()
            own.note(data, camera, scene=scene)
            light = own.casters.lights[0]
            grounds = own.casters.look(scene.mjv)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(part, "Confines", object)
                tried = part.Part(model, scene=scene.mjv, grounds=grounds, light=light, size=SIZE)
        own.note(data, camera, scene=scene)
        own.make_current()
        own.draw(scene)
        drawn = own.read()
        box = tried.take(tried.stand(scene.mjv, scene.places, scene.pose))
        if before is not None:
            left, low, right, high = box
            apart = (drawn != before).any(-1)
            assert apart[low:high, left:right].sum() == apart.sum()
            boxes.append(area([box]) / SIZE**2)
            changed += int(apart.sum())
        else:
            assert box == WHOLE
        before = drawn
    assert changed > 1000
    assert np.mean(boxes) < most
    own.close()


def test_episodes_drawn_in_parts_are_mujocos_byte_for_byte(kept):
    env, own = kept
    theirs = painter.Painter(env.subject()[0], size=SIZE, shadow=0, ways=())
    for seed in (0, 1):
        for env in play("reacher", "random", seed=seed, frames=8):
            _, data, camera = env.subject()
            assert np.array_equal(own.paint(data, camera), theirs.paint(data, camera))
            assert own.part is not None
    # The whole and the last geom while settling, then fifteen steps of which one is a new episode.
    assert Kept.boxes[0] == WHOLE
    assert len(Kept.boxes) == 17
    assert all(area([box]) < 0.3 * SIZE**2 for box in Kept.boxes[1:])
    theirs.close()


def test_a_scene_that_stands_is_not_drawn_again_and_a_picture_in_between_leaves_nothing(kept):
    env, own = kept
    _, data, camera = env.subject()
    right = own.paint(data, camera)
    count = len(Kept.boxes)
    assert np.array_equal(own.paint(data, camera), right)
    assert len(Kept.boxes) == count
    for _ in range(5):
        env.step(np.ones(2, dtype=np.float32))
    moved = own.plain(data, camera)  # drawn past the parts
    assert not np.array_equal(moved, right)
    assert np.array_equal(own.paint(data, camera), moved)
    assert Kept.boxes[count:] == [WHOLE]


@pytest.mark.parametrize("kept", ["reacher", "cube"], indirect=True)
def test_what_changes_a_picture_besides_places_is_seen(kept):
    """The camera, a geom's colour, and a light that casts no shadow, where there is one."""
    env, own = kept
    model, data, camera = env.subject()
    right = own.paint(data, camera)
    assert own.part is not None
    geom = model.geom({"reacher": "finger", "cube": "object_0"}[env.name]).id
    changes = [(data.cam_xpos, 0.05), (model.geom_rgba[geom, 1:2], 0.3)]
    changes += [(data.light_xpos[i], 0.05) for i in np.flatnonzero(model.light_castshadow == 0)]
    assert len(changes) == (2 if env.name == "reacher" else 3)
    for place, moved in changes:
        there = place.copy()
        place += moved
        drawn = own.paint(data, camera)
        assert np.array_equal(drawn, own.plain(data, camera))
        assert not np.array_equal(drawn, right)
        place[:] = there
        assert np.array_equal(own.paint(data, camera), right)


@pytest.mark.parametrize("fault", ["draws nothing", "clears all", "at first", "not known"])
def test_parts_of_a_driver_that_gets_them_wrong_are_not_drawn(kept, monkeypatch, fault):
    env, own = kept
    _, data, camera = env.subject()

    class Wrong(Kept):
        def set(self, box) -> None:
            super().set(box)
            if fault == "clears all":
                self._before[:] = 0
            if fault == "draws nothing":
                self._box = (0, 0, 0, 0)
            if fault == "at first" and len(self.boxes) == 1:  # the whole is wrong, all parts right
                self._before[:], self._box = 0, (0, 0, 0, 0)

    def unknown():
        raise gl_calls.Unsupported

    monkeypatch.setattr(part, "Confines", unknown if fault == "not known" else Wrong)
    for _ in range(3):
        drawn = own.paint(data, camera)
        assert own.part is None
        assert own.caster is not None
        assert np.array_equal(drawn, own.plain(data, camera))
        env.step(np.ones(2, dtype=np.float32))


def test_a_mirror_besides_the_ground_is_not_provided_for(kept):
    env, own = kept
    model, data, camera = env.subject()
    shine = model.mat_reflectance
    before = shine.copy()
    shine[:] = 0
    shine[model.geom("wall_x").matid] = 0.5
    drawn = own.paint(data, camera)
    assert own.part is None
    assert np.array_equal(drawn, own.plain(data, camera))
    shine[:] = before


heights = st.floats(0.0, 0.9)
across = st.floats(-2, 2)


@given(x=across, y=across, height=heights, lamp=st.floats(1, 3), parallel=st.booleans())
def test_a_shadow_lies_where_the_ray_meets_the_ground(x, y, height, lamp, parallel):
    axes = np.stack([[1.0, 0, 0], [0, 0.8, -0.6], [0, 0.6, -0.8]])
    model = SimpleNamespace(geom_aabb=np.zeros((1, 6)))
    place = np.array([0.3, -0.2, lamp])
    reach = Reach(model, [0], light=(place, axes, None if parallel else 1.0), size=SIZE)
    corner = np.array([x, y, height])
    fallen, bounded = reach._fallen(
        np.tile(corner, (1, 8, 1)), (np.zeros(3), np.array([0, 0, 1.0]))
    )
    assert bounded.all()
    ray = axes[2] if parallel else corner - place
    assert np.abs(fallen[..., 2]).max() < 1e-9
    assert np.abs(np.cross(fallen[0, 0] - corner, ray)).max() < 1e-7


def test_a_shadow_of_what_is_above_the_lamp_may_be_anywhere():
    model = SimpleNamespace(geom_aabb=np.array([[0, 0, 0, 0.1, 0.1, 0.1]]))
    light = (np.array([0, 0, 1.0]), np.eye(3) * [1, -1, -1], 1.0)
    reach = Reach(model, [0], light=light, size=SIZE)
    view = np.array([[100.0, 0, -112, 224], [0, 100, -112, 224], [0, 0, -1, 2]])
    ground = (np.zeros(3), np.array([0, 0, 1.0]))
    for height, everywhere in ((0.2, False), (0.95, True)):
        data = SimpleNamespace(
            geom_xmat=np.eye(3).reshape(1, 9), geom_xpos=np.array([[0, 0, height]])
        )
        box = tuple(reach.each(data, view=view, near=0.01, ground=ground, mirror=False)[0])
        assert (box == WHOLE) == everywhere


@given(x=across, y=across, height=heights)
def test_an_image_in_a_mirror_is_as_far_behind_it_and_within_the_box(x, y, height):
    model = SimpleNamespace(geom_aabb=np.zeros((1, 6)))
    light = (np.array([0, 0, 3.0]), np.eye(3) * [1, -1, -1], 1.0)
    reach = Reach(model, [0], light=light, size=SIZE)
    # Along y from y = -8, ten units high: as far as x and z tell, picture and world are one.
    view = np.array([[20.0, 14, 0, 224], [0, 14, 20, 224], [0, 0.125, 0, 2]])
    ground = (np.array([0.0, 0, 0.1]), np.array([0, 0, 1.0]))
    data = SimpleNamespace(geom_xmat=np.eye(3).reshape(1, 9), geom_xpos=np.array([[x, y, height]]))
    box = reach.each(data, view=view, near=0.01, ground=ground, mirror=True)[0]
    for z in (height, 0.2 - height):
        right, up, depth = view @ [x, y, z, 1]
        assert box[0] <= right / depth <= box[2]
        assert box[1] <= up / depth <= box[3]
