"""Pictures of MuJoCo scenes: a model and its data in, pixels out.

Environments of one kind share a `Painter`, one per process: their models are equal, a context costs
up to 360 MB, and several contexts get in one another's way.
"""

import atexit
import ctypes
import os
from typing import Any

import numpy as np
from jaxtyping import UInt8

from sdjepa.errors import UserError

BACKENDS = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}
VARIABLE = "MUJOCO_GL"
_painters: dict[tuple[str, int], "Painter"] = {}


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
        import mujoco  # Any above: its compiled classes are unknown to a type checker

        if shadow:
            model.vis.quality.shadowsize = shadow
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, size)
        model.vis.global_.offheight = max(model.vis.global_.offheight, size)
        self._renderer = mujoco.Renderer(model, height=size, width=size)

    def paint(self, data: Any, camera: str | int) -> UInt8[np.ndarray, "size size 3"]:
        self._renderer.update_scene(data, camera=camera)
        return self._renderer.render()

    def close(self) -> None:
        # MuJoCo frees GL objects of whichever context is current: of this one, or it destroys
        # another's.
        if self._renderer._gl_context is not None:
            self._renderer._gl_context.make_current()
        self._renderer.close()


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
