"""The two names of every tensor: ours and LeWM's, the latter in both spellings of its ViT."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sdjepa.config import Model
from sdjepa.errors import UserError
from sdjepa.model.predictor import REF_ACTION_WIDTH
from sdjepa.model.world_model import WorldModel

Keys = Literal["old", "new"]
ANCHOR = "predictor.pos_embedding"  # in every LeWM, once

# One encoder layer, ours to theirs. transformers 5 renamed the modules, not the tensors.
LAYER: dict[Keys, tuple[str, dict[str, tuple[str, ...]]]] = {
    "old": (
        "encoder.encoder.layer",
        {
            "attention.qkv": tuple(f"attention.attention.{n}" for n in ("query", "key", "value")),
            "attention.out": ("attention.output.dense",),
            "mlp.up": ("intermediate.dense",),
            "mlp.down": ("output.dense",),
        },
    ),
    "new": (
        "encoder.layers",
        {
            "attention.qkv": tuple(f"attention.{n}_proj" for n in ("q", "k", "v")),
            "attention.out": ("attention.o_proj",),
            "mlp.up": ("mlp.fc1",),
            "mlp.down": ("mlp.fc2",),
        },
    ),
}
_NORMS = {"norm_attention": ("layernorm_before",), "norm_mlp": ("layernorm_after",)}
_PREDICTOR_BLOCK = {
    "norm_attention": "attn.norm",
    "attention.qkv": "attn.to_qkv",
    "attention.out": "attn.to_out.0",
    "norm_mlp": "mlp.net.0",
    "mlp.up": "mlp.net.1",
    "mlp.down": "mlp.net.4",
    "modulation": "adaLN_modulation.1",
}
_REST = {
    "encoder.norm": "encoder.layernorm",
    "encoder.embed": "encoder.embeddings.patch_embeddings.projection",
    "predictor.norm": "predictor.transformer.norm",
    "predictor.enter": "predictor.transformer.input_proj",
    "predictor.enter_condition": "predictor.transformer.cond_proj",
    "predictor.leave": "predictor.transformer.output_proj",
    "action_encoder.squeeze": "action_encoder.patch_embed",
    "action_encoder.up": "action_encoder.embed.0",
    "action_encoder.down": "action_encoder.embed.2",
    "encoder.class_token": "encoder.embeddings.cls_token",
    "encoder.position": "encoder.embeddings.position_embeddings",
    "predictor.position": ANCHOR,
} | {
    f"{ours}.{part}": f"{theirs}.net.{number}"
    for ours, theirs in (("projector", "projector"), ("prediction_projector", "pred_proj"))
    for part, number in (("up", 0), ("norm", 1), ("down", 3))
}


@dataclass(frozen=True)
class Place:
    """One tensor of ours and the tensors of theirs that are stacked in it."""

    ours: str
    theirs: tuple[str, ...]
    their_shape: tuple[int, ...]  # of each


def _their_modules(module: str, keys: Keys) -> tuple[str, ...]:
    """Names of LeWM's modules for a module (or bare parameter) of ours."""
    if module in _REST:
        return (_REST[module],)
    part, _, number, inner = (*module.split(".", 3), "")[:4]
    if part == "predictor":
        return (f"predictor.transformer.layers.{number}.{_PREDICTOR_BLOCK[inner]}",)
    root, names = LAYER[keys]
    return tuple(f"{root}.{number}.{name}" for name in (names | _NORMS)[inner])


def places(model: WorldModel, keys: Keys) -> Iterator[Place]:
    """Where every tensor of ours lives in LeWM's state dict."""
    patch = model.config.patch
    for name, tensor in model.state_dict().items():
        module, _, leaf = name.rpartition(".")
        if name in _REST:
            theirs = (_REST[name],)
        else:
            theirs = tuple(f"{found}.{leaf}" for found in _their_modules(module, keys))
        shape = tuple(tensor.shape)
        if len(theirs) > 1:
            shape = (shape[0] // len(theirs), *shape[1:])
        if name == "encoder.embed.weight":
            shape = (shape[0], 3, patch, patch)
        elif name == "action_encoder.squeeze.weight":
            shape = (*shape, 1)
        yield Place(name, theirs, shape)


def to_lewm(model: WorldModel, *, keys: Keys = "new") -> dict[str, Tensor]:
    """LeWM's state dict of a model it can hold."""
    tensors, found = model.state_dict(), {}
    for place in places(model, keys):
        # clone: the thirds of a stacked tensor would otherwise be saved with the whole of it.
        for name, part in zip(
            place.theirs, _pieces(tensors[place.ours], len(place.theirs)), strict=True
        ):
            found[name] = part.reshape(place.their_shape).clone()
    return found


def _pieces(tensor: Tensor, count: int) -> tuple[Tensor, ...]:
    return tensor.chunk(count) if count > 1 else (tensor,)


def from_lewm(model: WorldModel, tensors: dict[str, Tensor], *, keys: Keys) -> None:
    """Put LeWM's tensors into `model`; each must be used once and none be left over."""
    spots = list(places(model, keys))
    wanted = {name: place.their_shape for place in spots for name in place.theirs}
    missing = sorted(set(wanted) - set(tensors))
    extra = sorted(set(tensors) - set(wanted))
    wrong = sorted(
        f"{name} {tuple(tensors[name].shape)} instead of {wanted[name]}"
        for name in set(wanted) & set(tensors)
        if tuple(tensors[name].shape) != wanted[name]
    )
    if missing or extra or wrong:
        listed = [
            f"{what}: {', '.join(names)}"
            for what, names in (("missing", missing), ("unknown", extra), ("other shape", wrong))
            if names
        ]
        raise UserError(
            f"these weights are not a LeWM this program can hold; {'; '.join(listed)}. "
            "Save model.state_dict() of a stable_worldmodel LeWM"
        )
    ours = {}
    for name, tensor in model.state_dict().items():
        place = next(spot for spot in spots if spot.ours == name)
        stacked = [tensors[part] for part in place.theirs]
        joined = torch.cat(stacked) if len(stacked) > 1 else stacked[0]
        ours[name] = joined.reshape(tensor.shape)
    model.load_state_dict(ours)


def lewm_config(shape: Model) -> dict[str, Any]:
    """The `_target_` tree from which stable-worldmodel builds this model."""
    module = "stable_worldmodel.wm.lewm.module"

    def projector(width: int) -> dict[str, Any]:
        return {
            "_target_": f"{module}.MLP",
            "input_dim": width,
            "hidden_dim": shape.projector_hidden,
            "output_dim": shape.latent,
            "norm_fn": {"_target_": "torch.nn.BatchNorm1d", "_partial_": True},
        }

    block = shape.action_dim * shape.frame_skip
    return {
        "_target_": "stable_worldmodel.wm.lewm.LeWM",
        "encoder": {
            "_target_": "transformers.ViTModel",
            "config": {
                "_target_": "transformers.ViTConfig",
                "hidden_size": shape.encoder_width,
                "num_hidden_layers": shape.encoder_depth,
                "num_attention_heads": shape.encoder_heads,
                "intermediate_size": shape.encoder_mlp,
                "image_size": shape.image_size,
                "patch_size": shape.patch,
                "layer_norm_eps": 1e-12,
            },
            "add_pooling_layer": False,
        },
        "predictor": {
            "_target_": f"{module}.Predictor",
            "num_frames": shape.history,
            "depth": shape.predictor_depth,
            "heads": shape.predictor_heads,
            "dim_head": shape.predictor_head_dim,
            "mlp_dim": shape.predictor_mlp,
            "input_dim": shape.latent,
            "hidden_dim": shape.predictor_width,
            "output_dim": shape.latent,
            "dropout": shape.dropout,
        },
        "action_encoder": {
            "_target_": f"{module}.Embedder",
            "input_dim": block,
            "smoothed_dim": REF_ACTION_WIDTH if shape.action_width == "ref" else block,
            "emb_dim": shape.latent,
            "mlp_scale": 4,
        },
        "projector": projector(shape.encoder_width),
        "pred_proj": projector(shape.latent),
    }
