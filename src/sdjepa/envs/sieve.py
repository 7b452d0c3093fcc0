"""What choosing triangles has in common: meshes and two programs in, index buffers on the GPU out.

Which triangles of a finely made mesh leave a mark, in a picture or in a shadow map, changes with
every frame, so the GPU finds out, for many frames at once, in programs that do nothing else. The
first notes, wherever a triangle is sure to be drawn, how far it is at most. The second lets a
triangle stay if it may be drawn somewhere and may be nearer there than anything noted. "Sure" and
"may" are apart by more than OpenGL rounds corners and depths by. Whatever is nearest somewhere is
as near as every note there, and stays: what is seen is what all triangles show.

Notes are never wiped out: each bears its age, and older ones do not count.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sdjepa.envs.gl_calls import Unsupported, forgive, gl_function

AGES = 255  # of notes that are told apart before all are cleared
NOTES = 6  # the buffer they are in
# The buffers of all sieves, and what a triangle's corners (x, y, and a depth that is larger if
# nearer) say of its depth anywhere.
SHARED = """
layout(std430, binding = 0) readonly buffer Places { float places[]; };
layout(std430, binding = 1) readonly buffer Corners { uint corners[]; };
// First triangle, number of triangles, first place in the result, first vertex.
layout(std430, binding = 2) readonly buffer Geoms { uvec4 geoms[]; };
layout(std430, binding = 3) readonly buffer Matrices { vec4 matrices[]; };
layout(std430, binding = 4) writeonly buffer Kept { uint kept[]; };
layout(std430, binding = 5) buffer Commands { uint commands[]; };
layout(std430, binding = 6) buffer Nearest { uint nearest[]; };
uniform uint total;  // triangles of a scene
uniform float margin;
uniform uint age;  // of notes that count, in the upper 8 bits; the lower 24 are a depth
const uint NEAREST = 0xFFFFFFu;
const float DEPTHS = 16777216.0, DEEP = 1e-5, THIN = 0.0625, ROUNDED = 1e-6;

struct Plane { vec2 slope; float around, steep, unsure; bool stout, thin; };

Plane plane(vec3 a, vec3 b, vec3 c) {
    vec3 one = b - a, two = c - b, three = a - c;
    Plane found = Plane(vec2(0.0), one.x * two.y - one.y * two.x, 0.0, DEEP, false, false);
    float longest = sqrt(max(dot(one.xy, one.xy),
                             max(dot(two.xy, two.xy), dot(three.xy, three.xy))));
    float area = abs(found.around);
    found.stout = area >= STOUT * longest;
    found.thin = area < THIN * longest;
    if (found.stout) {
        found.slope = vec2(one.z * two.y - two.z * one.y, two.z * one.x - one.z * two.x);
        found.slope /= found.around;
        found.steep = abs(found.slope.x) + abs(found.slope.y);
        // Products of long sides are rounded, and their differences divided by what is left.
        float deep = max(abs(one.z), max(abs(two.z), abs(three.z)));
        found.unsure += ROUNDED * deep * longest * longest / area;
    }
    return found;
}

float depth_at(Plane found, vec3 a, vec2 at) { return a.z + dot(found.slope, at - a.xy); }

// The farthest it can be drawn, moved away by so many slopes at most.
float lowest(Plane found, vec3 a, vec2 at, float slopes) {
    return depth_at(found, a, at) - slopes * found.steep - found.unsure;
}

// The nearest it can be drawn; corners move by a margin.
float highest(Plane found, vec3 a, vec3 b, vec3 c, vec2 at) {
    float top = max(a.z, max(b.z, c.z)), bottom = min(a.z, min(b.z, c.z));
    top += 0.05 * (top - bottom) + DEEP;
    float depth = depth_at(found, a, at) + 2.0 * margin * found.steep + found.unsure;
    return found.stout ? min(top, depth) : top;
}

uint at_least(float depth) { return age | min(uint(max(depth, 0.0) * DEPTHS), NEAREST); }
uint at_most(float depth) { return age | min(uint(max(depth, 0.0) * DEPTHS) + 1u, NEAREST); }
"""


class Sieve:
    """Meshes on the GPU, and, once they are chosen, the triangles to draw in several scenes."""

    def __init__(
        self,
        places: Sequence[Float[np.ndarray, "vertices 3"]],
        triangles: Sequence[Int[np.ndarray, "triangles 3"]],
        *,
        geoms: Sequence[int],  # the mesh of each
        source: str,
        num_buffers: int,
        shares: tuple[int, int],
        margin: float,  # in steps to which OpenGL rounds corners
        values: dict[str, Any],  # of the programs' uniforms
    ) -> None:
        from OpenGL import GL

        bits = int(np.ravel(GL.glGetIntegerv(GL.GL_SUBPIXEL_BITS))[0])
        if bits < 8:
            raise Unsupported("coarse corners")
        self._gl, self._scenes, self._geoms = GL, 0, len(geoms)
        self._indirect = gl_function("glDrawElementsIndirect")
        self._pop, self._push = gl_function("glPopMatrix"), gl_function("glPushMatrix")
        self._bind, self._pointer = gl_function("glBindBuffer"), gl_function("glVertexPointer")
        self._kind = int(GL.GL_TRIANGLES), int(GL.GL_UNSIGNED_INT)
        self._noted = self._age = 0
        vertex = np.cumsum([0, *map(len, places)])
        first = np.cumsum([0, *map(len, triangles)])
        counts = [len(triangles[mesh]) for mesh in geoms]
        out = np.cumsum([0, *counts])
        self.total = int(out[-1])
        self._table = [
            (first[m], n, o, vertex[m]) for m, n, o in zip(geoms, counts, out[:-1], strict=True)
        ]
        self._buffers = [int(name) for name in GL.glGenBuffers(num_buffers)]
        self._fill(0, np.concatenate(places).astype(np.float32))
        self._fill(1, np.concatenate(triangles).astype(np.uint32))
        self._fill(2, np.array(self._table, dtype=np.uint32))
        self._made: list[int] = []
        # Two programs: in one, what decides between them would be asked for every sample.
        for said in ("true", "false"):
            self._program(source.replace("SHARED", SHARED).replace("NOTING", said))
        # What notes and what chooses, and among how many groups of threads each shares out a geom.
        self.programs = list(zip(self._made, shares, strict=True))
        for program in self._made:
            self._uniforms(program, {**values, "total": self.total, "margin": margin / 2**bits})

    def _fill(self, number: int, content: np.ndarray | int) -> None:
        """Give a buffer its content, or so many bytes."""
        gl, kind = self._gl, self._gl.GL_SHADER_STORAGE_BUFFER
        room, data = (content, None) if isinstance(content, int) else (content.nbytes, content)
        gl.glBindBuffer(kind, self._buffers[number])
        gl.glBufferData(kind, room, data, gl.GL_DYNAMIC_DRAW)
        gl.glBindBuffer(kind, 0)

    def _put(self, number: int, content: np.ndarray) -> None:
        """Write at the beginning of a buffer."""
        gl, kind = self._gl, self._gl.GL_SHADER_STORAGE_BUFFER
        gl.glBindBuffer(kind, self._buffers[number])
        gl.glBufferSubData(kind, 0, content.nbytes, content)
        gl.glBindBuffer(kind, 0)

    def _room(self, matrices: Float[np.ndarray, "scenes geoms 3 4"]) -> None:
        """Put matrices where programs find them, with room for what comes of them."""
        if len(matrices) > self._scenes:  # 2.3 MB a scene of our largest: none before it is needed
            self._scenes = len(matrices)
            for number, each in ((3, 12 * self._geoms), (4, 3 * self.total), (5, 5 * self._geoms)):
                self._fill(number, 4 * each * self._scenes)
        self._put(3, np.ascontiguousarray(matrices, dtype=np.float32))

    def _new_age(self, cells: int) -> int:
        """What marks the notes to come, of which there are so many at most; older ones are none.

        Clearing them before each use took a GPU longer than all else that is done here.
        """
        if cells > self._noted:
            self._noted = 1 << (cells - 1).bit_length()  # rarely: this clears, too
            self._fill(NOTES, 4 * self._noted)
            self.forget()
        elif self._age == AGES:
            self.forget()
        self._age += 1
        return self._age << 24

    def forget(self) -> None:
        """Clear all notes."""
        gl, kind = self._gl, self._gl.GL_SHADER_STORAGE_BUFFER
        self._age = 0
        gl.glMemoryBarrier(gl.GL_BUFFER_UPDATE_BARRIER_BIT)
        gl.glBindBuffer(kind, self._buffers[NOTES])
        gl.glClearBufferData(kind, gl.GL_R32UI, gl.GL_RED_INTEGER, gl.GL_UNSIGNED_INT, None)
        gl.glBindBuffer(kind, 0)

    def _run(self, groups: int, scenes: range, *, cells: int) -> None:
        """Both programs, one after the other, so many groups of threads for each scene."""
        gl, age = self._gl, self._new_age(cells)
        self._bind_all()
        for program, shares in self.programs:
            gl.glMemoryBarrier(gl.GL_SHADER_STORAGE_BARRIER_BIT)
            self._uniforms(program, {"first_scene": scenes.start, "age": age})
            gl.glUseProgram(program)
            gl.glDispatchCompute(groups, len(scenes), shares)
        gl.glUseProgram(0)
        gl.glMemoryBarrier(gl.GL_COMMAND_BARRIER_BIT | gl.GL_ELEMENT_ARRAY_BARRIER_BIT)

    def _bind_all(self) -> None:
        for place, name in enumerate(self._buffers):
            self._gl.glBindBufferBase(self._gl.GL_SHADER_STORAGE_BUFFER, place, name)

    def _uniforms(self, program: int, values: dict[str, Any]) -> None:
        """Set numbers a program is given by name: whole ones are unsigned."""
        gl = self._gl
        gl.glUseProgram(program)
        for name, value in values.items():
            where = gl.glGetUniformLocation(program, name)
            if isinstance(value, int):
                gl.glUniform1ui(where, value)
            elif isinstance(value, float):
                gl.glUniform1f(where, value)
            else:
                gl.glUniform2fv(where, len(value), np.asarray(value, dtype=np.float32))
        gl.glUseProgram(0)

    def bind(self) -> None:
        """Draw from these buffers; vertex arrays are on."""
        gl = self._gl
        self._bind(gl.GL_ARRAY_BUFFER, self._buffers[0])
        self._pointer(3, gl.GL_FLOAT, 0, None)
        self._bind(gl.GL_ARRAY_BUFFER, 0)
        self._bind(gl.GL_ELEMENT_ARRAY_BUFFER, self._buffers[4])
        self._bind(gl.GL_DRAW_INDIRECT_BUFFER, self._buffers[5])

    def release(self) -> None:
        """Undo `bind`."""
        self._bind(self._gl.GL_ELEMENT_ARRAY_BUFFER, 0)
        self._bind(self._gl.GL_DRAW_INDIRECT_BUFFER, 0)

    def draw(self, scene: int, geom: int) -> None:
        """Draw what is left of a geom, and put back the matrix that was pushed before."""
        self._indirect(*self._kind, 20 * (scene * self._geoms + geom))
        self._pop()
        self._push()

    def counts(self, scenes: int) -> Int[np.ndarray, "scenes geoms"]:
        """Triangles left; waits for the GPU."""
        from OpenGL.raw.GL.VERSION.GL_1_5 import glGetBufferSubData  # the other writes elsewhere

        gl, kind = self._gl, self._gl.GL_SHADER_STORAGE_BUFFER
        found = np.empty((scenes, self._geoms, 5), dtype=np.uint32)
        gl.glBindBuffer(kind, self._buffers[5])
        gl.glMemoryBarrier(gl.GL_BUFFER_UPDATE_BARRIER_BIT)
        glGetBufferSubData(kind, 0, found.nbytes, ctypes.c_void_p(found.ctypes.data))
        gl.glBindBuffer(kind, 0)
        return (found[..., 0] // 3).astype(int)

    def close(self) -> None:
        """Give everything back to OpenGL."""
        forgive()
        self._gl.glDeleteBuffers(len(self._buffers), self._buffers)
        for program in self._made:
            self._gl.glDeleteProgram(program)

    def _program(self, source: str) -> None:
        """Compile one; it is given back with the buffers."""
        gl = self._gl
        version = [
            int(np.ravel(gl.glGetIntegerv(name))[0])
            for name in (gl.GL_MAJOR_VERSION, gl.GL_MINOR_VERSION)
        ]
        if version < [4, 3]:
            raise Unsupported("no programs but for drawing")
        shader: Any = gl.glCreateShader(gl.GL_COMPUTE_SHADER)
        program: Any = gl.glCreateProgram()
        gl.glShaderSource(shader, source.strip())
        gl.glCompileShader(shader)
        good = gl.glGetShaderiv(shader, gl.GL_COMPILE_STATUS)
        if good:
            gl.glAttachShader(program, shader)
            gl.glLinkProgram(program)
            good = gl.glGetProgramiv(program, gl.GL_LINK_STATUS)
        said = "" if good else str(gl.glGetShaderInfoLog(shader))
        gl.glDeleteShader(shader)
        if not good:
            gl.glDeleteProgram(program)
            raise Unsupported(f"the program does not compile: {said}")
        self._made.append(int(program))
