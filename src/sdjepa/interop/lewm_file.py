"""A file of LeWM's weights in, its tensors and the widths they imply out.

Nothing is unpickled but tensors.
"""

import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sdjepa.config import Model
from sdjepa.errors import UserError
from sdjepa.interop.lewm_keys import ANCHOR, LAYER, Keys
from sdjepa.model.predictor import REF_ACTION_WIDTH
from sdjepa.runs import read_json

SUFFIXES = (".pt", ".pth", ".ckpt", ".safetensors")
STANDARD_HEAD_DIM = 64  # of every standard ViT and of LeWM's predictor; shapes do not tell
VIT_HEADS = {"tiny": 3, "small": 6, "base": 12, "large": 16, "huge": 16}
# Constants of the regulariser that are saved along with a whole training module; not weights.
NOT_WEIGHTS = {"sigreg.t", "sigreg.phi", "sigreg.weights"}


@dataclass(frozen=True)
class Weights:
    """LeWM's tensors under LeWM's own names, without the prefix of a surrounding module."""

    file: Path
    tensors: dict[str, Tensor]
    keys: Keys
    left_behind: list[str]  # known constants that are no weights
    described: dict[str, Any]  # config.json beside the file, or nothing


def read_weights(source: Path) -> Weights:
    """The weights in a folder stable-worldmodel saved, or in a state dict file."""
    file, described = _find(source)
    tensors, left = _strip(_read_tensors(file), file)
    return Weights(file, tensors, _key_style(tensors, file), sorted(left), described)


def _find(source: Path) -> tuple[Path, dict[str, Any]]:
    """The file with the weights, and the model's description beside it if there is one."""
    if not source.exists():
        raise UserError(f"{source} does not exist; give a folder with weights.pt, or a state dict")
    file = source
    if source.is_dir():
        files = sorted(path for path in source.iterdir() if path.suffix in SUFFIXES)
        if len(files) != 1:
            found = ", ".join(path.name for path in files) or "none"
            raise UserError(f"{source} must hold one file of weights, found {found}; name the file")
        file = files[0]
    beside = file.parent / "config.json"
    described = read_json(beside) if beside.exists() else {}
    described = described.get("model", described) if isinstance(described, dict) else {}
    return file, described if isinstance(described, dict) else {}


def _read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"{file} holds objects, and loading it would run their code; save the tensors alone: "
            "torch.save(model.state_dict(), 'weights.pt')"
        ) from None
    except (SafetensorError, RuntimeError, EOFError, OSError) as error:
        raise UserError(
            f"{file} is damaged ({str(error).splitlines()[0]}); get it again"
        ) from error
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise UserError(f"{file} is no state dict (names to tensors); save model.state_dict()")
    return loaded


def _strip(tensors: dict[str, Tensor], file: Path) -> tuple[dict[str, Tensor], set[str]]:
    """Tensors under LeWM's own names, and the names of those that are no weights."""
    roots = [name.removesuffix(ANCHOR) for name in tensors if name.endswith(ANCHOR)]
    if len(roots) != 1:
        raise UserError(
            f"{file} holds {len(roots)} LeWM predictors ({ANCHOR}), one was needed; it "
            f"starts with {', '.join(list(tensors)[:5])}"
        )
    left = set(tensors) & NOT_WEIGHTS
    return {
        name.removeprefix(roots[0]): tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
        if name not in left
    }, left


def _key_style(tensors: dict[str, Tensor], file: Path) -> Keys:
    found: list[Keys] = [
        keys
        for keys, (root, _) in LAYER.items()
        if any(name.startswith(f"{root}.") for name in tensors)
    ]
    if len(found) != 1:
        layers = sorted({name for name in tensors if name.startswith("encoder.")})[:5]
        raise UserError(
            f"{file} has no encoder with the names of transformers' ViT, old or new; its encoder "
            f"starts with {', '.join(layers) or 'nothing'}"
        )
    return found[0]


def infer(weights: Weights, *, frame_skip: int) -> Model:
    """Widths from the shapes; head counts, which no shape tells, from the description."""
    tensors, file = weights.tensors, weights.file
    root, names = LAYER[weights.keys]

    def size(name: str, dim: int = 0) -> int:
        if name not in tensors or dim >= tensors[name].ndim:
            raise UserError(f"{file} lacks {name}; save model.state_dict() of a whole LeWM")
        return tensors[name].shape[dim]

    def depth(prefix: str) -> int:
        inner = [n.removeprefix(f"{prefix}.") for n in tensors if n.startswith(f"{prefix}.")]
        return len({name.partition(".")[0] for name in inner})

    conv, blocks = "encoder.embeddings.patch_embeddings.projection.weight", "predictor.transformer"
    patch, width = size(conv, 2), size(conv)
    inner = size(f"{blocks}.layers.0.attn.to_qkv.weight") // 3
    encoder = weights.described.get("encoder", {})
    predictor = weights.described.get("predictor", {})
    heads = encoder.get("config", {}).get("num_attention_heads")
    heads = heads or VIT_HEADS.get(encoder.get("size", ""))
    shape = {
        "image_size": math.isqrt(size("encoder.embeddings.position_embeddings", 1) - 1) * patch,
        "patch": patch,
        "encoder_width": width,
        "encoder_depth": depth(root),
        "encoder_heads": heads or _standard_heads(width, "encoder", file),
        "encoder_mlp": size(f"{root}.0.{names['mlp.up'][0]}.weight"),
        "latent": size("projector.net.3.weight"),
        "projector_hidden": size("projector.net.0.weight"),
        "history": size(ANCHOR, 1),
        "predictor_width": size(f"{blocks}.norm.weight"),
        "predictor_depth": depth(f"{blocks}.layers"),
        "predictor_heads": predictor.get("heads") or _standard_heads(inner, "predictor", file),
        "predictor_head_dim": predictor.get("dim_head", STANDARD_HEAD_DIM),
        "predictor_mlp": size(f"{blocks}.layers.0.mlp.net.1.weight"),
        "dropout": predictor.get("dropout", Model.model_fields["dropout"].default),
        "k": 0,
        **_action_shape(
            size("action_encoder.patch_embed.weight", 1),
            size("action_encoder.patch_embed.weight"),
            frame_skip=frame_skip,
            file=file,
        ),
    }
    try:
        return Model.model_validate(shape)
    except ValidationError as error:
        raise UserError(f"{file} is no LeWM: {error.errors()[0]['msg']}") from error


def _action_shape(block: int, squeezed: int, *, frame_skip: int, file: Path) -> dict[str, Any]:
    if block % frame_skip:
        raise UserError(
            f"{file} reads action blocks of {block}, no multiple of the frame skip {frame_skip}; "
            "give the frame skip it was trained with"
        )
    if squeezed not in (REF_ACTION_WIDTH, block):
        raise UserError(
            f"{file} squeezes actions to {squeezed}, not to {REF_ACTION_WIDTH} or {block}"
        )
    return {
        "action_dim": block // frame_skip,
        "frame_skip": frame_skip,
        "action_width": "ref" if squeezed == REF_ACTION_WIDTH else "block",
    }


def _standard_heads(width: int, part: str, file: Path) -> int:
    if width % STANDARD_HEAD_DIM:
        raise UserError(
            f"{file} does not say how many heads its {part} has, and {width} is no multiple of "
            f"{STANDARD_HEAD_DIM}; put its config.json beside it"
        )
    return width // STANDARD_HEAD_DIM
