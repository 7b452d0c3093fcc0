"""A dataset in, its data card out: what is in it, and how hard the tasks made from it are.

DIR/card.json holds the numbers, DIR/card.md the same for people, DIR/card.png a contact sheet: a
row for each of three episodes, from its first frame to its last, or of a pack for each of some
tasks. A task is a recorded state and the state `offset` steps later; those already solved at the
start, or solved by doing nothing, are a floor under every score on the dataset; replaying is a
roof.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from sdjepa.data.card_text import markdown
from sdjepa.data.check_env import refuse_misnamed, remedy, said_by
from sdjepa.data.episodes import Episodes
from sdjepa.data.layout import PIXELS
from sdjepa.data.replaying import (
    candidate_starts,
    misfit,
    replay,
    restoring,
    sound_starts,
    unsound,
)
from sdjepa.data.sheet import contact_sheet
from sdjepa.data.writer import describe
from sdjepa.envs.base import NAMES, Env, make
from sdjepa.errors import UserError
from sdjepa.runs import Progress, silent, write_atomic, write_json
from sdjepa.seeds import numpy_stream

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


def card(
    path: Path,
    *,
    tasks: int = 100,
    offset: int = 25,
    budget: int = 50,
    named: str | None = None,
    env: Env | None = None,
    progress: Progress = silent,
) -> Path:
    """Write the data card of dataset `path`; tasks are simulated where the environment is known.

    Nothing is written before all is known. The tasks of a pack are its own, whatever the `offset`.
    `named` is the environment's name where the data do not say it or say it wrongly.
    """
    with Episodes.open(path, env=named) as data:
        refuse_misnamed(data)
        if amiss := misfit(data):
            raise UserError(f"{path} has {amiss}; {remedy(data)}")
        record = _describe(data)
        if data.env in NAMES:
            env = env or make(data.env, shadow=(record["collect"] or {}).get("shadow", 0))
            offset = (record["pack"] or {}).get("offset", offset)
            record["tasks"] = task_floors(
                data, env, count=tasks, offset=offset, budget=budget, progress=progress
            )
        picture, shown = contact_sheet(data)
        text = markdown(record, picture=data.beside("card.png").name, shown=shown)
        write_atomic(data.beside("card.png"), picture)
        write_json(data.beside("card.json"), record)
        return write_atomic(data.beside("card.md"), text)


def task_floors(
    data: Episodes, env: Env, *, count: int, offset: int, budget: int, progress: Progress = silent
) -> dict[str, Any]:
    """Of `count` tasks, spread over all rows: how many need nothing done, or can be done at all."""
    starts = sound_starts(data, offset)
    candidates = len(candidate_starts(data, offset))
    left_out = candidates - len(starts)
    if left_out and not len(starts):
        raise UserError(
            f"{data.path} has no task to try: {unsound(data)}; sdjepa data audit says more"
        )
    if not len(starts):
        return {"offset": offset, "found": 0}
    rng = numpy_stream(0, "card", offset)
    chosen = np.sort(rng.choice(starts, size=min(count, len(starts)), replace=False))
    solved, idle, replayed, distances = 0, 0, 0, []
    for done, row in enumerate(chosen, start=1):
        with restoring(data, int(row)):
            env.set_state(data.row(row))
            env.set_goal(data.row(row + offset))
            distances.append(env.distance())
            solved += (now := env.solved())
            for _ in range(0 if now else budget):
                env.step(np.zeros(env.action_dim, dtype=np.float32))
                if now := env.solved():
                    break
            idle += now
            replayed += replay(data, env, int(row), offset) is not None
        progress(done, len(chosen), "tasks for the data card")
    return {
        "offset": offset,
        "budget": budget,
        "found": len(chosen),
        "candidates": candidates,
        "starts_left_out": left_out,
        "solved_at_start_share": solved / len(chosen),
        "solved_by_doing_nothing_share": idle / len(chosen),
        "solved_by_replaying_share": replayed / len(chosen),
        "start_distance_is": env.distance_is,
        "start_distance_quantiles": {str(s): float(np.quantile(distances, s)) for s in SHARES},
    }


def _describe(data: Episodes) -> dict[str, Any]:
    info, stated = data.info, data.env_origin == "stated"
    action = data.column("action").astype(np.float64)
    action = action[np.isfinite(action).all(axis=1)]
    if not len(action):
        raise UserError(
            f"no row of {data.path} has an action (all are missing, or every episode is one row); "
            "collect more or longer episodes"
        )
    return {
        "env": data.env,
        "env_said": None if stated or data.env not in NAMES else said_by(data),
        "policy": info.get("policy"),
        "seed": info.get("seed"),
        "collect": info.get("collect"),
        "converted": info.get("converted"),
        "pack": info.get("pack"),
        "num_episodes": len(data),
        "num_frames": data.num_rows,
        "image_size": data.image_size,
        "episode_rows": {str(s): round(float(np.quantile(data.lengths, s))) for s in SHARES},
        "split": {name: len(data.episode_ids(name)) for name in ("train", "validation", "test")},
        "split_hash": data.split_hash,
        "action": {
            "mean": action.mean(0),
            "std": action.std(0),
            "min": action.min(0),
            "max": action.max(0),
            "lag1_correlation": _lag1(data),
        },
        "normaliser": info["action"],
        "columns": info.get("columns") or _columns(data),
    }


def _columns(data: Episodes) -> dict[str, Any]:
    """What dataset.json would say of the columns, but for the frames' checksum."""
    with np.errstate(all="ignore"):  # statistics of anything
        found = {name: describe(data.column(name)) for name in data.columns}
    shape = [data.image_size, data.image_size, 3]
    return {**found, PIXELS: {"dtype": "uint8", "shape": shape}}


def _lag1(data: Episodes) -> Float[np.ndarray, "action"]:
    """Correlation of an action with the next one: near 0 for random, near 1 for smooth policies."""
    action = data.column("action").astype(np.float64)
    pairs = np.isfinite(action[:-1]).all(1) & np.isfinite(action[1:]).all(1)
    if not pairs.any():
        return np.zeros(data.action_dim)
    first, second = action[:-1][pairs], action[1:][pairs]
    first, second = first - first.mean(0), second - second.mean(0)
    scale = np.sqrt((first**2).sum(0) * (second**2).sum(0))
    return (first * second).sum(0) / np.maximum(scale, 1e-12)
