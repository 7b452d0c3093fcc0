"""What workers have counted in, what a person waiting for them wants to know out."""

import time
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from sdjepa.runs import Progress


class Tally:
    """Episodes of a collection that are made; parts that were there count from the start."""

    def __init__(
        self,
        sizes: Sequence[int],  # episodes of every part
        found: Sequence[bool],  # which of them were there already
        counts: Int[np.ndarray, "parts 2"],  # episodes and rows of each, while they are made
    ) -> None:
        self._sizes, self._found = np.asarray(sizes), np.asarray(found)
        self._counts = counts
        self._began = self._grew = time.monotonic()
        self._most = self._rows = 0

    def tell(self, progress: Progress) -> None:
        """Say how many episodes are made, and how fast, by what was made since the start."""
        episodes, rows = self._counts.T
        # One that was there counts itself only where it turned out to be spoilt and is made again.
        made = np.where(self._found & (episodes == 0), self._sizes, episodes)
        self._most, total = max(self._most, int(made.sum())), int(self._sizes.sum())
        if rows.sum() > self._rows:
            self._rows, self._grew = int(rows.sum()), time.monotonic()
        rate = self._rows / max(self._grew - self._began, 1e-9)
        note = "episodes"
        if rate:
            note += f", {rate:,.0f} frames/s"
        elif self._most < total:
            note += ", starting the simulator"
        progress(self._most, total, note)
