"""Pictures of MuJoCo scenes: a model and its data in, pixels out.

Environments of one kind share a `Painter`, one per process: their models are equal, a context costs
up to 360 MB, and several contexts get in one another's way. A `Sheet` notes scenes while they are
simulated, which costs no drawing, and draws them later, many together. Processes that share a GPU
do so whenever they like: taking turns leaves it idle while one of them waits for its pixels.
"""

import atexit
import ctypes
import os
import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from sdjepa.envs.base import NATIVE_SIZE, Env
from sdjepa.envs.gl_calls import forgive, gl_function
from sdjepa.envs.painter import Painter
from sdjepa.envs.scene import Scene
from sdjepa.errors import UserError

BACKENDS = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}
VARIABLE = "MUJOCO_GL"
# By thread, kind of scene and shadow map: a context belongs to the thread that made it.
_painters: dict[tuple[int, str, int], Painter] = {}
_sheets: dict[tuple[int, str, int], "Sheet"] = {}


def choose_backend() -> str:
    """Settle how MuJoCo draws, before it is imported: as asked, else EGL, else OSMesa."""
    asked = os.environ.get(VARIABLE)
    if asked:
        return asked
    for name, library in BACKENDS.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        os.environ[VARIABLE] = name
        # PyOpenGL decides for itself otherwise, and may decide differently.
        os.environ.setdefault("PYOPENGL_PLATFORM", name)
        return name
    raise UserError(
        "no offscreen OpenGL found: neither libEGL.so.1 nor libOSMesa.so.8 loads; run: "
        "apt-get install libegl1 libosmesa6"
    )


class Sheet:
    """Frames noted one by one, drawn together and read back together.

    Reading a frame back makes the processor wait for the GPU and the GPU for the processor, and a
    GPU that several processes ask for one frame each spends its time changing between them. Here
    each drawn frame is copied, as the reading would, into a tile of a larger picture on the GPU,
    and that is read when all are drawn; the pixels are the same. Nor does the processor wait then:
    it goes on noting the next sheet, and takes the pixels when that one is full.
    """

    SIDE = 6  # tiles a row
    DRAWN_AHEAD = 1  # sheets that the GPU may be busy with while the next is noted

    def __init__(self, painter: Painter) -> None:
        from OpenGL import GL

        self.painter, self._gl = painter, GL
        self._scenes: list[Scene] = []  # blank ones are kept for the next sheet
        self._noted = 0
        self.turn = 0  # of those who use it in turn
        self._done: list[np.ndarray] = []
        self._asked: list[tuple[int, int]] = []  # buffers being read into, and how many frames
        self._free: list[int] = []
        self._make_current()
        self._read_pixels, self._flush = gl_function("glReadPixels"), gl_function("glFlush")
        self._bind_buffer, self._fetch = (
            gl_function("glBindBuffer"),
            gl_function("glGetBufferSubData"),
        )
        self._bind, self._read_from = gl_function("glBindFramebuffer"), gl_function("glReadBuffer")
        self._blit = gl_function("glBlitFramebuffer")
        side = self.SIDE * painter.size
        self._buffer, self._picture = GL.glGenFramebuffers(1), GL.glGenRenderbuffers(1)
        GL.glBindRenderbuffer(GL.GL_RENDERBUFFER, self._picture)
        GL.glRenderbufferStorage(GL.GL_RENDERBUFFER, GL.GL_RGBA8, side, side)
        GL.glBindFramebuffer(GL.GL_FRAMEBUFFER, self._buffer)
        where = GL.GL_COLOR_ATTACHMENT0
        GL.glFramebufferRenderbuffer(GL.GL_FRAMEBUFFER, where, GL.GL_RENDERBUFFER, self._picture)
        painter.restore()

    def _make_current(self) -> None:
        self.painter.make_current()
        forgive()

    def note(self, data: Any, camera: str | int) -> None:
        """Take one more frame; it is drawn when the sheet is full or asked for."""
        if self._noted == self.SIDE**2:
            self._develop()
        if self._noted == len(self._scenes):
            self._scenes.append(self.painter.blank())
        self.painter.note(data, camera, scene=self._scenes[self._noted])
        self._noted += 1

    def _develop(self) -> None:
        count, self._noted = self._noted, 0
        self._ask(self._scenes[:count])
        while len(self._asked) > self.DRAWN_AHEAD:
            self._take_next()

    def _take_next(self) -> None:
        """Wait for the sheet asked for first."""
        import cv2

        size = self.painter.size
        sheet, count = self._wait()
        for number in range(count):
            row, column = divmod(number, self.SIDE)
            tile = sheet[row * size : (row + 1) * size, column * size : (column + 1) * size]
            # OpenGL counts rows from below.
            self._done.append(cv2.cvtColor(tile, cv2.COLOR_RGBA2RGB)[::-1])

    def draw(self, scenes: Sequence[Scene]) -> UInt8[np.ndarray, "rows columns 4"]:
        """One picture of all `scenes` as OpenGL has it: tiles and pixels from below, opacity last.

        Whole words are read, which a driver need not repack.
        """
        assert not self._asked
        self._ask(scenes)
        return self._wait()[0]

    def _ask(self, scenes: Sequence[Scene]) -> None:
        """Have scenes drawn and read into a buffer; nothing waits for it."""
        self._make_current()
        self.painter.ready(scenes)
        for number, scene in enumerate(scenes):
            self.painter.draw(scene)
            self.copy(number)
        gl, kind, side = self._gl, self._gl.GL_PIXEL_PACK_BUFFER, self.SIDE * self.painter.size
        forgive()
        buffer = self._free.pop() if self._free else self._make_buffer()
        gl.glBindFramebuffer(gl.GL_READ_FRAMEBUFFER, self._buffer)
        gl.glReadBuffer(gl.GL_COLOR_ATTACHMENT0)
        self._bind_buffer(kind, buffer)
        high = self._high(len(scenes))
        self._read_pixels(0, 0, side, high, gl.GL_RGBA, gl.GL_UNSIGNED_BYTE, None)
        self._bind_buffer(kind, 0)
        self.painter.restore()
        self._flush()
        self._asked.append((buffer, len(scenes)))

    def _make_buffer(self) -> int:
        gl, kind = self._gl, self._gl.GL_PIXEL_PACK_BUFFER
        buffer = int(gl.glGenBuffers(1))
        gl.glBindBuffer(kind, buffer)
        gl.glBufferData(kind, 4 * (self.SIDE * self.painter.size) ** 2, None, gl.GL_STREAM_READ)
        gl.glBindBuffer(kind, 0)
        return buffer

    def _high(self, count: int) -> int:
        """Rows of pixels that so many frames take."""
        return -(-count // self.SIDE) * self.painter.size

    def _wait(self) -> tuple[UInt8[np.ndarray, "rows columns 4"], int]:
        """What was asked for first, and of how many frames it is."""
        self._make_current()
        buffer, count = self._asked.pop(0)
        sheet = np.empty((self._high(count), self.SIDE * self.painter.size, 4), dtype=np.uint8)
        kind = self._gl.GL_PIXEL_PACK_BUFFER
        self._bind_buffer(kind, buffer)
        self._fetch(kind, 0, sheet.nbytes, sheet.ctypes.data)
        self._bind_buffer(kind, 0)
        self._free.append(buffer)
        return sheet, count

    def copy(self, number: int) -> None:
        """The frame just drawn goes into tile `number`, its samples averaged."""
        gl, size = self._gl, self.painter.size
        row, column = divmod(number, self.SIDE)
        left, low = column * size, row * size
        self._bind(gl.GL_READ_FRAMEBUFFER, self.painter.context.offFBO)
        self._read_from(gl.GL_COLOR_ATTACHMENT0)
        self._bind(gl.GL_DRAW_FRAMEBUFFER, self._buffer)
        source, target = (0, 0, size, size), (left, low, left + size, low + size)
        self._blit(*source, *target, gl.GL_COLOR_BUFFER_BIT, gl.GL_NEAREST)
        self.painter.restore()

    def take(self) -> list[UInt8[np.ndarray, "size size 3"]]:
        """All frames noted since the last call, in order."""
        if self._noted:
            self._develop()
        while self._asked:
            self._take_next()
        return self.finished()

    def finished(self) -> list[UInt8[np.ndarray, "size size 3"]]:
        """The frames among them that are drawn already."""
        done, self._done = self._done, []
        return done

    def drop(self) -> None:
        """Forget what was noted; whoever noted it has it no more."""
        self.turn += 1
        self._free += [buffer for buffer, _ in self._asked]
        self._noted, self._done, self._asked = 0, [], []


class Filmed(Env):
    """An environment whose pictures MuJoCo draws."""

    shadows = True
    rows_between_saves = 128  # they are slow without a GPU

    @abstractmethod
    def __init__(self, *, shadow: int = 0) -> None:
        super().__init__(shadow=shadow)
        self._shadow = shadow
        self._sheet: Sheet | None = None  # while frames are being taken
        self._turn = 0  # of the sheet, which others of the thread use in theirs

    @abstractmethod
    def subject(self) -> tuple[Any, Any, str | int]:
        """MuJoCo's model and data, and the camera."""

    def frame(self) -> UInt8[np.ndarray, "224 224 3"]:
        model, data, camera = self.subject()
        return painter(self.name, model, size=NATIVE_SIZE, shadow=self._shadow).paint(data, camera)

    def plain(self) -> UInt8[np.ndarray, "224 224 3"]:
        model, data, camera = self.subject()
        return painter(self.name, model, size=NATIVE_SIZE, shadow=self._shadow).plain(data, camera)

    def shoot(self) -> None:
        model, data, camera = self.subject()
        if self._sheet is None:
            self._sheet = sheet(self.name, model, size=NATIVE_SIZE, shadow=self._shadow)
            self._turn = self._sheet.turn
        assert self._sheet.turn == self._turn, "another took pictures before these were developed"
        self._sheet.note(data, camera)

    def finished(self) -> list[UInt8[np.ndarray, "224 224 3"]]:
        mine = self._own_sheet()
        return [] if mine is None else mine.finished()

    def develop(self) -> list[UInt8[np.ndarray, "224 224 3"]]:
        mine, self._sheet = self._own_sheet(), None
        return [] if mine is None else mine.take()

    def _own_sheet(self) -> Sheet | None:
        """The sheet, unless another has used it since."""
        taken = self._sheet is None or self._sheet.turn != self._turn
        return None if taken else self._sheet


def sheet(kind: str, model: Any, *, size: int, shadow: int) -> Sheet:
    """The thread's sheet for scenes of this `kind`, empty."""
    key = (threading.get_ident(), kind, shadow)
    if key not in _sheets:
        _sheets[key] = Sheet(painter(kind, model, size=size, shadow=shadow))
    _sheets[key].drop()
    return _sheets[key]


def painter(kind: str, model: Any, *, size: int, shadow: int) -> Painter:
    """The thread's painter for scenes of this `kind`, made at its first use."""
    key = (threading.get_ident(), kind, shadow)
    if key not in _painters:
        _painters[key] = Painter(model, size=size, shadow=shadow)
        # Registered after MuJoCo's own exit handler, so that it runs before the display is gone.
        atexit.unregister(close_all)
        atexit.register(close_all)
    return _painters[key]


def close_all() -> None:
    """Give this thread's contexts back; no other thread can, so one that ends should."""
    mine = threading.get_ident()
    for key in [key for key in _sheets if key[0] == mine]:
        del _sheets[key]
    for key in [key for key in _painters if key[0] == mine]:
        _painters.pop(key).close()
