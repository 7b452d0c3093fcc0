"""What drawing allows: the scenes of one episode in, frames a second out, in several ways.

Ways of getting pixels: `frame` reads back each frame as it is drawn; `sheet` is the collector's,
36 frames copied together and read at once; `sheet rgba` reads four bytes a pixel and drops one;
`sheet pbo` has the GPU write to memory of its own accord while the next sheet is being drawn;
`tiles` draws straight into the tiles of one large buffer, which may move a triangle's edge.
"""

import ctypes
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from sdjepa.config import Collect
from sdjepa.envs.base import NATIVE_SIZE
from sdjepa.envs.gl import Filmed, Painter, Scene, Sheet

KINDS = ("frame", "sheet", "sheet rgba", "sheet pbo", "tiles")
SHARED = ("frame", "sheet", "sheet pbo")  # also measured in several processes at once


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
        self._forgive()
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

        gl, size, side = self._gl, self.painter.size, self.SIDE * self.painter.size
        self._forgive()
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
            gl.glGetBufferSubData(gl.GL_PIXEL_PACK_BUFFER, 0, sheet.nbytes, sheet)
        gl.glBindBuffer(gl.GL_PIXEL_PACK_BUFFER, 0)
        self.painter.restore()
        return cv2.cvtColor(sheet, cv2.COLOR_RGBA2RGB)


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

        work()
        self.tiles_differ = float(np.mean(sheet != self._plain.draw(self._scenes)))
        found = span(work, seconds)
        painter.close()
        return found

    def gpu_times(self) -> Iterator[tuple[str, float, str, dict[str, Any]]]:
        """How long the GPU works on a frame; variants that change pixels are only for knowing."""
        quality = self._model.vis.quality
        shadow, samples = quality.shadowsize, quality.offsamples
        yield "sheet differs from frames", 1e6 * self.same(), "ppm", {}
        yield "simulator's frames differ", 1e6 * self._differs(), "ppm", {}
        yield from self._shadow_lines()
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
        """Share of values in which the collector's frame is not MuJoCo's own renderer's."""
        ours = self._painter.paint(self._data, self._camera)
        self._painter.make_current()
        self._painter._renderer.update_scene(self._data, camera=self._camera)
        theirs = self._painter._renderer.render()
        self._painter.close()  # its map is not clear
        self._painter = Painter(self._model, size=NATIVE_SIZE, shadow=0)
        self._plain = self._sheets["sheet"] = Sheet(self._painter)
        return float(np.mean(ours != theirs))

    def _shadow_lines(self) -> Iterator[tuple[str, float, str, dict[str, Any]]]:
        """The whole shadow map as MuJoCo draws it, without the ground, and inside a box."""
        painter = Painter(self._model, size=NATIVE_SIZE, shadow=0)
        yield self._line("GPU: as collected", painter)
        limited = painter._limit is not None
        painter._limit = None
        yield self._line("GPU: whole map, no ground in it", painter)
        grounds = painter._casters._grounds or self._painter._casters._grounds or []
        for scene in self._scenes:
            for place in grounds:
                scene.mjv.geoms[place].category = 1  # static, as it was
        yield self._line("GPU: whole map, as MuJoCo draws", painter)
        for scene in self._scenes:
            for place in grounds:
                scene.mjv.geoms[place].category = 4  # decoration
        geoms = [scene.mjv.ngeom for scene in self._scenes]
        for scene in self._scenes:
            scene.mjv.ngeom = 0
        yield self._line("GPU: an empty scene", painter)
        for scene, count in zip(self._scenes, geoms, strict=True):
            scene.mjv.ngeom = count
        painter.close()
        size = painter._casters._size
        share = [(b[2] - b[0]) * (b[3] - b[1]) / size**2 for b in (s.shadows for s in self._scenes)]
        box = {"share_of_map": round(float(np.mean(share)), 3)}
        yield "shadow map confined", float(limited), "(1 = yes)", box

    def _line(self, what: str, painter: Painter) -> tuple[str, float, str, dict[str, Any]]:
        gpu, wall, issued = self._timed(painter)
        return what, gpu, "us/frame", {"wall_us": round(wall), "issuing_us": round(issued)}

    def _timed(self, painter: Painter) -> tuple[float, float, float]:
        """Microseconds a frame by the GPU's clock, by ours, and until it is handed over."""
        from OpenGL import GL

        painter.make_current()
        while GL.glGetError():
            pass
        query = GL.glGenQueries(1)
        query = int(query[0]) if isinstance(query, np.ndarray | list) else int(query)
        best = (np.inf, np.inf, np.inf)
        for _ in range(3):
            GL.glFinish()
            GL.glBeginQuery(GL.GL_TIME_ELAPSED, query)
            began = time.perf_counter()
            for scene in self._scenes:
                painter.draw(scene)
            issued = time.perf_counter() - began
            while GL.glGetError():
                pass
            GL.glEndQuery(GL.GL_TIME_ELAPSED)
            GL.glFinish()
            wall = time.perf_counter() - began
            value = np.asarray(GL.glGetQueryObjectuiv(query, GL.GL_QUERY_RESULT)).reshape(-1)[0]
            each = 1e6 / len(self._scenes)
            best = min(best, (each * float(value) / 1e9, each * wall, each * issued))
        return best
