"""One picture of a MuJoCo scene: a model and its data in, pixels out, by the ways of `settle`."""

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from sdjepa.envs.caster import Caster
from sdjepa.envs.gl_calls import forgive
from sdjepa.envs.part import Part
from sdjepa.envs.scene import Places, Scene
from sdjepa.envs.settle import settle
from sdjepa.envs.shadow import Casters, around
from sdjepa.envs.show import Show

TOGETHER = 36  # scenes that are sifted at once
SCENE_GEOMS = 1000  # room in a noted scene; our scenes have 36


class Painter:
    """One GL context; it draws the data of any model equal to the one it was made from."""

    def __init__(
        self, model: Any, *, size: int, shadow: int, ways: Sequence[str] | None = None
    ) -> None:
        """`ways`: only these are tried; None: those that are worth it with this driver."""
        self._mujoco: Any = importlib.import_module("mujoco")  # its compiled half has no types
        self.size = size
        # A buffer no larger than the picture: MuJoCo clears all of its stencil before a reflection.
        room = model.vis.global_
        quality = model.vis.quality
        usual = room.offwidth, room.offheight, quality.shadowsize
        room.offwidth = room.offheight = size
        quality.shadowsize = shadow or quality.shadowsize
        self._renderer = self._mujoco.Renderer(model, height=size, width=size)
        # The model is also others', who may want another map.
        room.offwidth, room.offheight, quality.shadowsize = usual
        self.whole = self._mujoco.MjrRect(0, 0, size, size)
        self._scene = self.blank()
        self.casters = Casters(
            model,
            size=self.context.shadowSize,
            clip=self.context.shadowClip,
            scale=self.context.shadowScale,
        )
        self.caster: Caster | None = None
        self.show: Show | None = None
        self.part: Part | None = None
        self._sifted: list[Scene] = []
        self._ways, self._settled = ways, False
        self._own = False  # the map is the caster's at the moment
        self.categories: list[int] = []

    @property
    def model(self) -> Any:
        """What it was made from."""
        return self._renderer.model

    @property
    def context(self) -> Any:
        """MuJoCo's names for what it keeps on the GPU."""
        return self._renderer._mjr_context

    def make_current(self) -> None:
        """Direct what MuJoCo and OpenGL do next at this context."""
        if self._renderer._gl_context is not None:
            self._renderer._gl_context.make_current()

    def blank(self) -> Scene:
        """A scene to be noted in."""
        return Scene(self._mujoco.MjvScene(self.model, SCENE_GEOMS))

    def note(self, data: Any, camera: str | int, *, scene: Scene) -> None:
        """Write down in `scene` where everything is; nothing is drawn."""
        self._renderer._scene, kept = scene.mjv, self._renderer._scene
        self._renderer.update_scene(data, camera=camera)
        self._renderer._scene = kept
        scene.places = Places(data.geom_xpos.copy(), data.geom_xmat.copy())
        self._adopt(scene)
        self._prepare(scene)

    def _adopt(self, scene: Scene) -> None:
        """Forget what another painter prepared: its shadow map and its lists are not ours."""
        assert scene.places is not None
        scene.painter, scene.pose, scene.slot = self, None, None
        scene.to_map = scene.to_picture = scene.extent = scene.stand = None
        scene.boxes = self.casters.note(scene.mjv, scene.places)
        scene.shadows = around(scene.boxes.reshape(-1, 4))

    def _prepare(self, scene: Scene) -> None:
        """What the ways in use need; known to be in use from the first drawing on."""
        assert scene.places is not None
        if self.caster is not None and scene.pose is None:
            scene.pose = self.caster.pose(scene.places, scene.boxes[0])
        if self.caster is not None and self.caster.lit is not None and scene.to_map is None:
            scene.to_map = self.caster.matrices(scene.places)
        if self.show is not None and scene.to_picture is None:
            scene.to_picture = self.show.matrices(scene.mjv, scene.places)
        if self.show is not None and scene.extent is None:
            scene.extent = self.show.extent(scene.mjv, scene.places)
        if self.part is not None and scene.stand is None and scene.pose is not None:
            scene.stand = self.part.stand(scene.mjv, scene.places, scene.pose)

    def draw(self, scene: Scene) -> None:
        """Have a noted scene drawn into the offscreen buffer; nothing waits for it."""
        self._begin(scene)
        if self.caster is not None:
            self.draw_cast(scene)
        else:
            self.render(scene)

    def _begin(self, scene: Scene) -> None:
        """Make a scene this painter's, and at the first, settle how all are drawn."""
        if scene.painter is not self:
            if scene.painter is not None:
                scene.painter.undress(scene)
            self._adopt(scene)
        if not self._settled:
            self._settled = True
            settle(self, scene, self._ways)

    def ready(self, scenes: Sequence[Scene]) -> None:
        """Have the GPU look at scenes that are drawn next; together costs less than one by one."""
        for scene in scenes:
            self._begin(scene)
        self._sift(scenes)

    def _sift(self, scenes: Sequence[Scene]) -> None:
        for scene in self._sifted:
            scene.slot = None
        lit = self.caster.lit if self.caster is not None else None
        some = lit is not None or self.show is not None
        own = [scene for scene in scenes if some and self._is_own(scene)]
        self._sifted = own[:TOGETHER]
        if not self._sifted:
            return
        forgive()
        for slot, scene in enumerate(self._sifted):
            scene.slot = slot
            self._prepare(scene)
        if lit is not None:
            boxes = [scene.shadows for scene in self._sifted]
            lit.sift(np.array([scene.to_map for scene in self._sifted]), boxes)
        if self.show is not None:
            self.show.sieve.sift(np.array([scene.to_picture for scene in self._sifted]))

    def _is_own(self, scene: Scene) -> bool:
        """A scene with other geoms than the first is MuJoCo's altogether."""
        return self.caster is not None and scene.mjv.ngeom == len(self.categories)

    def draw_cast(self, scene: Scene) -> None:
        """Have a scene drawn on a map of our own."""
        assert self.caster is not None
        own = self._is_own(scene)
        if own != self._own:
            self.caster.use(own)
            self._own = own
        if not own:
            self.render(scene)
            return
        self._prepare(scene)
        assert scene.pose is not None
        if scene.slot is None:
            self._sift([scene])
        self.caster.draw(scene.pose, slot=scene.slot if self.caster.lit is not None else None)
        if self.show is not None and scene.slot is not None:
            self.show.draw(scene.mjv, scene.pose, slot=scene.slot, extent=scene.extent)
            return
        self.draw_by_mujoco(scene)

    def draw_by_mujoco(self, scene: Scene) -> None:
        """Have MuJoCo draw a scene, or what is needed of it, on the map as it is."""
        self.cast(scene, by_mujoco=False)
        if self.part is None or scene.stand is None:
            self.render(scene)
        else:
            self.part.draw(scene.stand, functools.partial(self._render, scene))

    def cast(self, scene: Scene, *, by_mujoco: bool) -> None:
        """Whether geoms cast shadows when MuJoCo draws."""
        geoms, decor = scene.mjv.geoms, int(self._mujoco.mjtCatBit.mjCAT_DECOR)
        for place, category in enumerate(self.categories):
            geoms[place].category = category if by_mujoco else decor

    def render(self, scene: Scene) -> None:
        """Have MuJoCo draw all of a scene."""
        self._disturb()
        self._render(scene)

    def _render(self, scene: Scene) -> None:
        self._mujoco.mjr_render(self.whole, scene.mjv, self.context)

    def _disturb(self) -> None:
        """The picture is not what the ways in use drew last."""
        for way in (self.show, self.part):
            if way is not None:
                way.disturb()

    def read(self) -> UInt8[np.ndarray, "size size 3"]:
        """What is drawn, rows from below."""
        frame = np.empty((self.size, self.size, 3), dtype=np.uint8)
        self._mujoco.mjr_readPixels(frame, None, self.whole, self.context)
        return frame

    def restore(self) -> None:
        """Direct OpenGL at the offscreen buffer again."""
        self._mujoco.mjr_restoreBuffer(self.context)

    def paint(self, data: Any, camera: str | int) -> UInt8[np.ndarray, "size size 3"]:
        """A frame at once."""
        self.note(data, camera, scene=self._scene)
        self.make_current()
        self.draw(self._scene)
        return np.ascontiguousarray(self.read()[::-1])  # OpenGL counts rows from below

    def plain(self, data: Any, camera: str | int) -> UInt8[np.ndarray, "size size 3"]:
        """A frame as MuJoCo draws it by itself."""
        self.make_current()
        if self.caster is not None:
            self.caster.use(False)
        self._disturb()
        self._own = False
        self._renderer.update_scene(data, camera=camera)
        return self._renderer.render()

    def undress(self, scene: Scene) -> None:
        """Make a drawn scene as it was noted, for another painter."""
        if scene.mjv.ngeom == len(self.categories):
            self.cast(scene, by_mujoco=True)

    def close(self) -> None:
        # MuJoCo frees GL objects of whichever context is current: of this one, or it destroys
        # another's.
        self.make_current()
        for way in (self.caster, self.show):
            if way is not None:
                way.close()
        self._renderer.close()
