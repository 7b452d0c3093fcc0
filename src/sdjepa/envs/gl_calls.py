"""What a driver of OpenGL can do, and its functions without checks: names in, functions out."""

import ctypes
import functools
import importlib
from collections.abc import Sequence
from typing import Any

WAYS = ("cast", "lit", "show", "part")  # what is tried, in this order
# A processor chooses triangles no faster than it draws them; and of what Mesa draws with fewer
# triangles before it in a call, a pixel may come out otherwise.
BY_PROCESSOR = ("cast",)
SOFTWARE = ("llvmpipe", "softpipe", "swrast")
ARGUMENTS: dict[str, list[Any]] = {
    "glBindBuffer": [ctypes.c_uint, ctypes.c_uint],
    "glBindFramebuffer": [ctypes.c_uint, ctypes.c_uint],
    "glBlitFramebuffer": [ctypes.c_int] * 8 + [ctypes.c_uint] * 2,
    "glCallList": [ctypes.c_uint],
    "glDisable": [ctypes.c_uint],
    "glDisableClientState": [ctypes.c_uint],
    "glDrawArrays": [ctypes.c_uint, ctypes.c_int, ctypes.c_int],
    "glDrawElementsIndirect": [ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p],
    "glEnable": [ctypes.c_uint],
    "glEnableClientState": [ctypes.c_uint],
    "glFlush": [],
    "glGetBufferSubData": [ctypes.c_uint, ctypes.c_ssize_t, ctypes.c_ssize_t, ctypes.c_void_p],
    "glMultMatrixf": [ctypes.c_void_p],
    "glNormalPointer": [ctypes.c_uint, ctypes.c_int, ctypes.c_void_p],
    "glPopMatrix": [],
    "glPushMatrix": [],
    "glReadBuffer": [ctypes.c_uint],
    "glReadPixels": [ctypes.c_int] * 4 + [ctypes.c_uint] * 2 + [ctypes.c_void_p],
    "glRectf": [ctypes.c_float] * 4,
    "glScissor": [ctypes.c_int] * 4,
    "glTranslatef": [ctypes.c_float] * 3,
    "glVertexPointer": [ctypes.c_int, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p],
    "glViewport": [ctypes.c_int] * 4,
    "glWindowRectanglesEXT": [ctypes.c_uint, ctypes.c_int, ctypes.c_void_p],
}


class Unsupported(Exception):
    """A scene or a driver is not one that is provided for: MuJoCo draws."""


def forgive() -> None:
    """Forget errors MuJoCo left behind: they are harmless, and PyOpenGL would raise them."""
    error = _last_error()
    while error():
        pass


@functools.cache
def _last_error() -> Any:
    platform: Any = importlib.import_module("OpenGL.platform")
    function = platform.PLATFORM.GL["glGetError"]
    function.argtypes, function.restype = [], ctypes.c_uint
    return function


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
