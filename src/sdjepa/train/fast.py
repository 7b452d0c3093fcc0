"""The encoder as the recorded step runs it: frames come in, class features go out, the same as
`Encoder.forward` up to rounding, from the same weights.

Three rearrangements, all exact: a LayerNorm's scale and shift are folded into the matrix that
follows it, attention and GELU are kernels that save little, and bias gradients are sums those
kernels have at hand. The residual stream is bfloat16.
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
FEW = 64  # tokens that attention takes in one block


def fits(encoder: Encoder) -> bool:
    """Whether the kernels know this encoder's shape."""
    block = encoder.blocks[0]
    assert isinstance(block, Block)
    width, hidden = block.mlp.up.in_features, block.mlp.up.out_features
    patches = encoder.position.shape[1] - 1
    return (
        width == 192
        and hidden % 128 == 0
        and width // block.attention.heads == 64
        and (encoder.kept < FEW if encoder.kept else patches == 256)
    )


@torch.library.custom_op("sdjepa::attend", mutates_args=())
def attend(qkv: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Attention of all tokens to all, and of many the log (base 2) of each query's softmax sum.

    `bias` was added to `qkv` by the caller and is here for its gradient alone.
    """
    frames, tokens, row = qkv.shape
    dim = row // 3 // heads
    out, norms = _attend_empty(qkv, heads)
    if tokens <= FEW:
        pad, warps = _padded(tokens, kernels.FEW_FORWARD)
        kernels.few_forward_kernel[(frames * heads,)](
            qkv, out, dim**-0.5 * LOG2E,
            HEADS=heads, D=dim, TOKENS=tokens, PAD=pad, num_warps=warps,
        )  # fmt: skip
        return out, norms
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
    grad, dqkv = grad.contiguous(), torch.empty_like(qkv)
    dbias = qkv.new_empty(frames, row // 3, dtype=torch.float32)
    if tokens <= FEW:
        pad, warps = _padded(tokens, kernels.FEW_BACKWARD)
        kernels.few_backward_kernel[(frames * heads,)](
            qkv, grad, dqkv, dbias, dim**-0.5 * LOG2E, dim**-0.5,
            HEADS=heads, D=dim, TOKENS=tokens, PAD=pad, num_warps=warps,
        )  # fmt: skip
        return dqkv, dbias.sum(0)
    q, k, r, flip, warps, stages, registers = kernels.ATTEND_BACKWARD
    side = qkv.new_empty(frames, heads, 2, tokens, dtype=torch.float32)
    kernels.attend_backward_kernel[(frames * heads,)](
        qkv, out, grad, norms, side, dqkv, dbias, dim**-0.5 * LOG2E, dim**-0.5,
        HEADS=heads, D=dim, PATCHES=tokens - 1, Q=q, K=k, R=r, FLIP=flip,
        num_warps=warps, num_stages=stages, maxnreg=registers,
    )  # fmt: skip
    return dqkv, dbias.sum(0)


def _attend_empty(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    frames, tokens, row = qkv.shape
    saved = tokens if tokens > FEW else 0
    norms = qkv.new_empty(frames, heads, saved, dtype=torch.float32)
    return qkv.new_empty(frames, tokens, row // 3), norms


def _padded(tokens: int, warps: tuple[int, int]) -> tuple[int, int]:
    """Tokens with padding (a power of two, 16 at least), and the warps for them."""
    pad = max(16, 1 << (tokens - 1).bit_length())
    return pad, warps[pad > 32]


def up(x: Tensor, w1: Tensor, b1: Tensor) -> tuple[Tensor, Tensor]:
    """The hidden layer, and the slope of its GELU."""
    rows, width = x.shape
    act, slope = x.new_empty(rows, len(w1)), x.new_empty(rows, len(w1))
    tile, hidden, share, warps, stages = kernels.UP
    kernels.up_kernel[(-(-rows // tile) * share,)](
        x, w1, b1, act, slope, rows,
        A=2 * width // 3, B=width // 3, HIDDEN=len(w1), ROWS=tile, H=hidden, SHARE=share,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return act, slope


@torch.library.custom_op("sdjepa::mlp", mutates_args=())
def mlp(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Up, GELU and down; also what `up` returns."""
    act, slope = up(x, w1, b1)
    return act @ w2.t(), act, slope


@torch.library.custom_op("sdjepa::down_backward", mutates_args=())
def down_backward(grad: Tensor, w2: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient before the GELU, and its sum over rows."""
    rows, width = grad.shape
    tile, hidden, share, warps, stages = kernels.DOWN_BACKWARD
    tiles = -(-rows // tile)
    dpre = torch.empty_like(slope)
    dbias = slope.new_empty(tiles, slope.shape[1], dtype=torch.float32)
    kernels.down_backward_kernel[(tiles * share,)](
        grad.contiguous(), w2, slope, dpre, dbias, rows,
        A=2 * width // 3, B=width // 3, HIDDEN=w2.shape[1], ROWS=tile, H=hidden, SHARE=share,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return dpre, dbias.sum(0)


@attend.register_fake
def _(qkv: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    return _attend_empty(qkv, heads)


@attend_backward.register_fake
def _(qkv: Tensor, out: Tensor, grad: Tensor, norms: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), qkv.new_empty(qkv.shape[2] // 3, dtype=torch.float32)


@mlp.register_fake
def _(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    act, slope = x.new_empty(len(x), len(w1)), x.new_empty(len(x), len(w1))
    return x.new_empty(len(x), len(w2)), act, slope


@down_backward.register_fake
def _(grad: Tensor, w2: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(slope), slope.new_empty(slope.shape[1], dtype=torch.float32)


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
    x, w1, _, w2 = inputs
    ctx.save_for_backward(x, w1, w2, *output[1:])


def _mlp_gradient(ctx, grad: Tensor, _act: Tensor | None, _slope: Tensor | None):
    x, w1, w2, act, slope = ctx.saved_tensors
    dpre, db1 = down_backward(grad, w2, slope)
    return dpre @ w1, dpre.t() @ x, db1, grad.t() @ act


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
    normal = F.layer_norm(x.float(), x.shape[-1:], eps=block.norm_mlp.eps).to(x.dtype)
    out, _, _ = mlp(normal.flatten(0, 1), weight.to(x.dtype), bias, feed.down.weight.to(x.dtype))
    return (x.float() + (out.view_as(x).float() + feed.down.bias)).to(x.dtype)


def _embedded(
    encoder: Encoder, frames: UInt8[Tensor, "frames *frame"], *, dtype: torch.dtype
) -> Float[Tensor, "frames tokens width"]:
    """`Encoder.tokens`, with pixels as they are stored and their statistics in the weight.

    A pixel minus 128 is exact in bfloat16 and nearly centred.
    """
    p, features = encoder.patch, len(encoder.embed.weight)
    weight = encoder.embed.weight.view(features, 3, p, p) / encoder.pixel_std[:, None, None]
    centre = (128 - encoder.pixel_mean)[:, None, None]
    position = encoder.position[0, 1:] + encoder.embed.bias + (weight * centre).sum((1, 2, 3))
    if encoder.kept:
        patches, chosen = encoder.read(frames)
        # A patch that names its place, a one among zeros, is given its position by the product,
        # whose gradient is a product as well: adding rows up by their index has no fixed order.
        place = chosen[..., None] == torch.arange(len(position), device=frames.device)
        x = torch.cat([patches.to(dtype) - 128, place.to(dtype)], dim=-1)
        weight = torch.cat([weight.flatten(1), position.t()], dim=1)
    else:
        count, height, width, _ = frames.shape
        # Pixel by pixel, as they lie in memory, and the weight likewise.
        x = frames.view(count, height // p, p, width // p, p, 3).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(count, -1, 3 * p * p).to(dtype) - 128
        weight = weight.permute(0, 2, 3, 1).flatten(1)
    spare = -x.shape[-1] % 8  # matrix products like rows of 16 bytes
    x = F.linear(F.pad(x, (0, spare)), F.pad(weight, (0, spare)).to(dtype)).float()
    x = x if encoder.kept else x + position
    first = encoder.class_token + encoder.position[:, :1]
    return torch.cat([first.expand(len(x), -1, -1), x], dim=1).to(dtype)


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
    frames: UInt8[Tensor, "frames *frame"],
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
