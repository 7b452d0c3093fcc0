"""Pictures of MuJoCo scenes: a model and its data in, pixels out.

Environments of one kind share a `Painter`, one per process: their models are equal, a context costs
up to 360 MB, and several contexts get in one another's way.
"""

import atexit
import ctypes
import importlib
import os
from typing import Any

import numpy as np
from jaxtyping import UInt8

from sdjepa.errors import UserError

BACKENDS = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}
VARIABLE = "MUJOCO_GL"
_painters: dict[tuple[str, int], "Painter"] = {}
_sheets: dict[tuple[str, int], "Sheet"] = {}


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


class Painter:
    """One GL context; it draws the data of any model equal to the one it was made from."""

    def __init__(self, model: Any, *, size: int, shadow: int) -> None:
        mujoco: Any = importlib.import_module("mujoco")  # its compiled half has no types

        if shadow:
            model.vis.quality.shadowsize = shadow
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, size)
        model.vis.global_.offheight = max(model.vis.global_.offheight, size)
        self._renderer = mujoco.Renderer(model, height=size, width=size)

    def make_current(self) -> None:
        """Direct what MuJoCo and OpenGL do next at this context."""
        if self._renderer._gl_context is not None:
            self._renderer._gl_context.make_current()

    def draw(self, data: Any, camera: str | int) -> None:
        """Have the scene drawn into the offscreen buffer; nothing waits for it."""
        mujoco: Any = importlib.import_module("mujoco")
        renderer = self._renderer
        renderer.update_scene(data, camera=camera)
        self.make_current()
        whole = mujoco.MjrRect(0, 0, renderer.width, renderer.height)
        mujoco.mjr_render(whole, renderer.scene, renderer._mjr_context)

    def paint(self, data: Any, camera: str | int) -> UInt8[np.ndarray, "size size 3"]:
        self._renderer.update_scene(data, camera=camera)
        return self._renderer.render()

    def close(self) -> None:
        # MuJoCo frees GL objects of whichever context is current: of this one, or it destroys
        # another's.
        self.make_current()
        self._renderer.close()


class Sheet:
    """Frames drawn one after another and read back together.

    Reading a frame back makes the processor wait for the GPU, and the GPU then for the processor.
    Here each finished frame is copied, as the reading would, into a tile of a larger picture on the
    GPU, and that is read when it is full; the pixels are the same.
    """

    SIDE = 6  # tiles a row

    def __init__(self, painter: Painter) -> None:
        from OpenGL import GL

        self._painter, self._gl = painter, GL
        self._context: Any = painter._renderer._mjr_context
        self._size = painter._renderer.width
        self._drawn = 0
        self._done: list[np.ndarray] = []
        self._make_current()
        side = self.SIDE * self._size
        self._buffer, self._picture = GL.glGenFramebuffers(1), GL.glGenRenderbuffers(1)
        GL.glBindRenderbuffer(GL.GL_RENDERBUFFER, self._picture)
        GL.glRenderbufferStorage(GL.GL_RENDERBUFFER, GL.GL_RGBA8, side, side)
        GL.glBindFramebuffer(GL.GL_FRAMEBUFFER, self._buffer)
        where = GL.GL_COLOR_ATTACHMENT0
        GL.glFramebufferRenderbuffer(GL.GL_FRAMEBUFFER, where, GL.GL_RENDERBUFFER, self._picture)
        self._restore()

    def _make_current(self) -> None:
        self._painter.make_current()
        while self._gl.glGetError():  # MuJoCo leaves harmless errors behind, PyOpenGL raises them
            pass

    def _restore(self) -> None:
        mujoco: Any = importlib.import_module("mujoco")
        mujoco.mjr_restoreBuffer(self._context)

    def draw(self, data: Any, camera: str | int) -> None:
        """Draw one more frame."""
        gl, size = self._gl, self._size
        self._painter.draw(data, camera)
        self._make_current()
        row, column = divmod(self._drawn, self.SIDE)
        left, low = column * size, row * size
        gl.glBindFramebuffer(gl.GL_READ_FRAMEBUFFER, self._context.offFBO)
        gl.glReadBuffer(gl.GL_COLOR_ATTACHMENT0)
        gl.glBindFramebuffer(gl.GL_DRAW_FRAMEBUFFER, self._buffer)
        source, target = (0, 0, size, size), (left, low, left + size, low + size)
        gl.glBlitFramebuffer(*source, *target, gl.GL_COLOR_BUFFER_BIT, gl.GL_NEAREST)
        self._restore()
        self._drawn += 1
        if self._drawn == self.SIDE**2:
            self._read()

    def _read(self) -> None:
        gl, size, side = self._gl, self._size, self.SIDE * self._size
        self._make_current()
        rows = -(-self._drawn // self.SIDE)
        sheet = np.empty((rows * size, side, 3), dtype=np.uint8)
        gl.glBindFramebuffer(gl.GL_READ_FRAMEBUFFER, self._buffer)
        gl.glReadBuffer(gl.GL_COLOR_ATTACHMENT0)
        gl.glPixelStorei(gl.GL_PACK_ALIGNMENT, 1)
        gl.glReadPixels(0, 0, side, rows * size, gl.GL_RGB, gl.GL_UNSIGNED_BYTE, sheet)
        self._restore()
        tiles = sheet.reshape(rows, size, self.SIDE, size, 3).swapaxes(1, 2)
        # OpenGL counts rows from below.
        self._done += list(tiles.reshape(-1, size, size, 3)[: self._drawn, ::-1])
        self._drawn = 0

    def take(self) -> list[UInt8[np.ndarray, "size size 3"]]:
        """All frames drawn since the last call, in order."""
        if self._drawn:
            self._read()
        done, self._done = self._done, []
        return done


def sheet(kind: str, model: Any, *, size: int, shadow: int) -> Sheet:
    """The process's sheet for scenes of this `kind`, empty."""
    key = (kind, shadow)
    if key not in _sheets:
        _sheets[key] = Sheet(painter(kind, model, size=size, shadow=shadow))
    _sheets[key].take()
    return _sheets[key]


def painter(kind: str, model: Any, *, size: int, shadow: int) -> Painter:
    """The process's painter for scenes of this `kind`, made at its first use."""
    key = (kind, shadow)
    if key not in _painters:
        _painters[key] = Painter(model, size=size, shadow=shadow)
        # Registered after MuJoCo's own exit handler, so that it runs before the display is gone.
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    return _painters[key]


def _close_all() -> None:
    while _painters:
        _painters.popitem()[1].close()
