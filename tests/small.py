"""What is small enough for a test: a model with every gate open, batches for it, a file."""

from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor

from sdjepa import ranks
from sdjepa.config import Config, Model, Objectives
from sdjepa.model.world_model import WorldModel, build
from sdjepa.objectives.total import Scene, draws, extent, observe
from sdjepa.runs import Progress
from sdjepa.seeds import stream

SIZES = {
    "image_size": 28,
    "patch": 14,
    "encoder_width": 24,
    "encoder_depth": 2,
    "encoder_heads": 3,
    "encoder_mlp": 48,
    "latent": 16,
    "projector_hidden": 32,
    "predictor_width": 16,
    "predictor_depth": 2,
    "predictor_heads": 2,
    "predictor_head_dim": 8,
    "predictor_mlp": 32,
    "action_dim": 2,
    "frame_skip": 5,
}


def small_model(*, stirred: bool = True, seed: int = 0, **changes: object) -> WorldModel:
    """A tiny model; `stirred` moves every weight away from its initial value (gates start at 0)."""
    model = build(Model.model_validate(SIZES | changes), seed=seed)
    if stirred:
        stir(model, seed=seed)
    return model


def stir(model: torch.nn.Module, *, seed: int = 0, std: float = 0.2) -> None:
    generator = stream(seed, "stir")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += std * torch.randn(parameter.shape, generator=generator)


def small_config(config: Config) -> Config:
    """The same configuration with the widths of a tiny model."""
    tree = config.model_dump()
    tree["model"] |= SIZES
    tree["train"] |= {"precision": "fp32", "batch": 8, "learning_rate": 1e-3}
    return Config.model_validate(tree)


def random_batch(
    batch: int = 8, time: int = 4, *, block: int = 10, size: int = 28, seed: int = 0
) -> dict[str, Tensor]:
    """Windows of noise; half of the rows share an episode with another row."""
    generator = stream(seed, "batch")
    start = torch.randint(0, 4, (batch, 1), generator=generator)
    return {
        "frames": torch.randint(
            0, 256, (batch, time, size, size, 3), generator=generator, dtype=torch.uint8
        ),
        "actions": torch.randn(batch, time, block, generator=generator),
        "episode": torch.arange(batch) // 2,
        "step": start + 5 * torch.arange(time),
    }


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Standard Gaussian numbers that depend on `seed` alone."""
    return torch.randn(*shape, generator=stream(seed, "noise", *shape))


def scene_of(
    model: WorldModel, settings: Objectives, batch: dict[str, Tensor], *, step: int = 0
) -> Scene:
    rows, time = batch["frames"].shape[:2]
    drawn = draws(
        settings,
        extent(model.config, rows=rows * ranks.world_size(), time=time),
        seed=0,
        step=step,
        device=torch.device("cpu"),
    )
    return observe(model, settings, **batch, drawn=drawn)


class Crash(Exception):
    """What a test stops a run with."""


def crash_at(step: int, *, of: int = 12) -> Progress:
    """A progress report under which a run of `of` steps dies after `step`."""

    def report(done: int, total: int, note: str = "") -> None:
        if total == of and done == step:
            raise Crash

    return report


def foreign(path: Path, *, size: int = 8, lengths: tuple[int, ...] = (5, 3, 4), **changes) -> Path:
    """A file as LeWM's collector would write it; `changes` replace or (None) remove columns."""
    rows = sum(lengths)
    rng = np.random.default_rng(0)
    columns = {
        "pixels": rng.integers(0, 255, (rows, size, size, 3), dtype=np.uint8),
        "action": rng.normal(size=(rows, 2)).astype(np.float32),
        "proprio": rng.normal(size=(rows, 2)),
        "ep_idx": np.repeat(np.arange(len(lengths)), lengths),
        "ep_len": np.array(lengths, dtype=np.int32),
        "ep_offset": np.cumsum((0, *lengths[:-1])),
        **changes,
    }
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            if values is not None:
                file.create_dataset(name, data=values)
    return path
