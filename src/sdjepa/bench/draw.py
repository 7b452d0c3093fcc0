"""What drawing allows: the scenes of one episode in, frames a second out, in several ways.

Ways of getting pixels: `frame` reads back each frame as it is drawn; `sheet` is the collector's,
36 frames copied together and read at once; `sheet pbo` has the GPU write to memory of its own
accord while the next sheet is being drawn.
"""

import ctypes
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from sdjepa.bench.gpu_clock import Draw, timed
from sdjepa.config import Collect
from sdjepa.envs.base import NATIVE_SIZE
from sdjepa.envs.caster import Caster
from sdjepa.envs.gl import Filmed, Sheet
from sdjepa.envs.gl_calls import forgive
from sdjepa.envs.painter import Painter, Scene
from sdjepa.envs.shadow import area

KINDS = ("frame", "sheet", "sheet pbo")
STEPS_APART = 3  # simulated between two scenes
COMPARED = 8  # sheets, each of another episode, that are also drawn as MuJoCo does


Line = tuple[str, float, str, dict[str, Any]]  # what, how much, of which unit, and more
Span = tuple[int, float, float]  # how much was done, from when, until when


def span(work: Callable[[], int], seconds: float) -> Span:
    """How much of what `work` counts it does in about `seconds`, by a clock all processes share."""
    began, done = time.monotonic(), 0
    while (now := time.monotonic()) - began < seconds:
        done += work()
    return done, began, now


def together(spans: Sequence[Span]) -> float:
    """What several did in a second, from the first beginning to the last end."""
    return sum(done for done, _, _ in spans) / (
        max(end for _, _, end in spans) - min(began for _, began, _ in spans)
    )


class PboSheet(Sheet):
    """Asks for a sheet and hands over the one asked for before; the first time, nothing."""

    def __init__(self, painter: Painter) -> None:
        super().__init__(painter)
        gl, side = self._gl, self.SIDE * painter.size
        self._bytes = side * side * 4
        self._pair = list(gl.glGenBuffers(2))
        for buffer in self._pair:
            gl.glBindBuffer(gl.GL_PIXEL_PACK_BUFFER, buffer)
            gl.glBufferData(gl.GL_PIXEL_PACK_BUFFER, self._bytes, None, gl.GL_STREAM_READ)
        gl.glBindBuffer(gl.GL_PIXEL_PACK_BUFFER, 0)
        self._asked = 0

    def _read(self, rows: int) -> np.ndarray:
        from OpenGL.raw.GL.VERSION.GL_1_0 import glReadPixels
        from OpenGL.raw.GL.VERSION.GL_1_5 import glGetBufferSubData  # the other writes elsewhere

        gl, size, side = self._gl, self.painter.size, self.SIDE * self.painter.size
        forgive()
        gl.glBindFramebuffer(gl.GL_READ_FRAMEBUFFER, self._buffer)
        gl.glReadBuffer(gl.GL_COLOR_ATTACHMENT0)
        gl.glBindBuffer(gl.GL_PIXEL_PACK_BUFFER, self._pair[self._asked % 2])
        start = ctypes.c_void_p(0)
        glReadPixels(0, 0, side, rows * size, gl.GL_RGBA, gl.GL_UNSIGNED_BYTE, start)
        gl.glFlush()
        self._asked += 1
        sheet = np.empty((rows * size, side, 4), dtype=np.uint8)
        if self._asked > 1:
            gl.glBindBuffer(gl.GL_PIXEL_PACK_BUFFER, self._pair[self._asked % 2])
            to = ctypes.c_void_p(sheet.ctypes.data)
            glGetBufferSubData(gl.GL_PIXEL_PACK_BUFFER, 0, sheet.nbytes, to)
        gl.glBindBuffer(gl.GL_PIXEL_PACK_BUFFER, 0)
        self.painter.restore()
        return sheet


def _map_only(painter: Painter, scene: Scene) -> None:
    assert painter.caster is not None
    assert scene.pose is not None
    painter.caster.draw(scene.pose, slot=scene.slot)


def _scene_only(painter: Painter, scene: Scene, *, side: int) -> None:
    """On the map as it is."""
    if painter.show is not None and scene.pose is not None and scene.slot is not None:
        painter.show.draw(scene.mjv, scene.pose, slot=scene.slot, side=side)


class Drawing:
    """The scenes of one sheet, to be drawn again and again."""

    def __init__(self, env: Filmed, settings: Collect, rng: np.random.Generator) -> None:
        self._env, self._settings, self._rng = env, settings, rng
        self._model = env.subject()[0]
        self._painter = Painter(self._model, size=NATIVE_SIZE, shadow=0)
        self._plain = Sheet(self._painter)
        self._sheets: dict[str, Sheet] = {"sheet": self._plain}
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

    def span(self, kind: str, turn: AbstractContextManager[Any], seconds: float) -> Span:
        """Frames drawn and read in the way `kind`, while holding `turn`."""
        if kind == "frame":
            return span(lambda: self._one(turn), seconds)
        if kind not in self._sheets:
            self._sheets[kind] = PboSheet(self._painter)
        sheet = self._sheets[kind]

        def work() -> int:
            with turn:
                sheet.draw(self._scenes)
            return len(self._scenes)

        work()
        return span(work, seconds)

    def _one(self, turn: AbstractContextManager[Any]) -> int:
        with turn:
            self._painter.paint(self._data, self._camera)
        return 1

    def same(self) -> float:
        """Share of values in which frames of a sheet differ from frames read one by one."""
        sheet = self._plain.draw(self._scenes)
        size = NATIVE_SIZE
        tiles = [sheet[:size, i * size : (i + 1) * size, :3] for i in range(len(self._singly))]
        return float(np.mean([a != b for a, b in zip(tiles, self._singly, strict=True)]))

    def gpu_times(self) -> Iterator[Line]:
        """How long the GPU works on a frame, and whether frames are MuJoCo's."""
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
            ("meshes cut", painter.visible),
        ):
            yield f"in use: {what}", float(way is not None), "(1 = yes)", {}
        if painter.caster is not None:
            yield from self._map_lines(painter, painter.caster)
        if painter.show is not None:
            # In one pixel, what is left is work on vertices and triangles.
            for what, side in (("only the scene", NATIVE_SIZE), ("the scene in a pixel", 1)):
                draw = functools.partial(_scene_only, side=side)
                yield self._line(f"GPU: {what}", painter, draw)
            yield self._line("GPU: choosing triangles", painter, self._choose)
            counts = painter.show.sieve.counts(len(self._scenes)).sum(1)
            more = {"of": painter.show.sieve.total}
            yield "triangles kept in a pass", float(np.mean(counts)), "", more

    def _choose(self, painter: Painter, scene: Scene) -> None:
        if scene is self._scenes[0]:  # all at once, as a sheet has it
            painter.ready(self._scenes)

    def _map_lines(self, painter: Painter, caster: Caster) -> Iterator[Line]:
        """What is spent on the map: all of it, then each part alone."""

        def wipe(_: Painter, scene: Scene) -> None:
            assert scene.pose is not None
            caster.draw(dataclasses.replace(scene.pose, order=[]))

        def fill(_: Painter, scene: Scene, *, speck: bool, chosen: bool) -> None:
            assert scene.pose is not None
            caster.fill(scene.pose, slot=scene.slot if chosen else None, speck=speck)

        yield "ground of one depth", float(caster.slate.level is not None), "(1 = yes)", {}
        yield self._line("GPU: only its map", painter, _map_only)
        yield self._line("GPU: map, wiping", painter, wipe)
        yield self._line("GPU: map, copying a box", painter, self._copier(painter))
        for what, speck in (("triangles", False), ("triangles in a texel", True)):
            for which, chosen in (("", True), ("all ", False)):
                if caster.lit is not None or not chosen:
                    draw = functools.partial(fill, speck=speck, chosen=chosen)
                    yield self._line(f"GPU: map, {which}{what}", painter, draw)
        if caster.lit is not None:
            counts, more = caster.lit.counts(len(self._scenes)).sum(1), {"of": caster.lit.total}
            yield "triangles kept in the map", float(np.mean(counts)), "", more
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

    def _copier(self, painter: Painter) -> Draw:
        """Another way of wiping, not in use: the box around all is copied from a second map."""
        from OpenGL import GL

        side, kind, name = painter.context.shadowSize, GL.GL_TEXTURE_2D, int(GL.glGenTextures(1))
        GL.glBindTexture(kind, name)
        GL.glTexStorage2D(kind, 1, GL.GL_DEPTH24_STENCIL8, side, side)
        GL.glBindTexture(kind, 0)

        def copy(painter: Painter, scene: Scene) -> None:
            left, low, right, high = scene.shadows
            to = (int(painter.context.shadowTex), kind, 0, left, low, 0)
            GL.glCopyImageSubData(name, kind, 0, left, low, 0, *to, right - left, high - low, 1)

        return copy

    def _line(self, what: str, painter: Painter, draw: Draw = Painter.draw) -> Line:
        gpu, wall, issued = timed(painter, self._scenes, draw=draw)
        return what, gpu, "us/frame", {"wall_us": round(wall), "issuing_us": round(issued)}
