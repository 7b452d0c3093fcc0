"""Frames as patches, and the few of them that differ most from a background that stands still.

The encoder reads by these functions, and frames wait for it by them: a frame that is its background
but for the chosen patches gives the encoder what the whole frame would, in an eighth of the memory.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Int, UInt8
from torch import Tensor


def unfold(
    frames: UInt8[Tensor, "*batch height width 3"], patch: int
) -> UInt8[Tensor, "*batch patches pixels"]:
    """Pixels of each patch, channel by channel, row by row."""
    *batch, height, width, _ = frames.shape
    x = frames.reshape(-1, height // patch, patch, width // patch, patch, 3)
    return x.permute(0, 1, 3, 5, 2, 4).reshape(*batch, -1, 3 * patch * patch)


def fold(
    patches: UInt8[Tensor, "*batch patches pixels"], patch: int
) -> UInt8[Tensor, "*batch height width 3"]:
    """The square frames that `unfold` gives these patches of."""
    *batch, count, _ = patches.shape
    grid = round(count**0.5)
    x = patches.reshape(-1, grid, grid, 3, patch, patch)
    return x.permute(0, 1, 4, 2, 5, 3).reshape(*batch, grid * patch, grid * patch, 3)


def changes(
    patches: UInt8[Tensor, "batch patches pixels"], still: UInt8[Tensor, "patches pixels"]
) -> Int[Tensor, "batch patches"]:
    """How far each patch is from the background's, summed over its pixels."""
    return (patches.short() - still.short()).abs().sum(dim=-1, dtype=torch.int32)


def furthest(
    patches: UInt8[Tensor, "batch patches pixels"],
    still: UInt8[Tensor, "patches pixels"],
    kept: int,
) -> Int[Tensor, "batch kept"]:
    """Which `kept` patches differ most from the background, in any order."""
    count = patches.shape[-2]
    # Ties go to the first patch: which of the unchanged ones fill up is then no accident.
    rank = changes(patches, still) * count - torch.arange(count, device=patches.device)
    return rank.topk(kept, dim=-1, sorted=False).indices


@dataclass(frozen=True)
class Reading:
    """What of a frame will be read: the `kept` patches furthest from a background."""

    background: UInt8[Tensor, "size size 3"]
    patch: int
    kept: int

    @property
    def bytes_a_frame(self) -> int:
        """Of a frame that waits as its patches and their numbers."""
        return self.kept * (3 * self.patch**2 + 2)


class Painted:
    """Frames kept as their background and the patches that will be read."""

    def __init__(self, count: int, reading: Reading, *, device: torch.device) -> None:
        self._patch, self._kept = reading.patch, reading.kept
        self._still = unfold(reading.background.to(device), reading.patch)
        pixels = self._still.shape[-1]
        self._patches = torch.empty(count, self._kept, pixels, dtype=torch.uint8, device=device)
        self._where = torch.empty(count, self._kept, dtype=torch.int16, device=device)

    def put(self, first: int, frames: UInt8[Tensor, "n size size 3"]) -> None:
        """Keep `frames` as numbers `first`, `first` + 1, ..."""
        patches = unfold(frames, self._patch)
        chosen = furthest(patches, self._still, self._kept)
        rows = torch.arange(len(frames), device=frames.device)[:, None]
        self._patches[first : first + len(frames)] = patches[rows, chosen]
        self._where[first : first + len(frames)] = chosen.short()

    def __getitem__(
        self, places: Int[Tensor, "batch time"]
    ) -> UInt8[Tensor, "batch time size size 3"]:
        """What the encoder cannot tell from the frames; unread patches show the background."""
        flat = places.flatten()
        canvas = self._still.repeat(len(flat), 1, 1)
        rows = torch.arange(len(flat), device=flat.device)[:, None]
        canvas[rows, self._where[flat].long()] = self._patches[flat]
        return fold(canvas, self._patch).view(*places.shape, *fold(self._still, self._patch).shape)
