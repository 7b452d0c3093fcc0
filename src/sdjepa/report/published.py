"""Numbers other papers print, and how far a run's setting is from theirs."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from sdjepa.config import Config
from sdjepa.explain import explain
from sdjepa.report.read import Score


@dataclass(frozen=True)
class Published:
    """One printed success rate (percent)."""

    name: str
    note: str
    value: float


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files("sdjepa.envs") / "published.toml").read_text())


def setting() -> str:
    """The setting behind the printed numbers, in words."""
    return _table()["setting"]["text"]


def parameters() -> int:
    """Trainable numbers of the published model."""
    return _table()["setting"]["parameters"]


def title(env: str) -> str:
    """The environment's name as papers write it."""
    return _table()["titles"].get(env, env)


def success(env: str) -> tuple[Published, ...]:
    """The printed numbers for `env`, in the order of the table; empty for an unknown one."""
    return tuple(
        Published(name=row["name"], note=row["note"], value=row["success"][env])
        for row in _table()["method"]
        if env in row["success"]
    )


# What decides whether two success rates may be read as one experiment, and how to say it.
_COMPARED = (
    ("model.image_size", "pixels"),
    ("model.encoder_width", "encoder width"),
    ("model.encoder_depth", "encoder layers"),
    ("model.predictor_depth", "predictor layers"),
    ("model.latent", "latent numbers"),
    ("collect.episodes", "episodes"),
    ("plan.candidates", "candidates per plan"),
    ("plan.iterations", "planner iterations"),
    ("score.offset", "steps from start to goal"),
    ("score.budget", "steps allowed"),
)


def differences(config: Config, score: Score, *, episodes: int | None = None) -> tuple[str, ...]:
    """Where the run departs from the published setting, as `64 instead of 224 pixels`.

    `episodes` it was trained on, where that is known: a recipe only says how many to collect.
    """
    ours, theirs = config.model_dump(), Config().model_dump()
    if episodes is not None:
        ours["collect"]["episodes"] = episodes
    found = []
    for key, word in _COMPARED:
        section, leaf = key.split(".")
        here, there = ours[section][leaf], theirs[section][leaf]
        if here != there:
            found.append(f"{here:,} instead of {there:,} {word}")
    if score.protocol != "lewm":
        found.append(f"the {score.protocol} protocol instead of lewm")
    return tuple(found)


def otherwise(config: Config, score: Score) -> tuple[str, ...]:
    """Every other setting in which a score departs from the paper: training, search and tasks."""
    said = score.record.get("config") or {}
    own = {key: said[key] for key in ("plan", "score") if key in said}
    try:
        config = Config.model_validate(config.model_dump() | own)
    except ValueError:  # written by another version
        return ("settings that this version cannot read",)
    return tuple(
        f"{point.key} = {point.value}" for point in explain(config) if point.kind == "departs"
    )
