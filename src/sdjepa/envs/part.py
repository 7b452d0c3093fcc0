"""Only what has moved is drawn: places of geoms in, the box of a picture that MuJoCo draws out.

A picture differs from the one before it only where a geom that has moved was or is, its shadow, or
its image in the ground. MuJoCo draws scenes whole and knows no smaller part of them, but OpenGL can
be told to leave everything outside a box as it is, clearing included (`GL_EXT_window_rectangles`).
"""

import dataclasses
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sdjepa.envs.caster import Pose
from sdjepa.envs.eye import Eye, looking
from sdjepa.envs.gl_calls import Unsupported, gl_function
from sdjepa.envs.reach import Reach
from sdjepa.envs.shadow import NOTHING, Box, Light, around

INCLUSIVE, EXCLUSIVE = 0x8F10, 0x8F11  # only in the boxes; everywhere but in them


@dataclass(frozen=True)
class Stand:
    """What decides a picture: where geoms are, what is around each, and all that mostly stands."""

    pose: Pose
    boxes: Int[np.ndarray, "geoms 4"]
    colours: Float[np.ndarray, "geoms 4"]
    standing: list[Any]


class Part:
    """Knows what of a picture must be drawn again; made and used with its context current."""

    def __init__(
        self, model: Any, *, scene: Any, grounds: list[int], light: Light, size: int
    ) -> None:
        mujoco: Any = importlib.import_module("mujoco")
        camera, flags, named = scene.camera[0], scene.flags, mujoco.mjtRndFlag
        if camera.orthographic or scene.enabletransform or scene.stereo or scene.framewidth:
            raise Unsupported("an unusual camera")
        if abs(camera.frustum_top + camera.frustum_bottom) > 1e-6 * camera.frustum_top:
            raise Unsupported("a camera that looks askew")
        if flags[named.mjRND_SEGMENT] or flags[named.mjRND_DEPTH]:
            raise Unsupported("an unusual picture")
        if len(grounds) != 1:
            raise Unsupported("shadows fall on one ground")
        geoms = [scene.geoms[i] for i in range(scene.ngeom)]
        if any(geom.reflectance > 0 and i not in grounds for i, geom in enumerate(geoms)):
            raise Unsupported("a mirror besides the ground")
        if any(geom.label for geom in geoms):
            raise Unsupported("a geom with a label")
        self._confines = Confines()
        self._mirror = geoms[grounds[0]].reflectance > 0
        self._ground, self._count = grounds[0], len(geoms)
        self._reach = Reach(model, [int(geom.objid) for geom in geoms], light=light, size=size)
        self._eye, self._size = Eye(size), size
        self._shown: Stand | None = None

    def stand(self, scene: Any, data: Any, pose: Pose) -> Stand:
        """What is needed of a noted scene."""
        ground = scene.geoms[self._ground]
        place, turn = np.asarray(ground.pos), np.asarray(ground.mat).reshape(3, 3)
        boxes = self._reach.each(
            data,
            view=self._eye.view(scene),
            near=float(scene.camera[0].frustum_near),
            ground=(place, turn[:, 2]),
            mirror=self._mirror,
        )
        boxes[self._ground] = 0, 0, self._size, self._size
        standing = looking(scene)
        for light in (scene.lights[i] for i in range(scene.nlight)):
            standing += [light.pos.tobytes(), light.dir.tobytes()]
        colours = np.stack([scene.geoms[i].rgba for i in range(self._count)])
        return Stand(pose, boxes, colours, standing)

    def draw(self, stand: Stand, render: Callable[[], None]) -> None:
        """Have drawn what is not as in the picture before."""
        box = self.take(stand)
        if box != NOTHING:
            self._confines.set(box)
            render()
            self._confines.lift()

    def take(self, stand: Stand) -> Box:
        """What of a picture is to be drawn, which from now on shows this."""
        before, self._shown = self._shown, stand
        if before is None or before.standing != stand.standing:
            return (0, 0, self._size, self._size)
        moved = (stand.pose.places != before.pose.places).any(1)
        moved |= (stand.pose.turns != before.pose.turns).any(1)
        moved |= (stand.colours != before.colours).any(1)
        return around(np.concatenate([before.boxes[moved], stand.boxes[moved]]))

    def suppose(self, stand: Stand, *, without: int) -> None:
        """The picture shows this, without one of the geoms."""
        colours = stand.colours.copy()
        colours[without] = np.nan  # which no colour is equal to
        self._shown = dataclasses.replace(stand, colours=colours)

    def disturb(self) -> None:
        """The picture is not what was drawn last."""
        self._shown = None


class Confines:
    """Boxes outside which nothing is drawn, in the buffer that is bound."""

    def __init__(self) -> None:
        from OpenGL.GL.EXT.window_rectangles import glInitWindowRectanglesEXT

        if not glInitWindowRectanglesEXT():
            raise Unsupported("boxes to draw in")
        self._set = gl_function("glWindowRectanglesEXT")

    def set(self, box: Box) -> None:
        """Leave everything outside a box as it is."""
        left, low, right, high = box
        place = np.array([left, low, right - left, high - low], dtype=np.int32)
        self._set(INCLUSIVE, 1, place.ctypes.data)

    def lift(self) -> None:
        """Draw everywhere again."""
        self._set(EXCLUSIVE, 0, None)
