"""How pictures are drawn: a painter and its first scene in, the cheapest equal ways out.

A way of drawing is used in a process only when its first frame there has the pixels MuJoCo's own
drawing has. There are four:

- "cast": `Caster` draws the shadow map, everywhere. Without it MuJoCo draws all.
- "lit": of meshes, only what `Lit` leaves is drawn into the map. On GPUs, which fill slowly and
  choose fast.
- "show": `Show` draws the scene, of meshes only what `Seen` leaves, sky and ground from a copy if
  that, too, has those pixels. On GPUs.
- "part": MuJoCo draws the scene in the box that `Part` finds to have changed. On GPUs, where "show"
  failed, as it does without meshes.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sdjepa.envs.caster import Caster
from sdjepa.envs.gl_calls import Unsupported, forgive, usual_ways
from sdjepa.envs.part import Part
from sdjepa.envs.scene import Scene
from sdjepa.envs.show import Show

if TYPE_CHECKING:
    from sdjepa.envs.painter import Painter


def settle(painter: "Painter", scene: Scene, ways: Sequence[str] | None) -> None:
    """Let a painter take each way of drawing that leaves this scene's pixels as they are.

    `ways`: only these are tried; None: those that are worth it with this driver.
    """
    painter.render(scene)
    painter.categories = [int(scene.mjv.geoms[i].category) for i in range(scene.mjv.ngeom)]
    _Settling(painter, scene, usual_ways() if ways is None else ways).settle()


class _Settling:
    """A painter, the first scene, and its picture as MuJoCo has just drawn it."""

    def __init__(self, painter: "Painter", scene: Scene, ways: Sequence[str]) -> None:
        self._painter, self._scene, self._ways = painter, scene, ways
        self._whole = painter.read()

    def settle(self) -> None:
        """Try one way after the other."""
        painter = self._painter
        caster = painter.caster = self._settle_caster()
        if caster is None:
            return
        self._settle_lit(caster)
        self._settle_show(caster)
        if painter.show is None:
            self._settle_part()

    def _settle_caster(self) -> Caster | None:
        painter = self._painter
        caster = painter.caster = self._try("cast", self._make_caster)
        if caster is None or self._equal():
            return caster
        caster.close()
        painter.cast(self._scene, by_mujoco=True)
        return None

    def _settle_lit(self, caster: Caster) -> None:
        if self._try("lit", lambda: caster.sift(self._scene.mjv) or True):
            caster.use(True)  # draw anew: the map shows this very scene already
            if not self._equal():
                caster.whole()
                caster.use(True)

    def _settle_show(self, caster: Caster) -> None:
        painter = self._painter
        show = painter.show = self._try("show", lambda: self._make_show(caster))
        self._scene.slot = None
        if show is None:
            return
        if not self._equal():
            show.close()
            painter.show = None
        # Twice: taken up as a whole, and where the first drawing changed it.
        elif self._try("show", lambda: self._keep_backdrop(caster, show)) and not (
            self._equal() and self._equal()
        ):
            show.draw_all()

    def _settle_part(self) -> None:
        """The whole first, then the last geom's part, on a picture without that geom."""
        painter, scene = self._painter, self._scene
        part = painter.part = self._try("part", self._make_part)
        if part is None:
            return
        right = self._equal()
        assert scene.stand is not None
        scene.mjv.ngeom -= 1
        painter.render(scene)
        scene.mjv.ngeom += 1
        part.suppose(scene.stand, without=scene.mjv.ngeom - 1)
        if not (self._equal() and right):
            painter.part = None

    def _equal(self) -> bool:
        from OpenGL.error import Error

        try:
            self._painter.draw_cast(self._scene)
        except Error:  # a driver that cannot do what it says
            forgive()
            return False
        return np.array_equal(self._painter.read(), self._whole)

    def _try(self, way: str, make: Callable[[], Any]) -> Any:
        from OpenGL.error import Error

        if way not in self._ways:
            return None
        forgive()
        try:
            return make()
        except (Unsupported, AttributeError, Error):  # or another version of MuJoCo
            return None

    def _make_caster(self) -> Caster:
        painter = self._painter
        grounds = painter.casters.look(self._scene.mjv)
        if len(painter.casters.lights) != 1:
            raise Unsupported("a map is kept for one light")
        return Caster(
            painter.model,
            painter.context,
            scene=self._scene.mjv,
            grounds=grounds,
            light=painter.casters.lights[0],
        )

    def _make_show(self, caster: Caster) -> Show:
        painter = self._painter
        return Show(
            painter.model,
            painter.context,
            scene=self._scene.mjv,
            size=painter.size,
            drawn=caster.shapes.drawn,
        )

    def _keep_backdrop(self, caster: Caster, show: Show) -> bool:
        painter, scene = self._painter, self._scene
        assert scene.pose is not None
        caster.use(True)
        caster.draw(dataclasses.replace(scene.pose, order=[]))
        show.keep(
            scene.mjv,
            scene.pose,
            grounds=painter.casters.look(scene.mjv),
            light=painter.casters.lights[0],
            model=painter.model,
        )
        return True

    def _make_part(self) -> Part:
        painter = self._painter
        return Part(
            painter.model,
            scene=self._scene.mjv,
            grounds=painter.casters.look(self._scene.mjv),
            light=painter.casters.lights[0],
            size=painter.size,
        )
