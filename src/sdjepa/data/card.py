"""A dataset in, its data card out: what is in it, and how hard the tasks made from it are.

DIR/card.json holds the numbers, DIR/card.md the same for people, DIR/card.png three frames. A task
is a recorded state and the state `offset` steps later; those already solved at the start, or solved
by doing nothing, are a floor under every score on the dataset.
"""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from sdjepa.data.episodes import Episodes
from sdjepa.envs.base import NAMES, Env, make
from sdjepa.runs import Progress, read_json, silent, write_atomic, write_json
from sdjepa.seeds import numpy_stream

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
        folder = path if path.is_dir() else path.parent
        record = _describe(data)
        if data.env in NAMES:
            env = env or make(data.env)
            record["tasks"] = task_floors(
                data, env, count=tasks, offset=offset, budget=budget, progress=progress
            )
        middle = [data.rows(i).start + data.lengths[i] // 2 for i in _spread(len(data), 3)]
        write_atomic(folder / "card.png", _png(data.frames(middle)))
    write_json(folder / "card.json", record)
    return write_atomic(folder / "card.md", _markdown(read_json(folder / "card.json")))


def task_floors(
    data: Episodes, env: Env, *, count: int, offset: int, budget: int, progress: Progress = silent
) -> dict[str, Any]:
    """How many of `count` tasks, spread over all rows, need nothing done."""
    starts = candidate_starts(data, offset)
    if not len(starts):
        return {"offset": offset, "found": 0}
    rng = numpy_stream(0, "card", offset)
    chosen = np.sort(rng.choice(starts, size=min(count, len(starts)), replace=False))
    solved, idle, distances = 0, 0, []
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
        progress(done, len(chosen), "tasks for the data card")
    return {
        "offset": offset,
        "budget": budget,
        "found": len(chosen),
        "solved_at_start_share": solved / len(chosen),
        "solved_by_doing_nothing_share": idle / len(chosen),
        "start_distance_quantiles": {str(s): float(np.quantile(distances, s)) for s in SHARES},
    }


def candidate_starts(data: Episodes, offset: int) -> np.ndarray:
    """Rows whose episode goes on for at least `offset` more."""
    left = np.repeat(data.lengths, data.lengths) - 1 - data.column("step_idx")
    rows = np.repeat(data.offsets, data.lengths) + data.column("step_idx")
    return rows[left >= offset]


def _describe(data: Episodes) -> dict[str, Any]:
    info = data.info
    action = data.column("action").astype(np.float64)
    action = action[~np.isnan(action).any(axis=1)]
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
    pairs = ~np.isnan(action[:-1]).any(1) & ~np.isnan(action[1:]).any(1)
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
    image.imsave(buffer, np.concatenate(list(frames), axis=1), format="png")
    return buffer.getvalue()


def _numbers(values: list[float]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)


def _markdown(record: dict[str, Any]) -> str:
    policy, tasks = record["policy"] or {}, record.get("tasks", {})
    rows = ", ".join(str(record["episode_rows"][share]) for share in ("0.05", "0.5", "0.95"))
    sides = ", ".join(map(str, record["split"].values()))
    lines = [
        f"# Data card: {record['env']}",
        "",
        "![three frames](card.png)",
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
        lines += [
            f"| Tasks looked at, goal {tasks['offset']} steps ahead | {tasks['found']} |",
            f"| ... solved at the start | {100 * tasks['solved_at_start_share']:.0f} % |",
            f"| ... solved by doing nothing for {tasks['budget']} steps | "
            f"{100 * tasks['solved_by_doing_nothing_share']:.0f} % |",
            f"| ... distance to the goal (5, 50, 95 %) | {low:.3g}, {mid:.3g}, {high:.3g} |",
        ]
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
