"""Which triangles can colour a picture: meshes and where they are in, index buffers out.

In a picture of 224 pixels most triangles of a finely made mesh fall between its samples, or lie
behind others: of 193,000 some 10,000 are left. Corners are put where they are in the picture, and a
triangle stays if it shows its front and, widened by a margin, holds a sample at which nothing
nearer is noted. The margin is more than the steps corners are rounded to: what goes could not be
seen. Those that stay keep their order.

Each triangle that is drawn has the pixels it has among all; a GPU takes them one by one. Mesa's
software does not: a value may depend on how many stand before it in a call, even of no extent.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from sdjepa.envs.gl_calls import Unsupported
from sdjepa.envs.sieve import Sieve

MOST_SAMPLES = 8
MARGIN = 1.25  # steps to which OpenGL rounds corners
DEPTH_BITS = 24  # of a picture in which what lies behind is left out, at least
SHARES = 8  # of a geom that is noted
PROGRAM = """
#version 430
layout(local_size_x = 512) in;
uniform vec2 samples[8];
uniform uint num_samples;
uniform float size;  // of the picture
uniform float near;
const float STOUT = 0.0625, LARGE = 7.0;
shared uint words[16];
SHARED
vec3 put(uint geom, uint corner, vec4 x, vec4 y, vec4 w) {
    uint at = 3 * (geoms[geom].w + corner);
    vec4 place = vec4(places[at], places[at + 1], places[at + 2], 1);
    float depth = dot(w, place);
    return vec3(dot(x, place) / depth, dot(y, place) / depth, depth);
}

bool seen(vec3 a, vec3 b, vec3 c) {
    if (!(min(a.z, min(b.z, c.z)) > near)) return true;
    a.z = near / a.z;  // which is even all over a triangle
    b.z = near / b.z;
    c.z = near / c.z;
    vec2 low = min(a.xy, min(b.xy, c.xy)) - margin, high = max(a.xy, max(b.xy, c.xy)) + margin;
    if (any(lessThan(high, vec2(0))) || any(greaterThan(low, vec2(size)))) return false;
    Plane found = plane(a, b, c);
    float around = found.around;
    vec2 wide = high - low;
    if (around < -2 * margin * (wide.x + wide.y)) return false;
    if (any(lessThan(low, vec2(0))) || any(greaterThan(high, vec2(size)))) return true;
    if (NOTING && !(found.stout && around > 0.0)) return true;
    vec3 x = vec3(a.x, b.x, c.x), y = vec3(a.y, b.y, c.y), dx = x.yzx - x, dy = y.yzx - y;
    vec3 room = margin * (abs(dx) + abs(dy));
    for (uint number = 0; number < num_samples; number++) {
        vec2 first = ceil(low - samples[number]), last = floor(high - samples[number]);
        if (any(greaterThan(first, last))) continue;
        if (!NOTING && any(greaterThan(last - first, vec2(LARGE)))) return true;
        for (float v = first.y; v <= last.y; v++) {
            vec2 at = vec2(0.0, v + samples[number].y);
            vec3 here = dx * (at.y - y);
            float u = first.x, end = last.x;
            if (NOTING) {  // from edge to edge, as what is large is noted, too
                vec3 edge = x + (here - room) / dy - samples[number].x;
                vec3 left = mix(vec3(u), edge, lessThan(dy, vec3(0.0)));
                vec3 right = mix(vec3(end), edge, greaterThan(dy, vec3(0.0)));
                u = max(u, ceil(max(left.x, max(left.y, left.z))));
                end = min(end, floor(min(right.x, min(right.y, right.z))));
            }
            uint line = (gl_WorkGroupID.y * uint(size) + uint(v)) * uint(size);
            for (; u <= end; u++) {
                at.x = u + samples[number].x;
                vec3 side = here - dy * (at.x - x);
                uint cell = (line + uint(u)) * num_samples + number;
                if (NOTING) {
                    if (all(greaterThan(side, room)))
                        atomicMax(nearest[cell], at_least(lowest(found, a, at, 2.0 * margin)));
                    continue;
                }
                // Between each edge and the corner across from it.
                if (all(greaterThanEqual(side, min(0, around) - room)) &&
                    all(lessThanEqual(side, max(0, around) + room)) &&
                    (found.thin || at_most(highest(found, a, b, c, at)) >= nearest[cell]))
                    return true;
            }
        }
    }
    return false;
}

void main() {
    uint geom = gl_WorkGroupID.x, me = gl_LocalInvocationID.x;
    uint which = gl_WorkGroupID.y * gl_NumWorkGroups.x + geom;
    vec4 x = matrices[3 * which], y = matrices[3 * which + 1], w = matrices[3 * which + 2];
    uint start = gl_WorkGroupID.y * total + geoms[geom].z, done = 0;
    uint begin = 512 * gl_WorkGroupID.z, step = 512 * gl_NumWorkGroups.z;
    for (uint first = begin; first < geoms[geom].y; first += step) {
        if (!NOTING && me < 16) words[me] = 0;
        if (!NOTING) barrier();
        uint number = first + me;
        bool keep = false;
        uvec3 corner = uvec3(0);
        if (number < geoms[geom].y) {
            uint at = 3 * (geoms[geom].x + number);
            corner = uvec3(corners[at], corners[at + 1], corners[at + 2]);
            keep = seen(put(geom, corner.x, x, y, w), put(geom, corner.y, x, y, w),
                        put(geom, corner.z, x, y, w));
        }
        if (NOTING) continue;
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
    if (!NOTING && me == 0) {
        commands[5 * which] = 3 * done;
        commands[5 * which + 1] = 1;
        commands[5 * which + 2] = 3 * start;
        commands[5 * which + 3] = geoms[geom].w;
        commands[5 * which + 4] = 0;
    }
}
"""


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
        if len(samples) > MOST_SAMPLES:
            raise Unsupported("many samples")
        self._cells = size**2 * len(samples)
        super().__init__(
            places,
            triangles,
            geoms=geoms,
            source=PROGRAM,
            shares=(SHARES, 1),  # those that stay are in order
            num_buffers=7,
            margin=MARGIN,
            values={
                "samples": samples,
                "num_samples": len(samples),
                "size": float(size),
                "near": near,
            },
        )

    def sift(self, matrices: Float[np.ndarray, "scenes geoms 3 4"]) -> None:
        """Find what is left; a matrix takes a place of a mesh to x w, y w (in pixels) and w."""
        self._room(matrices)
        self._run(self._geoms, range(len(matrices)), cells=self._cells * len(matrices))
