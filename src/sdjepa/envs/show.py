"""The scene drawn by ourselves, of MuJoCo's pixels at less cost: places of geoms in, a picture out.

MuJoCo draws meshes from display lists, which cannot leave out other triangles in every frame. So it
is given a scene without geoms: it clears the picture, sets lights and camera, and draws the sky.
Then geoms are drawn here as it would have: all once in the light that casts no shadow, all again to
add the light that does, each pass in MuJoCo's order, as of two surfaces equally far the last is
seen. Of meshes only what `Seen` leaves is drawn; sky and ground are taken from a `Backdrop`, once
one is kept, and the ground is then drawn only where shadows may fall.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from sdjepa.envs.backdrop import LIT, PLAIN, Backdrop
from sdjepa.envs.caster import Pose
from sdjepa.envs.eye import Eye, looking
from sdjepa.envs.gl_calls import Unsupported, forgive, gl_function
from sdjepa.envs.passes import Passes
from sdjepa.envs.reach import Extent, Reach, frame
from sdjepa.envs.seen import DEPTH_BITS, Seen
from sdjepa.envs.shadow import Light
from sdjepa.envs.triangles import Mesh, read_mesh

OPAQUE = 0.995


class Show:
    """Draws scenes like the first; made and used with its context current."""

    def __init__(
        self, model: Any, context: Any, *, scene: Any, size: int, drawn: list[int]
    ) -> None:
        """`drawn` are lists of geoms, for those that are no meshes; each restores the matrix."""
        from OpenGL import GL

        self._gl, self._context, self._size = GL, context, size
        self._mujoco: Any = importlib.import_module("mujoco")
        geoms = [scene.geoms[i] for i in range(scene.ngeom)]
        self._check(scene, geoms)
        mesh = self._mujoco.mjtGeom.mjGEOM_MESH
        self._meshed = [i for i, geom in enumerate(geoms) if geom.type == mesh]
        if not self._meshed:
            raise Unsupported("nothing to leave out")
        self._objects = np.array([geoms[i].objid for i in self._meshed])
        self._place = {number: place for place, number in enumerate(self._meshed)}
        self._drawn = drawn
        names = sorted({geoms[i].dataid // 2 for i in self._meshed})
        if any(
            geoms[i].dataid % 2 or model.mesh_texcoordadr[geoms[i].dataid // 2] >= 0
            for i in self._meshed
        ):
            raise Unsupported("a convex hull or a texture's coordinates")
        read = [read_mesh(model, name) for name in names]
        self._make_normals(read)
        self._call, self._move = gl_function("glCallList"), gl_function("glTranslatef")
        self._turn = gl_function("glMultMatrixf")
        self._bind, self._pointer = gl_function("glBindBuffer"), gl_function("glNormalPointer")
        self._enable = gl_function("glEnableClientState")
        self._disable = gl_function("glDisableClientState")
        self._view_in, self._cut = gl_function("glViewport"), gl_function("glScissor")
        self._start, self._stop = gl_function("glEnable"), gl_function("glDisable")
        self.sieve = Seen(
            [each.places for each in read],
            [each.index for each in read],
            geoms=[names.index(geoms[i].dataid // 2) for i in self._meshed],
            samples=self._samples(),
            size=size,
            near=float(scene.camera[0].frustum_near),
        )
        lights = [scene.lights[i] for i in range(scene.nlight)]
        self._passes = Passes(context, geoms=geoms, lights=lights)
        self._eye = Eye(size)
        self.backdrop: Backdrop | None = None
        self._reach: Reach | None = None
        self._stood: list[Any] = []  # all that decides what the backdrop looks like

    def _check(self, scene: Any, geoms: list[Any]) -> None:
        """That the scene needs no pass and no state that is not known here."""
        flags, named = scene.flags, self._mujoco.mjtRndFlag
        camera = scene.camera[0]
        if abs(camera.frustum_top + camera.frustum_bottom) > 1e-6 * camera.frustum_top:
            raise Unsupported("a camera that looks askew")
        if camera.orthographic or scene.enabletransform or scene.stereo or scene.framewidth:
            raise Unsupported("an unusual camera")
        if not flags[named.mjRND_SHADOW] or not flags[named.mjRND_CULL_FACE]:
            raise Unsupported("no shadows, or backs are drawn")
        if any(
            flags[f]
            for f in (
                named.mjRND_WIREFRAME,
                named.mjRND_FOG,
                named.mjRND_SEGMENT,
                named.mjRND_DEPTH,
            )
        ):
            raise Unsupported("an unusual picture")
        eye = np.mean([np.asarray(scene.camera[i].pos) for i in (0, 1)], axis=0)
        plane = self._mujoco.mjtGeom.mjGEOM_PLANE
        for geom in geoms:
            behind = (eye - geom.pos) @ np.asarray(geom.mat).reshape(3, 3)[:, 2] < 0
            if geom.rgba[3] < OPAQUE or geom.reflectance > 0 or geom.texcoord or geom.label:
                raise Unsupported("a geom that is not plain")
            if geom.type == plane and (behind or min(geom.size[:2]) <= 0):
                raise Unsupported("a plane without end, or seen from behind")

    def _samples(self) -> Float[np.ndarray, "samples 2"]:
        """Where in a pixel it is decided what it shows."""
        gl, count = self._gl, self._context.offSamples
        gl.glBindFramebuffer(gl.GL_FRAMEBUFFER, self._context.offFBO)
        bits = gl.glGetFramebufferAttachmentParameteriv(
            gl.GL_FRAMEBUFFER,
            gl.GL_DEPTH_ATTACHMENT,
            gl.GL_FRAMEBUFFER_ATTACHMENT_DEPTH_SIZE,
        )
        if int(np.ravel(bits)[0]) < DEPTH_BITS:
            self._mujoco.mjr_restoreBuffer(self._context)
            raise Unsupported("coarse depths")
        found = np.zeros((count, 2), dtype=np.float32)
        for number in range(count):
            gl.glGetMultisamplefv(gl.GL_SAMPLE_POSITION, number, found[number])
        self._mujoco.mjr_restoreBuffer(self._context)
        return found if count else np.array([[0.5, 0.5]])

    def _make_normals(self, read: list[Mesh]) -> None:
        gl, kind = self._gl, self._gl.GL_ARRAY_BUFFER
        self._normals = int(gl.glGenBuffers(1))
        normals = np.concatenate([each.normals for each in read]).astype(np.float32)
        gl.glBindBuffer(kind, self._normals)
        gl.glBufferData(kind, normals.nbytes, normals, gl.GL_STATIC_DRAW)
        gl.glBindBuffer(kind, 0)

    def matrices(self, scene: Any, data: Any) -> Float[np.ndarray, "geoms 3 4"]:
        """From meshes to pixels, for the sieve: x w, y w and w."""
        turns = data.geom_xmat[self._objects].reshape(-1, 3, 3)
        places = data.geom_xpos[self._objects]
        view = self._eye.view(scene)
        moved = places @ view[:, :3].T + view[:, 3]
        return np.concatenate([view[:, :3] @ turns, moved[..., None]], axis=-1)

    def keep(self, scene: Any, pose: Pose, *, grounds: list[int], light: Light, model: Any) -> None:
        """Keep a backdrop; the map shows no casters."""
        if grounds != [0]:
            raise Unsupported("the ground is not one, or not the first to be drawn")
        objects = [int(scene.geoms[i].objid) for i in range(1, scene.ngeom)]
        reach = Reach(model, objects, light=light, size=self._size)
        behind = Backdrop(self._context, size=self._size)
        self.render_none(scene, self._mujoco.MjrRect(0, 0, self._size, self._size), sky=True)
        for second, which in ((0, PLAIN), (1, LIT)):
            self._draw_ground(pose, second)
            behind.keep(which)
        self.backdrop, self._reach, self._stood = behind, reach, self._standing(scene)

    def extent(self, scene: Any, data: Any) -> Extent | None:
        """What of a picture is not the backdrop."""
        if self._reach is None:
            return None
        ground = scene.geoms[0]
        return self._reach.extent(
            data,
            view=self._eye.view(scene),
            near=float(scene.camera[0].frustum_near),
            ground=(np.asarray(ground.pos), np.asarray(ground.mat).reshape(3, 3)[:, 2]),
        )

    def draw(
        self,
        scene: Any,
        pose: Pose,
        *,
        slot: int,
        extent: Extent | None = None,
        side: int | None = None,
        most: int | None = None,
    ) -> None:
        """Draw a scene sifted as number `slot`; for timing, into `side` pixels, or `most` geoms."""
        count = len(pose.places[:most])
        behind, rect = self.backdrop, self._mujoco.MjrRect
        if behind is None or extent is None or self._standing(scene) != self._stood:
            self.disturb()
            self.render_none(scene, rect(0, 0, side or self._size, side or self._size), sky=True)
            self._draw_geoms(pose, range(count), slot=slot)
            return
        shadows = extent.shadows
        # MuJoCo sets camera and lights, and clears a pixel, of those that are drawn again.
        self.render_none(scene, rect(*behind.changed[:2], 1, 1), sky=False)
        self._view_in(0, 0, self._size, self._size)
        behind.put(PLAIN, [shadows])
        self._cut(*shadows[:2], shadows[2] - shadows[0], shadows[3] - shadows[1])
        self._start(self._gl.GL_SCISSOR_TEST)
        self._draw_ground(pose, 1)
        self._stop(self._gl.GL_SCISSOR_TEST)
        # A box's edge is not quite sharp where Mesa's software draws several samples.
        behind.put(LIT, frame(shadows, behind.changed, size=self._size))
        behind.changed = extent.everything
        self._draw_geoms(pose, range(1, count), slot=slot)

    def disturb(self) -> None:
        """What is drawn next, or was, is not what a backdrop is known to be changed by."""
        if self.backdrop is not None:
            self.backdrop.changed = self.backdrop.whole

    def _draw_ground(self, pose: Pose, second: int) -> None:
        """Draw the first geom, which is no mesh, in either light."""
        self._call(self._passes.edges[2 * second])
        self._pass(second, range(1), slot=0, where=pose.places[:1].tolist(), turns=pose.turns)
        self._call(self._passes.edges[2 * second + 1])

    def _draw_geoms(self, pose: Pose, numbers: Sequence[int], *, slot: int) -> None:
        """Draw geoms in the one light, then in the other."""
        gl = self._gl
        self._bind(gl.GL_ARRAY_BUFFER, self._normals)
        self._pointer(gl.GL_FLOAT, 0, None)
        self._enable(gl.GL_VERTEX_ARRAY)
        self._enable(gl.GL_NORMAL_ARRAY)
        self.sieve.bind()
        where = pose.places.tolist()
        for second in (0, 1):
            self._call(self._passes.edges[2 * second])
            self._pass(second, numbers, slot=slot, where=where, turns=pose.turns)
            self._call(self._passes.edges[2 * second + 1])
        self.sieve.release()
        self._disable(gl.GL_NORMAL_ARRAY)
        self._disable(gl.GL_VERTEX_ARRAY)

    def _pass(
        self,
        second: int,
        numbers: Sequence[int],
        *,
        slot: int,
        where: list[list[float]],
        turns: np.ndarray,
    ) -> None:
        call, move, turn, meshes = self._call, self._move, self._turn, self._place
        first, start = self._passes.first, turns.ctypes.data
        for number in numbers:
            call(first + 2 * number + second)
            move(*where[number])
            turn(start + 64 * number)
            mesh = meshes.get(number)
            if mesh is None:
                call(self._drawn[number])
            else:
                self.sieve.draw(slot, mesh)

    def render_none(self, scene: Any, rect: Any, *, sky: bool) -> None:
        """Have MuJoCo draw no geoms, only the sky or not even that."""
        flag, flags = self._mujoco.mjtRndFlag.mjRND_SKYBOX, scene.flags
        before = int(flags[flag])
        count, scene.ngeom = scene.ngeom, 0
        flags[flag] = before and sky
        self._mujoco.mjr_render(rect, scene, self._context)
        flags[flag] = before
        scene.ngeom = count

    def _standing(self, scene: Any) -> list[Any]:
        """All that decides what sky and ground look like; what else does is of the first scene."""
        found = looking(scene)
        for light in (scene.lights[i] for i in range(scene.nlight)):
            found += [light.pos.tobytes(), light.dir.tobytes()]
        ground = scene.geoms[0]
        return [*found, ground.pos.tobytes(), ground.mat.tobytes()]

    def draw_all(self) -> None:
        """Draw sky and ground in every scene again."""
        if self.backdrop is not None:
            self.backdrop.close()
        self.backdrop = self._reach = None

    def close(self) -> None:
        """Give everything back to OpenGL."""
        forgive()
        self.draw_all()
        self.sieve.close()
        self._passes.close()
        self._gl.glDeleteBuffers(1, [self._normals])
