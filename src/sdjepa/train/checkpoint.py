"""A checkpoint is a directory of plain files; nothing in it is ever executed.

    model.safetensors     weights and BatchNorm statistics
    config.json           the resolved configuration
    stats.json            how actions were normalised
    provenance.json       step, versions, code state
    training.safetensors  optimiser moments; with an average, also the weights it was made of

`model.safetensors` is what everyone uses, so with an average it holds the averaged weights.

A directory is written under another name and renamed whole, and `latest` is swung over afterwards,
so a kill at any moment leaves the previous checkpoint in place.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from sdjepa.config import Config
from sdjepa.data.episodes import ActionStats, Episodes
from sdjepa.envs.base import NAMES
from sdjepa.errors import UserError
from sdjepa.model.world_model import WorldModel
from sdjepa.runs import Run, provenance, read_json, write_json
from sdjepa.train.average import Average

LAST = "last"  # marks the weights of the last step beside an average


@dataclass(frozen=True)
class Checkpoint:
    """A trained model with what it needs to be used."""

    model: WorldModel
    config: Config
    stats: ActionStats
    step: int
    path: Path


def save_checkpoint(
    run: Run,
    model: WorldModel,
    *,
    optimizer: torch.optim.Optimizer,
    average: Average | None,
    config: Config,
    stats: ActionStats,
    step: int,
) -> Path:
    """Write `checkpoints/step-N`, point `latest` at it, drop the oldest beyond those to keep."""
    root = run.path / "checkpoints"
    final = root / f"step-{step:08d}"
    if not final.exists():
        temporary = root / f".step-{step:08d}.partial"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            state, training = model.state_dict(), _optimizer_tensors(model, optimizer)
            if average is not None:
                training |= {f"{name}::{LAST}": state[name] for name in average.values}
                state = state | average.values
            save_tensors(_on_cpu(state), temporary / "model.safetensors")
            save_tensors(_on_cpu(training), temporary / "training.safetensors")
        except (OSError, SafetensorError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise UserError(
                f"could not write the checkpoint of step {step}: {error}; free some space and "
                f"continue with: sdjepa train --resume {run.path}"
            ) from error
        write_json(temporary / "config.json", config.model_dump())
        write_json(temporary / "stats.json", {"action": stats_as_json(stats)})
        write_json(temporary / "provenance.json", {"step": step, **provenance()})
        for file in temporary.iterdir():
            _sync(file)
        temporary.rename(final)
        _sync(root)
    _point_latest(root, final.name)
    finished = sorted(root.glob("step-*"))
    for old in finished[: -config.train.keep_checkpoints]:
        shutil.rmtree(old)
    return final


def save_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    """As safetensors does, which lets nobody else read the file, with the rights of any other."""
    file.touch()
    rights = file.stat().st_mode
    save_file(tensors, file)
    file.chmod(rights)


def stats_as_json(stats: ActionStats) -> dict[str, list[float]]:
    return {"mean": stats.mean.tolist(), "std": stats.std.tolist()}


def _on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _optimizer_tensors(model: WorldModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}::{key}": torch.as_tensor(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _point_latest(root: Path, name: str) -> None:
    link = root / ".latest.partial"
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    link.replace(root / "latest")


def find_checkpoint(path: Path, name: str = "latest") -> Path:
    """The checkpoint directory of a run, or `path` itself when it is one."""
    for found in (path, path / "checkpoints" / name):
        if (found / "model.safetensors").exists():
            return found.resolve()
    if not path.exists():
        raise UserError(f"{path} does not exist. Make a run with: sdjepa train RECIPE --out {path}")
    raise UserError(
        f"{path} has no checkpoint {name!r}. Continue with: sdjepa train --resume {path}"
    )


def load_config(path: Path, name: str = "latest") -> Config:
    """The configuration of a run's checkpoint, without its weights."""
    return Config.model_validate(read_json(find_checkpoint(path, name) / "config.json"))


def load_checkpoint(path: Path, name: str = "latest", *, device: str = "cpu") -> Checkpoint:
    """The model of a run (or of a bare checkpoint directory) in eval mode, strictly loaded."""
    found = find_checkpoint(path, name)
    config = Config.model_validate(read_json(found / "config.json"))
    stats = read_json(found / "stats.json")["action"]
    model = WorldModel(config.model)
    load_weights(model, found)
    return Checkpoint(
        model=model.to(device).eval(),
        config=config,
        stats=ActionStats(mean=np.array(stats["mean"]), std=np.array(stats["std"])),
        step=read_json(found / "provenance.json")["step"],
        path=found,
    )


def seeming_other(path: Path, data: Episodes) -> str:
    """How data seem to be of another environment than the run at `path` was trained on; or ""."""
    trained_on, guessed = _trained_on(path)
    if trained_on == data.env or not {trained_on, data.env} <= set(NAMES):
        return ""
    ours, theirs = (" by its columns" * each for each in (guessed, data.env_origin == "guessed"))
    return f"trained on {trained_on}{ours}, played on {data.env}{theirs}"


def refuse_other(path: Path, config: Config, data: Episodes) -> None:
    """Refuse data of another environment than the run was trained on; a guess refuses nothing."""
    trained_on, guessed = _trained_on(path)
    sure = not guessed and data.env_origin != "guessed"
    other, width = sure and bool(seeming_other(path, data)), config.model.action_dim
    if other or width != data.action_dim:
        own = f"{trained_on} ({width} actions)" if other else f"data with {width} actions"
        raise UserError(
            f"{path} was trained on {own}, {data.path} is {data.env} ({data.action_dim} actions); "
            "name data of the same by --data"
        )


def _trained_on(path: Path) -> tuple[str | None, bool]:
    """The environment a run's data were of, as its manifest says, and whether that was guessed."""
    noted = path / "manifest.json"
    on = (read_json(noted).get("data") or {}) if noted.exists() else {}
    return on.get("env"), on.get("env_guessed", True)


def load_weights(model: WorldModel, checkpoint: Path) -> None:
    """Load strictly; a checkpoint of another shape is refused before anything is changed."""
    file = checkpoint / "model.safetensors"
    file.open("rb").close()  # of one that may not be read safetensors says that it is missing
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    try:
        with safe_open(file, framework="pt") as opened:
            found = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(f"{file} is damaged ({error}); use another checkpoint") from error
    wrong = [name for name in expected if found.get(name) != expected[name]]
    extra = sorted(set(found) - set(expected))
    if wrong or extra:
        name = (wrong or extra)[0]
        raise UserError(
            f"{file} does not fit this model: {name} is {found.get(name, 'missing')} there, "
            f"{expected.get(name, 'missing')} here ({len(wrong) + len(extra)} tensors differ); "
            "load it with the config.json beside it"
        )
    model.load_state_dict(load_file(file))


def restore(
    model: WorldModel,
    optimizer: torch.optim.Optimizer,
    *,
    average: Average | None,
    checkpoint: Path,
) -> int:
    """Put weights, their average and optimiser back; returns the number of steps already taken."""
    load_weights(model, checkpoint)
    saved = load_file(checkpoint / "training.safetensors")
    parameters = dict(model.named_parameters())
    state = model.state_dict()
    for key, tensor in saved.items():
        name, _, what = key.partition("::")
        if what == LAST:
            assert average is not None
            average.values[name].copy_(state[name])
            state[name].copy_(tensor)
        else:
            # AdamW counts steps on the CPU unless it runs on a GPU.
            optimizer.state[parameters[name]][what] = tensor.to(parameters[name].device)
    return json.loads((checkpoint / "provenance.json").read_text())["step"]
