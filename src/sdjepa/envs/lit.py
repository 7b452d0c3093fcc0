"""Which triangles a light reaches: meshes and where they are in, index buffers on the GPU out.

What a shadow map costs is filling it: three layers of a finely made arm, inner parts and undersides
that lie behind others and leave no mark. They are left out before they are drawn: of 193,000 some
35,000 stay, and the map is the one that all make. Their order is not kept. A note allows for how
far OpenGL moves a slanted triangle away from the light, at most.

A texel close to an edge is not sure to be the triangle's; left without a note it would keep all the
large undersides below it, with half of what is filled in the end. But what two triangles that face
the light share an edge of cover together without a gap, so such a texel gets the farther depth of
the two.

A triangle's texels are looked at line by line, each from where it enters the triangle: boxes around
slivers, which caps of cylinders are made of, hold twelve times as many. Long triangles are shared
out among threads, or all others would wait for them.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

from sdjepa.envs.shadow import Box, area
from sdjepa.envs.sieve import Sieve
from sdjepa.envs.triangles import across

ROOM = 1 << 25  # texels noted at a time, at most: twice the largest map, or many scenes' boxes
THREADS = 128  # of a group
MARGIN = 2  # steps: a number of texels has fewer digits after the point than one of pixels
# Texels up to which a triangle's longest side is one thread's work, that of 2**3, and of 2**5.
SHARED_OUT = ((24.0, 0), (96.0, 3), (np.inf, 5))
MOST_SLOPES, MOST_STEPS = 1.5, 16  # triangles are moved by no more than these, of their depths
PROGRAM = """
#version 430
layout(local_size_x = 128) in;
// Geom, first triangle, number of triangles, threads of each as a power of two.
layout(std430, binding = 7) readonly buffer Groups { uvec4 groups[]; };
layout(std430, binding = 8) readonly buffer Boxes { ivec4 boxes[]; };
layout(std430, binding = 9) readonly buffer Starts { uint starts[]; };  // of boxes in `nearest`
// Of each edge, the corner across from it of the triangle beside, or none.
layout(std430, binding = 10) readonly buffer Across { uint across[]; };
uniform uint num_geoms;
uniform uint first_scene;
const uint NONE = 0xFFFFFFFFu;
// Corners that move by a margin change slopes by 2 margins / height of themselves: by 0.16 if the
// height is STOUT less what it loses itself. So 1.5 slopes are no more than 1.75.
const float STOUT = 0.125, SLOPES = 2.0, WIDER = 0.0625;  // texels by which lines are longer
shared uint words[4];
shared uint start;
uint scene;
SHARED
vec3 put(uint geom, uint corner) {
    uint from = 3 * (geoms[geom].w + corner), at = 3 * (scene * num_geoms + geom);
    vec4 place = vec4(places[from], places[from + 1], places[from + 2], 1);
    return vec3(dot(matrices[at], place), dot(matrices[at + 1], place),
                dot(matrices[at + 2], place));
}

bool within(vec2 from, vec2 to, vec2 at) {
    vec2 edge = to - from, off = at - from;
    return edge.x * off.y - edge.y * off.x > margin * (abs(edge.x) + abs(edge.y));
}

// What lies across the edge from `to` to `from`: that or this side is drawn at its texels.
float beyond(uint geom, uint third, bool turned, vec3 from, vec3 to, vec2 at) {
    if (third == NONE) return 0.0;
    vec3 c = put(geom, third);
    if (turned) c.xy = c.yx;
    Plane found = plane(from, to, c);
    bool drawn = found.stout && found.around > 0.0 && within(to.xy, c.xy, at) &&
                 within(c.xy, from.xy, at);
    return drawn ? lowest(found, from, at, SLOPES) : 0.0;
}

// Look at every `step`-th line of a triangle's texels; returns when one lets it stay.
void visit(uint geom, uint triangle, uint begin, uint step, uint name) {
    vec3 a = put(geom, corners[3 * triangle]), b = put(geom, corners[3 * triangle + 1]);
    vec3 c = put(geom, corners[3 * triangle + 2]);
    ivec4 box = boxes[scene];
    vec2 low = min(a.xy, min(b.xy, c.xy)) - margin, high = max(a.xy, max(b.xy, c.xy)) + margin;
    ivec2 first = max(ivec2(ceil(low - 0.5)), box.xy);
    ivec2 last = min(ivec2(floor(high - 0.5)), box.zw - 1);
    if (any(greaterThan(first, last))) return;
    ivec2 stride = ivec2(1, box.z - box.x);
    // Lines cross the longer side of the box: there are more of them, for more threads, and short.
    bool turned = last.x - first.x > last.y - first.y;
    if (turned) {
        vec3 other = b;
        a.xy = a.yx;
        b = vec3(c.yx, c.z);  // as a mirror turns triangles around
        c = vec3(other.yx, other.z);
        first = first.yx;
        last = last.yx;
        stride = stride.yx;
        box = box.yxwz;
    }
    Plane found = plane(a, b, c);
    float around = found.around;
    if (NOTING && (!found.stout || around < 0.0)) return;
    vec3 x = vec3(a.x, b.x, c.x), y = vec3(a.y, b.y, c.y), dx = x.yzx - x, dy = y.yzx - y;
    // It may be drawn between each edge and the corner across from it.
    vec3 room = margin * (abs(dx) + abs(dy));
    vec3 least = min(0.0, around) - room, most = max(0.0, around) + room;
    // Edges that hardly cross lines say too little about where these end.
    float rounded = ROUNDED * (high.x - low.x) * (high.y - low.y);
    bvec3 crosses = greaterThan(abs(dy), vec3(rounded));
    vec3 over = mix(vec3(0), 1.0 / dy, crosses);
    vec3 wider = mix(vec3(1e9), WIDER + rounded * abs(over), crosses);
    for (int v = first.y + int(begin); v <= last.y; v += int(step)) {
        vec3 here = dx * (v + 0.5 - y);
        vec3 one = x + (here - least) * over, two = x + (here - most) * over;
        vec3 left = min(one, two) - wider, right = max(one, two) + wider;
        int u = int(ceil(max(max(left.x, max(left.y, left.z)) - 0.5, float(first.x))));
        int end = int(floor(min(min(right.x, min(right.y, right.z)) - 0.5, float(last.x))));
        uint line = starts[scene] + uint((v - box.y) * stride.y);
        for (; u <= end; u++) {
            vec2 at = vec2(u, v) + 0.5;
            vec3 side = here - dy * (at.x - x);
            if (any(lessThan(side, least)) || any(greaterThan(side, most))) continue;
            uint cell = line + uint((u - box.x) * stride.x);
            if (NOTING) {
                float depth = lowest(found, a, at, SLOPES);
                bvec3 sure = greaterThan(side, room);
                if (!all(sure)) {
                    ivec3 doubt = ivec3(not(sure));
                    if (doubt.x + doubt.y + doubt.z > 1) continue;
                    uint edge = uint(doubt.y + 2 * doubt.z);
                    uint third = across[3 * triangle + (turned ? 2u - edge : edge)];
                    vec3 from = edge == 0u ? b : edge == 1u ? c : a;
                    vec3 to = edge == 0u ? a : edge == 1u ? b : c;
                    depth = min(depth, beyond(geom, third, turned, from, to, at));
                }
                if (depth > 0.0) atomicMax(nearest[cell], at_least(depth));
                continue;
            }
            // The depth of a thin one may be any: it is reckoned from a corner, steeply.
            if (found.thin || at_most(highest(found, a, b, c, at)) >= nearest[cell]) {
                atomicOr(words[name >> 5], 1u << (name & 31u));
                return;
            }
        }
    }
}

void main() {
    uint me = gl_LocalInvocationID.x;
    uvec4 group = groups[gl_WorkGroupID.x];
    scene = first_scene + gl_WorkGroupID.y;
    uint geom = group.x, which = scene * num_geoms + geom, first = geoms[geom].x + group.y;
    if (me < 4) words[me] = 0;
    barrier();
    uint name = me >> group.w, threads = 1u << group.w;
    if (name < group.z) visit(geom, first + name, me & (threads - 1u), threads, name);
    if (NOTING) return;
    barrier();
    uint before = 0, all = 0;
    for (uint word = 0; word < 4; word++) {
        uint count = bitCount(words[word]);
        before += word < (me >> 5) ? count : 0;
        all += count;
    }
    if (me == 0 && all > 0) start = atomicAdd(commands[5 * which], 3 * all) / 3;
    barrier();
    if ((words[me >> 5] >> (me & 31u) & 1u) == 0) return;
    before += bitCount(words[me >> 5] & ((1u << (me & 31u)) - 1u));
    uint from = 3 * (first + me), at = 3 * (scene * total + geoms[geom].z + start + before);
    for (uint i = 0; i < 3; i++) kept[at + i] = corners[from + i];
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
        texels: float,  # in a unit of length
    ) -> None:
        split = [
            _split(_longest(each, by) * texels) for each, by in zip(places, triangles, strict=True)
        ]
        triangles = [each[order] for each, (order, _) in zip(triangles, split, strict=True)]
        super().__init__(
            places,
            triangles,
            geoms=geoms,
            source=PROGRAM,
            shares=(1, 1),
            num_buffers=11,
            margin=MARGIN,
            values={"num_geoms": len(geoms)},
        )
        groups = [
            (work, geom, *group)
            for geom, mesh in enumerate(geoms)
            for work, *group in split[mesh][1]
        ]
        groups.sort(reverse=True)  # else the GPU waits in the end for what takes longest
        self._groups = len(groups)
        self._fill(7, np.array([group for _, *group in groups], dtype=np.uint32))
        self._fill(10, np.concatenate([across(each) for each in triangles]))

    def sift(self, matrices: Float[np.ndarray, "scenes geoms 3 4"], boxes: Sequence[Box]) -> None:
        """Find what is left; a matrix takes a place of a mesh to x, y (in texels) and a depth.

        The box of a scene holds all of its meshes.
        """
        count = len(matrices)
        self._room(matrices)
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
        for batch in batches:
            cells = max(1, area([boxes[i] for i in batch]))
            self._run(self._groups, batch, cells=cells)


def _longest(
    places: Float[np.ndarray, "vertices 3"], triangles: Int[np.ndarray, "triangles 3"]
) -> Float[np.ndarray, "triangles"]:
    """The longest side of each triangle, which no light makes longer."""
    corners = np.asarray(places, dtype=np.float64)[triangles]
    return np.linalg.norm(np.roll(corners, -1, axis=1) - corners, axis=-1).max(1)


def _split(
    longest: Float[np.ndarray, "triangles"],
) -> tuple[Int[np.ndarray, "triangles"], list[tuple[float, int, int, int]]]:
    """An order of triangles, and groups of those: work, first, number, threads of each."""
    most, threads = np.array(SHARED_OUT).T
    shifts = threads.astype(int)[np.searchsorted(most, longest)]
    order = np.argsort(shifts, kind="stable")
    longest, shifts = longest[order], shifts[order]
    groups = []
    for shift in np.unique(shifts).tolist():
        first, end = np.searchsorted(shifts, [shift, shift + 1]).tolist()
        for start in range(first, end, THREADS >> shift):
            some = longest[start : min(start + (THREADS >> shift), end)]
            groups.append((float(some.max()) / 2**shift, start, len(some), shift))
    return order, groups


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
