"""A dataset in, its data card out: what is in it, and how hard the tasks made from it are.

DIR/card.json holds the numbers, DIR/card.md the same for people, DIR/card.png a contact sheet: a
row for each of three episodes, from its first frame to its last. A task
is a recorded state and the state `offset` steps later; those already solved at the start, or solved
by doing nothing, are a floor under every score on the dataset; replaying is a roof.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from sdjepa.data.episodes import Episodes
from sdjepa.envs.base import NAMES, Env, make
from sdjepa.runs import Progress, read_json, silent, write_atomic, write_json
from sdjepa.seeds import numpy_stream
from sdjepa.statistics import wilson95

DOWN, ACROSS = 3, 6  # episodes and frames of the contact sheet
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
    """Write the data card of dataset `path`; tasks are simulated where the environment is known."""
    with Episodes.open(path) as data:
        record = _describe(data)
        if data.env in NAMES:
            env = env or make(data.env, shadow=(record["collect"] or {}).get("shadow", 0))
            record["tasks"] = task_floors(
                data, env, count=tasks, offset=offset, budget=budget, progress=progress
            )
        sheet = [
            data.rows(episode).start + np.linspace(0, data.lengths[episode] - 1, ACROSS).astype(int)
            for episode in _spread(len(data), DOWN)
        ]
        frames = data.frames(np.concatenate(sheet))
        picture = write_atomic(data.beside("card.png"), _png(frames))
        numbers = write_json(data.beside("card.json"), record)
        text = _markdown(read_json(numbers), picture=picture.name)
        return write_atomic(data.beside("card.md"), text)


def task_floors(
    data: Episodes, env: Env, *, count: int, offset: int, budget: int, progress: Progress = silent
) -> dict[str, Any]:
    """Of `count` tasks, spread over all rows: how many need nothing done, or can be done at all."""
    starts = candidate_starts(data, offset)
    if not len(starts):
        return {"offset": offset, "found": 0}
    rng = numpy_stream(0, "card", offset)
    chosen = np.sort(rng.choice(starts, size=min(count, len(starts)), replace=False))
    solved, idle, replayed, distances = 0, 0, 0, []
    for done, row in enumerate(chosen, start=1):
        env.set_state(data.row(row))
        env.set_goal(data.row(row + offset))
        distances.append(env.distance())
        solved += (now := env.solved())
        for _ in range(0 if now else budget):
            env.step(np.zeros(env.action_dim, dtype=np.float32))
            if now := env.solved():
                break
        idle += now
        replayed += replay(data, env, int(row), offset)
        progress(done, len(chosen), "tasks for the data card")
    return {
        "offset": offset,
        "budget": budget,
        "found": len(chosen),
        "solved_at_start_share": solved / len(chosen),
        "solved_by_doing_nothing_share": idle / len(chosen),
        "solved_by_replaying_share": replayed / len(chosen),
        "start_distance_is": env.distance_is,
        "start_distance_quantiles": {str(s): float(np.quantile(distances, s)) for s in SHARES},
    }


def replay(data: Episodes, env: Env, row: int, offset: int) -> bool:
    """Whether the recorded actions lead from recorded row `row` to the goal `offset` rows on."""
    env.set_state(data.row(row))
    env.set_goal(data.row(row + offset))
    solved = env.solved()
    for action in data.column("action")[row : row + offset]:
        if solved:
            break
        env.step(action)
        solved = env.solved()
    return solved


def candidate_starts(data: Episodes, offset: int) -> np.ndarray:
    """Rows whose episode goes on for at least `offset` more."""
    left = np.repeat(data.lengths, data.lengths) - 1 - data.column("step_idx")
    rows = np.repeat(data.offsets, data.lengths) + data.column("step_idx")
    return rows[left >= offset]


def _describe(data: Episodes) -> dict[str, Any]:
    info = data.info
    action = data.column("action").astype(np.float64)
    action = action[np.isfinite(action).all(axis=1)]
    return {
        "env": data.env,
        "policy": info.get("policy"),
        "seed": info.get("seed"),
        "collect": info.get("collect"),
        "converted": info.get("converted"),
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
        "columns": info.get("columns", {}),
    }


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


def _spread(count: int, wanted: int) -> list[int]:
    return sorted({int(i) for i in np.linspace(0, count - 1, wanted).round()})


def _png(frames: UInt8[np.ndarray, "n h w 3"]) -> bytes:
    import io

    from matplotlib import image

    buffer = io.BytesIO()
    _, height, width, _ = frames.shape
    rows = frames.reshape(-1, ACROSS, height, width, 3).swapaxes(1, 2)
    image.imsave(buffer, rows.reshape(-1, ACROSS * width, 3), format="png")
    return buffer.getvalue()


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def _share(share: float, count: int) -> str:
    low, high = wilson95(share * count, count)
    return f"{100 * share:.0f} % ({low:.0f} to {high:.0f})"


def _markdown(record: dict[str, Any], *, picture: str) -> str:
    policy, tasks = record["policy"] or {}, record.get("tasks", {})
    rows = ", ".join(str(record["episode_rows"][share]) for share in ("0.05", "0.5", "0.95"))
    sides = ", ".join(map(str, record["split"].values()))
    lines = [
        f"# Data card: {record['env']}",
        "",
        f"![three episodes from start to end]({picture})",
        "",
        "| | |",
        "|---|---|",
        f"| Episodes | {record['num_episodes']:,} |",
        f"| Frames | {record['num_frames']:,} of {record['image_size']} px |",
        f"| Rows of an episode (5, 50, 95 %) | {rows} |",
        f"| Episodes for train, validation, test | {sides} |",
        f"| Seed | {record['seed']} |",
        f"| Policy | {policy.get('name', 'unknown')}, noise {policy.get('noise', 'unknown')} |",
    ]
    if policy:
        share, often = policy["success_share"], policy["successes_per_episode"]
        lines.append(
            f"| Episodes in which the policy reached a goal | {100 * share:.0f} % "
            f"({often:.2f} goals an episode) |"
        )
    lines += [
        f"| Action mean | {_numbers(record['action']['mean'])} |",
        f"| Action standard deviation | {_numbers(record['action']['std'])} |",
        f"| Correlation with the next action | {_numbers(record['action']['lag1_correlation'])} |",
    ]
    if tasks.get("found"):
        low, mid, high = (tasks["start_distance_quantiles"][s] for s in ("0.05", "0.5", "0.95"))
        at_start, idle, replayed = (
            _share(tasks[f"solved_{how}_share"], tasks["found"])
            for how in ("at_start", "by_doing_nothing", "by_replaying")
        )
        lines += [
            f"| Tasks looked at, goal {tasks['offset']} steps ahead (95 % intervals) | "
            f"{tasks['found']} |",
            f"| ... solved at the start | {at_start} |",
            f"| ... solved by doing nothing for {tasks['budget']} steps | {idle} |",
            f"| ... solved by the recorded actions | {replayed} |",
            f"| ... distance to the goal (5, 50, 95 %) | {low:.3g}, {mid:.3g}, {high:.3g} "
            f"{tasks['start_distance_is']} |",
        ]
    elif tasks:
        lines.append(f"| Tasks | none: no episode goes on for {tasks['offset']} steps |")
    shadow = (record["collect"] or {}).get("shadow")
    if shadow:
        lines.append(f"| Shadow map | {shadow} texels a side, not the benchmark's |")
    lines += [
        "",
        "## Columns",
        "",
        "| column | type | shape of a row | SHA-256 |",
        "|---|---|---|---|",
    ]
    for name, column in record["columns"].items():
        shape = " x ".join(map(str, column["shape"])) or "scalar"
        lines.append(f"| {name} | {column['dtype']} | {shape} | {column['sha256'][:16]} |")
    return "\n".join(lines) + "\n"
