"""What every store of rows and frames has in common: its shape, its checks, stretches of rows."""

import itertools
from pathlib import Path
from typing import Protocol

import numpy as np
import zstandard
from jaxtyping import Int, UInt8

from sdjepa.errors import UserError

PIXELS = "pixels"
# Bookkeeping whose meaning differs between writers; the episode structure gives it anew.
DERIVED = {"ep_idx", "episode_idx", "step_idx"}
ANEW = "make another with: sdjepa collect ENV --out DIR"
# What reading a damaged file raises: RuntimeError is HDF5's, an address may be beyond any file.
DAMAGE = (OSError, ValueError, IndexError, OverflowError, RuntimeError, zstandard.ZstdError)


class Store(Protocol):
    """Flat columns with an episode structure; frames are uint8 (height, width, 3)."""

    lengths: Int[np.ndarray, "episodes"]
    offsets: Int[np.ndarray, "episodes"]
    frame_shape: tuple[int, ...]
    shapes: dict[str, tuple[int, ...]]  # of a row of every column but pixels

    def column(self, name: str) -> np.ndarray: ...

    def decode(
        self, rows: Int[np.ndarray, "n"], out: UInt8[np.ndarray, "n height width 3"]
    ) -> None:
        """Fill `out` with the frames of `rows`, which ascend; called from several threads."""
        ...

    def close(self) -> None: ...


def check_structure(store: Store, *, num_rows: int, path: Path) -> None:
    """Refuse an episode structure that does not cover existing rows."""
    lengths, offsets = store.lengths, store.offsets
    if not len(lengths):
        raise UserError(f"{path} holds no episode; {ANEW}")
    if lengths.ndim != 1 or lengths.shape != offsets.shape or (lengths < 1).any():
        raise UserError(f"{path}: ep_len and ep_offset do not describe episodes; {ANEW}")
    ends = offsets + lengths
    if offsets.min() < 0 or ends.max() > num_rows:
        raise UserError(f"{path}: episodes reach row {ends.max()} of {num_rows}; {ANEW}")
    if ends[-1] != num_rows or not np.array_equal(offsets[1:], ends[:-1]) or offsets[0]:
        raise UserError(f"{path}: episodes leave rows out, or are not in order; {ANEW}")


def runs(rows: np.ndarray) -> list[tuple[int, int]]:
    """Stretches of consecutive rows, as positions in `rows`."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    return list(itertools.pairwise([0, *breaks.tolist(), len(rows)]))


def reduce_frames(frames: UInt8[np.ndarray, "n h w 3"], side: int) -> UInt8[np.ndarray, "n s s 3"]:
    """Frames at `side` pixels, by area averaging."""
    if frames.shape[1:3] == (side, side):
        return np.ascontiguousarray(frames)
    import cv2

    return np.stack(
        [cv2.resize(frame, (side, side), interpolation=cv2.INTER_AREA) for frame in frames]
    )


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
