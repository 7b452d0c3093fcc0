"""Recorded frames by themselves: every one is read; do any two differ, and is anything on them?"""

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, UInt8

from sdjepa.data.episodes import Episodes
from sdjepa.data.packing import digest
from sdjepa.data.replaying import state_columns
from sdjepa.runs import Progress, silent

STRETCH_BYTES = 1 << 28  # of frames read at a time
NEARLY_ALL = 0.95
FEW_STEPS = 10  # of so few nothing is said
COARSE = 16  # a frame is looked at whole where every so many-th pixel is of one colour


@dataclass(frozen=True)
class Pictures:
    """What one reading of all frames tells."""

    sha256: str  # of the frames' digests, as dataset.json has it
    repeats: Bool[np.ndarray, "rows"]  # rows whose frame is that of the row before
    plain: Bool[np.ndarray, "rows"]  # rows whose frame is of a single colour


def read_pictures(data: Episodes, progress: Progress = silent) -> Pictures:
    """Read every frame once."""
    whole, last = hashlib.sha256(), b""
    repeats, plain = np.zeros(data.num_rows, dtype=bool), np.zeros(data.num_rows, dtype=bool)
    stretch = max(1, STRETCH_BYTES // math.prod(data.read_shape))
    buffer = np.empty((min(stretch, data.num_rows), *data.read_shape), np.uint8)
    for first in range(0, data.num_rows, stretch):
        rows = range(first, min(first + stretch, data.num_rows))
        for row, frame in zip(rows, data.frames(rows, out=buffer[: len(rows)]), strict=True):
            found = digest(frame)
            whole.update(found)
            repeats[row] = found == last
            plain[row] = plain[row - 1] if repeats[row] else is_plain(frame)
            last = found
        progress(rows.stop, data.num_rows, "frames read")
    return Pictures(whole.hexdigest(), repeats, plain)


def is_plain(frame: UInt8[np.ndarray, "h w 3"]) -> bool:
    """Whether a picture is of a single colour."""
    corner = frame[0, 0]
    return bool((frame[::COARSE, ::COARSE] == corner).all() and (frame == corner).all())


def moved(data: Episodes) -> Bool[np.ndarray, "rows"]:
    """Rows whose state is not that of the row before, within an episode."""
    found = np.zeros(data.num_rows, dtype=bool)
    for name in state_columns(data):
        values = data.column(name).reshape(data.num_rows, -1).astype(np.float64)
        found[1:] |= (values[1:] != values[:-1]).any(axis=1)
    found[data.offsets] = False
    return found


def frozen(repeats: Bool[np.ndarray, "rows"], moves: Bool[np.ndarray, "rows"]) -> bool:
    """Whether nearly all frames stay as they were where the state does not; False for few steps."""
    return bool(moves.sum() >= FEW_STEPS and repeats[moves].mean() >= NEARLY_ALL)


def pictured(data: Episodes) -> Bool[np.ndarray, "rows"]:
    """Rows whose frame is meant to be looked at: all, but of a pack those of starts and goals."""
    if not data.info.get("pack"):
        return np.ones(data.num_rows, dtype=bool)
    ends = np.zeros(data.num_rows, dtype=bool)
    ends[data.offsets] = ends[data.offsets + data.lengths - 1] = True
    return ends
