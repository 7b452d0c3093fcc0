"""What drawing allows: the scenes of one episode in, frames a second out, in several ways.

Ways of getting pixels: `frame` reads back each frame as it is drawn; `sheet` is the collector's,
36 frames copied together and read at once; `sheet rgba` reads four bytes a pixel and drops one;
`sheet pbo` has the GPU write to memory of its own accord while the next sheet is being drawn;
`tiles` draws straight into the tiles of one large buffer, which may move a triangle's edge.
"""

import ctypes
import dataclasses
import functools
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from sdjepa.config import Collect
from sdjepa.envs.base import NATIVE_SIZE
from sdjepa.envs.caster import Caster
from sdjepa.envs.gl import Filmed, Sheet
from sdjepa.envs.gl_calls import WAYS, forgive
from sdjepa.envs.painter import Painter, Scene
from sdjepa.envs.shadow import area

KINDS = ("frame", "sheet", "sheet rgba", "sheet pbo", "tiles")
SHARED = ("frame", "sheet", "sheet pbo")  # also measured in several processes at once


Line = tuple[str, float, str, dict[str, Any]]  # what, how much, of which unit, and more
Draw = Callable[[Painter, Scene], None]
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


class RgbaSheet(Sheet):
    """Reads whole words, which a driver need not repack."""

    def _read(self, rows: int) -> np.ndarray:
        import cv2

        gl, size, side = self._gl, self.painter.size, self.SIDE * self.painter.size
        forgive()
        sheet = np.empty((rows * size, side, 4), dtype=np.uint8)
        gl.glBindFramebuffer(gl.GL_READ_FRAMEBUFFER, self._buffer)
        gl.glReadBuffer(gl.GL_COLOR_ATTACHMENT0)
        gl.glReadPixels(0, 0, side, rows * size, gl.GL_RGBA, gl.GL_UNSIGNED_BYTE, sheet)
        self.painter.restore()
        return cv2.cvtColor(sheet, cv2.COLOR_RGBA2RGB)


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
        import cv2
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
        return cv2.cvtColor(sheet, cv2.COLOR_RGBA2RGB)


def _map_only(painter: Painter, scene: Scene) -> None:
    assert painter.caster is not None
    assert scene.pose is not None
    painter.caster.draw(scene.pose, slot=scene.slot)


def _scene_only(painter: Painter, scene: Scene, *, side: int) -> None:
    """On the map as it is."""
    if painter.show is not None and scene.pose is not None and scene.slot is not None:
        painter.show.draw(scene.mjv, scene.pose, slot=scene.slot, side=side)
        return
    mujoco: Any = importlib.import_module("mujoco")
    mujoco.mjr_render(mujoco.MjrRect(0, 0, side, side), scene.mjv, painter.context)


class Drawing:
    """The scenes of one sheet, to be drawn again and again."""

    def __init__(self, env: Filmed, settings: Collect, rng: np.random.Generator) -> None:
        self._model, self._data, self._camera = env.subject()
        env.reset(rng)
        policy = env.policy(settings.policy, noise=1.0, rng=rng)
        self._painter = Painter(self._model, size=NATIVE_SIZE, shadow=0)
        self._plain = Sheet(self._painter)
        self._sheets: dict[str, Sheet] = {"sheet": self._plain}
        self._scenes: list[Scene] = []
        self._singly: list[np.ndarray] = []
        self.tiles_differ = 0.0  # share of values, of the tiles drawn last
        for _ in range(Sheet.SIDE**2):
            self._model, self._data, self._camera = env.subject()
            self._scenes.append(self._painter.blank())
            self._painter.note(self._data, self._camera, scene=self._scenes[-1])
            if len(self._singly) < 4:
                self._singly.append(self._painter.paint(self._data, self._camera)[::-1])
            action = policy()
            if action is not None:
                env.step(action)

    def span(self, kind: str, turn: AbstractContextManager[Any], seconds: float) -> Span:
        """Frames drawn and read in the way `kind`, while holding `turn`."""
        if kind == "tiles":
            return self._tiles_span(seconds)
        if kind == "frame":
            return span(lambda: self._one(turn), seconds)
        if kind not in self._sheets:
            made = {"sheet rgba": RgbaSheet, "sheet pbo": PboSheet}[kind]
            self._sheets[kind] = made(self._painter)
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
        tiles = [sheet[:NATIVE_SIZE, i * NATIVE_SIZE :][:, :NATIVE_SIZE] for i in range(4)]
        return float(np.mean([a != b for a, b in zip(tiles, self._singly, strict=True)]))

    def _tiles_span(self, seconds: float) -> Span:
        mujoco: Any = importlib.import_module("mujoco")  # its compiled half has no types
        side = Sheet.SIDE * NATIVE_SIZE
        painter = Painter(self._model, size=side, shadow=0)
        sheet, whole = np.empty((side, side, 3), np.uint8), mujoco.MjrRect(0, 0, side, side)
        places = [
            (NATIVE_SIZE * (i % Sheet.SIDE), NATIVE_SIZE * (i // Sheet.SIDE)) for i in range(36)
        ]

        def work() -> int:
            painter.make_current()
            for (left, low), scene in zip(places, self._scenes, strict=True):
                rect = mujoco.MjrRect(left, low, NATIVE_SIZE, NATIVE_SIZE)
                mujoco.mjr_render(rect, scene.mjv, painter.context)
            mujoco.mjr_readPixels(sheet, None, whole, painter.context)
            return len(self._scenes)

        together = self._plain.draw(self._scenes)
        for scene in self._scenes:
            self._painter.undress(scene)
        work()
        self.tiles_differ = float(np.mean(sheet != together))
        found = span(work, seconds)
        painter.close()
        return found

    def gpu_times(self) -> Iterator[Line]:
        """How long the GPU works on a frame; variants that change pixels are only for knowing."""
        quality = self._model.vis.quality
        shadow, samples = quality.shadowsize, quality.offsamples
        yield from self._ways_lines()
        yield "simulator's frames differ", 1e6 * self._differs(), "ppm", {}
        yield "sheet differs from frames", 1e6 * self.same(), "ppm", {}
        for what, set_shadow, set_samples in (
            ("shadow map 1024", 1024, samples),
            ("no shadows", 0, samples),
            ("no multisampling", shadow, 0),
        ):
            quality.shadowsize, quality.offsamples = set_shadow, set_samples
            painter = Painter(self._model, size=NATIVE_SIZE, shadow=0)
            quality.shadowsize, quality.offsamples = shadow, samples
            yield self._line(f"GPU: {what}", painter)
            painter.close()

    def _differs(self) -> float:
        """Share of values in which the collector's frames are not as MuJoCo draws them."""
        sheets = []
        for painter in (self._painter, Painter(self._model, size=NATIVE_SIZE, shadow=0, ways=())):
            sheets.append(Sheet(painter).draw(self._scenes))
        painter.close()
        return float(np.mean(sheets[0] != sheets[1]))

    def _ways_lines(self) -> Iterator[Line]:
        """Every way of drawing the same pixels, and parts of the one in use."""
        for what, ways in (
            ("as collected", WAYS),
            ("own map of whole meshes", ("cast", "show")),
            ("own map, meshes cut", ("cast", "lit", "cut")),
            ("own map, whole meshes", ("cast",)),
            ("MuJoCo's map in a box", ("confine",)),
            ("as MuJoCo draws", ()),
        ):
            painter = Painter(self._model, size=NATIVE_SIZE, shadow=0, ways=ways)
            yield self._line(f"GPU: {what}", painter)
            if what == "as collected":
                yield from self._parts_lines(painter)
            if not ways:
                yield from self._plain_lines(painter)
            painter.close()

    def _parts_lines(self, painter: Painter) -> Iterator[Line]:
        """What is in use, and what the shadow map costs alone."""
        yield "in use: own map", float(painter.caster is not None), "(1 = yes)", {}
        if painter.caster is not None:
            yield from self._map_lines(painter, painter.caster)
        yield "in use: own scene", float(painter.show is not None), "(1 = yes)", {}
        # Scenes are dressed by now. In one pixel, what is left is work on vertices and triangles.
        for what, side in (("only the scene", NATIVE_SIZE), ("the scene in a pixel", 1)):
            yield self._line(f"GPU: {what}", painter, functools.partial(_scene_only, side=side))
        if painter.show is not None:
            yield self._line("GPU: choosing triangles", painter, self._choose)
            counts = painter.show.sieve.counts(len(self._scenes)).sum(1)
            more = {"of": painter.show.sieve.total}
            yield "triangles kept in a pass", float(np.mean(counts)), "", more
        yield "in use: meshes cut", float(painter.visible is not None), "(1 = yes)", {}
        if painter.visible is not None:
            counts = [painter.visible.count(scene.view) for scene in self._scenes if scene.view]
            more = {"of": painter.visible.triangles, "lists": painter.visible.made}
            yield "triangles kept in a pass", float(np.mean(counts)), "", more
        yield "in use: MuJoCo's map in a box", float(painter.limit is not None), "(1 = yes)", {}
        boxes, cleared = [[scene.shadows] for scene in self._scenes], []
        painter.draw(self._scenes[-1])  # so that no map is cleared whole
        for scene in self._scenes:
            painter.draw(scene)
            cleared += [painter.caster.cleared] if painter.caster is not None else []
        side = painter.context.shadowSize
        for what, found in (("with shadows", boxes), ("cleared", cleared)):
            share = [area(each) / side**2 for each in found]
            more = {"side": side, "boxes": float(np.mean([len(each) for each in found or [[]]]))}
            yield f"shadow map, {what}", 100 * float(np.mean(share or [1])), "%", more

    def _choose(self, painter: Painter, scene: Scene) -> None:
        if scene is self._scenes[0]:  # all at once, as a sheet has it
            painter.ready(self._scenes)

    def _map_lines(self, painter: Painter, caster: Caster) -> Iterator[Line]:
        """What is spent on the map: all of it, then each part alone, and other ways of clearing."""

        def clear(_: Painter, scene: Scene) -> None:
            assert scene.pose is not None
            caster.draw(dataclasses.replace(scene.pose, order=[]))

        def fill(_: Painter, scene: Scene, *, speck: bool, chosen: bool) -> None:
            assert scene.pose is not None
            caster.fill(scene.pose, slot=scene.slot if chosen else None, speck=speck)

        level = caster.level
        yield "ground of one depth", float(level is not None), "(1 = yes)", {}
        yield self._line("GPU: only its map", painter, _map_only)
        yield self._line("GPU: map, clearing", painter, clear)
        if level is not None:
            caster.strewn = False
            yield self._line("GPU: map, clearing one box", painter, clear)
            caster.level = None
            yield self._line("GPU: map, clearing and ground", painter, clear)
            caster.level, caster.strewn = level, True
        for what, speck in (("triangles", False), ("triangles in a texel", True)):
            for which, chosen in (("", True), ("all ", False)):
                if caster.lit is not None or not chosen:
                    draw = functools.partial(fill, speck=speck, chosen=chosen)
                    yield self._line(f"GPU: map, {which}{what}", painter, draw)
        if caster.lit is not None:
            counts = caster.lit.counts(len(self._scenes)).sum(1)
            yield (
                "triangles kept in the map",
                float(np.mean(counts)),
                "",
                {"of": caster.lit.total},
            )
        caster.use(True)  # the map is not what it was

    def _plain_lines(self, painter: Painter) -> Iterator[Line]:
        """With nothing to draw."""
        geoms = [scene.mjv.ngeom for scene in self._scenes]
        for scene in self._scenes:
            scene.mjv.ngeom = 0
        yield self._line("GPU: an empty scene", painter)
        for scene, count in zip(self._scenes, geoms, strict=True):
            scene.mjv.ngeom = count

    def _line(self, what: str, painter: Painter, draw: Draw = Painter.draw) -> Line:
        gpu, wall, issued = self._timed(painter, draw)
        return what, gpu, "us/frame", {"wall_us": round(wall), "issuing_us": round(issued)}

    def _timed(self, painter: Painter, draw: Draw) -> tuple[float, float, float]:
        """Microseconds a frame by the GPU's clock, by ours, and until it is handed over."""
        from OpenGL import GL

        painter.make_current()
        forgive()
        query = GL.glGenQueries(1)
        query = int(query[0]) if isinstance(query, np.ndarray | list) else int(query)
        best = (np.inf, np.inf, np.inf)
        for _ in range(3):
            GL.glFinish()
            GL.glBeginQuery(GL.GL_TIME_ELAPSED, query)
            began = time.perf_counter()
            if draw is Painter.draw:
                painter.ready(self._scenes)
            for scene in self._scenes:
                draw(painter, scene)
            issued = time.perf_counter() - began
            forgive()
            GL.glEndQuery(GL.GL_TIME_ELAPSED)
            GL.glFinish()
            wall = time.perf_counter() - began
            value = np.asarray(GL.glGetQueryObjectuiv(query, GL.GL_QUERY_RESULT)).reshape(-1)[0]
            each = 1e6 / len(self._scenes)
            best = min(best, (each * float(value) / 1e9, each * wall, each * issued))
        return best
