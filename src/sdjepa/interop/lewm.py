"""LeWM's weights in, a run of ours out, and back: the same tensors under other names.

`import_lewm` reads a folder stable-worldmodel saved (weights.pt, config.json) or a bare state dict,
with the ViT's names of before or after transformers 5. Every tensor must find its place: a file
that fits only by half is refused with the names that did not.
"""

import io
import os
import shutil
from pathlib import Path

import numpy as np
import torch

from sdjepa.config import Config, Model
from sdjepa.data.episodes import ActionStats
from sdjepa.errors import UserError
from sdjepa.interop.lewm_file import infer, read_weights
from sdjepa.interop.lewm_keys import Keys, from_lewm, lewm_config, to_lewm
from sdjepa.model.world_model import WorldModel
from sdjepa.resolve import resolve
from sdjepa.runs import Run, provenance, read_json, write_atomic, write_json
from sdjepa.train.checkpoint import find_checkpoint, load_weights, save_tensors, stats_as_json


def import_lewm(
    source: Path, out: Path, *, stats: ActionStats | None = None, frame_skip: int = 5
) -> Path:
    """A run (rung A0) made of LeWM's weights; returns `out`.

    `stats` says how the actions were normalised; without it a stats.json beside the weights is
    used, and without that the run can be read and exported but not planned with.
    """
    if out.exists():
        raise UserError(f"{out} already exists; choose another --out")
    weights = read_weights(source)
    file = weights.file
    if stats is None and (file.parent / "stats.json").exists():
        said = read_json(file.parent / "stats.json")["action"]
        stats = ActionStats(mean=np.array(said["mean"]), std=np.array(said["std"]))
    shape = infer(weights, frame_skip=frame_skip)
    if stats is not None and len(stats.mean) != shape.action_dim:
        raise UserError(
            f"the action statistics have {len(stats.mean)} dimensions, {file} reads blocks of "
            f"{frame_skip} actions of {shape.action_dim}; give the statistics it was trained with"
        )
    model = WorldModel(shape)
    from_lewm(model, weights.tensors, keys=weights.keys)
    config = _run_config(shape)
    origin = {"file": file.name, "keys": weights.keys, "left_behind": weights.left_behind}
    temporary = out.with_name(f".{out.name}.{os.getpid()}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        Run.create(temporary, config)
        checkpoint = temporary / "checkpoints" / "step-00000000"
        checkpoint.mkdir(parents=True)
        save_tensors(model.state_dict(), checkpoint / "model.safetensors")
        write_json(checkpoint / "config.json", config.model_dump())
        if stats is not None:
            write_json(checkpoint / "stats.json", {"action": stats_as_json(stats)})
        write_json(checkpoint / "provenance.json", {"step": 0, "imported": origin, **provenance()})
        (checkpoint.parent / "latest").symlink_to(checkpoint.name)
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return out


def export_lewm(run: Path, out: Path, *, keys: Keys = "new") -> Path:
    """weights.pt and config.json as stable-worldmodel loads them; returns `out`.

    `keys` = old names the ViT's tensors as transformers before version 5 did.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty; choose another --out")
    checkpoint = find_checkpoint(run)
    config = Config.model_validate(read_json(checkpoint / "config.json"))
    shape = config.model
    beyond = [
        name
        for name, there in (
            ("model.polar", shape.polar != "off"),
            ("model.split = learned", shape.split == "learned" and shape.k > 0),
            ("model.progress_head", shape.progress_head),
            ("model.tokens", shape.tokens > 0),
        )
        if there
    ]
    if beyond:
        raise UserError(f"LeWM has no place for {', '.join(beyond)} of {run}; export another rung")
    model = WorldModel(shape)
    load_weights(model, checkpoint)
    buffer = io.BytesIO()
    torch.save(to_lewm(model, keys=keys), buffer)
    write_json(out / "config.json", lewm_config(shape))
    if (checkpoint / "stats.json").exists():
        write_json(out / "stats.json", read_json(checkpoint / "stats.json"))
    write_atomic(out / "weights.pt", buffer.getvalue())
    return out


def _run_config(shape: Model) -> Config:
    tree = resolve(rung="A0").model_dump()
    tree["model"] = shape.model_dump()
    tree["data"] |= {"frame_skip": shape.frame_skip, "window_frames": shape.history + 1}
    return Config.model_validate(tree)
