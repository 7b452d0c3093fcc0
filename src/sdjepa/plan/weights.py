"""A world model in, the tensors its rollouts are computed with out.

Whatever can be done once is done here, not at every step: matrices are cast, two products in a row
become one, BatchNorm goes into the product before it, what conditions all blocks is one matrix.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sdjepa.model.layers import ConditionedBlock
from sdjepa.model.world_model import WorldModel


class Layer(NamedTuple):
    """The tensors of one block; plain tensors, so that one compiled block serves all six."""

    heads: int
    norm_attention: tuple[Tensor, Tensor]  # weight and bias
    qkv: Tensor
    out: tuple[Tensor, Tensor]
    norm_mlp: tuple[Tensor, Tensor]
    up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]


class Exit(NamedTuple):
    """From the last token to the next latent, BatchNorm folded into the product before it."""

    norm: tuple[Tensor, Tensor]
    leave: tuple[Tensor, Tensor] | None
    up: tuple[Tensor, Tensor]
    down: tuple[Tensor, Tensor]


class Weights(NamedTuple):
    """A model made ready for rollouts: matrices in the type products are computed in."""

    model: WorldModel
    layers: tuple[Layer, ...]
    exit: Exit
    action: tuple[Tensor, Tensor]  # the action encoder's first two products, which are one
    embedding: tuple[Tensor, Tensor]
    modulation: tuple[Tensor, Tensor]  # of all blocks, one above the other


@torch.no_grad()
def weights_of(model: WorldModel, dtype: torch.dtype | None = None) -> Weights:
    """Weights as they are now; `dtype` is of the large matrices, None keeps the model's own."""
    assert not model.training, "dropout would differ between a cached token and a computed one"

    def cast(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = (t.detach().to(dtype or t.dtype) for t in tensors)
        return weight, bias

    def kept(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = (t.detach() for t in tensors)
        return weight, bias

    blocks = [b for b in model.predictor.blocks if isinstance(b, ConditionedBlock)]
    layers = tuple(
        Layer(
            heads=block.attention.heads,
            norm_attention=kept(block.norm_attention.weight, block.norm_attention.bias),
            qkv=block.attention.qkv.weight.detach().to(dtype or block.attention.qkv.weight.dtype),
            out=cast(block.attention.out.weight, block.attention.out.bias),
            norm_mlp=kept(block.norm_mlp.weight, block.norm_mlp.bias),
            up=cast(block.mlp.up.weight, block.mlp.up.bias),
            down=cast(block.mlp.down.weight, block.mlp.down.bias),
        )
        for block in blocks
    )
    predictor, projector, encoder = (
        model.predictor,
        model.prediction_projector,
        model.action_encoder,
    )
    norm, leave = projector.norm, predictor.leave
    assert norm.running_mean is not None
    assert norm.running_var is not None
    stretch = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    return Weights(
        model=model,
        layers=layers,
        exit=Exit(
            norm=kept(predictor.norm.weight, predictor.norm.bias),
            leave=cast(leave.weight, leave.bias) if isinstance(leave, torch.nn.Linear) else None,
            up=cast(
                projector.up.weight * stretch[:, None],
                (projector.up.bias - norm.running_mean) * stretch + norm.bias,
            ),
            down=cast(projector.down.weight, projector.down.bias),
        ),
        # Ten numbers in are no multiple of the 16 bytes tensor cores like: never in half precision.
        action=kept(
            encoder.up.weight @ encoder.squeeze.weight,
            encoder.up.weight @ encoder.squeeze.bias + encoder.up.bias,
        ),
        embedding=cast(encoder.down.weight, encoder.down.bias),
        modulation=cast(
            torch.cat([block.modulation.weight for block in blocks]),
            torch.cat([block.modulation.bias for block in blocks]),
        ),
    )
