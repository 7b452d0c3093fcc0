"""Frames to features: a ViT that reads each frame alone and returns its class token."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from sdjepa.config import Model
from sdjepa.model.layers import Block

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Encoder(nn.Module):
    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, config: Model) -> None:
        super().__init__()
        self.patch = config.patch
        width, grid = config.encoder_width, config.image_size // config.patch
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
        self._initialise()

    def _initialise(self) -> None:
        for tensor in (self.class_token, self.position):
            nn.init.trunc_normal_(tensor, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def patches(
        self, frames: UInt8[Tensor, "batch height width 3"]
    ) -> Float[Tensor, "batch patches pixels"]:
        """Normalised pixels of each patch, channel by channel, row by row."""
        batch, height, width, _ = frames.shape
        p = self.patch
        x = (frames.float() - self.pixel_mean) / self.pixel_std
        x = x.view(batch, height // p, p, width // p, p, 3).permute(0, 1, 3, 5, 2, 4)
        return x.reshape(batch, (height // p) * (width // p), 3 * p * p)

    def forward(
        self, frames: UInt8[Tensor, "batch height width 3"]
    ) -> Float[Tensor, "batch features"]:
        x = self.embed(self.patches(frames))
        x = torch.cat([self.class_token.expand(len(x), -1, -1).to(x.dtype), x], dim=1)
        x = x + self.position
        for block in self.blocks[:-1]:
            x = block(x)
        # Only the class token is read, so the last block need not update the others.
        return self.norm(self.blocks[-1](x, first=1)[:, 0])
