"""A run in, a score file out: what its model achieves under the protocol of `score.py`."""

import time
from pathlib import Path

import numpy as np

from sdjepa.config import Plan, Score
from sdjepa.data.episodes import Episodes
from sdjepa.plan.agent import Planner, Receding
from sdjepa.plan.batch import Bounds
from sdjepa.runs import Progress, provenance, silent, write_json
from sdjepa.score import adopt, play, task_list
from sdjepa.scoring.actors import action_space
from sdjepa.scoring.album import pages
from sdjepa.scoring.card import floor_rates, origin, rates, rows_of, strata
from sdjepa.scoring.floors import run_floors
from sdjepa.scoring.simulation import simulate
from sdjepa.train.checkpoint import load_checkpoint


def score(
    path: Path,
    *,
    settings: Score | None = None,
    plan: Plan | None = None,
    data_path: Path | None = None,
    manifest: Path | None = None,
    checkpoint: str = "latest",
    device: str = "cpu",
    progress: Progress = silent,
) -> Path:
    """Score a run; writes RUN/scores/<protocol>-<cost>-<solver>-o<offset>.json and returns it.

    Another search than the run's own is in the name too, so that scores stand side by side.
    """
    began = time.monotonic()
    loaded = load_checkpoint(path, checkpoint, device=device)
    settings, plan = settings or loaded.config.score, plan or loaded.config.plan
    data = Episodes.open(data_path or Path(loaded.config.data.path))
    chosen = task_list(data, settings, manifest=manifest)
    settings, tasks = adopt(settings, chosen), chosen.tasks
    goals = data.frames(np.array([task.rows(data)[1] for task in tasks]))
    planner = Planner(loaded, plan, bounds=Bounds(*action_space(data.env)))
    with simulate(data, tasks, settings, every=planner.frame_skip) as scenes:
        floors = run_floors(scenes, data, tasks, stats=loaded.stats, settings=settings)
        agent = Receding(
            planner,
            scenes.render,
            goals=goals,
            names=[(task.episode, task.start) for task in tasks],
            progress=progress,
        )
        scenes.place(watch=True)
        playing = time.monotonic()
        outcomes = play(scenes, agent, count=len(tasks), budget=settings.budget)
        playing = time.monotonic() - playing
        records = scenes.records()
    result = {
        "env": data.env,
        "protocol": settings.protocol,
        "cost": plan.cost,
        "solver": plan.solver,
        **rates(outcomes),
        **floor_rates(floors),
        "strata": strata(outcomes, floors),
        "tasks": rows_of(tasks, outcomes, floors),
        "seconds": time.monotonic() - began,
        "planning_seconds": playing,
        "seconds_per_plan": agent.seconds / max(1, agent.num_plans),
        "num_plans": agent.num_plans,
        "rollouts": pages(
            records,
            tasks,
            outcomes=outcomes,
            goals=goals,
            data=data,
            read=planner.read,
            every=planner.frame_skip,
        ),
        "checkpoint": {"name": loaded.path.name, "step": loaded.step},
        **origin(data, settings, chosen),
        "config": {"score": settings.model_dump(), "plan": plan.model_dump()},
        **provenance(),
    }
    chosen.write(path / "tasks" / f"{settings.protocol}-o{settings.offset}-{chosen.hash}.json")
    name = f"{settings.protocol}-{plan.cost}-{plan.solver}-o{settings.offset}"
    name += _search(plan, own=loaded.config.plan)
    return write_json(path / "scores" / f"{name}.json", result)


def _search(plan: Plan, *, own: Plan) -> str:
    """What of the search is not the run's own, for a file's name."""
    short = {
        "iterations": "i",
        "replan": "r",
        "history": "h",
        "when": "",
        "ahead": "",
        "bounds": "",
    }
    named = {"cost", "solver", "seed", "batch", "precision", "engine"}  # already, or no search
    changed = [
        name
        for name in Plan.model_fields
        if name not in named and getattr(plan, name) != getattr(own, name)
    ]
    return "".join(f"-{short.get(name, name)}{getattr(plan, name)}" for name in changed)
