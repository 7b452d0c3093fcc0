"""What stands still in every picture, kept: the samples of drawn scenes in, the same ones out.

Sky and ground are the same while neither the camera nor a light nor the ground moves, but for where
a shadow falls. Two pictures of them are kept, colours and depths of every sample: `PLAIN`, in
the light that casts no shadow, and `LIT`, in both, with nothing there to cast one. A box in which
shadows may fall is made `PLAIN`, and the ground adds the other light to it; of the rest only what
geoms and shadows may have changed in the last picture is made `LIT` again.

A program of our own copies: OpenGL's own way to copy between buffers of several samples took an
H200 longer than drawing all anew.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sdjepa.envs.gl_calls import Unsupported, forgive, gl_function
from sdjepa.envs.shadow import Box

PLAIN, LIT = 0, 1
VERTEX = """
#version 400 compatibility
void main() { gl_Position = gl_Vertex; }
"""
COPY = """
#version 400 compatibility
uniform sampler2DMS colours, depths;
void main() {
    ivec2 at = ivec2(gl_FragCoord.xy);
    gl_FragColor = texelFetch(colours, at, gl_SampleID);
    gl_FragDepth = texelFetch(depths, at, gl_SampleID).r;
}
"""


class Backdrop:
    """Copies of MuJoCo's offscreen buffer; made and used with its context current."""

    def __init__(self, context: Any, *, size: int) -> None:
        from OpenGL import GL

        self._gl, self._context, self._size = GL, context, size
        self.whole: Box = (0, 0, size, size)
        self.changed: Box = self.whole  # what of the picture is not `LIT`
        self._call, self._rectangle = gl_function("glCallList"), gl_function("glRectf")
        self._textures: list[int] = []
        self._buffers: list[int] = []
        self._lists = self._program = 0
        if not context.offSamples:
            raise Unsupported("a picture of one sample a pixel")
        try:
            self._program = self._make_program()
            for _ in (PLAIN, LIT):
                self._make_buffer()
            self._compile()
        except Exception:
            self.close()
            raise
        finally:
            GL.glBindFramebuffer(GL.GL_FRAMEBUFFER, context.offFBO)

    def _make_program(self) -> int:
        gl = self._gl
        program: Any = gl.glCreateProgram()
        for kind, source in ((gl.GL_VERTEX_SHADER, VERTEX), (gl.GL_FRAGMENT_SHADER, COPY)):
            shader: Any = gl.glCreateShader(kind)
            gl.glShaderSource(shader, source.strip())
            gl.glCompileShader(shader)
            gl.glAttachShader(program, shader)
            gl.glDeleteShader(shader)
        gl.glLinkProgram(program)
        if not gl.glGetProgramiv(program, gl.GL_LINK_STATUS):
            gl.glDeleteProgram(program)
            raise Unsupported("the program that copies does not compile")
        gl.glUseProgram(program)
        for unit, name in self._units().values():
            gl.glUniform1i(gl.glGetUniformLocation(program, name), unit)
        gl.glUseProgram(0)
        return int(program)

    def _units(self) -> dict[int, tuple[int, str]]:
        """By place in a buffer, where the program finds what it copies; MuJoCo uses 0 and 1."""
        gl = self._gl
        return {
            int(gl.GL_COLOR_ATTACHMENT0): (2, "colours"),
            int(gl.GL_DEPTH_STENCIL_ATTACHMENT): (3, "depths"),
        }

    def _make_buffer(self) -> None:
        """One like MuJoCo's, that can be read sample by sample."""
        gl, kind = self._gl, self._gl.GL_TEXTURE_2D_MULTISAMPLE
        buffer = int(gl.glGenFramebuffers(1))
        self._buffers.append(buffer)
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, buffer)
        theirs = (self._context.offColor, self._context.offDepthStencil)
        for place, their in zip(self._units(), theirs, strict=True):
            gl.glBindRenderbuffer(gl.GL_RENDERBUFFER, their)
            samples, form = (
                int(gl.glGetRenderbufferParameteriv(gl.GL_RENDERBUFFER, name))
                for name in (gl.GL_RENDERBUFFER_SAMPLES, gl.GL_RENDERBUFFER_INTERNAL_FORMAT)
            )
            texture = int(gl.glGenTextures(1))
            self._textures.append(texture)
            gl.glBindTexture(kind, texture)
            gl.glTexImage2DMultisample(kind, samples, form, self._size, self._size, True)
            gl.glFramebufferTexture2D(gl.GL_FRAMEBUFFER, place, kind, texture, 0)
            gl.glBindTexture(kind, 0)
        if gl.glCheckFramebufferStatus(gl.GL_FRAMEBUFFER) != gl.GL_FRAMEBUFFER_COMPLETE:
            raise Unsupported("no second buffer as MuJoCo's")

    def _compile(self) -> None:
        """What stands before either copy is drawn, and after."""
        gl = self._gl
        nearer = int(np.ravel(gl.glGetIntegerv(gl.GL_DEPTH_FUNC))[0])
        self._lists = int(gl.glGenLists(3))
        for which in (PLAIN, LIT):
            gl.glNewList(self._lists + which, gl.GL_COMPILE)
            own = self._textures[2 * which : 2 * which + 2]
            for texture, (unit, _) in zip(own, self._units().values(), strict=True):
                gl.glActiveTexture(gl.GL_TEXTURE0 + unit)
                gl.glBindTexture(gl.GL_TEXTURE_2D_MULTISAMPLE, texture)
            gl.glActiveTexture(gl.GL_TEXTURE0)
            gl.glUseProgram(self._program)
            gl.glDepthFunc(gl.GL_ALWAYS)
            gl.glDisable(gl.GL_CULL_FACE)
            gl.glEndList()
        gl.glNewList(self._lists + 2, gl.GL_COMPILE)
        gl.glEnable(gl.GL_CULL_FACE)
        gl.glDepthFunc(nearer)
        gl.glUseProgram(0)
        gl.glEndList()

    def keep(self, which: int) -> None:
        """Keep what is drawn now."""
        gl = self._gl
        forgive()
        gl.glBindFramebuffer(gl.GL_READ_FRAMEBUFFER, self._context.offFBO)
        gl.glBindFramebuffer(gl.GL_DRAW_FRAMEBUFFER, self._buffers[which])
        what: Any = gl.GL_COLOR_BUFFER_BIT
        gl.glBlitFramebuffer(*self.whole, *self.whole, what | gl.GL_DEPTH_BUFFER_BIT, gl.GL_NEAREST)
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, self._context.offFBO)

    def put(self, which: int, boxes: Sequence[Box]) -> None:
        """Have what was kept drawn in boxes."""
        self._call(self._lists + which)
        for box in boxes:
            # In the coordinates OpenGL clips in; it rounds them to whole pixels again.
            self._rectangle(*(2 * edge / self._size - 1 for edge in box))
        self._call(self._lists + 2)

    def close(self) -> None:
        """Give everything back to OpenGL."""
        forgive()
        self._gl.glDeleteFramebuffers(len(self._buffers), self._buffers)
        self._gl.glDeleteTextures(len(self._textures), self._textures)
        self._gl.glDeleteProgram(self._program)
        if self._lists:
            self._gl.glDeleteLists(self._lists, 3)
