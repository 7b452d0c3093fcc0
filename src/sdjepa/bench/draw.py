"""How long a GPU works on a frame: the scenes of one episode in, microseconds of each part out.

And whether frames are right: those drawn together as those drawn alone, and all as MuJoCo's own.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sdjepa.bench.gpu_clock import Draw, timed
from sdjepa.config import Collect
from sdjepa.envs.backdrop import LIT
from sdjepa.envs.base import NATIVE_SIZE
from sdjepa.envs.caster import Caster
from sdjepa.envs.gl import Filmed, Sheet
from sdjepa.envs.gl_calls import WAYS, usual_ways
from sdjepa.envs.painter import Painter
from sdjepa.envs.scene import Scene
from sdjepa.envs.shadow import area
from sdjepa.envs.show import Show
from sdjepa.envs.sieve import Sieve

STEPS_APART = 3  # simulated between two scenes
COMPARED = 32  # sheets, each of another episode, that are also drawn as MuJoCo does


Line = tuple[str, float, str, dict[str, Any]]  # what, how much, of which unit, and more


def _map_only(painter: Painter, scene: Scene) -> None:
    assert painter.caster is not None
    assert scene.pose is not None
    painter.caster.draw(scene.pose, slot=scene.slot)


def _scene_only(
    painter: Painter, scene: Scene, *, side: int | None = None, most: int | None = None
) -> None:
    """On the map as it is."""
    if painter.show is not None and scene.pose is not None and scene.slot is not None:
        extent = None if side else scene.extent
        painter.show.draw(
            scene.mjv, scene.pose, slot=scene.slot, extent=extent, side=side, most=most
        )


def _none_but_sky(painter: Painter, scene: Scene, *, sky: bool) -> None:
    if painter.show is not None:
        painter.show.render_none(scene.mjv, painter.whole, sky=sky)


def _without(painter: Painter, scene: Scene, *, flag: Any, geoms: bool) -> None:
    """By MuJoCo, without what a flag stands for, or without geoms."""
    mjv, count = scene.mjv, scene.mjv.ngeom
    kept = None if flag is None else int(mjv.flags[flag])
    if flag is not None:
        mjv.flags[flag] = 0
    if not geoms:
        mjv.ngeom = 0
    painter.draw_by_mujoco(scene)
    mjv.ngeom = count
    if flag is not None:
        mjv.flags[flag] = kept


class Drawing:
    """The scenes of one sheet, to be drawn again and again."""

    def __init__(self, env: Filmed, settings: Collect, rng: np.random.Generator) -> None:
        self._env, self._settings, self._rng = env, settings, rng
        self._model = env.subject()[0]
        self._painter = Painter(self._model, size=NATIVE_SIZE, shadow=0)
        self._plain = Sheet(self._painter)
        self._scenes = [self._painter.blank() for _ in range(Sheet.SIDE**2)]
        self._singly: list[np.ndarray] = []
        self._play(self._scenes)

    def _play(self, scenes: Sequence[Scene]) -> None:
        """Note scenes of a new episode."""
        env, self._singly = self._env, []
        env.reset(self._rng)
        policy = env.policy(self._settings.policy, noise=1.0, rng=self._rng)
        for scene in scenes:
            self._model, self._data, self._camera = env.subject()
            self._painter.note(self._data, self._camera, scene=scene)
            if len(self._singly) < Sheet.SIDE:
                self._singly.append(self._painter.paint(self._data, self._camera)[::-1])
            for _ in range(STEPS_APART):
                action = policy()
                if action is not None:
                    env.step(action)

    def same(self) -> float:
        """Share of values in which frames of a sheet differ from frames read one by one."""
        sheet = self._plain.draw(self._scenes)
        size = NATIVE_SIZE
        tiles = [sheet[:size, i * size : (i + 1) * size, :3] for i in range(len(self._singly))]
        return float(np.mean([a != b for a, b in zip(tiles, self._singly, strict=True)]))

    def gpu_times(self) -> Iterator[Line]:
        """How long a GPU works on a frame, if one draws, and whether frames are MuJoCo's."""
        self._painter.make_current()
        if usual_ways() is not WAYS:
            return
        yield from self._ways_lines()
        yield "sheet differs from frames", 1e6 * self.same(), "ppm", {}
        yield from self._differ_lines()

    def _differ_lines(self) -> Iterator[Line]:
        """Share of values in which the collector's frames are not as MuJoCo draws them."""
        theirs = Painter(self._model, size=NATIVE_SIZE, shadow=0, ways=())
        sheet, shares, frames = Sheet(theirs), [], 0
        for _ in range(COMPARED):
            differs = (self._plain.draw(self._scenes) != sheet.draw(self._scenes))[..., :3]
            shares.append(float(np.mean(differs)))
            tiles = differs.reshape(Sheet.SIDE, NATIVE_SIZE, Sheet.SIDE, NATIVE_SIZE * 3)
            frames += int(tiles.any((1, 3)).sum())
            self._play(self._scenes)
        theirs.close()
        more = {"frames": frames, "of": COMPARED * len(self._scenes)}
        yield "simulator's frames differ", 1e6 * float(np.mean(shares)), "ppm", more

    def _ways_lines(self) -> Iterator[Line]:
        """Ways of drawing the same pixels, and parts of the one in use."""
        for what, ways in (
            ("as collected", None),
            ("own map of all triangles", ("cast", "show")),
            ("as MuJoCo draws", ()),
        ):
            painter = Painter(self._model, size=NATIVE_SIZE, shadow=0, ways=ways)
            yield self._line(f"GPU: {what}", painter)
            if what == "as collected":
                yield from self._parts_lines(painter)
            painter.close()

    def _parts_lines(self, painter: Painter) -> Iterator[Line]:
        """What is in use, and what its parts cost alone."""
        for what, way in (
            ("own map", painter.caster),
            ("only what is lit", painter.caster and painter.caster.lit),
            ("own scene", painter.show),
            ("backdrop", painter.show and painter.show.backdrop),
            ("only what has moved", painter.part),
        ):
            yield f"in use: {what}", float(way is not None), "(1 = yes)", {}
        if painter.caster is not None:
            yield from self._map_lines(painter, painter.caster)
        if painter.show is not None:
            yield from self._scene_lines(painter, painter.show)
        else:
            yield from self._mujoco_lines(painter)
        if painter.caster is not None and painter.caster.lit is not None:
            to_map = np.array([scene.to_map for scene in self._scenes])
            boxes = [scene.shadows for scene in self._scenes]
            sift = functools.partial(painter.caster.lit.sift, to_map, boxes)
            yield from self._choosing_lines("the map", painter, painter.caster.lit, sift)
        sheet = Sheet(painter)
        yield self._line("GPU: copying to the sheet", painter, lambda *_: sheet.copy(0))

    def _mujoco_lines(self, painter: Painter) -> Iterator[Line]:
        """What the scene costs where MuJoCo draws it: in use, whole, and whole without a part."""
        yield self._line("GPU: only the scene", painter, Painter.draw_by_mujoco)
        if painter.part is not None:
            stands = [scene.stand for scene in self._scenes if scene.stand is not None]
            boxes = [painter.part.take(stand) for stand in stands][1:]
            share = np.mean([area([box]) for box in boxes]) / NATIVE_SIZE**2
            yield "picture, around what has moved", 100 * float(share), "%", {}
        part, painter.part = painter.part, None
        flags: Any = importlib.import_module("mujoco").mjtRndFlag
        for what, flag, geoms in (
            ("the scene, whole", None, True),
            ("the scene without its reflection", flags.mjRND_REFLECTION, True),
            ("the scene without sky", flags.mjRND_SKYBOX, True),
            ("the scene without geoms", None, False),
            ("nothing", flags.mjRND_SKYBOX, False),
        ):
            draw = functools.partial(_without, flag=flag, geoms=geoms)
            yield self._line(f"GPU: {what}", painter, draw)
        painter.part = part
        if part is not None:
            part.disturb()

    def _scene_lines(self, painter: Painter, show: Show) -> Iterator[Line]:
        """What the scene costs: all of it, then parts, and with what is left out for being hidden.

        In one pixel, what is left is work on vertices and triangles. The first geom is the ground,
        of which, as of the sky, most comes from the backdrop.
        """
        for what, part in (
            ("only the scene", {}),
            ("the scene in a pixel", {"side": 1}),
            ("the scene without geoms", {"most": 0}),
            ("the scene's ground", {"most": 1}),
        ):
            yield self._line(f"GPU: {what}", painter, functools.partial(_scene_only, **part))
        yield from self._backdrop_lines(painter, show)
        seen = show.sieve
        to_picture = np.array([scene.to_picture for scene in self._scenes])
        sift = functools.partial(seen.sift, to_picture)
        both, seen.programs = seen.programs, seen.programs[1:]
        sift()
        yield self._line("GPU: the scene with what is hidden", painter, _scene_only)
        counts = seen.counts(len(self._scenes)).sum(1)
        yield "triangles with what is hidden", float(np.mean(counts)), "", {"of": seen.total}
        seen.programs = both
        yield from self._choosing_lines("the picture", painter, seen, sift)

    def _backdrop_lines(self, painter: Painter, show: Show) -> Iterator[Line]:
        """What the backdrop costs, and what it saves."""
        behind, show.backdrop = show.backdrop, None
        for what, part in (
            ("the scene, no backdrop", {}),
            ("the scene without geoms, no backdrop", {"most": 0}),
            ("the scene's ground, no backdrop", {"most": 1}),
        ):
            yield self._line(f"GPU: {what}", painter, functools.partial(_scene_only, **part))
        show.backdrop = behind
        if behind is not None:
            whole = [behind.whole]
            yield self._line("GPU: copying a backdrop", painter, lambda *_: behind.put(LIT, whole))
            show.disturb()
            extents = [scene.extent for scene in self._scenes if scene.extent is not None]
            for what, boxes in (
                ("shadows", [extent.shadows for extent in extents]),
                ("geoms and shadows", [extent.everything for extent in extents]),
            ):
                share = np.mean([area([box]) for box in boxes]) / NATIVE_SIZE**2
                yield f"picture, around {what}", 100 * float(share), "%", {}
        for what, sky in (("nothing", False), ("the sky", True)):
            draw = functools.partial(_none_but_sky, sky=sky)
            yield self._line(f"GPU: MuJoCo draws {what}", painter, draw)
        show.disturb()

    def _choosing_lines(
        self, what: str, painter: Painter, sieve: Sieve, sift: Callable[[], None]
    ) -> Iterator[Line]:
        """What it costs to choose triangles, for all scenes at once as a sheet has it."""
        both, sieve.programs = sieve.programs, sieve.programs[:1]
        yield self._line(f"GPU: choosing for {what}, noting", painter, self._once(sift))
        sieve.programs = both
        yield self._line(f"GPU: choosing for {what}", painter, self._once(sift))
        yield self._line(f"GPU: clearing {what}'s notes", painter, self._once(sieve.forget))
        sift()
        counts = sieve.counts(len(self._scenes)).sum(1)
        yield f"triangles kept for {what}", float(np.mean(counts)), "", {"of": sieve.total}

    def _once(self, work: Callable[[], None]) -> Draw:
        """What is done for all scenes, done for the first of them."""
        return lambda painter, scene: work() if scene is self._scenes[0] else None

    def _map_lines(self, painter: Painter, caster: Caster) -> Iterator[Line]:
        """What is spent on the map: all of it, then each part alone."""

        def wipe(_: Painter, scene: Scene) -> None:
            assert scene.pose is not None
            caster.draw(dataclasses.replace(scene.pose, order=[]))

        def fill(_: Painter, scene: Scene, *, speck: bool) -> None:
            assert scene.pose is not None
            caster.fill(scene.pose, slot=scene.slot, speck=speck)

        yield "ground of one depth", float(caster.slate.level is not None), "(1 = yes)", {}
        yield self._line("GPU: only its map", painter, _map_only)
        yield self._line("GPU: map, wiping", painter, wipe)
        for what, speck in (("triangles", False), ("triangles in a texel", True)):
            yield self._line(f"GPU: map, {what}", painter, functools.partial(fill, speck=speck))
        caster.use(True)  # the map is not what it was
        cleared = []
        for scene in [self._scenes[-1], *self._scenes]:  # the first is drawn on a map made anew
            painter.draw(scene)
            cleared.append(caster.cleared)
        side = painter.context.shadowSize
        for what, found in (
            ("around", [[s.shadows] for s in self._scenes]),
            ("wiped", cleared[1:]),
        ):
            share = float(np.mean([area(each) for each in found])) / side**2
            more = {"side": side, "boxes": float(np.mean([len(each) for each in found]))}
            yield f"shadow map, {what}", 100 * share, "%", more

    def _line(self, what: str, painter: Painter, draw: Draw = Painter.draw) -> Line:
        gpu, wall, issued = timed(painter, self._scenes, draw=draw)
        return what, gpu, "us/frame", {"wall_us": round(wall), "issuing_us": round(issued)}
