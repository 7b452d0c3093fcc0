"""One picture of a MuJoCo scene: a model and its data in, pixels out, by the cheapest equal way.

A way of drawing is used in a process only when its first frame there has the pixels MuJoCo's own
drawing has. There are five:

- "cast": `Caster` draws the shadow map, everywhere. Without it MuJoCo draws all.
- "lit": of meshes, only what `Lit` leaves is drawn into the map. On GPUs, which fill slowly and
  choose fast.
- "show": `Show` draws the scene, of meshes only what `Seen` leaves, sky and ground from a copy if
  that, too, has those pixels. On GPUs.
- "cut": MuJoCo draws the scene, of meshes what `Visible` leaves. Where a processor draws, which
  chooses triangles no faster than it draws them, or where "show" failed.
- "part": MuJoCo draws the scene in the box that `Part` finds to have changed. On GPUs, where "show"
  failed, as it does without meshes. The second frame must be right, too: the first is all new.
"""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import UInt8

from sdjepa.envs.caster import Caster, Pose
from sdjepa.envs.gl_calls import Unsupported, forgive, usual_ways
from sdjepa.envs.part import Confines, Part, Stand
from sdjepa.envs.reach import Extent
from sdjepa.envs.shadow import NOTHING, Box, Casters, around
from sdjepa.envs.show import Show
from sdjepa.envs.visible import View, Visible

TOGETHER = 36  # scenes that are sifted at once
SCENE_GEOMS = 1000  # room in a noted scene; our scenes have 36


@dataclass
class Places:
    """Where all geoms are, under the names MuJoCo's data has for it."""

    geom_xpos: np.ndarray
    geom_xmat: np.ndarray


@dataclass
class Scene:
    """Where everything is that is to be drawn, and the part of the shadow map it needs."""

    mjv: Any
    shadows: Box = NOTHING
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 4), dtype=np.int64))
    places: Places | None = None
    painter: "Painter | None" = None  # that noted or drew it; what follows is for this one alone
    pose: Pose | None = None
    view: View | None = None
    to_map: np.ndarray | None = None  # matrices of meshes
    to_picture: np.ndarray | None = None
    extent: Extent | None = None  # of what moves, in the picture
    stand: Stand | None = None
    slot: int | None = None  # its number among the scenes sifted last


class Painter:
    """One GL context; it draws the data of any model equal to the one it was made from."""

    def __init__(
        self, model: Any, *, size: int, shadow: int, ways: Sequence[str] | None = None
    ) -> None:
        """`ways`: only these are tried; None: those that are worth it with this driver."""
        self._mujoco: Any = importlib.import_module("mujoco")  # its compiled half has no types
        if shadow:
            model.vis.quality.shadowsize = shadow
        self.size = size
        # A buffer no larger than the picture: MuJoCo clears all of its stencil before a reflection.
        room = model.vis.global_
        usual, room.offwidth, room.offheight = (room.offwidth, room.offheight), size, size
        self._renderer = self._mujoco.Renderer(model, height=size, width=size)
        room.offwidth, room.offheight = usual
        self.whole = self._mujoco.MjrRect(0, 0, size, size)
        self._scene = self.blank()
        self._casters = Casters(
            model,
            size=self.context.shadowSize,
            clip=self.context.shadowClip,
            scale=self.context.shadowScale,
        )
        self.caster: Caster | None = None
        self.show: Show | None = None
        self.visible: Visible | None = None
        self.part: Part | None = None
        self._confines: Confines | None = None
        self._proven = False  # a frame drawn in part was right
        self._sifted: list[Scene] = []
        self._ways, self._settled = ways, False
        self._own = False  # the map is the caster's at the moment
        self._categories: list[int] = []

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
        return Scene(self._mujoco.MjvScene(self._renderer.model, SCENE_GEOMS))

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
        scene.painter, scene.pose, scene.view, scene.slot = self, None, None, None
        scene.to_map = scene.to_picture = scene.extent = scene.stand = None
        scene.boxes = self._casters.note(scene.mjv, scene.places)
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
        if self.visible is not None and scene.view is None:
            scene.view = self.visible.view(scene.mjv, scene.places)
        if self.part is not None and scene.stand is None and scene.pose is not None:
            scene.stand = self.part.stand(scene.mjv, scene.places, scene.pose)

    def draw(self, scene: Scene) -> None:
        """Have a noted scene drawn into the offscreen buffer; nothing waits for it."""
        self._begin(scene)
        if self.caster is not None:
            self._draw_cast(scene)
        else:
            self._render(scene)

    def _begin(self, scene: Scene) -> None:
        """Make a scene this painter's, and at the first, settle how all are drawn."""
        if scene.painter is not self:
            if scene.painter is not None:
                scene.painter.undress(scene)
            self._adopt(scene)
        if not self._settled:
            self._settled = True
            self._settle(scene)

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
        return self.caster is not None and scene.mjv.ngeom == len(self._categories)

    def _draw_cast(self, scene: Scene) -> None:
        assert self.caster is not None
        own = self._is_own(scene)
        if own != self._own:
            self.caster.use(own)
            self._own = own
        if not own:
            self._render(scene)
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
        self._cast(scene, by_mujoco=False)
        if self.visible is not None and scene.view is not None:
            self.visible.dress(scene.mjv, scene.view)
        if self.part is None or scene.stand is None:
            self._render(scene)
        else:
            self._render_part(self.part, scene.mjv, scene.stand)

    def _render_part(self, part: Part, mjv: Any, stand: Stand) -> None:
        """Have MuJoCo draw what has changed since the frame before; the first time, all as well."""
        assert self._confines is not None
        box = part.take(stand)
        whole = box == (0, 0, self.size, self.size)
        if box != NOTHING:
            self._confines.set(box)
            self._mujoco.mjr_render(self.whole, mjv, self.context)
            self._confines.lift()
        if self._proven or whole:
            return
        drawn = self._read()
        self._mujoco.mjr_render(self.whole, mjv, self.context)
        self._proven = True
        if not np.array_equal(self._read(), drawn):
            self.part = None

    def _cast(self, scene: Scene, *, by_mujoco: bool) -> None:
        """Whether geoms cast shadows when MuJoCo draws."""
        geoms, decor = scene.mjv.geoms, int(self._mujoco.mjtCatBit.mjCAT_DECOR)
        for place, category in enumerate(self._categories):
            geoms[place].category = category if by_mujoco else decor

    def _render(self, scene: Scene) -> None:
        for way in (self.show, self.part):
            if way is not None:
                way.disturb()
        self._mujoco.mjr_render(self.whole, scene.mjv, self.context)

    def _settle(self, scene: Scene) -> None:
        """Take each way of drawing that leaves this scene's pixels as they are."""
        if self._ways is None:
            self._ways = usual_ways()
        self._render(scene)
        whole = self._read()
        mjv = scene.mjv
        self._categories = [int(mjv.geoms[i].category) for i in range(mjv.ngeom)]
        self.caster = self._try("cast", self._make_caster, scene)
        if self.caster is not None and not self._equal(scene, whole):
            self.caster.close()
            self._own, self.caster = False, None
            self._cast(scene, by_mujoco=True)
        if self.caster is None:
            return
        if self._try("lit", self._sift_map, scene):
            self.caster.use(True)  # draw anew: the map shows this very scene already
            if not self._equal(scene, whole):
                self.caster.whole()
                self.caster.use(True)
        self.show = self._try("show", self._make_show, scene)
        scene.slot = None
        if self.show is not None and not self._equal(scene, whole):
            self.show.close()
            self.show = None
        if self.show is not None:
            # Twice: taken up as a whole, and where the first drawing changed it.
            if self._try("show", self._keep_backdrop, scene) and not (
                self._equal(scene, whole) and self._equal(scene, whole)
            ):
                self.show.draw_all()
            return
        self.visible = self._try("cut", self._make_visible, scene)
        if self.visible is not None and not self._equal(scene, whole):
            self.visible.undress(mjv)
            self.visible.close()
            self.visible = None
        self.part = self._try("part", self._make_part, scene)

    def _equal(self, scene: Scene, whole: np.ndarray) -> bool:
        from OpenGL.error import Error

        try:
            self._draw_cast(scene)
        except Error:  # a driver that cannot do what it says
            forgive()
            return False
        return np.array_equal(self._read(), whole)

    def _try(self, way: str, make: Callable[[Scene], Any], scene: Scene) -> Any:
        from OpenGL.error import Error

        if way not in (self._ways or ()):
            return None
        forgive()
        try:
            return make(scene)
        except (Unsupported, AttributeError, Error):  # or another version of MuJoCo
            return None

    def _make_caster(self, scene: Scene) -> Caster:
        grounds = self._casters.look(scene.mjv)
        if len(self._casters.lights) != 1:
            raise Unsupported("a map is kept for one light")
        return Caster(
            self._renderer.model,
            self.context,
            scene=scene.mjv,
            grounds=grounds,
            light=self._casters.lights[0],
        )

    def _sift_map(self, scene: Scene) -> bool:
        assert self.caster is not None
        self.caster.sift(scene.mjv)
        return True

    def _make_show(self, scene: Scene) -> Show:
        assert self.caster is not None
        return Show(
            self._renderer.model,
            self.context,
            scene=scene.mjv,
            size=self.size,
            drawn=self.caster.shapes.drawn,
        )

    def _keep_backdrop(self, scene: Scene) -> bool:
        assert self.caster is not None
        assert self.show is not None
        assert scene.pose is not None
        self.caster.use(True)
        self.caster.draw(dataclasses.replace(scene.pose, order=[]))
        self.show.keep(
            scene.mjv,
            scene.pose,
            grounds=self._casters.look(scene.mjv),
            light=self._casters.lights[0],
            model=self._renderer.model,
        )
        return True

    def _make_visible(self, scene: Scene) -> Visible:
        return Visible(self._renderer.model, self.context, scene=scene.mjv, size=self.size)

    def _make_part(self, scene: Scene) -> Part:
        self._confines = Confines()
        return Part(
            self._renderer.model,
            scene=scene.mjv,
            grounds=self._casters.look(scene.mjv),
            light=self._casters.lights[0],
            size=self.size,
        )

    def _read(self) -> UInt8[np.ndarray, "size size 3"]:
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
        return np.ascontiguousarray(self._read()[::-1])  # OpenGL counts rows from below

    def plain(self, data: Any, camera: str | int) -> UInt8[np.ndarray, "size size 3"]:
        """A frame as MuJoCo draws it by itself."""
        self.make_current()
        if self.caster is not None:
            self.caster.use(False)
        for way in (self.show, self.part):
            if way is not None:
                way.disturb()
        self._own = False
        self._renderer.update_scene(data, camera=camera)
        return self._renderer.render()

    def undress(self, scene: Scene) -> None:
        """Make a drawn scene as it was noted, for another painter."""
        if scene.mjv.ngeom == len(self._categories):
            self._cast(scene, by_mujoco=True)
        if self.visible is not None:
            self.visible.undress(scene.mjv)

    def close(self) -> None:
        # MuJoCo frees GL objects of whichever context is current: of this one, or it destroys
        # another's.
        self.make_current()
        for way in (self.caster, self.show, self.visible):
            if way is not None:
                way.close()
        self._renderer.close()
