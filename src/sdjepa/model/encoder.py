"""Frames to features: a ViT that reads each frame alone and returns its class token."""

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from sdjepa.config import Model
from sdjepa.data.patches import changes, furthest, unfold, unpack
from sdjepa.model.layers import Block

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Encoder(nn.Module):
    """With `config.tokens` > 0 only that many patches of a frame are read: those that differ most
    from `background`. Where a camera stands still the others say nothing a position does not, and
    a frame of 256 patches becomes one of thirty.
    """

    pixel_mean: Tensor
    pixel_std: Tensor
    background: Tensor

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.patch, self.kept = config.patch, config.tokens
        width, size, grid = config.encoder_width, config.image_size, config.grid
        # Patches do not overlap, so the usual convolution is a matrix product on unfolded pixels.
        self.embed = nn.Linear(3 * config.patch**2, width)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.position = nn.Parameter(torch.empty(1, grid * grid + 1, width))
        self.blocks = nn.ModuleList(
            Block(width, config.encoder_heads, hidden=config.encoder_mlp)
            for _ in range(config.encoder_depth)
        )
        self.norm = nn.LayerNorm(width, eps=1e-12)
        # Buffers, so that the same checkpoint normalises the same way on every device.
        self.register_buffer("pixel_mean", 255 * torch.tensor(IMAGENET_MEAN), persistent=False)
        self.register_buffer("pixel_std", 255 * torch.tensor(IMAGENET_STD), persistent=False)
        if self.kept:
            empty = torch.zeros(size, size, 3, dtype=torch.uint8)
            self.register_buffer("background", empty)  # the dataset's; saved with the weights
        self._initialise()

    def _initialise(self) -> None:
        for tensor in (self.class_token, self.position):
            nn.init.trunc_normal_(tensor, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def unfold(
        self, frames: UInt8[Tensor, "batch height width 3"]
    ) -> UInt8[Tensor, "batch patches pixels"]:
        return unfold(frames, self.patch)

    def changes(
        self, unfolded: UInt8[Tensor, "batch patches pixels"]
    ) -> Int[Tensor, "batch patches"]:
        """How far each patch is from the background, summed over its pixels."""
        return changes(unfolded, self.unfold(self.background))

    def read(
        self, frames: UInt8[Tensor, "batch *frame"]
    ) -> tuple[UInt8[Tensor, "batch kept pixels"], Int[Tensor, "batch kept"]]:
        """The patches that are read, where not all are, and their numbers."""
        if frames.ndim == 3:  # they were chosen when the frame was packed
            return unpack(frames, self.patch)
        unfolded = self.unfold(frames)
        chosen = furthest(unfolded, self.unfold(self.background), self.kept)
        return unfolded.gather(1, chosen[..., None].expand(-1, -1, unfolded.shape[-1])), chosen

    def normalise(
        self, unfolded: UInt8[Tensor, "batch patches pixels"]
    ) -> Float[Tensor, "batch patches pixels"]:
        mean, std = (x.repeat_interleave(self.patch**2) for x in (self.pixel_mean, self.pixel_std))
        return (unfolded.float() - mean) / std

    def tokens(self, frames: UInt8[Tensor, "batch *frame"]) -> Float[Tensor, "batch tokens width"]:
        """The class token and the embedded patches, each with its position."""
        position = self.position[:, 1:]
        if self.kept:
            unfolded, chosen = self.read(frames)
            position = position.expand(len(frames), -1, -1).gather(
                1, chosen[..., None].expand(-1, -1, position.shape[-1])
            )
        else:
            unfolded = self.unfold(frames)
        x = self.embed(self.normalise(unfolded)) + position
        first = self.class_token + self.position[:, :1]
        return torch.cat([first.expand(len(x), -1, -1), x], dim=1)

    def forward(self, frames: UInt8[Tensor, "batch *frame"]) -> Float[Tensor, "batch features"]:
        x = self.tokens(frames)
        for block in self.blocks[:-1]:
            x = block(x)
        # Only the class token is read, so the last block need not update the others.
        return self.norm(self.blocks[-1](x, first=1)[:, 0])
