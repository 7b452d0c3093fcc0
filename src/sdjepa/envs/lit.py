"""Which triangles a light reaches: meshes and where they are in, index buffers on the GPU out.

What a shadow map costs is filling it: three layers of a finely made arm, inner parts and undersides
that lie behind others and leave no mark. The GPU leaves them out before they are drawn, for several
frames at once, in two steps. First every triangle that is sure to cover a texel notes there how far
it is at most. Then a triangle stays if it may cover a texel and may be nearer there than anything
noted. "Sure" and "may" are apart by more than OpenGL rounds corners and depths by, and by more than
it moves a slanted triangle away from the light; a texel on an edge is covered by one of the two
triangles that share it, so the farther counts. Whatever covers the texel that a note is about is
itself as near as the note says and stays: each texel's nearest is drawn, and the map is the one
that all triangles make. Their order is not kept.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int, UInt32

from sdjepa.envs.shadow import Box, area
from sdjepa.envs.sieve import Sieve

ROOM = 1 << 24  # texels noted at a time: all of the largest map, or several scenes' boxes
GROUP = 256  # triangles that share a list of large ones
MOST_SLOPES, MOST_STEPS = 1.5, 16  # triangles are moved by no more than these, of their depths
PROGRAM = """
#version 430
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer Places { float places[]; };
layout(std430, binding = 1) readonly buffer Corners { uint corners[]; };
// Across each edge of a triangle, the corner of the one that shares it; the largest number: none.
layout(std430, binding = 10) readonly buffer Across { uint across[]; };
// First triangle, number of triangles, first place in the result, first vertex.
layout(std430, binding = 2) readonly buffer Geoms { uvec4 geoms[]; };
layout(std430, binding = 3) readonly buffer Matrices { vec4 matrices[]; };
layout(std430, binding = 4) writeonly buffer Kept { uint kept[]; };
layout(std430, binding = 5) buffer Commands { uint commands[]; };
layout(std430, binding = 6) readonly buffer Groups { uvec2 groups[]; };  // geom, first triangle
layout(std430, binding = 7) buffer Nearest { uint nearest[]; };
layout(std430, binding = 8) readonly buffer Boxes { ivec4 boxes[]; };
layout(std430, binding = 9) readonly buffer Starts { uint starts[]; };  // of boxes in `nearest`
uniform uint num_geoms;
uniform uint first_scene;
uniform uint total;  // triangles of a scene
uniform float margin;  // in texels
const float DEEP = 2e-6, STOUT = 0.5, THIN = 0.0625, SLOPES = 1.75;
shared vec3 listed[3 * 256];
shared uint names[256];
shared uint words[8];
shared uint num_listed;
shared uint start;
uint scene;

vec3 put(uint geom, uint corner, uint at) {
    uint from = 3 * (geoms[geom].w + corner);
    vec4 place = vec4(places[from], places[from + 1], places[from + 2], 1);
    return vec3(dot(matrices[at], place), dot(matrices[at + 1], place),
                dot(matrices[at + 2], place));
}

struct Plane { bool stout; bool thin; vec2 slope; float steep; };

Plane plane(vec3 a, vec3 b, vec3 c) {
    vec2 one = b.xy - a.xy, two = c.xy - b.xy;
    float around = one.x * two.y - one.y * two.x;
    float longest = max(length(one), max(length(two), length(a.xy - c.xy)));
    vec2 deep = vec2(b.z - a.z, c.z - b.z), slope = vec2(0);
    bool stout = abs(around) >= STOUT * longest;
    if (stout)
        slope = vec2(deep.x * two.y - deep.y * one.y, deep.y * one.x - deep.x * two.x) / around;
    bool thin = abs(around) < THIN * longest;
    return Plane(stout, thin, slope, abs(slope.x) + abs(slope.y));
}

// The farthest a triangle can be drawn at a texel.
float farthest(Plane flat_, vec3 a, vec2 at) {
    return a.z + dot(flat_.slope, at - a.xy) - SLOPES * flat_.steep - DEEP;
}

float edge(vec2 a, vec2 b, vec2 at) {
    return (b.x - a.x) * (at.y - a.y) - (b.y - a.y) * (at.x - a.x);
}

float room(vec2 a, vec2 b) { return margin * (abs(b.x - a.x) + abs(b.y - a.y)); }

// The same for a texel near the edge from `a` to `b`, which one of the two that share it covers:
// how far the other is at most, or 0 where that is not sure. `turn` says which way both turn.
float beyond(uint geom, uint at, vec3 a, vec3 b, vec2 texel, float turn) {
    uint corner = across[at];
    if (corner == 0xffffffffu) return 0.0;
    vec3 d = put(geom, corner, 3 * (scene * num_geoms + geom));
    Plane flat_ = plane(b, a, d);
    bool sure = flat_.stout && turn * edge(b.xy, a.xy, d.xy) > 0.0 &&
        turn * edge(a.xy, d.xy, texel) > room(a.xy, d.xy) &&
        turn * edge(d.xy, b.xy, texel) > room(d.xy, b.xy);
    return sure ? farthest(flat_, a, texel) : 0.0;
}

// Look at every `step`-th texel of a triangle; returns after noting, or when one lets it stay.
void visit(uint geom, uint triangle, vec3 a, vec3 b, vec3 c, uint begin, uint step, uint name) {
    ivec4 box = boxes[scene];
    vec2 low = min(a.xy, min(b.xy, c.xy)) - margin, high = max(a.xy, max(b.xy, c.xy)) + margin;
    ivec2 first = max(ivec2(ceil(low - 0.5)), box.xy);
    ivec2 last = min(ivec2(floor(high - 0.5)), box.zw - 1);
    if (any(greaterThan(first, last))) return;
    Plane flat_ = plane(a, b, c);
    if (NOTING && !flat_.stout) return;
    float around = edge(a.xy, b.xy, c.xy), turn = sign(around);
    float top = max(a.z, max(b.z, c.z)), bottom = min(a.z, min(b.z, c.z));
    top += 0.05 * (top - bottom) + DEEP;
    vec3 rooms = vec3(room(a.xy, b.xy), room(b.xy, c.xy), room(c.xy, a.xy));
    uint wide = uint(last.x - first.x + 1), count = wide * uint(last.y - first.y + 1);
    uint corner = starts[scene], line = uint(box.z - box.x);
    for (uint i = begin; i < count; i += step) {
        ivec2 texel = first + ivec2(i % wide, i / wide);
        vec2 at = vec2(texel) + 0.5;
        vec3 side = vec3(edge(a.xy, b.xy, at), edge(b.xy, c.xy, at), edge(c.xy, a.xy, at));
        uint cell = corner + uint(texel.y - box.y) * line + uint(texel.x - box.x);
        if (NOTING) {
            side *= turn;
            if (any(lessThan(side, vec3(0)))) continue;
            float here = farthest(flat_, a, at);
            bvec3 close = lessThanEqual(side, rooms);
            if (any(close)) {
                if (int(close.x) + int(close.y) + int(close.z) > 1) continue;
                vec3 from = close.x ? a : close.y ? b : c, to = close.x ? b : close.y ? c : a;
                uint which = 3 * triangle + (close.x ? 0u : close.y ? 1u : 2u);
                here = min(here, beyond(geom, which, from, to, at, turn));
            }
            atomicMax(nearest[cell], floatBitsToUint(max(here, 0.0)));
            continue;
        }
        // Between each edge and the corner across from it.
        if (any(lessThan(side, min(0.0, around) - rooms))) continue;
        if (any(greaterThan(side, max(0.0, around) + rooms))) continue;
        float here = a.z + dot(flat_.slope, at - a.xy) + 2 * margin * flat_.steep + DEEP;
        float mine = flat_.stout ? min(top, here) : top;
        // The depth of a thin one may be any: it is reckoned from a corner, steeply.
        if (flat_.thin || floatBitsToUint(max(mine, 0.0)) >= nearest[cell]) {
            atomicOr(words[name >> 5], 1u << (name & 31u));
            return;
        }
    }
}

void main() {
    uint me = gl_LocalInvocationID.x;
    uvec2 group = groups[gl_WorkGroupID.x];
    scene = first_scene + gl_WorkGroupID.y;
    uint geom = group.x, which = scene * num_geoms + geom, number = group.y + me;
    if (me < 8) words[me] = 0;
    if (me == 0) num_listed = 0;
    barrier();
    uvec3 corner = uvec3(0);
    if (number < geoms[geom].y) {
        uint at = 3 * (geoms[geom].x + number);
        corner = uvec3(corners[at], corners[at + 1], corners[at + 2]);
        vec3 a = put(geom, corner.x, 3 * which), b = put(geom, corner.y, 3 * which);
        vec3 c = put(geom, corner.z, 3 * which);
        vec2 size = max(a.xy, max(b.xy, c.xy)) - min(a.xy, min(b.xy, c.xy));
        if (size.x * size.y > 24.0) {
            uint place = atomicAdd(num_listed, 1u);
            names[place] = me;
            listed[3 * place] = a;
            listed[3 * place + 1] = b;
            listed[3 * place + 2] = c;
        } else {
            visit(geom, geoms[geom].x + number, a, b, c, 0u, 1u, me);
        }
    }
    barrier();
    // Large ones take 32 threads each.
    for (uint i = me >> 5; i < num_listed; i += 8)
        visit(geom, geoms[geom].x + group.y + names[i], listed[3 * i], listed[3 * i + 1],
              listed[3 * i + 2], me & 31u, 32u, names[i]);
    if (NOTING) return;
    barrier();
    uint before = 0, all = 0;
    for (uint word = 0; word < 8; word++) {
        uint count = bitCount(words[word]);
        before += word < (me >> 5) ? count : 0;
        all += count;
    }
    if (me == 0) start = atomicAdd(commands[5 * which], 3 * all) / 3;
    barrier();
    if ((words[me >> 5] >> (me & 31u) & 1u) == 0) return;
    before += bitCount(words[me >> 5] & ((1u << (me & 31u)) - 1u));
    uint at = 3 * (scene * total + geoms[geom].z + start + before);
    kept[at] = corner.x;
    kept[at + 1] = corner.y;
    kept[at + 2] = corner.z;
}
"""


class Lit(Sieve):
    """Meshes on the GPU, and what a light that shines in parallel reaches of them."""

    def __init__(
        self,
        places: Sequence[Float[np.ndarray, "vertices 3"]],
        triangles: Sequence[Int[np.ndarray, "triangles 3"]],
        *,
        geoms: Sequence[int],  # the mesh of each
    ) -> None:
        super().__init__(places, triangles, geoms=geoms, num_buffers=11)
        # Two programs: in one, what decides between them would be asked for every texel.
        noting, keeping = ("#define NOTING true\n", "#define NOTING false\n")
        self._note, self._keep = (
            self._program(PROGRAM.replace("layout", said + "layout", 1))
            for said in (noting, keeping)
        )
        groups = [
            (geom, first)
            for geom, (_, n, _, _) in enumerate(self._table)
            for first in range(0, n, GROUP)
        ]
        self._groups = len(groups)
        self._fill(6, np.array(groups, dtype=np.uint32))
        self._fill(10, np.concatenate([_across(each) for each in triangles]))
        for program in (self._note, self._keep):
            self._uniforms(
                program, {"num_geoms": self._geoms, "total": self.total, "margin": self._margin}
            )

    def sift(self, matrices: Float[np.ndarray, "scenes geoms 3 4"], boxes: Sequence[Box]) -> None:
        """Find what is left; a matrix takes a place of a mesh to x, y (in texels) and a depth.

        The box of a scene holds all of its meshes.
        """
        gl, count = self._gl, len(matrices)
        if self._room(matrices):
            self._fill(7, 4 * ROOM)
        commands = np.zeros((count, self._geoms, 5), dtype=np.uint32)
        commands[..., 1] = 1
        out, vertex = np.array(self._table)[:, 2:].T
        commands[..., 2] = 3 * (self.total * np.arange(count)[:, None] + out)
        commands[..., 3] = vertex
        self._put(5, commands)
        starts = np.zeros(count, dtype=np.uint32)
        batches = list(_batches(boxes, starts))
        self._fill(8, np.array(boxes, dtype=np.int32))
        self._fill(9, starts)
        self._bind_all()
        for batch in batches:
            gl.glBindBuffer(gl.GL_SHADER_STORAGE_BUFFER, self._buffers[7])
            used = 4 * sum(area([boxes[i]]) for i in batch)
            gl.glClearBufferSubData(
                gl.GL_SHADER_STORAGE_BUFFER,
                gl.GL_R32UI,
                0,
                max(used, 4),
                gl.GL_RED_INTEGER,
                gl.GL_UNSIGNED_INT,
                None,
            )
            for program in (self._note, self._keep):
                gl.glMemoryBarrier(gl.GL_SHADER_STORAGE_BARRIER_BIT)
                self._uniforms(program, {"first_scene": batch.start})
                gl.glUseProgram(program)
                gl.glDispatchCompute(self._groups, len(batch), 1)
            gl.glMemoryBarrier(gl.GL_BUFFER_UPDATE_BARRIER_BIT)
        gl.glUseProgram(0)
        gl.glBindBuffer(gl.GL_SHADER_STORAGE_BUFFER, 0)
        gl.glMemoryBarrier(gl.GL_COMMAND_BARRIER_BIT | gl.GL_ELEMENT_ARRAY_BARRIER_BIT)


def _across(triangles: Int[np.ndarray, "triangles 3"]) -> UInt32[np.ndarray, "triangles 3"]:
    """For each edge, the third corner of a triangle that has it the other way round."""
    start = triangles.astype(np.uint64)
    end, third = np.roll(start, -1, axis=1), np.roll(start, -2, axis=1)
    forth, back = (start << np.uint64(32)) + end, (end << np.uint64(32)) + start
    order = np.argsort(forth, axis=None)
    known = forth.reshape(-1)[order]
    place = np.searchsorted(known, back).clip(max=len(known) - 1)
    found = third.reshape(-1)[order][place]
    return np.where(known[place] == back, found, 2**32 - 1).astype(np.uint32)


def _batches(boxes: Sequence[Box], starts: np.ndarray) -> Iterator[range]:
    """Scenes whose boxes have room together; writes where each starts."""
    first = used = 0
    for number, box in enumerate(boxes):
        size = area([box])
        if used + size > ROOM:
            yield range(first, number)
            first, used = number, 0
        starts[number] = used
        used += size
    yield range(first, len(boxes))
