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

from sdjepa.data import sheet
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
from sdjepa.data.writer import describe
from sdjepa.envs.base import NAMES, Env, env_class, make
from sdjepa.errors import UserError
from sdjepa.runs import Progress, silent, write_atomic, write_json
from sdjepa.seeds import numpy_stream
from sdjepa.statistics import wilson95

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)


def card(
    path: Path,
    *,
    tasks: int = 100,
    offset: int = 25,
    budget: int = 50,
    env: Env | None = None,
    progress: Progress = silent,
) -> Path:
    """Write the data card of dataset `path`; tasks are simulated where the environment is known.

    Nothing is written before all is known. The tasks of a pack are its own, whatever the `offset`.
    """
    with Episodes.open(path) as data:
        if amiss := misfit(data):
            raise UserError(f"{path} has {amiss}; convert it with the right --env")
        record = _describe(data)
        if data.env in NAMES:
            env = env or make(data.env, shadow=(record["collect"] or {}).get("shadow", 0))
            offset = (record["pack"] or {}).get("offset", offset)
            record["tasks"] = task_floors(
                data, env, count=tasks, offset=offset, budget=budget, progress=progress
            )
        rows = sheet.chosen(data)
        frames = data.frames(rows.ravel())
        picture = sheet.png(frames.reshape(*rows.shape, *frames.shape[1:]))
        name = data.beside("card.png").name
        text = _markdown(record, picture=name)
        write_atomic(data.beside("card.png"), picture)
        write_json(data.beside("card.json"), record)
        return write_atomic(data.beside("card.md"), text)


def task_floors(
    data: Episodes, env: Env, *, count: int, offset: int, budget: int, progress: Progress = silent
) -> dict[str, Any]:
    """Of `count` tasks, spread over all rows: how many need nothing done, or can be done at all."""
    starts = sound_starts(data, offset)
    left_out = len(candidate_starts(data, offset)) - len(starts)
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
        "starts_left_out": left_out,
        "solved_at_start_share": solved / len(chosen),
        "solved_by_doing_nothing_share": idle / len(chosen),
        "solved_by_replaying_share": replayed / len(chosen),
        "start_distance_is": env.distance_is,
        "start_distance_quantiles": {str(s): float(np.quantile(distances, s)) for s in SHARES},
    }


def _describe(data: Episodes) -> dict[str, Any]:
    info = data.info
    action = data.column("action").astype(np.float64)
    action = action[np.isfinite(action).all(axis=1)]
    if not len(action):
        raise UserError(
            f"no row of {data.path} has an action (all are missing, or every episode is one row); "
            "collect more or longer episodes"
        )
    return {
        "env": data.env,
        "policy": info.get("policy"),
        "seed": info.get("seed"),
        "collect": info.get("collect"),
        "converted": info.get("converted"),
        "pack": info.get("pack"),
        "num_episodes": len(data),
        "num_frames": data.num_rows,
        "image_size": data.image_size,
        "episode_rows": {str(s): int(np.quantile(data.lengths, s)) for s in SHARES},
        "split": {name: len(data.episode_ids(name)) for name in ("train", "validation", "test")},
        "split_hash": data.split_hash,
        "action": {
            "mean": action.mean(0),
            "std": action.std(0),
            "min": action.min(0),
            "max": action.max(0),
            "lag1_correlation": _lag1(data),
        },
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


def _number(value: float) -> str:
    """Three digits; what simulators leave of nothing is nothing."""
    return f"{0 if abs(value) < 1e-6 else value:.3g}"


def _numbers(values: Any) -> str:
    return ", ".join(_number(float(value)) for value in values)


def _share(share: float, count: int) -> str:
    low, high = wilson95(share * count, count)
    return f"{100 * share:.0f} % ({low:.0f} to {high:.0f})"


def _markdown(record: dict[str, Any], *, picture: str) -> str:
    action, pack = record["action"], record["pack"]
    quantiles = ", ".join(str(record["episode_rows"][share]) for share in ("0.05", "0.5", "0.95"))
    sides = ", ".join(map(str, record["split"].values()))
    rows = [
        *_origin(record),
        ("Tasks" if pack else "Episodes", f"{record['num_episodes']:,}"),
        _frames(record),
        (f"Rows of {'a task' if pack else 'an episode'} (5, 50, 95 %)", quantiles),
        *([] if pack else [("Episodes for train, validation, test", sides)]),
        *([] if record["seed"] is None else [("Seed", str(record["seed"]))]),
        *_policy(record),
        ("Action mean", _numbers(action["mean"])),
        ("Action standard deviation", _numbers(action["std"])),
        ("Correlation with the next action", _numbers(action["lag1_correlation"])),
        *_tasks(record.get("tasks", {})),
    ]
    if shadow := (record["collect"] or {}).get("shadow"):
        rows.append(("Shadow map", f"{shadow} texels a side, not the benchmark's"))
    shown = "starts and goals of tasks" if pack else "three episodes from start to end"
    lines = [
        f"# {'Evaluation pack' if pack else 'Data card'}: {record['env']}",
        "",
        f"![{shown}]({picture})",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in rows),
        "",
        "## Columns",
        "",
        "| column | type | shape of a row | SHA-256 |",
        "|---|---|---|---|",
    ]
    for name, column in record["columns"].items():
        shape = " x ".join(map(str, column["shape"])) or "scalar"
        checksum = column.get("sha256", "not asked for")[:16]
        lines.append(f"| {name} | {column['dtype']} | {shape} | {checksum} |")
    return "\n".join(lines) + "\n"


def _frames(record: dict[str, Any]) -> tuple[str, str]:
    size, count = record["image_size"], record["num_frames"]
    if not record["pack"]:
        return "Frames", f"{count:,} of {size} px"
    ends = record["num_episodes"] * (2 if record["pack"]["offset"] else 1)
    black = "; black ones stand between" if count > ends else ""
    return "Frames", f"{ends:,} of {size} px, of starts and goals{black}"


def _origin(record: dict[str, Any]) -> list[tuple[str, str]]:
    """What it was made from, where it was not collected."""
    rows = []
    if pack := record["pack"]:
        of = pack["of"]
        how = f"goals {pack['offset']} steps ahead, tasks chosen as in {pack['protocol']}"
        rows.append(("A pack of", f"{of['name']} ({of['rows']:,} rows); {how}"))
    if converted := record["converted"]:
        native = (record["collect"] or {}).get("size")
        size = record["image_size"]
        if native and native != size:
            frames = f"frames of {native} px reduced to {size}"
        elif converted.get("size"):
            frames = f"frames made to be {size} px"
        else:
            frames = "frames as they were"
        camera = converted.get("camera")
        seen = f", camera {camera}" if camera else ""
        kind = {"lerobot": " (LeRobot)"}.get(converted.get("kind"), "")
        if converted.get("ours") is False and not kind:
            kind = " (another program's)"
        rows.append(("Converted from", f"{converted['from']}{kind}{seen}; {frames}"))
    return rows


def _policy(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Who acted, as far as that is known."""
    policy, env = record["policy"] or {}, record["env"]
    if "name" not in policy:
        return []
    said = policy["name"]
    if "demos_sha256" in policy:
        given = Path((record["collect"] or {}).get("demos") or "").name
        said += f" ({given + ', ' if given else ''}SHA-256 {policy['demos_sha256'][:16]})"
    noiseless = env_class(env).noiseless if env in NAMES else ()
    if "noise" in policy and policy["name"] not in noiseless:
        said += f", noise {policy['noise']}"
    rows = [("Policy", said)]
    if {"success_share", "successes_per_episode"} <= set(policy):
        share, often = policy["success_share"], policy["successes_per_episode"]
        goals = f"{100 * share:.0f} % ({often:.2f} goals an episode)"
        rows.append(("Episodes in which the policy reached a goal", goals))
    return rows


def _tasks(tasks: dict[str, Any]) -> list[tuple[str, str]]:
    """How hard its tasks are."""
    if not tasks:
        return []
    ahead = f"goal {tasks['offset']} steps ahead"
    if not tasks["found"]:
        return [("Tasks", f"none: no episode goes on for {tasks['offset']} steps")]
    distances = _numbers(tasks["start_distance_quantiles"][s] for s in ("0.05", "0.5", "0.95"))
    at_start, idle, replayed = (
        _share(tasks[f"solved_{how}_share"], tasks["found"])
        for how in ("at_start", "by_doing_nothing", "by_replaying")
    )
    rows = [
        (f"Tasks looked at, {ahead} (95 % intervals)", str(tasks["found"])),
        ("... solved at the start", at_start),
        (f"... solved by doing nothing for {tasks['budget']} steps", idle),
        ("... solved by the recorded actions", replayed),
        ("... distance to the goal (5, 50, 95 %)", f"{distances} {tasks['start_distance_is']}"),
    ]
    if tasks["starts_left_out"]:
        rows.append(("... starts that no simulator can take", f"{tasks['starts_left_out']:,}"))
    return rows
