"""The shadow map as a buffer to draw in: boxes in, a map wiped there out.

MuJoCo is given a map of one texel to clear; the one it looks shadows up in is bound here. A ground
that is equally far everywhere in the map, as one is that the light shines straight down upon, is
one number, its level, and strips are wiped to that by drawing them, all in one call. Whether they
then hold what the ground itself leaves is read back once, all over the map.
"""

import importlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt32

from sdjepa.envs.gl_calls import Unsupported, gl_function
from sdjepa.envs.shadow import Box

STRIP_TEXELS = 64  # in which a level is tried


class Slate:
    """MuJoCo's map, with a depth test as MuJoCo set it; made with its context current."""

    def __init__(self, context: Any) -> None:
        from OpenGL import GL

        self._gl, self._context, self.size = GL, context, context.shadowSize
        self._mujoco: Any = importlib.import_module("mujoco")
        self.level: float | None = None  # of the ground, if everywhere the same
        self._far = float(np.ravel(GL.glGetDoublev(GL.GL_DEPTH_CLEAR_VALUE))[0])
        self._bind_buffer = gl_function("glBindFramebuffer")
        self._call, self._pointer = gl_function("glCallList"), gl_function("glVertexPointer")
        self._draw = gl_function("glDrawArrays")
        self._lists = 0
        self._make_buffers()

    def _make_buffers(self) -> None:
        """One buffer over MuJoCo's map and one of a texel, for what MuJoCo now clears in vain."""
        gl = self._gl
        self._buffer, self._dummy = (int(name) for name in gl.glGenFramebuffers(2))
        self._texel = int(gl.glGenRenderbuffers(1))
        gl.glBindRenderbuffer(gl.GL_RENDERBUFFER, self._texel)
        gl.glRenderbufferStorage(gl.GL_RENDERBUFFER, gl.GL_DEPTH24_STENCIL8, 1, 1)
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, self._dummy)
        where = gl.GL_DEPTH_STENCIL_ATTACHMENT
        gl.glFramebufferRenderbuffer(gl.GL_FRAMEBUFFER, where, gl.GL_RENDERBUFFER, self._texel)
        gl.glDrawBuffer(gl.GL_NONE)
        gl.glReadBuffer(gl.GL_NONE)
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, self._buffer)
        texture, kind = self._context.shadowTex, gl.GL_TEXTURE_2D
        # With its stencil, which nobody reads: a GPU that must not touch it clears texel by texel.
        gl.glFramebufferTexture2D(gl.GL_FRAMEBUFFER, where, kind, texture, 0)
        gl.glDrawBuffer(gl.GL_NONE)
        gl.glReadBuffer(gl.GL_NONE)
        gl.glBindTexture(kind, texture)
        bits = gl.glGetTexLevelParameteriv(kind, 0, gl.GL_TEXTURE_DEPTH_SIZE)
        gl.glBindTexture(kind, 0)
        self._exact = int(np.ravel(bits)[0]) == 24  # what is read can be written again
        complete = gl.glCheckFramebufferStatus(gl.GL_FRAMEBUFFER) == gl.GL_FRAMEBUFFER_COMPLETE
        self._theirs = self._context.shadowFBO
        self._mujoco.mjr_restoreBuffer(self._context)
        if not complete:
            raise Unsupported("the map has no stencil")

    def use(self, own: bool) -> None:
        """Let MuJoCo clear a texel in place of the map, or draw its map itself."""
        self._context.shadowFBO = self._dummy if own else self._theirs

    def bind(self) -> None:
        """Draw into the map."""
        self._bind_buffer(self._gl.GL_FRAMEBUFFER, self._buffer)

    def release(self) -> None:
        """Draw where MuJoCo does."""
        self._mujoco.mjr_restoreBuffer(self._context)

    def clear(self, box: Box) -> None:
        """Make a box of the map, which is bound, what it is where nothing was drawn."""
        gl, (left, low, right, high) = self._gl, box
        gl.glScissor(left, low, right - left, high - low)
        gl.glEnable(gl.GL_SCISSOR_TEST)
        gl.glClear(gl.GL_DEPTH_BUFFER_BIT | gl.GL_STENCIL_BUFFER_BIT)

    def open(self) -> None:
        """Let all of the map be drawn in again."""
        self._gl.glDisable(self._gl.GL_SCISSOR_TEST)

    def wipe(self, boxes: Sequence[Box]) -> None:
        """Make boxes of the map what the ground leaves there; vertex arrays are on."""
        if not boxes:
            return
        table = np.array(boxes, dtype=np.float32)
        # In the coordinates OpenGL clips in; whole texels are exact in a map of a power of two.
        corners = np.ascontiguousarray(table[:, [0, 1, 2, 1, 2, 3, 0, 3]])
        places = corners * np.float32(2 / self.size) - np.float32(1)
        self._call(self._lists)
        self._pointer(2, self._gl.GL_FLOAT, 0, places.ctypes.data)
        self._draw(self._gl.GL_QUADS, 0, 4 * len(table))
        self._call(self._lists + 1)

    def _compile(self, level: float) -> None:
        """What stands before and after the strips."""
        gl = self._gl
        if not self._lists:
            self._lists = int(gl.glGenLists(2))
        near, far = (float(end) for end in np.ravel(gl.glGetDoublev(gl.GL_DEPTH_RANGE)))
        nearer = int(np.ravel(gl.glGetIntegerv(gl.GL_DEPTH_FUNC))[0])
        gl.glNewList(self._lists, gl.GL_COMPILE)
        gl.glDisable(gl.GL_LIGHTING)
        gl.glDisable(gl.GL_CULL_FACE)
        gl.glColorMask(False, False, False, False)
        gl.glDepthFunc(gl.GL_ALWAYS)
        gl.glDepthRange(level, level)
        gl.glViewport(0, 0, self.size, self.size)
        for which in (gl.GL_PROJECTION, gl.GL_MODELVIEW):
            gl.glMatrixMode(which)
            gl.glLoadIdentity()
        gl.glEndList()
        gl.glNewList(self._lists + 1, gl.GL_COMPILE)
        gl.glDepthRange(near, far)
        gl.glDepthFunc(nearer)
        gl.glColorMask(True, True, True, True)
        gl.glEnable(gl.GL_CULL_FACE)
        gl.glEnable(gl.GL_LIGHTING)
        gl.glEndList()

    def find_level(self) -> None:
        """See whether the map, which shows grounds alone, is one number; vertex arrays are on."""
        self.level = None
        if not self._exact:
            return
        inside = self.size - 2
        seen = self.read(1, 1, inside, inside)
        if seen.min() != seen.max():
            return
        level = float(seen[0, 0]) / (2**24 - 1)
        self._compile(level)
        self.clear((1, 1, inside + 1, inside + 1))
        self.open()
        edges = [*range(1, self.size - 1, STRIP_TEXELS), self.size - 1]
        self.wipe([(left, 1, right, inside + 1) for left, right in itertools.pairwise(edges)])
        again = self.read(1, 1, inside, inside)
        if np.array_equal(seen, again):
            self.level = level

    def read(self, left: int, low: int, width: int, height: int) -> UInt32[np.ndarray, "y x"]:
        """Depths in the map, which is bound, as its numbers of 24 bits."""
        gl, found = self._gl, np.empty((height, width), dtype=np.uint32)
        kind = gl.GL_UNSIGNED_INT
        gl.glReadPixels(left, low, width, height, gl.GL_DEPTH_COMPONENT, kind, found)
        return found >> 8

    def close(self) -> None:
        """Give everything back to OpenGL, and MuJoCo its own buffer."""
        self.use(False)
        if self._lists:
            self._gl.glDeleteLists(self._lists, 2)
        self._gl.glDeleteFramebuffers(2, [self._buffer, self._dummy])
        self._gl.glDeleteRenderbuffers(1, [self._texel])
