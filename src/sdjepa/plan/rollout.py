"""`WorldModel.rollout` without computing anything twice: equal latents, fewer tokens.

The predictor sees a window of at most `history` latents. While the window grows, earlier tokens do
not change (attention is causal), so their keys and values are kept and one new token is computed
per step. Once the window slides, positions are counted from 0 again and every token is new. In
either case only the last token's output is read, so the last block computes queries and MLP for it
alone. What actions do to every block is one matrix product for all tokens and blocks.

    tokens of a five-block rollout from one frame     1 + 2 + 3 + 3 + 3 = 12
    computed here                                     1 + 1 + 1 + 3 + 3 =  9

Tokens come first, (tokens, batch, width): a window is then a slice, whatever the horizon, and a
compiled block serves all of them.
"""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from sdjepa.plan.weights import Exit, Layer, Weights

KeysValues = tuple[Tensor, Tensor]  # of one block, each (tokens, batch, heads, dim)
Cache = tuple[KeysValues, ...]  # of one block, in the pieces in which they were computed
Block = Callable[..., tuple[Tensor, KeysValues]]
Leave = Callable[[Exit, Tensor], Tensor]


def rollout(
    weights: Weights,
    latents: Float[Tensor, "batch context latent"],
    past_actions: Float[Tensor, "batch past block"],
    actions: Float[Tensor, "batch horizon block"],
    *,
    block: Block | None = None,  # compiled ones, where there are any
    leave: Leave | None = None,
) -> Float[Tensor, "batch horizon latent"]:
    """Latents reached by `actions`; `past_actions` led from each context latent to the next."""
    model, block, leave = weights.model, block or run_block, leave or run_exit
    history, context = model.config.history, latents.shape[1]
    given = torch.cat([past_actions.transpose(0, 1), actions.transpose(0, 1)])
    embedded = _linear(F.silu(F.linear(given, *weights.action)), weights.embedding)
    path = list(latents.unbind(dim=1))
    # Angle and radius of a predicted latent steer too, where `polar` is on: known when it is.
    known = _modulation(weights, None, embedded) if model.polar is None else None
    steered: list[Tensor] = []
    nothing: list[Cache] = [() for _ in weights.layers]
    cache = nothing
    for here in range(context, context + actions.shape[1]):
        low = max(0, here - history)
        if known is None:
            for token in range(len(steered), here):
                steered.append(_modulation(weights, path[token][None], embedded[token][None]))
        # Positions have moved when the window slides, and with them every token.
        cache = nothing if low > 0 else cache
        first = low if cache is nothing else here - 1
        modulation = known[first:here] if known is not None else torch.cat(steered[first:here])
        x = torch.stack(path[first:here])
        x = x + model.predictor.position[0, first - low : here - low, None]
        x, cache = _blocks(weights, x, modulation, cache=cache, block=block)
        path.append(leave(weights.exit, x[-1]).to(latents.dtype))
    return torch.stack(path[context:], dim=1)


def _modulation(
    weights: Weights,
    latents: Float[Tensor, "tokens batch latent"] | None,
    embedded: Float[Tensor, "tokens batch latent"],
) -> Float[Tensor, "tokens batch shifts_scales_gates"]:
    """What the conditions of tokens do to all blocks."""
    condition = embedded
    if latents is not None:
        condition = weights.model._condition(latents, embedded.to(latents.dtype))
    enter = weights.model.predictor.enter_condition
    if isinstance(enter, torch.nn.Linear):
        condition = F.linear(condition.to(enter.weight.dtype), enter.weight, enter.bias)
    return _linear(F.silu(condition), weights.modulation)


def _blocks(
    weights: Weights,
    x: Float[Tensor, "tokens batch latent"],
    modulation: Float[Tensor, "tokens batch shifts_scales_gates"],
    *,
    cache: list[Cache],
    block: Block,
) -> tuple[Float[Tensor, "queries batch width"], list[Cache]]:
    x = weights.model.predictor.enter(x)
    parts = modulation.chunk(len(weights.layers), dim=-1)
    kept: list[Cache] = []
    for number, (layer, part) in enumerate(zip(weights.layers, parts, strict=True)):
        # With one token the last block is like the others: one compiled variant less.
        last_only = len(x) > 1 and number + 1 == len(weights.layers)
        x, keys_values = block(layer, x, part, cache[number], last_only)
        kept.append((*cache[number], keys_values))
    return x, kept


def run_block(
    layer: Layer,
    x: Float[Tensor, "tokens batch width"],
    modulation: Float[Tensor, "tokens batch six_widths"],
    before: Cache,
    last_only: bool,
) -> tuple[Float[Tensor, "queries batch width"], KeysValues]:
    """`ConditionedBlock.forward` for tokens whose predecessors' keys and values are `before`."""
    shift, scale = modulation.chunk(6, dim=-1)[:2]
    normed = _steer(x, scale, shift, layer.norm_attention).to(layer.qkv.dtype)
    if last_only:
        x, modulation = x[-1:], modulation[-1:]
    alone = len(normed) + len(before) == 1
    q, k, v = _queries_keys_values(layer, normed, queries=0 if alone else len(x))
    if q is None:
        mixed = v  # it attends to itself
    else:
        mixed = _attention(
            q, [*(pair[0] for pair in before), k], [*(pair[1] for pair in before), v]
        )
    _, _, gate, shift, scale, gate_mlp = modulation.chunk(6, dim=-1)
    x = torch.addcmul(x, gate, _linear(mixed.flatten(2), layer.out))
    normed = _steer(x, scale, shift, layer.norm_mlp)
    return torch.addcmul(x, gate_mlp, _linear(_gelu(normed, layer.up), layer.down)), (k, v)


def _queries_keys_values(
    layer: Layer, x: Float[Tensor, "tokens batch width"], *, queries: int
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Queries of the last tokens, keys and values of all."""
    tokens, batch, _ = x.shape
    if queries == tokens:
        qkv = F.linear(x, layer.qkv).view(tokens, batch, 3, layer.heads, -1)
        q, k, v = qkv.unbind(dim=2)
        return q, k, v
    inner = layer.qkv.shape[0] // 3
    k, v = F.linear(x, layer.qkv[inner:]).view(tokens, batch, 2, layer.heads, -1).unbind(dim=2)
    if queries == 0:
        return None, k, v
    q = F.linear(x[tokens - queries :], layer.qkv[:inner])
    return q.view(queries, batch, layer.heads, -1), k, v


def run_exit(exit: Exit, x: Float[Tensor, "batch width"]) -> Float[Tensor, "batch latent"]:
    """The latent a last token predicts."""
    x = F.layer_norm(x, x.shape[-1:], *exit.norm)
    if exit.leave is not None:
        x = _linear(x, exit.leave)
    return _linear(_gelu(x, exit.up), exit.down)


def _steer(x: Tensor, scale: Tensor, shift: Tensor, norm: tuple[Tensor, Tensor]) -> Tensor:
    plain = F.layer_norm(x, x.shape[-1:], eps=1e-6)
    # Not plain * (1 + scale) + shift: in half precision 1 + scale would be rounded to 1/128.
    return F.layer_norm(torch.addcmul(plain + shift, plain, scale), x.shape[-1:], *norm)


def _linear(x: Tensor, layer: tuple[Tensor, Tensor]) -> Tensor:
    return F.linear(x.to(layer[0].dtype), *layer)


def _gelu(x: Tensor, layer: tuple[Tensor, Tensor]) -> Tensor:
    """GELU of a product."""
    weight, bias = layer
    if weight.dtype != torch.bfloat16 or torch.is_grad_enabled():  # the other has no derivative
        return F.gelu(_linear(x, layer))
    # Inside the product's kernel: as its own it would read and write 2048 numbers a token again.
    # It is the tanh form, off by at most 5e-4, an eighth of a bfloat16's rounding at 1.
    rows = x.to(weight.dtype).flatten(0, -2)
    product = torch.ops.aten._addmm_activation(bias, rows, weight.t(), use_gelu=True)
    return product.view(*x.shape[:-1], -1)


def _attention(
    q: Float[Tensor, "queries batch heads dim"],
    keys: list[Float[Tensor, "some batch heads dim"]],
    values: list[Float[Tensor, "some batch heads dim"]],
) -> Float[Tensor, "queries batch heads dim"]:
    """Causal attention of at most a few tokens; the last query is the newest token's.

    A GPU's fused kernels work in tiles of 64 to 128 tokens; on three they would spend more time on
    padding than all matrix products of the rollout together.
    """
    if torch.compiler.is_compiling():
        return attend_each(q, keys, values)
    k = keys[0] if len(keys) == 1 else torch.cat(keys)
    v = values[0] if len(values) == 1 else torch.cat(values)
    return attend(q, k, v) if q.is_cuda else _fused(q, k, v)


def _fused(
    q: Float[Tensor, "queries batch heads dim"],
    k: Float[Tensor, "tokens batch heads dim"],
    v: Float[Tensor, "tokens batch heads dim"],
) -> Float[Tensor, "queries batch heads dim"]:
    # A single query is the newest token and may look at everything.
    q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
    return mixed.permute(2, 0, 1, 3)


def attend(
    q: Float[Tensor, "queries batch heads dim"],
    k: Float[Tensor, "tokens batch heads dim"],
    v: Float[Tensor, "tokens batch heads dim"],
) -> Float[Tensor, "queries batch heads dim"]:
    """For launching few kernels."""
    scores = (q[:, None] * k[None]).sum(-1, dtype=torch.promote_types(q.dtype, torch.float32))
    scores = scores * q.shape[-1] ** -0.5
    if len(q) > 1:
        later = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later[..., None, None], -torch.inf)
    return (scores.softmax(1)[..., None].to(v.dtype) * v[None]).sum(1)


def attend_each(
    q: Float[Tensor, "queries batch heads dim"],
    keys: list[Float[Tensor, "some batch heads dim"]],
    values: list[Float[Tensor, "some batch heads dim"]],
) -> Float[Tensor, "queries batch heads dim"]:
    """For a compiler, which makes one kernel of it that reads everything once.

    Of `attend` it makes three that write the products of weights and values and read them again.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    k = [token.to(wide) for piece in keys for token in piece.unbind()]
    v = [token.to(wide) for piece in values for token in piece.unbind()]
    mixed = []
    for number, query in enumerate(q.to(wide).unbind()):
        seen = len(k) - len(q) + number + 1
        scores = [(query * key).sum(-1, keepdim=True) * q.shape[-1] ** -0.5 for key in k[:seen]]
        top = functools.reduce(torch.maximum, scores)
        shares = [(score - top).exp() for score in scores]
        total = functools.reduce(torch.add, shares)
        parts = [share * value for share, value in zip(shares, v[:seen], strict=True)]
        mixed.append((functools.reduce(torch.add, parts) / total).to(q.dtype))
    return torch.stack(mixed)
