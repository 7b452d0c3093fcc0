"""What a driver of OpenGL can do, and its functions without checks: names in, functions out."""

import ctypes
import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sdjepa.envs.shadow import NOTHING, Box

# What is tried, in this order: "cut" where "show" fails, "confine" where "cast" does.
WAYS = ("cast", "lit", "show", "cut", "confine")
BY_PROCESSOR = ("cast", "cut", "confine")  # which chooses triangles no faster than it draws them
SOFTWARE = ("llvmpipe", "softpipe", "swrast")
Limit = Callable[[Box | None], None]
ARGUMENTS: dict[str, list[Any]] = {
    "glCallList": [ctypes.c_uint],
    "glDrawElementsIndirect": [ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p],
    "glMultMatrixf": [ctypes.c_void_p],
    "glPopMatrix": [],
    "glPushMatrix": [],
    "glTranslatef": [ctypes.c_float] * 3,
}


class Unsupported(Exception):
    """A scene or a driver is not one that is provided for: MuJoCo draws."""


def forgive() -> None:
    """Forget errors MuJoCo left behind: they are harmless, and PyOpenGL would raise them."""
    from OpenGL import GL

    while GL.glGetError():
        pass


@functools.cache
def gl_function(name: str) -> Any:
    """A function of OpenGL without PyOpenGL's check for errors after each of some 100 calls."""
    platform: Any = importlib.import_module("OpenGL.platform")
    try:
        function = platform.PLATFORM.GL[name]
    except AttributeError:  # a library that names only what was in the first versions
        pointer = platform.PLATFORM.getExtensionProcedure(name.encode())
        return ctypes.CFUNCTYPE(None, *ARGUMENTS[name])(pointer)
    function.argtypes, function.restype = ARGUMENTS[name], None
    return function


def usual_ways() -> Sequence[str]:
    """What is tried with the current context's driver."""
    from OpenGL import GL

    forgive()
    name: Any = GL.glGetString(GL.GL_RENDERER)
    return BY_PROCESSOR if any(each in name.decode() for each in SOFTWARE) else WAYS


def limiter(size: int) -> Limit | None:
    """Confines drawing to a box of the shadow map, until called with None; None: it cannot be."""
    from OpenGL.GL.EXT import window_rectangles as extension

    forgive()
    if not extension.glInitWindowRectanglesEXT():
        return None

    def limit(box: Box | None) -> None:
        forgive()
        left, low, right, high = box or NOTHING
        # A box holds for every buffer that is drawn in: the picture, too, must be inside one.
        boxes = [(0, 0, size, size), (left, low, right - left, high - low)]
        mode = extension.GL_EXCLUSIVE_EXT if box is None else extension.GL_INCLUSIVE_EXT
        count = 0 if box is None else len(boxes)  # outside of none is everywhere
        extension.glWindowRectanglesEXT(mode, count, np.array(boxes, dtype=np.int32))

    return limit
