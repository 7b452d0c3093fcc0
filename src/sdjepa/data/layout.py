"""What every store of rows and frames has in common: its shape, its checks, stretches of rows."""

import itertools
from typing import Protocol

import numpy as np
import zstandard
from jaxtyping import Int, UInt8

PIXELS = "pixels"
MOST_NUMBERS = 1024  # in a row of a state; more are a picture of another kind
# Bookkeeping whose meaning differs between writers; the episode structure gives it anew.
DERIVED = {"ep_idx", "episode_idx", "step_idx"}
OWN_COLUMNS = {PIXELS, "ep_len", "ep_offset", *DERIVED}  # which no other may be called
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


def is_state(shape: tuple[int, ...]) -> bool:
    """Whether a column of this shape holds rows of numbers, and not pictures: goals, depths."""
    return 0 < len(shape) < 4 and int(np.prod(shape[1:])) <= MOST_NUMBERS


class Shaped(Protocol):
    """An array, in memory or in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...


def unusable(pixels: Shaped, action: Shaped) -> tuple[str, str] | None:
    """What is wrong with the kind of frames or actions, and what to do about it; None if nothing.

    Frames are uint8 with their colours last, actions rows of floats.
    """
    if remedies := _mend_frames(pixels.shape, pixels.dtype):
        found = f"pixels are {pixels.dtype} {pixels.shape}, needed uint8 (rows, height, width, 3)"
        return found, remedies
    if action.dtype.kind != "f" or len(action.shape) != 2 or not action.shape[1]:
        return (
            f"action is {action.dtype} {action.shape}, needed float (rows, dims)",
            "store it so, one row for each frame",
        )
    return None


def _mend_frames(shape: tuple[int, ...], kind: np.dtype) -> str:
    steps = []
    if kind != np.uint8:
        steps.append("store them as uint8, 0 to 255")
    if len(shape) == 4 and shape[1] == 3 != shape[3]:
        steps.append("transpose to (rows, height, width, 3)")
    elif len(shape) != 4 or shape[3] != 3:
        steps.append("store three colours as the last axis: (rows, height, width, 3)")
    elif 0 in shape[1:]:
        steps.append("store frames with pixels in them")
    return ", and ".join(steps)


def misplaced(
    lengths: Int[np.ndarray, "..."], offsets: Int[np.ndarray, "..."], *, num_rows: int
) -> tuple[str, str] | None:
    """What is wrong with an episode structure, and what to do about it.

    Episodes must cover the rows one after another. None where they do.
    """
    if lengths.ndim != 1 or offsets.ndim != 1:
        return (
            f"ep_len has the shape {lengths.shape}, ep_offset {offsets.shape}",
            "write one number per episode into each",
        )
    if len(lengths) != len(offsets):
        return (
            f"ep_len has {len(lengths)} entries, ep_offset {len(offsets)}",
            "write one number per episode into each",
        )
    if not len(lengths):
        return "it holds no episode", "put some in"
    if (lengths < 1).any():
        which = int(np.argmax(lengths < 1))
        return (
            f"episode {which} has {lengths[which]} rows",
            "leave it out of ep_len and ep_offset",
        )
    due = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    if (offsets != due).any():
        which = int(np.argmax(offsets != due))
        return (
            f"episode {which} begins at row {offsets[which]}, and row {due[which]} is next",
            "write episodes one after another, with ep_offset the running sum of ep_len, from 0",
        )
    end = int(lengths.sum())
    if end != num_rows:
        return f"the episodes of ep_len end at row {end} of {num_rows}", "correct ep_len"
    return None


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
