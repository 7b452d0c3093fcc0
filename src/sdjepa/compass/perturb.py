"""Pure edits of an episode: which recorded frame is shown at each row, and where the film is cut.

An edit is a list of (source, row) pairs, so it applies alike to frames, to latents and to anything
else recorded per row. Source 0 is the episode itself, source 1 the donor.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from numpy import ndarray


@dataclass(frozen=True)
class Edit:
    """What is shown at each row, and the rows at which it does not follow from the row before."""

    source: Int[ndarray, "rows"]
    row: Int[ndarray, "rows"]
    cuts: tuple[int, ...]

    def take(self, own: ndarray, donor: ndarray) -> ndarray:
        """The edited recording, from recordings of the episode and of the donor."""
        shown = np.empty((len(self.row), *own.shape[1:]), own.dtype)
        mine = self.source == 0
        shown[mine], shown[~mine] = own[self.row[mine]], donor[self.row[~mine]]
        return shown


def splice(own_rows: int, donor_rows: int, at: int) -> Edit:
    """The episode up to `at`, then the donor from the same row on."""
    length = min(own_rows, donor_rows)
    row = np.arange(length)
    return Edit(source=(row >= at).astype(int), row=row, cuts=(at,))


def teleport_continue(own_rows: int, donor_rows: int, at: int) -> Edit:
    """The scene changes at `at` and goes on from there: the same film as `splice`."""
    return splice(own_rows, donor_rows, at)


def teleport(own_rows: int, donor_rows: int, at: int) -> Edit:
    """A single frame of the donor at `at`."""
    row = np.arange(min(own_rows, donor_rows))
    return Edit(source=(row == at).astype(int), row=row, cuts=(at, at + 1))


def reverse(own_rows: int, at: int, window: int) -> Edit:
    """Rows [at, at + window) backwards; every frame stays, only the order changes."""
    row = np.arange(own_rows)
    row[at : at + window] = row[at : at + window][::-1].copy()
    return Edit(source=np.zeros(own_rows, int), row=row, cuts=(at, at + window))
