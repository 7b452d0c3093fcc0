"""What stands still in every picture, kept: the samples of one drawn scene in, the same ones out.

The sky, and the ground in the light that casts no shadow, are drawn first and are the same while
neither the camera nor a light nor the ground moves. So they are drawn once and copied, colours and
depths of every sample, to where the next scenes are drawn.
"""

from typing import Any

from sdjepa.envs.gl_calls import Unsupported, forgive, gl_function


class Backdrop:
    """A copy of MuJoCo's offscreen buffer; made and used with its context current."""

    def __init__(self, context: Any, *, size: int) -> None:
        from OpenGL import GL

        self._gl, self._context, self._size = GL, context, size
        self._of: list[Any] = []  # what stood where when it was kept
        self._bind, self._blit = gl_function("glBindFramebuffer"), gl_function("glBlitFramebuffer")
        self._buffer = int(GL.glGenFramebuffers(1))
        self._stores = [int(name) for name in GL.glGenRenderbuffers(2)]
        theirs = [context.offColor, context.offDepthStencil]
        places = [GL.GL_COLOR_ATTACHMENT0, GL.GL_DEPTH_STENCIL_ATTACHMENT]
        kind, framebuffer = GL.GL_RENDERBUFFER, GL.GL_FRAMEBUFFER
        GL.glBindFramebuffer(framebuffer, self._buffer)
        for own, their, place in zip(self._stores, theirs, places, strict=True):
            GL.glBindRenderbuffer(kind, their)
            samples, form = (
                int(GL.glGetRenderbufferParameteriv(kind, name))
                for name in (GL.GL_RENDERBUFFER_SAMPLES, GL.GL_RENDERBUFFER_INTERNAL_FORMAT)
            )
            GL.glBindRenderbuffer(kind, own)
            GL.glRenderbufferStorageMultisample(kind, samples, form, size, size)
            GL.glFramebufferRenderbuffer(framebuffer, place, kind, own)
        complete = GL.glCheckFramebufferStatus(framebuffer) == GL.GL_FRAMEBUFFER_COMPLETE
        GL.glBindFramebuffer(framebuffer, context.offFBO)
        if not complete:
            self.close()
            raise Unsupported("no second buffer as MuJoCo's")

    def shows(self, of: list[Any]) -> bool:
        """Whether this is what was kept."""
        return self._of == of

    def keep(self, of: list[Any]) -> None:
        """Keep what is drawn now."""
        self._copy(self._context.offFBO, self._buffer)
        self._of = of

    def put(self) -> None:
        """Have what was kept drawn again."""
        self._copy(self._buffer, self._context.offFBO)

    def _copy(self, source: int, target: int) -> None:
        gl, square = self._gl, (0, 0, self._size, self._size)
        self._bind(gl.GL_READ_FRAMEBUFFER, source)
        self._bind(gl.GL_DRAW_FRAMEBUFFER, target)
        which = gl.GL_COLOR_BUFFER_BIT | gl.GL_DEPTH_BUFFER_BIT | gl.GL_STENCIL_BUFFER_BIT
        self._blit(*square, *square, which, gl.GL_NEAREST)
        self._bind(gl.GL_FRAMEBUFFER, self._context.offFBO)

    def close(self) -> None:
        """Give everything back to OpenGL."""
        forgive()
        self._gl.glDeleteFramebuffers(1, [self._buffer])
        self._gl.glDeleteRenderbuffers(2, self._stores)
