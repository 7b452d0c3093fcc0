"""Cheaper ways of drawing have MuJoCo's pixels, and give back what they took."""

from typing import Any

import numpy as np
import pytest

from sdjepa.envs import (
    backdrop,
    base,
    caster,
    gl,
    gl_calls,
    lit,
    painter,
    seen,
    shadow,
    triangles,
)

SIZE = base.NATIVE_SIZE
DRAWN = [name for name in base.NAMES if issubclass(base.env_class(name), gl.Filmed)]
MESHED = "cube"


@pytest.fixture(scope="module", params=DRAWN)
def env(request):
    return base.make(request.param)


@pytest.fixture(scope="module")
def meshed():
    env: Any = base.make(MESHED)
    env.reset(np.random.default_rng(0))
    env.frame()
    return env, gl.painter(env.name, env.subject()[0], size=SIZE, shadow=0)


def test_frames_of_two_episodes_are_mujocos_byte_for_byte(env):
    theirs = painter.Painter(env.subject()[0], size=SIZE, shadow=0, ways=())
    for seed in range(2):
        rng = np.random.default_rng(seed)
        env.reset(rng)
        policy = env.policy(env.policies[0], noise=1.0, rng=rng)
        for _ in range(3):
            ours = env.frame()
            model, data, camera = env.subject()
            own = gl.painter(env.name, model, size=SIZE, shadow=0)
            assert own.caster is not None
            # By a painter of its own, so that ours goes on with the map of its last frame.
            assert np.array_equal(theirs.paint(data, camera), ours)
            for _ in range(15):
                env.step(policy())
    assert shadow.area(own.caster.cleared) < 0.5 * own.context.shadowSize**2
    theirs.close()


def every_way_and_none(*, seed: int) -> tuple[Any, Any, painter.Painter, painter.Painter]:
    """An episode, and two to draw it: by all ways of ours, and as MuJoCo does."""
    env: Any = base.make(MESHED)
    ours = painter.Painter(env.subject()[0], size=SIZE, shadow=0, ways=gl_calls.WAYS)
    theirs = painter.Painter(env.subject()[0], size=SIZE, shadow=0, ways=())
    rng = np.random.default_rng(seed)
    env.reset(rng)
    return env, env.policy(env.policies[0], noise=1.0, rng=rng), ours, theirs


def test_scenes_sifted_together_are_mujocos_byte_for_byte():
    """By ways that a processor which draws does not take by itself."""
    env, policy, ours, theirs = every_way_and_none(seed=0)
    scenes, frames = [ours.blank() for _ in range(3)], []
    for scene in scenes:
        _, data, camera = env.subject()
        frames.append(theirs.paint(data, camera))
        ours.note(data, camera, scene=scene)
        for _ in range(12):
            env.step(policy())
    ours.make_current()
    ours.ready(scenes)
    assert [scene.slot for scene in scenes] == list(range(3))
    for order in (range(3), [2, 0]):  # and again, each sifted by itself
        for number in order:
            ours.draw(scenes[number])
            assert np.array_equal(ours.read()[::-1], frames[number])
        ours.ready(scenes[:1])
    assert ours.show is not None
    assert ours.show.backdrop is not None
    assert ours.caster is not None
    assert ours.caster.lit is not None
    left = ours.show.sieve.counts(1).sum() / ours.show.sieve.total
    assert 0.01 < left < 0.1
    assert 0.1 < ours.caster.lit.counts(1).sum() / ours.caster.lit.total < 0.3
    ours.close()
    theirs.close()


@pytest.mark.slow
def test_an_episode_drawn_by_every_way_is_mujocos():
    """Byte for byte but for the software's own doing: see `Seen`."""
    env, policy, ours, theirs = every_way_and_none(seed=1)
    differing = 0
    for _ in range(12):
        _, data, camera = env.subject()
        frame, right = ours.paint(data, camera), theirs.paint(data, camera)
        apart = np.abs(frame.astype(int) - right)
        assert apart.max() <= 1
        differing += int((apart > 0).any(-1).sum())
        for _ in range(16):
            env.step(policy())
    assert differing <= 1  # pixel, of 600,000
    assert ours.show is not None
    assert ours.show.backdrop is not None
    assert ours.caster is not None
    assert ours.caster.lit is not None
    ours.close()
    theirs.close()


def test_a_map_of_what_the_light_reaches_is_the_map_of_everything(monkeypatch):
    env: Any = base.make(MESHED)
    ours = painter.Painter(env.subject()[0], size=SIZE, shadow=0, ways=("cast", "lit"))
    scenes = [ours.blank() for _ in range(3)]
    for seed, scene in enumerate(scenes):
        env.reset(np.random.default_rng(seed))
        ours.note(*env.subject()[1:], scene=scene)
    ours.make_current()
    boxes = [shadow.area([scene.shadows]) for scene in scenes]
    monkeypatch.setattr(lit, "ROOM", boxes[0] + boxes[1])  # so that it is done in two batches
    ours.ready(scenes)
    cast = ours.caster
    assert cast is not None
    assert cast.lit is not None
    for scene in scenes:
        ours._prepare(scene)
        maps = []
        for slot in (scene.slot, None):
            cast.use(True)
            cast.draw(scene.pose, slot=slot)
            cast.slate.bind()
            maps.append(cast.slate.read(0, 0, *[ours.context.shadowSize] * 2))
            ours.restore()
        assert np.array_equal(*maps)
    # Half of the triangles face away, and more lie inside: few are left.
    assert (cast.lit.counts(3).sum(1) < 0.22 * cast.lit.total).all()
    ours.close()


def test_a_way_whose_pixels_differ_is_dropped_and_the_frame_is_still_right(meshed, monkeypatch):
    env, own = meshed
    model, data, camera = env.subject()
    right = own.plain(data, camera)
    look = caster._look  # a matrix that looks from elsewhere than the light
    monkeypatch.setattr(caster, "_look", lambda light: look(light) + np.float32(0.1))
    other = painter.Painter(model, size=SIZE, shadow=0)
    assert np.array_equal(other.paint(data, camera), right)
    assert other.caster is None
    other.close()


def test_a_scene_drawn_by_one_painter_is_right_when_another_draws_it(meshed):
    """Benchmarks do so: lists and places in the shadow map are the first one's alone."""
    env, own = meshed
    model, data, camera = env.subject()
    scene = own.blank()
    own.note(data, camera, scene=scene)
    own.make_current()
    own.draw(scene)
    assert scene.pose is not None  # places in the map of `own`
    quality = model.vis.quality
    kept, quality.shadowsize = quality.shadowsize, quality.shadowsize // 4
    other = painter.Painter(model, size=SIZE, shadow=0)
    quality.shadowsize = kept
    other.make_current()
    other.draw(scene)
    assert other.caster is not None
    drawn = other.read()[::-1]
    assert np.array_equal(drawn, other.plain(data, camera))
    other.close()
    own.make_current()
    own.draw(scene)
    assert np.array_equal(own.read()[::-1], own.plain(data, camera))


def test_a_sieve_that_drops_what_is_seen_is_not_used(meshed, monkeypatch):
    env, own = meshed
    model, data, camera = env.subject()
    right = own.plain(data, camera)
    shown, reached = seen.Seen.sift, lit.Lit.sift

    def beside(self, matrices):
        shown(self, matrices + 2e3 * matrices[:, :, 2:])  # looks where nothing is

    def upside_down(self, matrices, boxes):
        reached(
            self, matrices * np.array([1, 1, -1])[:, None] + [[0] * 4, [0] * 4, [0, 0, 0, 1]], boxes
        )

    monkeypatch.setattr(seen.Seen, "sift", beside)
    monkeypatch.setattr(lit.Lit, "sift", upside_down)
    other = painter.Painter(model, size=SIZE, shadow=0, ways=gl_calls.WAYS)
    assert np.array_equal(other.paint(data, camera), right)
    assert other.caster is not None
    assert other.caster.lit is None
    assert other.show is None
    other.close()


def test_sky_and_ground_are_copied_only_while_camera_lights_and_ground_stand(meshed, monkeypatch):
    env, own = meshed
    model, data, camera = env.subject()
    other = painter.Painter(model, size=SIZE, shadow=0, ways=("cast", "show"))
    right = own.plain(data, camera)
    assert np.array_equal(other.paint(data, camera), right)
    assert other.show is not None
    assert other.show.backdrop is not None
    done: list[str] = []
    work = backdrop.Backdrop.put
    monkeypatch.setattr(backdrop.Backdrop, "put", lambda *given: (done.append("put"), work(*given)))
    plain = data.light_xpos[int(np.argmin(model.light_castshadow))]
    for place in (data.cam_xpos, plain, data.geom_xpos[model.geom("floor").id]):
        there = place.copy()
        for moved in (0.05, 0.05, 0):
            place[:] = there + moved
            drawn = other.paint(data, camera)
            assert np.array_equal(drawn, own.plain(data, camera))
            assert np.array_equal(drawn, right) == (not moved)
            assert len(done) == (0 if moved else 2)  # the box of shadows, and around it
            done.clear()
    other.close()


def test_a_backdrop_that_differs_is_given_up_alone(meshed, monkeypatch):
    env, own = meshed
    model, data, camera = env.subject()
    monkeypatch.setattr(backdrop.Backdrop, "put", lambda *_: None)
    other = painter.Painter(model, size=SIZE, shadow=0, ways=("cast", "show"))
    assert np.array_equal(other.paint(data, camera), own.plain(data, camera))
    assert other.show is not None
    assert other.show.backdrop is None
    assert np.array_equal(other.paint(data, camera), own.plain(data, camera))
    other.close()


def test_what_is_before_the_backdrop_is_within_its_boxes(meshed):
    env, _ = meshed
    other = painter.Painter(env.subject()[0], size=SIZE, shadow=0, ways=("cast", "show"))
    other.paint(*env.subject()[1:])
    show = other.show
    assert show is not None
    assert show.backdrop is not None
    show.backdrop.put(backdrop.LIT, [show.backdrop.whole])
    empty = other.read()
    for seed in range(3):
        env.reset(np.random.default_rng(seed))
        scene = other.blank()
        other.note(*env.subject()[1:], scene=scene)
        other.draw(scene)
        assert scene.pose is not None
        assert scene.slot is not None
        assert scene.extent is not None
        for most, box in ((1, scene.extent.shadows), (None, scene.extent.everything)):
            left, low, right, high = box
            show.draw(scene.mjv, scene.pose, slot=scene.slot, most=most)  # without a backdrop
            apart = (other.read() != empty).any(-1)
            assert apart[low:high, left:right].sum() == apart.sum() > 500
            assert (right - left) * (high - low) < 0.6 * SIZE**2
    other.close()


def test_a_picture_mujoco_drew_in_between_leaves_nothing_behind(meshed):
    env, own = meshed
    model, _, _ = env.subject()
    other = painter.Painter(model, size=SIZE, shadow=0, ways=("cast", "show"))
    right = []
    for seed in (0, 1):
        env.reset(np.random.default_rng(seed))
        right.append(own.plain(*env.subject()[1:]))
    assert np.array_equal(other.paint(*env.subject()[1:]), right[1])
    assert other.show is not None
    assert other.show.backdrop is not None
    left, low, _, _ = other.show.backdrop.changed
    data, camera = env.subject()[1:]
    outside = data.geom_xpos[model.geom("object_0").id]
    there, outside[:] = outside.copy(), [0.3, -0.25, 0.02]
    moved = other.plain(data, camera)
    outside[:] = there
    beside = (moved != right[1]).any(-1)[::-1]  # rows from below
    assert beside[:, :left].any() or beside[:low].any()
    assert np.array_equal(other.paint(data, camera), right[1])
    other.close()


def test_sheets_drawn_while_the_next_is_noted_come_back_in_order(monkeypatch):
    env: Any = base.make("reacher")
    env.reset(np.random.default_rng(0))
    model, data, camera = env.subject()
    own = painter.Painter(model, size=SIZE, shadow=0)
    monkeypatch.setattr(gl.Sheet, "SIDE", 2)
    sheet, right, come = gl.Sheet(own), [], []
    for ahead in (0, 1, 2, 1):
        monkeypatch.setattr(gl.Sheet, "DRAWN_AHEAD", ahead)
        for number in range(15):
            env.step(np.array([1.0, -0.5], dtype=np.float32))
            right.append(own.paint(data, camera))
            sheet.note(data, camera)
            come += sheet.finished()
            if number == 13:  # a full sheet of four is drawn when the next frame is noted
                assert len(right) - len(come) == 2 + 4 * ahead
        come += sheet.take()
        assert len(come) == len(right)
        sheet.note(data, camera)
        sheet.drop()  # and what was noted last does not come
    assert all(np.array_equal(a, b) for a, b in zip(come, right, strict=True))
    assert len({frame.tobytes() for frame in right}) == len(right)
    own.close()


def test_closing_gives_every_list_and_buffer_back(meshed):
    from OpenGL import GL

    env, _ = meshed
    model, data, camera = env.subject()
    other = painter.Painter(model, size=SIZE, shadow=0)
    other.paint(data, camera)
    assert other.caster is not None
    lists = [other.caster._begin, other.caster._end, *other.caster.shapes._lists]
    assert len(lists) > 20
    gl_calls.forgive()
    assert all(GL.glIsList(name) for name in lists)
    buffer = other.caster.slate._theirs
    other.caster.close()
    assert not any(GL.glIsList(name) for name in lists)
    assert other.context.shadowFBO == buffer  # which MuJoCo deletes itself
    other.caster = None
    other.close()


def test_across_an_edge_lies_who_has_it_the_other_way():
    index = np.array([[0, 1, 2], [2, 1, 3], [0, 1, 4]])  # the last as the first: a fin
    nobody = triangles.NOBODY
    found = triangles.across(index)
    assert found.tolist() == [[nobody, 3, nobody], [0, nobody, nobody], [nobody] * 3]


def test_shared_corners_are_the_corners_there_were():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 3, (200, 3)).astype(np.float32)
    found, index = triangles.merge(rows)
    assert np.array_equal(found[index], rows)
    assert len(found) == len(np.unique(rows, axis=0)) == 27
    # Told apart by bits: minus zero is another number to whoever divides by it.
    assert len(triangles.merge(np.array([[0.0], [-0.0]], dtype=np.float32))[0]) == 2
