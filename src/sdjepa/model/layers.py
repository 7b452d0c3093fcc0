"""The building blocks both transformers share: attention, MLP, a conditioned block, a projector.

Layer sizes and initialisations are LeWM's; the quirks that must stay for its weights to mean the
same (a second LayerNorm inside the conditioned block) say so where they stand.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from sdjepa import ranks

FEW = 8  # tokens for which attention is spelled out


class SelfAttention(nn.Module):
    """Multi-head self-attention with one fused query-key-value projection."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_dim: int,
        qkv_bias: bool,
        causal: bool,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.qkv = nn.Linear(width, 3 * heads * head_dim, bias=qkv_bias)
        self.out = nn.Linear(heads * head_dim, width)

    def forward(
        self, x: Float[Tensor, "batch tokens width"], *, first: int | None = None
    ) -> Float[Tensor, "batch queries width"]:
        """Outputs of all tokens, or of the `first` ones only (they still attend to all)."""
        batch, tokens, _ = x.shape
        if first is None:
            q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        else:
            width = self.qkv.weight.shape[0] // 3
            bias = (
                (None, None) if self.qkv.bias is None else self.qkv.bias.split((width, 2 * width))
            )
            q = F.linear(x[:, :first], self.qkv.weight[:width], bias[0])
            kv = F.linear(x, self.qkv.weight[width:], bias[1])
            q = q.view(batch, first, self.heads, -1).transpose(1, 2)
            k, v = kv.view(batch, tokens, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        drop = self.dropout if self.training else 0.0
        # A CPU's fused kernel is good at few tokens, but knows no dropout.
        spell = tokens <= FEW and (x.is_cuda or drop > 0)
        attend = attend_few if spell else F.scaled_dot_product_attention
        mixed = attend(q, k, v, dropout_p=drop, is_causal=self.causal)
        out = self.out(mixed.transpose(1, 2).reshape(batch, q.shape[2], -1))
        return F.dropout(out, self.dropout, self.training)


def attend_few(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads tokens dim"],
    v: Float[Tensor, "batch heads tokens dim"],
    *,
    dropout_p: float,
    is_causal: bool,
) -> Float[Tensor, "batch heads queries dim"]:
    """`scaled_dot_product_attention` of a few tokens, spelled out for a compiler to fuse.

    A GPU's own kernels work in tiles of 64 to 128 tokens: on the predictor's three they take longer
    than its matrix products.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    queries, keys, values = q.to(wide)[..., None, :], k.to(wide)[:, :, None], v.to(wide)[:, :, None]
    scores = (queries * keys).sum(-1) * q.shape[-1] ** -0.5
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    weights = F.dropout(scores.softmax(-1), dropout_p)
    return (weights[..., None] * values).sum(-2).to(q.dtype)


class FeedForward(nn.Module):
    """Linear, GELU, Linear."""

    def __init__(self, width: int, hidden: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        hidden = F.dropout(F.gelu(self.up(x)), self.dropout, self.training)
        return F.dropout(self.down(hidden), self.dropout, self.training)


class Block(nn.Module):
    """A pre-LayerNorm transformer block (the encoder's)."""

    def __init__(self, width: int, heads: int, *, hidden: int) -> None:
        super().__init__()
        # eps 1e-12 is the ViT's own; another value would move every imported latent.
        self.norm_attention = nn.LayerNorm(width, eps=1e-12)
        self.attention = SelfAttention(
            width, heads, head_dim=width // heads, qkv_bias=True, causal=False
        )
        self.norm_mlp = nn.LayerNorm(width, eps=1e-12)
        self.mlp = FeedForward(width, hidden)

    def forward(
        self, x: Float[Tensor, "batch tokens width"], *, first: int | None = None
    ) -> Float[Tensor, "batch queries width"]:
        """All tokens, or the `first` ones only: what the reader of the last block needs."""
        x = x[:, :first] + self.attention(self.norm_attention(x), first=first)
        return x + self.mlp(self.norm_mlp(x))


class ConditionedBlock(nn.Module):
    """A causal block whose sublayers are shifted, scaled and gated by a condition per token.

    The modulation starts at zero, so a new block is the identity. The modulated activations pass a
    second, affine LayerNorm before each sublayer, which undoes part of the modulation: inherited
    from LeWM, kept because its weights assume it.
    """

    def __init__(
        self, width: int, heads: int, *, head_dim: int, hidden: int, dropout: float
    ) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = SelfAttention(
            width, heads, head_dim=head_dim, qkv_bias=False, causal=True, dropout=dropout
        )
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = FeedForward(width, hidden, dropout=dropout)
        self.modulation = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        condition: Float[Tensor, "batch tokens width"],
    ) -> Float[Tensor, "batch tokens width"]:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(F.silu(condition)).chunk(
            6, dim=-1
        )
        plain = F.layer_norm(x, x.shape[-1:], eps=1e-6)
        x = x + gate1 * self.attention(self.norm_attention(plain * (1 + scale1) + shift1))
        plain = F.layer_norm(x, x.shape[-1:], eps=1e-6)
        return x + gate2 * self.mlp(self.norm_mlp(plain * (1 + scale2) + shift2))


class BatchNorm(nn.BatchNorm1d):
    """BatchNorm over the rows of all ranks: statistics, running averages and gradients are exact.

    torch's own synchronised version refuses the CPU; this one runs wherever a collective does.
    """

    def forward(self, input: Float[Tensor, "rows features"]) -> Float[Tensor, "rows features"]:
        if not self.training or ranks.world_size() == 1:
            return super().forward(input)
        x = input.float()
        rows = x.shape[0] * ranks.world_size()
        mean = ranks.total(x.sum(dim=0)) / rows
        var = ranks.total((x - mean).square().sum(dim=0)) / rows
        with torch.no_grad():
            assert self.momentum is not None
            assert self.num_batches_tracked is not None
            assert self.running_mean is not None
            assert self.running_var is not None
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * (rows / (rows - 1)), self.momentum)
        out = (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias
        return out.to(input.dtype)


class Projector(nn.Module):
    """Linear, BatchNorm, GELU, Linear on flattened rows; shapes the latent distribution."""

    def __init__(self, width_in: int, hidden: int, width_out: int) -> None:
        super().__init__()
        self.up = nn.Linear(width_in, hidden)
        self.norm = BatchNorm(hidden)
        self.down = nn.Linear(hidden, width_out)

    def forward(self, x: Float[Tensor, "... width_in"]) -> Float[Tensor, "... width_out"]:
        rows = x.reshape(-1, x.shape[-1])
        return self.down(F.gelu(self.norm(self.up(rows)))).view(*x.shape[:-1], -1)
