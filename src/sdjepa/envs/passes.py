"""What geoms are made of and how they are lit: MuJoCo's geoms in, display lists out.

A scene is drawn in two passes, in the light that casts no shadow and in the one that does. Lists
hold what OpenGL is told before a geom in each, and before and after a pass.
"""

import importlib
from typing import Any

import numpy as np

from sdjepa.envs.gl_calls import Unsupported

TEXTURE_ROLES, COLOUR_ROLE = 10, 1  # of a material, in MuJoCo's order


class Passes:
    """Lists of geoms like those of the first scene; made with their context current."""

    def __init__(self, context: Any, *, geoms: list[Any], lights: list[Any]) -> None:
        from OpenGL import GL

        self._gl, self._context = GL, context
        self._mujoco: Any = importlib.import_module("mujoco")
        zero = int(GL.GL_LIGHT0)
        self._plain = [zero + i for i, light in enumerate(lights) if not light.castshadow]
        self._casting = [zero + i for i, light in enumerate(lights) if light.castshadow]
        if len(self._casting) != 1:
            raise Unsupported("shadows are drawn of one light")
        self._count = 2 * len(geoms) + 4
        first: Any = GL.glGenLists(self._count)
        self.first = int(first)  # of a geom's two: twice its number further on
        self.edges = [self.first + self._count - 4 + i for i in range(4)]  # two of each pass
        self._compile(geoms)
        self._compile_passes()

    def _compile(self, geoms: list[Any]) -> None:
        """Two lists a geom: what it is made of in the first pass, and in the second."""
        gl = self._gl
        both = gl.GL_FRONT_AND_BACK
        for number, geom in enumerate(geoms):
            rgba = np.array(geom.rgba, dtype=np.float32)
            for second in (False, True):
                glow = np.zeros(3) if second else np.float32(geom.emission) * rgba[:3]
                gl.glNewList(self.first + 2 * number + second, gl.GL_COMPILE)
                self._texture(geom)
                gl.glMaterialfv(both, gl.GL_EMISSION, np.array([*glow, 1], dtype=np.float32))
                gl.glColor4fv(rgba)
                gl.glMaterialf(both, gl.GL_SHININESS, np.float32(geom.shininess) * np.float32(128))
                shine = np.array([geom.specular] * 3 + [1], dtype=np.float32)
                gl.glMaterialfv(both, gl.GL_SPECULAR, shine)
                gl.glEndList()

    def _texture(self, geom: Any) -> None:
        """A texture whose places are in the geom's list, as a plane's are, or none."""
        gl, context = self._gl, self._context
        role = TEXTURE_ROLES * geom.matid + COLOUR_ROLE
        texture = int(context.mat_texid[role]) if geom.matid >= 0 else -1
        gl.glActiveTexture(gl.GL_TEXTURE0)
        (gl.glDisable if texture < 0 else gl.glEnable)(gl.GL_TEXTURE_2D)
        if texture < 0:
            return
        if context.textureType[texture] != self._mujoco.mjtTexture.mjTEXTURE_2D:
            gl.glEndList()
            raise Unsupported("a texture around a geom")
        gl.glBindTexture(gl.GL_TEXTURE_2D, int(context.texture[texture]))

    def _compile_passes(self) -> None:
        """Before and after the light without shadows, and before and after the one with."""
        gl = self._gl
        made = [gl.GL_TEXTURE_GEN_S, gl.GL_TEXTURE_GEN_T, gl.GL_TEXTURE_GEN_R, gl.GL_TEXTURE_GEN_Q]
        mapped = [gl.GL_TEXTURE_2D, *made]
        gl.glNewList(self.edges[0], gl.GL_COMPILE)
        for light in self._plain:
            gl.glEnable(light)
        gl.glPushMatrix()
        gl.glEndList()
        gl.glNewList(self.edges[1], gl.GL_COMPILE)
        gl.glPopMatrix()
        for light in self._plain:
            gl.glDisable(light)
        gl.glEndList()
        gl.glNewList(self.edges[2], gl.GL_COMPILE)
        gl.glActiveTexture(gl.GL_TEXTURE1)
        for each in mapped:
            gl.glEnable(each)
        gl.glBindTexture(gl.GL_TEXTURE_2D, int(self._context.shadowTex))
        gl.glEnable(gl.GL_ALPHA_TEST)
        gl.glEnable(gl.GL_BLEND)
        gl.glBlendFunc(gl.GL_ONE, gl.GL_ONE)
        gl.glEnable(self._casting[0])
        gl.glPushMatrix()
        gl.glEndList()
        gl.glNewList(self.edges[3], gl.GL_COMPILE)
        gl.glPopMatrix()
        gl.glDisable(self._casting[0])
        gl.glDisable(gl.GL_BLEND)
        gl.glDisable(gl.GL_ALPHA_TEST)
        gl.glActiveTexture(gl.GL_TEXTURE1)
        for each in mapped:
            gl.glDisable(each)
        gl.glActiveTexture(gl.GL_TEXTURE0)
        gl.glDisable(gl.GL_TEXTURE_2D)
        gl.glEndList()

    def close(self) -> None:
        """Give the lists back."""
        self._gl.glDeleteLists(self.first, self._count)
