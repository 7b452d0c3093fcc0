"""Frames as patches, and the few of them that differ most from a background that stands still.

The encoder reads by these functions, and frames wait for it by them: packed, a frame is the patches
that will be read and their numbers, an eighth of its bytes, and nothing is left to choose.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Int, UInt8
from torch import Tensor


def unfold(
    frames: UInt8[Tensor, "*batch height width 3"], patch: int
) -> UInt8[Tensor, "*batch patches pixels"]:
    """Pixels of each patch, channel by channel, row by row."""
    *batch, height, width, _ = frames.shape
    x = frames.reshape(-1, height // patch, patch, width // patch, patch, 3)
    return x.permute(0, 1, 3, 5, 2, 4).reshape(*batch, -1, 3 * patch * patch)


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
    order = torch.arange(count, device=patches.device, dtype=torch.int32)
    rank = changes(patches, still) * count - order
    return rank.topk(kept, dim=-1, sorted=False).indices


@dataclass(frozen=True)
class Reading:
    """What of a frame will be read: the `kept` patches furthest from a background."""

    background: UInt8[Tensor, "size size 3"]
    patch: int
    kept: int

    @property
    def shape(self) -> tuple[int, int]:
        """Of a frame that waits as its patches, each followed by its number in two bytes.

        And by what makes it a multiple of eight bytes, which are gathered as one.
        """
        return self.kept, -(-(3 * self.patch**2 + 2) // 8) * 8

    def pack(self, frames: UInt8[Tensor, "n size size 3"]) -> UInt8[Tensor, "n kept bytes"]:
        """Of each frame what will be read, and nothing else."""
        patches = unfold(frames, self.patch)
        still = unfold(self.background.to(frames.device), self.patch)
        chosen = furthest(patches, still, self.kept)
        number = torch.stack([chosen % 256, chosen // 256], dim=-1).byte()
        rows = torch.arange(len(frames), device=frames.device)[:, None]
        packed = torch.cat([patches[rows, chosen], number], dim=-1)
        return F.pad(packed, (0, self.shape[1] - packed.shape[-1]))


def unpack(
    packed: UInt8[Tensor, "batch kept bytes"], patch: int
) -> tuple[UInt8[Tensor, "batch kept pixels"], Int[Tensor, "batch kept"]]:
    """Patches and their numbers."""
    pixels = 3 * patch**2
    return packed[..., :pixels], packed[..., pixels].long() + 256 * packed[..., pixels + 1].long()
