"""Run directories made up for the report's tests: real diagnostics on planted latents, no model."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sdjepa.compass.changes import changes
from sdjepa.compass.correlation import correlation
from sdjepa.compass.corruption import corruption
from sdjepa.compass.course import course
from sdjepa.compass.events import events
from sdjepa.compass.film import film
from sdjepa.compass.geometry import geometry
from sdjepa.compass.horizon import horizon
from sdjepa.compass.probe import probe
from sdjepa.compass.result import Diagnosis, rounded
from sdjepa.compass.sight import sight
from sdjepa.compass.surprise import surprise
from sdjepa.compass.trace import EpisodeTrace, Trace
from sdjepa.config import Config
from sdjepa.runs import Run, write_json
from sdjepa.statistics import wilson95

SMALL = Config.model_validate(
    {
        "collect": {"episodes": 300, "steps": 60, "size": 64},
        "model": {
            "image_size": 64, "patch": 8, "encoder_width": 96, "encoder_depth": 4,
            "encoder_mlp": 384, "latent": 32, "predictor_depth": 3, "predictor_heads": 4,
        },
        "train": {"steps": 450, "batch": 64, "learning_rate": 1e-3, "precision": "fp32"},
        "plan": {"candidates": 200, "iterations": 10},
        "score": {"protocol": "strict"},
    }
)  # fmt: skip
ROWS = 61


def planted_trace(*, num_episodes: int = 12, latent: int = 16, seed: int = 0) -> Trace:
    """Episodes whose angle is the distance to a target, among smooth noise."""
    rng = np.random.default_rng(seed)
    episodes = []
    for index in range(num_episodes):
        start, target = rng.uniform(20, 200, 2), rng.uniform(20, 200, 2)
        share = np.clip(np.linspace(0, 1.3, ROWS), 0, 1)[:, None]
        path = start + share * (target - start) + rng.normal(0, 3, (ROWS, 2)).cumsum(0) * 0.3
        distance = np.linalg.norm(path - target, axis=1)
        angle = 3.2 - distance / 60 + rng.normal(0, 0.05, ROWS)
        radius = 1.1 + 0.1 * np.sin(np.linspace(0, 3, ROWS) + index)
        content = rng.normal(0, 0.3, (ROWS, latent - 2)).cumsum(0)
        plane = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
        z = np.concatenate([plane, content], 1).astype(np.float32)
        steps = ROWS // 5
        episodes.append(
            EpisodeTrace(
                index=100 + index,
                latents=z,
                actions=rng.normal(size=(steps, 10)).astype(np.float32),
                predicted=z[np.arange(3, steps) * 5] + 0.1,
                rollouts=np.zeros((steps - 1, 10, latent), np.float32),
                measures={
                    "distance_to_target": distance,
                    "speed": np.linalg.norm(np.gradient(path, axis=0), axis=1),
                },
                events={"room_changed": np.array([30])},
                path=path,
                k=2,
                frame_skip=5,
            )
        )
    return Trace("tworoom", 2, False, 5, 3, tuple(episodes))


def make_run(
    path: Path,
    *,
    seed: int = 0,
    solved: float = 0.84,
    config: Config = SMALL,
    scored: bool = True,
    compass: bool = True,
    whole: bool = False,
) -> Path:
    """A run directory; `seed` moves outcomes and latents, tasks stay the same.

    `whole` adds every further diagnostic to the first three.
    """
    run = Run.create(path, config)
    rng = np.random.default_rng(seed)
    for step in range(0, 451, 10):
        record = {
            "step": step,
            "prediction": 0.9 * float(np.exp(-step / 120)) + 0.05 + 0.01 * rng.random(),
            "sigreg": 1.0 + 30 * float(np.exp(-step / 40)) + 0.1 * rng.random(),
            "triplet": 0.2 * float(np.exp(-step / 90)) + 0.01 * rng.random(),
            "learning_rate": 1e-3,
            "frames_per_second": 480.0 + 20 * rng.random(),
        }
        record["loss"] = record["prediction"] + 0.09 * record["sigreg"] + 0.1 * record["triplet"]
        run.append_metrics(record)
        if step % 90 == 0:
            terms = ("loss", "prediction", "sigreg", "triplet")
            run.append_metrics(
                {"step": step} | {f"validation_{term}": 1.04 * record[term] for term in terms}
            )
    if scored:
        write_json(path / "scores" / "strict-content-cem-o25.json", _score(rng, solved=solved))
    if compass:
        trace = planted_trace(seed=seed)
        for found in (
            course(trace),
            correlation(trace, seed=0, draws=49, planes=29),
            probe(trace, seed=0, projections=19, draws=99),
        ):
            write_diagnosis(path, found)
        for found in further(trace) if whole else ():
            write_diagnosis(path, found)
    return path


class Still:
    """Dynamics in which nothing moves."""

    def following(self, latents: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return latents[:, -1]

    def rollout(self, start: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.repeat(start[:, None], actions.shape[1], axis=1)


def further(trace: Trace) -> Iterator[Diagnosis]:
    """The diagnostics beyond the first three, with few draws."""
    where = {e.index: e.path for e in trace.episodes}

    def frames(episode: int, rows: np.ndarray) -> np.ndarray:
        image = np.full((len(rows), 32, 32, 3), 230, np.uint8)
        for frame, (x, y) in zip(image, where[episode][rows], strict=True):
            frame[int(np.clip(y / 7, 0, 31)), int(np.clip(x / 7, 0, 31))] = (255, 0, 0)
        return image

    yield film(trace, frames, extent=(0.0, 224.0, 0.0, 224.0))
    yield horizon(trace, seed=0)
    yield sight(trace, seed=0, pairs=4000, draws=49, swaps=49)
    yield events(trace, seed=0, draws=49, planes=9)
    yield changes(trace, seed=0, draws=49)
    yield corruption(trace, Still(), seed=0, draws=49, planes=9)
    yield surprise(trace, Still(), seed=0, pairs=20, planes=9)
    yield geometry(trace, seed=0)
    yield flattened(trace)
    yield mapped(trace)
    yield ranked()
    yield noticed()


def flattened(trace: Trace) -> Diagnosis:
    """What `embedding` writes, with random points: its t-SNE alone would take most of the time."""
    rng = np.random.default_rng(0)
    shown = trace.episodes[:3]
    points = [rng.normal(size=(3 * ROWS, dim)) for dim in (2, 2, 3)]
    found = {"2d": points[1], "3d": points[2], "perplexity": 30}
    results = {
        "points": [{"episode": e.index, "rows": np.arange(ROWS)} for e in shown],
        "plane": points[0],
        "pca": {"coordinates": points[1], "variance_ratio": [0.5, 0.2]},
        "tsne": {"progress": found, "content": found},
    }
    return Diagnosis("embedding", "The latent as a picture", "Looks like?", "shown", "so", results)


def write_diagnosis(path: Path, found: Diagnosis) -> None:
    """The file the compass would write."""
    record = {
        "diagnostic": found.diagnostic,
        "title": found.title,
        "question": found.question,
        "status": found.status,
        "verdict": found.verdict,
        "results": rounded(found.results),
        "nulls": rounded(found.nulls),
    }
    write_json(path / "compass" / f"{found.diagnostic}.json", record)


def _score(rng: np.random.Generator, *, solved: float) -> dict[str, Any]:
    num_tasks = 50
    places = np.random.default_rng(1).uniform(25, 200, (num_tasks, 2, 2))
    tasks, rollouts = [], []
    for index in range(num_tasks):
        start, goal = places[index]
        outcome = bool(rng.random() < solved)
        away = float(np.linalg.norm(goal - start))
        steps = int(rng.integers(12, 49)) if outcome else None
        tasks.append(
            {
                "episode": 1000 + index, "start": 3 * index, "outcome": outcome,
                "steps_to_success": steps, "start_distance": away,
                "final_distance": 4.0 if outcome else 0.6 * away,
            }
        )  # fmt: skip
        if index < 8:
            end = goal if outcome else start + 0.5 * (goal - start)
            line = np.linspace(start, end, 30) + rng.normal(0, 1.5, (30, 2))
            rollouts.append(
                {
                    "task": index, "path": line.tolist(), "start": start.tolist(),
                    "goal": goal.tolist(), "success": outcome,
                    "frames": [picture(line[i]) for i in (0, 10, 20)],
                    "goal_frame": picture(goal), "extent": [0.0, 224.0, 0.0, 224.0],
                }
            )  # fmt: skip
            if index:  # the first is as scores were before they recorded the needle
                rollouts[-1] |= {"every": 10, "theta": [3.0, -3.0, -2.5], "radius": [1.0, 1.2, 0.8]}
    count = sum(task["outcome"] for task in tasks)
    return {
        "env": "tworoom", "protocol": "strict", "cost": "content", "solver": "cem",
        "num_tasks": num_tasks, "budget": 50, "offset": 25, **_rate(count, num_tasks),
        "floors": {
            "noop": _rate(0, num_tasks), "random": _rate(2, num_tasks),
            "replay": _rate(49, num_tasks),
        },
        "tasks": tasks, "rollouts": rollouts, "seconds": 31.0, "protocol_hash": "5f1d3c9a77e0b2",
    }  # fmt: skip


def _rate(count: int, total: int) -> dict[str, Any]:
    return {
        "success_rate": 100 * count / total,
        "wilson95": list(wilson95(count, total)),
    }


def picture(agent: np.ndarray) -> str:
    """A small base64 PNG of a room with the agent in it."""
    figure = Figure(figsize=(0.64, 0.64), dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 224), ylim=(224, 0), xticks=[], yticks=[])
    axes.set_facecolor("#e8e8e8")
    axes.plot([112, 112], [0, 150], color="black", lw=4)
    axes.plot(*agent, "o", color="red", ms=6)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return base64.b64encode(buffer.getvalue()).decode()


def tampered(file: Path, **changes: Any) -> None:
    """Rewrite a JSON result with some keys changed, or removed where the change is None."""
    record = json.loads(file.read_text())
    for name, value in changes.items():
        if value is None:
            del record[name]
        else:
            record[name] = value
    file.write_text(json.dumps(record))


def mapped(trace: Trace) -> Diagnosis:
    """What `place` writes; the real one needs a simulator."""
    theta = np.linspace(-3, 3, 36).reshape(6, 6)
    path = np.concatenate([e.path for e in trace.episodes])
    visited = {"low": path.min(0), "high": path.max(0), "theta": theta, "coherence": theta * 0 + 1}
    axis = np.linspace(0, 224, 6)
    drawn = {"x": axis, "y": axis, "theta": theta, "plane_radius": theta * 0 + 1}
    results = {"visited": visited, "drawn": drawn}
    return Diagnosis("place", "The map", "Same place, same angle?", "shown", "so", results)


def noticed() -> Diagnosis:
    """What `notice` writes; the real one needs a simulator in which several things move."""
    found = {
        thing: {"share": share, "ci95": [share, share]}
        for thing, share in (("arm", 1.0), ("cube", 0.003))
    }
    results = {what: {**found, "all": 1.0} for what in ("pixels", "content", "progress")}
    things = {"pairs": 60, "things": list(found)}
    return Diagnosis("notice", "Noticed", "What?", "shown", "so", {**things, **results})


def ranked() -> Diagnosis:
    """What `ranking` writes; the real one needs a planner and a simulator."""
    found = {"mean": 0.4, "ci95": [0.2, 0.6], "per_task": [0.1, 0.5, None]}
    kinds = {kind: {"imagined_cost_and_distance": found} for kind in ("broad", "nearby")}
    return Diagnosis("ranking", "Cost and distance", "Alike?", "shown", "so", kinds)
