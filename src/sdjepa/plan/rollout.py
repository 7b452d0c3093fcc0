"""`WorldModel.rollout` without computing anything twice: equal latents, fewer tokens.

The predictor sees a window of at most `history` latents. While the window grows, earlier tokens do
not change (attention is causal), so their keys and values are kept and one new token is computed
per step. Once the window slides, positions are counted from 0 again and every token is new. In
either case only the last token's output is read, so the last block computes queries and MLP for it
alone; and what a token's condition does to every block is computed once, when the token appears.

    tokens of a five-block rollout from one frame     1 + 2 + 3 + 3 + 3 = 12
    computed here                                     1 + 1 + 1 + 3 + 3 =  9
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from sdjepa.model.layers import ConditionedBlock
from sdjepa.model.world_model import WorldModel

Cache = list[tuple[Tensor, Tensor]]  # keys and values of each block, (batch, heads, tokens, dim)
Modulations = list[Tensor]  # of each block, (batch, tokens, 6 * width)
FP32 = torch.float32


def rollout(
    model: WorldModel,
    latents: Float[Tensor, "batch context latent"],
    past_actions: Float[Tensor, "batch past block"],
    actions: Float[Tensor, "batch horizon block"],
) -> Float[Tensor, "batch horizon latent"]:
    """Latents reached by `actions`; `past_actions` led from each context latent to the next."""
    assert not model.training, "dropout would differ between a cached token and a computed one"
    history = model.config.history
    embedded = model.embed_actions(torch.cat([past_actions, actions], dim=1))
    window = latents[:, -history:]
    begin = latents.shape[1] - window.shape[1]
    here = latents.shape[1]
    modulations = _modulations(model, window, embedded[:, begin:here])
    cache: Cache | None = None
    path = []
    for step in range(actions.shape[1]):
        grown = cache is not None
        position = window.shape[1] - 1 if grown else 0
        tokens = window[:, position:]
        cut = [layer[:, position:] for layer in modulations]
        new, cache = _last(model, tokens, cut, position=position, cache=cache)
        path.append(new)
        if step + 1 == actions.shape[1]:
            break
        slides = window.shape[1] == history
        drop = 1 if slides else 0
        cache = None if slides else cache
        fresh = _modulations(model, new[:, None], embedded[:, here + step : here + step + 1])
        window = torch.cat([window[:, drop:], new[:, None]], dim=1)
        modulations = [
            torch.cat([layer[:, drop:], more], dim=1)
            for layer, more in zip(modulations, fresh, strict=True)
        ]
    return torch.stack(path, dim=1)


def _modulations(
    model: WorldModel,
    latents: Float[Tensor, "batch tokens latent"],
    embedded: Float[Tensor, "batch tokens latent"],
) -> Modulations:
    condition = model.predictor.enter_condition(model._condition(latents, embedded))
    condition = F.silu(condition)
    return [block.modulation(condition) for block in _blocks(model)]


def _blocks(model: WorldModel) -> list[ConditionedBlock]:
    return [block for block in model.predictor.blocks if isinstance(block, ConditionedBlock)]


def _last(
    model: WorldModel,
    latents: Float[Tensor, "batch tokens latent"],
    modulations: Modulations,
    *,
    position: int,
    cache: Cache | None,
) -> tuple[Float[Tensor, "batch latent"], Cache]:
    """The prediction at the last of `latents`, which stand at `position` and after it."""
    predictor = model.predictor
    places = predictor.position[:, position : position + latents.shape[1]]
    x = predictor.enter(latents + places)
    kept: Cache = []
    blocks = _blocks(model)
    for number, (block, modulation) in enumerate(zip(blocks, modulations, strict=True)):
        before = cache[number] if cache is not None else None
        x, keys_values = _block(
            block, x, modulation, before=before, last_only=number + 1 == len(blocks)
        )
        kept.append(keys_values)
    new = model.prediction_projector(predictor.leave(predictor.norm(x[:, -1])))
    return new, kept


def _block(
    block: ConditionedBlock,
    x: Float[Tensor, "batch tokens width"],
    modulation: Float[Tensor, "batch tokens six_widths"],
    *,
    before: tuple[Tensor, Tensor] | None,
    last_only: bool,
) -> tuple[Float[Tensor, "batch queries width"], tuple[Tensor, Tensor]]:
    """`ConditionedBlock.forward` for tokens whose predecessors' keys and values are `before`."""
    attention = block.attention
    shift, scale = modulation.chunk(6, dim=-1)[:2]
    plain = F.layer_norm(x, x.shape[-1:], eps=1e-6)
    normed = block.norm_attention(plain * (1 + scale) + shift)
    batch, tokens, _ = x.shape
    if last_only:
        x, modulation = x[:, -1:], modulation[:, -1:]
        width = attention.qkv.weight.shape[0] // 3
        q = F.linear(normed[:, -1:], attention.qkv.weight[:width])
        kv = F.linear(normed, attention.qkv.weight[width:])
        q = q.view(batch, 1, attention.heads, -1).transpose(1, 2)
        k, v = kv.view(batch, tokens, 2, attention.heads, -1).permute(2, 0, 3, 1, 4)
    else:
        qkv = attention.qkv(normed).view(batch, tokens, 3, attention.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
    if before is not None:
        k, v = torch.cat([before[0], k], dim=2), torch.cat([before[1], v], dim=2)
    mixed = attend(q, k, v) if q.is_cuda else _fused(q, k, v)
    _, _, gate, shift, scale, gate_mlp = modulation.chunk(6, dim=-1)
    x = x + gate * attention.out(mixed.transpose(1, 2).reshape(batch, q.shape[2], -1))
    plain = F.layer_norm(x, x.shape[-1:], eps=1e-6)
    return x + gate_mlp * block.mlp(block.norm_mlp(plain * (1 + scale) + shift)), (k, v)


def _fused(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads tokens dim"],
    v: Float[Tensor, "batch heads tokens dim"],
) -> Float[Tensor, "batch heads queries dim"]:
    # A single query is the newest token and may look at everything.
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)


def attend(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads tokens dim"],
    v: Float[Tensor, "batch heads tokens dim"],
) -> Float[Tensor, "batch heads queries dim"]:
    """Causal attention of at most a few tokens, written out.

    A GPU's fused kernels work in tiles of 64 to 128 tokens; on three they would spend more time on
    padding than all matrix products of the rollout together.
    """
    with torch.autocast(q.device.type, enabled=False):  # which would copy the products to float32
        scores = (q[:, :, :, None] * k[:, :, None]).sum(
            -1, dtype=torch.promote_types(q.dtype, FP32)
        )
        scores = scores * q.shape[-1] ** -0.5
        if q.shape[2] > 1:
            later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(later, -torch.inf)
        return (scores.softmax(-1)[..., None].to(v.dtype) * v[:, :, None]).sum(3)
