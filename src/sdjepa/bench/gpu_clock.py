"""A GPU's own clock: scenes and a way of drawing them in, microseconds a frame out.

The clock runs while the GPU waits for a processor that asks too slowly, and one process does. So
the GPU is first given enough to do, and gets to what is timed when all of it has been asked for.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sdjepa.envs.gl_calls import forgive
from sdjepa.envs.painter import Painter
from sdjepa.envs.scene import Scene

HOLD_SIDE, HOLD_TIMES = 4096, 60  # clearing that often keeps an H200 busy for 60 ms

Draw = Callable[[Painter, Scene], None]


def timed(
    painter: Painter, scenes: Sequence[Scene], *, draw: Draw = Painter.draw
) -> tuple[float, float, float]:
    """Microseconds a frame by the GPU's clock, by ours, and until it is handed over."""
    from OpenGL import GL

    painter.make_current()
    forgive()
    query = int(np.ravel(GL.glGenQueries(1))[0])
    best = [np.inf, np.inf, np.inf]
    with _holding(painter) as hold:
        for held in (False, False, True, True):
            GL.glFinish()
            if held:
                hold()
            GL.glBeginQuery(GL.GL_TIME_ELAPSED, query)
            began = time.perf_counter()
            if draw is Painter.draw:
                painter.ready(scenes)
            for scene in scenes:
                draw(painter, scene)
            issued = time.perf_counter() - began
            forgive()
            GL.glEndQuery(GL.GL_TIME_ELAPSED)
            GL.glFinish()
            wall = time.perf_counter() - began
            value = np.ravel(GL.glGetQueryObjectuiv(query, GL.GL_QUERY_RESULT))[0]
            found = [float(value) / 1e9, np.inf, np.inf] if held else [np.inf, wall, issued]
            best = list(map(min, best, found))
    gpu, wall, issued = (1e6 * each / len(scenes) for each in best)
    return gpu, wall, issued


@contextlib.contextmanager
def _holding(painter: Painter) -> Iterator[Callable[[], None]]:
    """What gives the GPU so much to do that it never waits for what is asked of it next."""
    from OpenGL import GL

    where, kind = GL.GL_DEPTH_STENCIL_ATTACHMENT, GL.GL_RENDERBUFFER
    buffer, depth = int(GL.glGenFramebuffers(1)), int(GL.glGenRenderbuffers(1))
    GL.glBindRenderbuffer(kind, depth)
    GL.glRenderbufferStorage(kind, GL.GL_DEPTH24_STENCIL8, HOLD_SIDE, HOLD_SIDE)
    GL.glBindFramebuffer(GL.GL_FRAMEBUFFER, buffer)
    GL.glFramebufferRenderbuffer(GL.GL_FRAMEBUFFER, where, kind, depth)
    GL.glDrawBuffer(GL.GL_NONE)
    painter.restore()

    what: Any = GL.GL_DEPTH_BUFFER_BIT

    def hold() -> None:
        forgive()
        GL.glBindFramebuffer(GL.GL_FRAMEBUFFER, buffer)
        for _ in range(HOLD_TIMES):
            GL.glClear(what | GL.GL_STENCIL_BUFFER_BIT)
        painter.restore()

    yield hold
    forgive()
    GL.glDeleteFramebuffers(1, [buffer])
    GL.glDeleteRenderbuffers(1, [depth])
