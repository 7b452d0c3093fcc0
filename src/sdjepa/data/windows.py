"""Which windows a set of episodes holds: pure index arithmetic.

With frame_skip 5 and 4 frames, a window that starts at row s looks like this (a: a raw action):

    row     s    +1   +2   +3   +4   +5   ...  +10  ...  +15  +16  +17  +18  +19
    frame   f0                       f1        f2        f3
    action  a    a    a    a    a    a    ...  a    ...  a    a    a    a    a
            `----- block 0 -----'    `block 1' `block 2' `----- block 3 -----'

Block i leads from frame i to frame i + 1. The last block leads to no frame of the window; the
reference keeps room for it all the same (tail = "ref"), tail = "full" does not.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True)
class Windows:
    """Every window of some episodes; a window never leaves its episode."""

    first_row: Int[np.ndarray, "windows"]
    last_row: Int[np.ndarray, "windows"]  # of the episode: where reading must stop
    episode: Int[np.ndarray, "windows"]
    start: Int[np.ndarray, "windows"]  # raw step at which the window begins
    frames: int
    frame_skip: int

    def __len__(self) -> int:
        return len(self.first_row)


def rows_needed(frames: int, *, frame_skip: int, tail: str) -> int:
    """Rows of the shortest episode that holds a window."""
    return frames * frame_skip if tail == "ref" else (frames - 1) * frame_skip + 1


def windows(
    lengths: Int[np.ndarray, "all_episodes"],
    offsets: Int[np.ndarray, "all_episodes"],
    *,
    episodes: Int[np.ndarray, "episodes"],
    frames: int,
    frame_skip: int,
    tail: str = "ref",
) -> Windows:
    """All stride-1 windows of `episodes`; an episode too short for one gives none."""
    span = rows_needed(frames, frame_skip=frame_skip, tail=tail)
    counts = np.maximum(lengths[episodes] - span + 1, 0)
    episode = np.repeat(episodes, counts)
    start = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return Windows(
        first_row=offsets[episode] + start,
        last_row=offsets[episode] + lengths[episode] - 1,
        episode=episode,
        start=start,
        frames=frames,
        frame_skip=frame_skip,
    )
