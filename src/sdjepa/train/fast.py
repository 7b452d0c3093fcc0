"""The encoder as the recorded step runs it: frames come in, class features go out, the same as
`Encoder.forward` up to rounding, from the same weights.

Three rearrangements, all exact: a LayerNorm's scale and shift are folded into the matrix that
follows it, sublayers are kernels that save only what enters and leaves, and bias gradients are
sums those kernels have at hand. The residual stream is bfloat16.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from sdjepa.model.encoder import Encoder
from sdjepa.model.layers import Block
from sdjepa.train import kernels

LOG2E = 1.4426950408889634


def fits(encoder: Encoder) -> bool:
    """Whether the kernels know this encoder's shape."""
    block = encoder.blocks[0]
    assert isinstance(block, Block)
    width, hidden = block.mlp.up.in_features, block.mlp.up.out_features
    patches = encoder.position.shape[1] - 1
    return (
        not encoder.kept
        and width == 192
        and hidden % 128 == 0
        and width // block.attention.heads == 64
        and patches == 256
    )


@torch.library.custom_op("sdjepa::attend", mutates_args=())
def attend(qkv: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Attention of all tokens to all, and the log (base 2) of each query's softmax sum.

    `bias` was added to `qkv` by the caller and is here for its gradient alone.
    """
    frames, tokens, row = qkv.shape
    dim = row // 3 // heads
    out = qkv.new_empty(frames, tokens, row // 3)
    norms = qkv.new_empty(frames, heads, tokens, dtype=torch.float32)
    q, k, warps, stages = kernels.ATTEND_FORWARD
    kernels.attend_forward_kernel[((tokens - 1) // q + 1, frames * heads)](
        qkv, out, norms, dim**-0.5 * LOG2E,
        HEADS=heads, D=dim, PATCHES=tokens - 1, Q=q, K=k, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out, norms


@torch.library.custom_op("sdjepa::attend_backward", mutates_args=())
def attend_backward(
    qkv: Tensor, out: Tensor, grad: Tensor, norms: Tensor, heads: int
) -> tuple[Tensor, Tensor]:
    """Gradient of `qkv`, and of the query bias."""
    frames, tokens, row = qkv.shape
    dim = row // 3 // heads
    q, k, r, flip, warps, stages, registers = kernels.ATTEND_BACKWARD
    side = qkv.new_empty(frames, heads, 2, tokens, dtype=torch.float32)
    dqkv = torch.empty_like(qkv)
    dbias = qkv.new_empty(frames, row // 3, dtype=torch.float32)
    kernels.attend_backward_kernel[(frames * heads,)](
        qkv, out, grad.contiguous(), norms, side, dqkv, dbias, dim**-0.5 * LOG2E, dim**-0.5,
        HEADS=heads, D=dim, PATCHES=tokens - 1, Q=q, K=k, R=r, FLIP=flip,
        num_warps=warps, num_stages=stages, maxnreg=registers,
    )  # fmt: skip
    return dqkv, dbias.sum(0)


@torch.library.custom_op("sdjepa::mlp", mutates_args=())
def mlp(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """x plus the MLP of its normalised rows; those rows, and what they were divided by, inverse."""
    rows, width = x.shape
    out, xhat = torch.empty_like(x), torch.empty_like(x)
    rstd = x.new_empty(rows, dtype=torch.float32)
    tile, hidden, warps, stages = kernels.MLP_FORWARD
    kernels.mlp_forward_kernel[(_tiles(rows, tile),)](
        x, w1, b1, w2, b2, out, xhat, rstd, rows, eps,
        A=2 * width // 3, B=width // 3, HIDDEN=len(w1), ROWS=tile, H=hidden,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out, xhat, rstd


@torch.library.custom_op("sdjepa::mlp_backward", mutates_args=())
def mlp_backward(
    xhat: Tensor, rstd: Tensor, grad: Tensor, w1: Tensor, b1: Tensor, w2: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Hidden layer, its gradient before GELU, the gradient of x, and both biases'."""
    rows, width = xhat.shape
    tile, hidden, warps, stages = kernels.MLP_BACKWARD
    tiles = _tiles(rows, tile)
    dx = torch.empty_like(xhat)
    act, dpre = xhat.new_empty(rows, len(w1)), xhat.new_empty(rows, len(w1))
    db1 = xhat.new_empty(tiles, len(w1), dtype=torch.float32)
    db2 = xhat.new_empty(tiles, width, dtype=torch.float32)
    kernels.mlp_backward_kernel[(tiles,)](
        xhat, rstd, grad.contiguous(), w1, b1, w2, act, dpre, dx, db1, db2, rows,
        A=2 * width // 3, B=width // 3, HIDDEN=len(w1), ROWS=tile, H=hidden,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return act, dpre, dx, db1.sum(0), db2.sum(0)


def _tiles(rows: int, tile: int) -> int:
    return -(-rows // tile)


@attend.register_fake
def _(qkv: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    frames, tokens, row = qkv.shape
    return qkv.new_empty(frames, tokens, row // 3), qkv.new_empty(
        frames, heads, tokens, dtype=torch.float32
    )


@attend_backward.register_fake
def _(qkv: Tensor, out: Tensor, grad: Tensor, norms: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), qkv.new_empty(qkv.shape[2] // 3, dtype=torch.float32)


@mlp.register_fake
def _(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x), x.new_empty(len(x), dtype=torch.float32)


@mlp_backward.register_fake
def _(
    xhat: Tensor, rstd: Tensor, grad: Tensor, w1: Tensor, b1: Tensor, w2: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows, width = xhat.shape
    act, dpre = xhat.new_empty(rows, len(w1)), xhat.new_empty(rows, len(w1))
    db1 = xhat.new_empty(len(w1), dtype=torch.float32)
    return act, dpre, torch.empty_like(xhat), db1, xhat.new_empty(width, dtype=torch.float32)


def _attend_setup(ctx, inputs, output) -> None:
    qkv, _, ctx.heads = inputs
    ctx.save_for_backward(qkv, *output)


def _attend_gradient(ctx, grad: Tensor, _: Tensor | None):
    qkv, out, norms = ctx.saved_tensors
    dqkv, dquery = attend_backward(qkv, out, grad, norms, ctx.heads)
    # A softmax forgets what all its keys share, and its weights sum to one.
    parts = dquery, torch.zeros_like(dquery), grad.float().sum((0, 1))
    return dqkv, torch.cat(parts), None


def _mlp_setup(ctx, inputs, output) -> None:
    _, w1, b1, w2, _, _ = inputs
    ctx.save_for_backward(*output[1:], w1, b1, w2)


def _mlp_gradient(ctx, grad: Tensor, _xhat: Tensor | None, _rstd: Tensor | None):
    xhat, rstd, w1, b1, w2 = ctx.saved_tensors
    act, dpre, dx, db1, db2 = mlp_backward(xhat, rstd, grad, w1, b1, w2)
    return dx, dpre.t() @ xhat, db1, grad.t() @ act, db2, None


attend.register_autograd(_attend_gradient, setup_context=_attend_setup)
mlp.register_autograd(_mlp_gradient, setup_context=_mlp_setup)


def _folded(norm: nn.LayerNorm, linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias of `linear` after `norm` when its scale and shift are part of them."""
    weight = linear.weight * norm.weight
    return weight, linear.bias + (linear.weight * norm.bias).sum(1)


def _through(
    block: Block, x: Float[Tensor, "frames tokens width"]
) -> Float[Tensor, "frames tokens width"]:
    """`Block.forward` in the dtype of x."""
    attention, feed = block.attention, block.mlp
    weight, bias = _folded(block.norm_attention, attention.qkv)
    normal = F.layer_norm(x.float(), x.shape[-1:], eps=block.norm_attention.eps).to(x.dtype)
    qkv = F.linear(normal, weight.to(x.dtype), bias.detach().to(x.dtype))
    mixed = attend(qkv, bias, attention.heads)[0]
    x = x + F.linear(mixed, attention.out.weight.to(x.dtype), attention.out.bias.to(x.dtype))
    weight, bias = _folded(block.norm_mlp, feed.up)
    out, _, _ = mlp(
        x.flatten(0, 1),
        weight.to(x.dtype),
        bias,
        feed.down.weight.to(x.dtype),
        feed.down.bias,
        block.norm_mlp.eps,
    )
    return out.view_as(x)


def _embedded(
    encoder: Encoder, frames: UInt8[Tensor, "frames height width 3"], *, dtype: torch.dtype
) -> Float[Tensor, "frames tokens width"]:
    """`Encoder.tokens`, with pixels as they are stored and their statistics in the weight.

    A pixel minus 128 is exact in bfloat16 and nearly centred.
    """
    count, height, width, _ = frames.shape
    p, features = encoder.patch, len(encoder.embed.weight)
    x = frames.view(count, height // p, p, width // p, p, 3).permute(0, 1, 3, 2, 4, 5)
    x = x.reshape(count, -1, 3 * p * p).to(dtype) - 128
    weight = encoder.embed.weight.view(features, 3, p, p).permute(0, 2, 3, 1) / encoder.pixel_std
    bias = encoder.embed.bias + (weight * (128 - encoder.pixel_mean)).sum((1, 2, 3))
    spare = -3 * p * p % 8  # matrix products like rows of 16 bytes
    x = F.linear(F.pad(x, (0, spare)), F.pad(weight.flatten(1), (0, spare)).to(dtype))
    x = x.float() + (encoder.position[:, 1:] + bias)
    first = encoder.class_token + encoder.position[:, :1]
    return torch.cat([first.expand(count, -1, -1), x], dim=1).to(dtype)


def _class_attention(
    block: Block, x: Float[Tensor, "frames tokens width"]
) -> Float[Tensor, "frames width"]:
    """The class token after the last block's attention, which no other token needs.

    With one query per head, scores and mixture need no keys and values: the query goes through the
    keys' matrix, and the mixture of normalised tokens through the values'.
    """
    attention = block.attention
    heads, width = attention.heads, x.shape[-1]
    weight, bias = _folded(block.norm_attention, attention.qkv)
    normal = F.layer_norm(x.float(), x.shape[-1:], eps=block.norm_attention.eps).to(x.dtype)
    wq, wk, wv = weight.to(x.dtype).view(3, heads, -1, width)
    bq, _, bv = bias.to(x.dtype).view(3, heads, -1)  # all keys share theirs: softmax forgets it
    q = torch.einsum("fw,hdw->fhd", normal[:, 0], wq) + bq
    asked = torch.einsum("fhd,hdw->fhw", q, wk) * q.shape[-1] ** -0.5
    asked = F.pad(asked, (0, 0, 0, -heads % 8))  # rows of 16 bytes again
    scores = normal @ asked.transpose(1, 2)
    mixture = scores.float().softmax(dim=1).to(x.dtype).transpose(1, 2) @ normal
    mixed = torch.einsum("fhw,hdw->fhd", mixture[:, :heads], wv) + bv
    out = F.linear(mixed.flatten(1), attention.out.weight.to(x.dtype))
    return x[:, 0].float() + out.float() + attention.out.bias


def encode(
    encoder: Encoder,
    frames: UInt8[Tensor, "frames height width 3"],
    *,
    dtype: torch.dtype = torch.bfloat16,
) -> Float[Tensor, "frames features"]:
    """`encoder(frames)` with a residual stream of `dtype`."""
    *blocks, last = encoder.blocks
    assert isinstance(last, Block)
    with torch.autocast(frames.device.type, enabled=False):
        x = _embedded(encoder, frames, dtype=dtype)
        for block in blocks:
            assert isinstance(block, Block)
            x = _through(block, x)
        x = _class_attention(last, x)
    return encoder.norm(x + last.mlp(last.norm_mlp(x)))


@contextmanager
def installed(encoder: Encoder) -> Iterator[None]:
    """Inside, calling `encoder` means `encode`."""
    encoder.forward = partial(encode, encoder)
    try:
        yield
    finally:
        del encoder.forward
