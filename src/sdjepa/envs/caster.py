"""A shadow map drawn by ourselves, of MuJoCo's texels at less cost: places of geoms in, a map out.

MuJoCo draws its map between the passes that show the scene, with the display lists that also hold
normals, three vertices for every triangle, and clears all of it. A map needs places only: the arm
of our largest scene has 580,000 corners and 96,000 places. So no geom casts a shadow
for MuJoCo, and the map that it looks shadows up in is drawn here before: the same calls in the same
order for every matrix, as rounding is part of the picture.

Only what has moved since the frame before is wiped out: in close strips where the ground is equally
far everywhere, else in a box around all, in which the ground is drawn again.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sdjepa.envs.gl_calls import Unsupported, forgive, gl_function
from sdjepa.envs.lit import MOST_SLOPES, MOST_STEPS, ROOM, Lit
from sdjepa.envs.outline import Outlines, Spans
from sdjepa.envs.shadow import MOST_DEGREES, Box, Light, around, upward
from sdjepa.envs.shapes import Shapes
from sdjepa.envs.slate import Slate


@dataclass
class Pose:
    """Where the casters of one frame are, as floats of 32 bits."""

    places: Float[np.ndarray, "casters 3"]
    turns: Float[np.ndarray, "casters 16"]
    order: list[int]  # nearest to the light first: what lies behind is dropped early
    boxes: Int[np.ndarray, "casters 4"]  # of the map
    spans: Spans | None  # of its strips, where those are wiped


class Caster:
    """Draws the shadow map of scenes like the first; made and used with its context current."""

    def __init__(
        self, model: Any, context: Any, *, scene: Any, grounds: list[int], light: Light
    ) -> None:
        from OpenGL import GL

        self._gl, self._context = GL, context
        self._mujoco: Any = importlib.import_module("mujoco")
        self._size = context.shadowSize
        lights = [scene.lights[i] for i in range(scene.nlight) if scene.lights[i].castshadow]
        if len(lights) != 1 or not context.shadowFBO:
            raise Unsupported("a map is kept for one light")
        geoms = [scene.geoms[i] for i in range(scene.ngeom)]
        if any(geom.objtype != self._mujoco.mjtObj.mjOBJ_GEOM for geom in geoms):
            raise Unsupported("only geoms cast shadows")
        self.objects, self._grounds = np.array([geom.objid for geom in geoms]), grounds
        self._call, self._move = gl_function("glCallList"), gl_function("glTranslatef")
        self._turn = gl_function("glMultMatrixf")
        self._enable = gl_function("glEnableClientState")
        self._disable = gl_function("glDisableClientState")
        first: Any = GL.glGenLists(2)
        self._begin, self._end = int(first), int(first) + 1
        self._forward = np.array(lights[0].dir, dtype=np.float32)
        self._compile_frame(lights[0], scene)
        self.shapes = Shapes(model, context, geoms)
        self.slate = Slate(context)
        self._light, self._outlines = light, None
        if light[2] is None:
            self._outlines = Outlines(
                model, self.objects, light=light, size=self._size, clip=context.shadowClip
            )
        self.lit: Lit | None = None
        self._meshed: dict[int, int] = {}  # numbers of geoms, and which of the lit they are
        self._before: Pose | None = None  # what the map shows
        self.cleared: list[Box] = []
        self._where = b""  # the grounds, when their level was looked for

    def _compile_frame(self, light: Any, scene: Any) -> None:
        """What stands before and after the geoms; depth test and offset stay as MuJoCo set them."""
        gl = self._gl
        upright = int(np.ravel(gl.glGetIntegerv(gl.GL_CLIP_DEPTH_MODE))[0]) == gl.GL_ZERO_TO_ONE
        camera = scene.camera[0]
        near, far = camera.frustum_near, camera.frustum_far
        gl.glNewList(self._begin, gl.GL_COMPILE)
        for what in (gl.GL_LIGHTING, gl.GL_CULL_FACE, gl.GL_BLEND):
            gl.glDisable(what)
        gl.glEnable(gl.GL_POLYGON_OFFSET_FILL)
        gl.glColorMask(False, False, False, False)
        gl.glShadeModel(gl.GL_FLAT)
        gl.glViewport(1, 1, self._size - 2, self._size - 2)
        gl.glMatrixMode(gl.GL_PROJECTION)
        gl.glLoadIdentity()
        if upright:
            gl.glTranslatef(0.0, 0.0, 0.5)
        gl.glScalef(1.0, 1.0, -0.5 if upright else -1.0)
        if light.type == self._mujoco.mjtLightType.mjLIGHT_DIRECTIONAL:
            clip = self._context.shadowClip
            gl.glOrtho(-clip, clip, -clip, clip, near, far)
        else:
            degrees = min(2 * light.cutoff * self._context.shadowScale, MOST_DEGREES)
            half = np.tan(np.float32(degrees) / 360.0 * np.pi) * near
            gl.glFrustum(-half, half, -half, half, near, far)
        gl.glMatrixMode(gl.GL_MODELVIEW)
        gl.glLoadIdentity()
        gl.glMultMatrixf(_look(light))
        gl.glPushMatrix()
        gl.glEndList()
        gl.glNewList(self._end, gl.GL_COMPILE)
        gl.glPopMatrix()
        gl.glDisable(gl.GL_POLYGON_OFFSET_FILL)
        gl.glColorMask(True, True, True, True)
        gl.glShadeModel(gl.GL_SMOOTH)
        gl.glEnable(gl.GL_CULL_FACE)
        gl.glEnable(gl.GL_LIGHTING)
        gl.glEndList()

    def pose(self, data: Any, boxes: Int[np.ndarray, "geoms 4"]) -> Pose:
        """What is needed of a frame."""
        count = len(self.objects)
        turns = np.zeros((count, 4, 4), dtype=np.float32)
        # OpenGL wants columns.
        turns[:, :3, :3] = data.geom_xmat[self.objects].reshape(-1, 3, 3).swapaxes(1, 2)
        turns[:, 3, 3] = 1
        places = data.geom_xpos[self.objects].astype(np.float32)
        order = np.argsort(places @ self._forward, kind="stable").tolist()
        order = [number for number in order if number not in self._grounds]
        spans = None if self._outlines is None else self._outlines.spans(data)
        return Pose(places, turns.reshape(count, 16), order, boxes[self.objects], spans)

    def use(self, own: bool) -> None:
        """Let MuJoCo clear a texel in place of the map, or draw its map itself."""
        self.slate.use(own)
        self._before = None

    def _left_behind(self, pose: Pose) -> list[Box] | None:
        """Boxes of old places of what has moved; what stands still is drawn over. None: all."""
        before = self._before
        if before is None:
            return None
        moved = (pose.places != before.places).any(1) | (pose.turns != before.turns).any(1)
        if moved[self._grounds].any():
            return None
        if self.slate.level is None or self._outlines is None or before.spans is None:
            return [around(before.boxes[moved])]
        return self._outlines.strips(before.spans, moved)

    def sift(self, scene: Any) -> None:
        """Have what lies behind something else left out."""
        gl, mesh = self._gl, self._mujoco.mjtGeom.mjGEOM_MESH
        geoms = {i: scene.geoms[i] for i in range(scene.ngeom) if scene.geoms[i].type == mesh}
        position, axes, wide = self._light
        if not geoms or wide is not None or self._size**2 > ROOM:
            raise Unsupported("nothing to leave out, rays that are not parallel, or a larger map")
        slopes, steps, nearer = (
            float(np.ravel(gl.glGetFloatv(name))[0])
            for name in (gl.GL_POLYGON_OFFSET_FACTOR, gl.GL_POLYGON_OFFSET_UNITS, gl.GL_DEPTH_FUNC)
        )
        if not -MOST_SLOPES <= slopes <= 0 or not -MOST_STEPS <= steps <= 0:
            raise Unsupported("triangles are moved toward the light, or far")
        if nearer != gl.GL_GEQUAL:
            raise Unsupported("depths grow the other way")
        camera, half = scene.camera[0], (self._size - 2) / 2
        near, far = camera.frustum_near, camera.frustum_far
        self._rows = np.stack(
            [*(axes[:2] * half / self._context.shadowClip), -axes[2] / (far - near)]
        )
        self._origin = np.array([1 + half, 1 + half, far / (far - near)]) - self._rows @ position
        self._sifted = self.objects[list(geoms)]
        names = list(self.shapes.meshes)
        self.lit = Lit(
            [self.shapes.meshes[name][0] for name in names],
            [self.shapes.meshes[name][1] for name in names],
            geoms=[names.index(geom.dataid) for geom in geoms.values()],
            texels=half / self._context.shadowClip,
        )
        self._meshed = {number: place for place, number in enumerate(geoms)}

    def whole(self) -> None:
        """Draw whole meshes again."""
        if self.lit is not None:
            self.lit.close()
        self.lit, self._meshed = None, {}

    def matrices(self, data: Any) -> Float[np.ndarray, "geoms 3 4"]:
        """From meshes to texels and depths."""
        turns = data.geom_xmat[self._sifted].reshape(-1, 3, 3)
        places = data.geom_xpos[self._sifted] @ self._rows.T + self._origin
        return np.concatenate([self._rows @ turns, places[..., None]], axis=-1)

    def draw(self, pose: Pose, *, slot: int | None = None) -> None:
        """Fill the map; wiped first is where things were that moved since the frame before.

        `slot` is the scene's number among those that were sifted.
        """
        forgive()
        self.slate.bind()
        self._enable(self._gl.GL_VERTEX_ARRAY)
        self._wipe(pose)
        self._pass(pose, pose.order, slot=slot)
        self._disable(self._gl.GL_VERTEX_ARRAY)
        self.slate.release()

    def _wipe(self, pose: Pose) -> None:
        boxes, slate = self._left_behind(pose), self.slate
        anew, self._before = boxes is None, pose
        self.cleared = [(0, 0, self._size, self._size)] if boxes is None else boxes
        if not anew and slate.level is not None:
            slate.wipe(self.cleared)
            return
        for box in self.cleared:
            slate.clear(box)
        self._pass(pose, self._grounds)
        slate.open()
        where = pose.places[self._grounds].tobytes() + pose.turns[self._grounds].tobytes()
        if anew and self._grounds and where != self._where:
            slate.find_level()
            self._where = where

    def fill(self, pose: Pose, *, slot: int | None = None, speck: bool = False) -> None:
        """Draw everything but grounds into the map as it is, or all into one texel, for timing."""
        self.slate.bind()
        self._enable(self._gl.GL_VERTEX_ARRAY)
        self._pass(pose, pose.order, slot=slot, speck=speck)
        self._disable(self._gl.GL_VERTEX_ARRAY)
        self.slate.release()

    def _pass(
        self,
        pose: Pose,
        numbers: Sequence[int],
        *,
        slot: int | None = None,
        speck: bool = False,
    ) -> None:
        """Draw casters at their places."""
        call, move, turn = self._call, self._move, self._turn
        start, places = pose.turns.ctypes.data, pose.places.tolist()
        call(self._begin)
        lit = self.lit if slot is not None else None
        if lit is not None:
            lit.bind()
        if speck:
            self._gl.glViewport(1, 1, 1, 1)
        for number in numbers:
            move(*places[number])
            turn(start + 64 * number)
            mesh = self._meshed.get(number)
            if mesh is None or lit is None or slot is None:
                call(self.shapes.drawn[number])
            else:
                lit.draw(slot, mesh)
        call(self._end)
        if lit is not None:
            lit.release()

    def close(self) -> None:
        """Give everything back to OpenGL, and MuJoCo its own buffer."""
        forgive()
        self.slate.close()
        self.whole()
        self.shapes.close()
        self._gl.glDeleteLists(self._begin, 2)


def _look(light: Any) -> Float[np.ndarray, "16"]:
    """The matrix that looks along a light, every step rounded to 32 bits as MuJoCo's are."""
    eye = np.asarray(light.pos, dtype=np.float32)
    forward = _unit(np.asarray(light.dir, dtype=np.float32))
    side = _unit(np.cross(forward, upward(np.asarray(light.dir, np.float64)).astype(np.float32)))
    up = _unit(np.cross(side, forward))
    matrix = np.zeros((4, 4), dtype=np.float32)
    matrix[:3, :3] = np.stack([side, up, -forward], axis=1)
    matrix[3] = [-np.dot(side, eye), -np.dot(up, eye), np.dot(forward, eye), 1]
    return matrix.reshape(16)


def _unit(vector: Float[np.ndarray, "3"]) -> Float[np.ndarray, "3"]:
    return vector * (np.float32(1) / np.sqrt(np.square(vector).sum(dtype=np.float32)))
