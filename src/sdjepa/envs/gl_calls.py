"""OpenGL as the modules that draw need it: names of functions in, functions without checks out."""

import ctypes
import functools
import importlib
from typing import Any

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
