"""Which triangles can colour anything: meshes and where they are in, index buffers on the GPU out.

In a picture of 224 pixels most triangles of a finely made mesh fall between its samples: of 193,000
some 20,000 are left. Which those are changes with every frame, so the GPU finds out, for many
frames at once, in a program that does nothing else: corners are put where they are in the picture,
and a triangle stays if, widened by a margin, it holds a sample and shows its front. The margin is
twice the steps corners are rounded to: what goes could not be seen. Those that stay keep their
order.

Each triangle that is drawn has the pixels it has among all; a GPU takes them one by one. Mesa's
software does not: a value may depend on how many stand before it in a call, even of no extent.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sdjepa.envs.gl_calls import Unsupported, forgive, gl_function

MOST_SAMPLES = 8
MARGIN = 2  # steps to which OpenGL rounds corners
PROGRAM = """
#version 430
layout(local_size_x = 512) in;
layout(std430, binding = 0) readonly buffer Places { float places[]; };
layout(std430, binding = 1) readonly buffer Corners { uint corners[]; };
// First triangle, number of triangles, first place in the result, first vertex.
layout(std430, binding = 2) readonly buffer Geoms { uvec4 geoms[]; };
layout(std430, binding = 3) readonly buffer Matrices { vec4 matrices[]; };
layout(std430, binding = 4) writeonly buffer Kept { uint kept[]; };
layout(std430, binding = 5) writeonly buffer Commands { uint commands[]; };
uniform uint total;  // triangles of a scene
uniform vec2 samples[8];
uniform uint num_samples;
uniform float size;  // of the picture
uniform float margin;
uniform float near;
shared uint words[16];

vec3 put(uint geom, uint corner, vec4 x, vec4 y, vec4 w) {
    uint at = 3 * (geoms[geom].w + corner);
    vec4 place = vec4(places[at], places[at + 1], places[at + 2], 1);
    float depth = dot(w, place);
    return vec3(dot(x, place) / depth, dot(y, place) / depth, depth);
}

bool seen(vec3 a, vec3 b, vec3 c) {
    if (!(min(a.z, min(b.z, c.z)) > near)) return true;
    vec2 low = min(a.xy, min(b.xy, c.xy)) - margin, high = max(a.xy, max(b.xy, c.xy)) + margin;
    if (any(lessThan(high, vec2(0))) || any(greaterThan(low, vec2(size)))) return false;
    vec2 one = b.xy - a.xy, two = c.xy - b.xy, three = a.xy - c.xy;
    float around = one.x * two.y - one.y * two.x;
    vec2 wide = high - low;
    if (around < -2 * margin * (wide.x + wide.y)) return false;
    if (any(lessThan(low, vec2(0))) || any(greaterThan(high, vec2(size)))) return true;
    vec3 room = margin * vec3(
        abs(one.x) + abs(one.y), abs(two.x) + abs(two.y), abs(three.x) + abs(three.y));
    for (uint number = 0; number < num_samples; number++) {
        vec2 first = ceil(low - samples[number]), last = floor(high - samples[number]);
        if (any(greaterThan(first, last))) continue;
        if (any(greaterThan(last - first, vec2(3)))) return true;
        for (float y = first.y; y <= last.y; y++)
            for (float x = first.x; x <= last.x; x++) {
                vec2 at = vec2(x, y) + samples[number];
                vec3 side = vec3(
                    one.x * (at.y - a.y) - one.y * (at.x - a.x),
                    two.x * (at.y - b.y) - two.y * (at.x - b.x),
                    three.x * (at.y - c.y) - three.y * (at.x - c.x));
                // Between each edge and the corner across from it.
                if (all(greaterThanEqual(side, min(0, around) - room)) &&
                    all(lessThanEqual(side, max(0, around) + room))) return true;
            }
    }
    return false;
}

void main() {
    uint geom = gl_WorkGroupID.x, me = gl_LocalInvocationID.x;
    uint which = gl_WorkGroupID.y * gl_NumWorkGroups.x + geom;
    vec4 x = matrices[3 * which], y = matrices[3 * which + 1], w = matrices[3 * which + 2];
    uint start = gl_WorkGroupID.y * total + geoms[geom].z, done = 0;
    for (uint first = 0; first < geoms[geom].y; first += 512) {
        if (me < 16) words[me] = 0;
        barrier();
        uint number = first + me;
        bool keep = false;
        uvec3 corner = uvec3(0);
        if (number < geoms[geom].y) {
            uint at = 3 * (geoms[geom].x + number);
            corner = uvec3(corners[at], corners[at + 1], corners[at + 2]);
            keep = seen(put(geom, corner.x, x, y, w), put(geom, corner.y, x, y, w),
                        put(geom, corner.z, x, y, w));
        }
        if (keep) atomicOr(words[me >> 5], 1u << (me & 31u));
        barrier();
        uint before = done, all = 0;
        for (uint word = 0; word < 16; word++) {
            uint count = bitCount(words[word]);
            before += word < (me >> 5) ? count : 0;
            all += count;
        }
        if (keep) {
            before += bitCount(words[me >> 5] & ((1u << (me & 31u)) - 1u));
            uint at = 3 * (start + before);
            kept[at] = corner.x;
            kept[at + 1] = corner.y;
            kept[at + 2] = corner.z;
        }
        done += all;
        barrier();
    }
    if (me == 0) {
        commands[5 * which] = 3 * done;
        commands[5 * which + 1] = 1;
        commands[5 * which + 2] = 3 * start;
        commands[5 * which + 3] = geoms[geom].w;
        commands[5 * which + 4] = 0;
    }
}
"""


class Sieve:
    """Meshes on the GPU, and, once they are chosen, the triangles to draw in several scenes."""

    def __init__(
        self,
        places: Sequence[Float[np.ndarray, "vertices 3"]],
        triangles: Sequence[Int[np.ndarray, "triangles 3"]],
        *,
        geoms: Sequence[int],  # the mesh of each
        num_buffers: int,
    ) -> None:
        from OpenGL import GL

        bits = int(np.ravel(GL.glGetIntegerv(GL.GL_SUBPIXEL_BITS))[0])
        if bits < 8:
            raise Unsupported("coarse corners")
        self._margin = MARGIN / 2**bits
        self._gl, self._scenes, self._geoms = GL, 0, len(geoms)
        self._indirect = gl_function("glDrawElementsIndirect")
        self._pop, self._push = gl_function("glPopMatrix"), gl_function("glPushMatrix")
        self._bind, self._pointer = gl_function("glBindBuffer"), gl_function("glVertexPointer")
        self._kind = int(GL.GL_TRIANGLES), int(GL.GL_UNSIGNED_INT)
        self._programs: list[int] = []
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
        for program in self._programs:
            self._gl.glDeleteProgram(program)

    def _program(self, source: str) -> int:
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
        self._programs.append(int(program))
        return int(program)


class Seen(Sieve):
    """Which triangles hold a sample of a picture and show their front, in order."""

    def __init__(
        self,
        places: Sequence[Float[np.ndarray, "vertices 3"]],
        triangles: Sequence[Int[np.ndarray, "triangles 3"]],
        *,
        geoms: Sequence[int],  # the mesh of each
        samples: Float[np.ndarray, "samples 2"],
        size: int,
        near: float,
    ) -> None:
        super().__init__(places, triangles, geoms=geoms, num_buffers=6)
        if len(samples) > MOST_SAMPLES:
            raise Unsupported("many samples")
        self._choose = self._program(PROGRAM)
        self._uniforms(
            self._choose,
            {
                "total": self.total,
                "samples": samples,
                "num_samples": len(samples),
                "size": float(size),
                "margin": self._margin,
                "near": near,
            },
        )

    def sift(self, matrices: Float[np.ndarray, "scenes geoms 3 4"]) -> None:
        """Find what is left; a matrix takes a place of a mesh to x w, y w (in pixels) and w."""
        gl = self._gl
        self._room(matrices)
        self._bind_all()
        gl.glUseProgram(self._choose)
        gl.glDispatchCompute(self._geoms, len(matrices), 1)
        gl.glUseProgram(0)
        gl.glMemoryBarrier(gl.GL_COMMAND_BARRIER_BIT | gl.GL_ELEMENT_ARRAY_BARRIER_BIT)
