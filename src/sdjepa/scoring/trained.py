"""A run in, score files out: what its model achieves under the protocol of `score.py`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from sdjepa.scoring.simulation import Simulation, simulate
from sdjepa.tasks import Manifest, Outcome
from sdjepa.train.checkpoint import Checkpoint, load_checkpoint, refuse_other, seeming_other
from sdjepa.train.source import tasks_for


def score(
    path: Path,
    *,
    plans: Sequence[Plan | None] = (None,),  # None: the run's own
    settings: Score | None = None,
    data_path: Path | None = None,
    manifest: Path | None = None,
    checkpoint: str = "latest",
    device: str = "cpu",
    progress: Progress = silent,
) -> list[Path]:
    """Score a run by each of the searches; simulators and floors serve them all.

    Writes RUN/scores/<protocol>-<cost>-<solver>-o<offset>.json for each and returns them. Another
    search than the run's own is in the name too, and another checkpoint than the latest, so that
    scores stand side by side.
    """
    began = time.monotonic()
    loaded = load_checkpoint(path, checkpoint, device=device)
    settings = settings or loaded.config.score
    where = tasks_for(path, loaded.config, given=data_path)
    size = loaded.config.model.image_size
    data = Episodes.open(where, size=size).require(size)
    refuse_other(path, loaded.config, data)
    chosen = task_list(data, settings, manifest=manifest)
    settings, tasks = adopt(settings, chosen, data), chosen.tasks
    goals = data.frames(np.array([task.rows(data)[1] for task in tasks]))
    with simulate(data, tasks, settings, every=loaded.config.model.frame_skip) as scenes:
        floors = run_floors(scenes, data, tasks, stats=loaded.stats, settings=settings)
        chosen.write(path / "tasks" / f"{settings.protocol}-o{settings.offset}-{chosen.hash}.json")
        other = seeming_other(path, data)
        stage = _Stage(loaded, data, chosen, settings, goals, scenes, floors, other)
        written = []
        for plan in plans:
            plan = plan or loaded.config.plan
            result = _played(stage, plan, began=began, progress=progress)
            name = f"{settings.protocol}-{plan.cost}-{plan.solver}-o{settings.offset}"
            name += _search(plan, own=loaded.config.plan)
            name += "" if checkpoint == "latest" else f"-{loaded.path.name}"
            written.append(write_json(path / "scores" / f"{name}.json", result))
            began = time.monotonic()
    return written


@dataclass(frozen=True)
class _Stage:
    """What all searches of a score share."""

    loaded: Checkpoint
    data: Episodes
    chosen: Manifest
    settings: Score
    goals: np.ndarray
    scenes: Simulation
    floors: dict[str, list[Outcome]]
    other: str  # environment than trained on, as it seems, in words


def _played(stage: _Stage, plan: Plan, *, began: float, progress: Progress) -> dict[str, Any]:
    """One search on all tasks; a score file's content."""
    loaded, data, tasks, scenes = stage.loaded, stage.data, stage.chosen.tasks, stage.scenes
    planner = Planner(loaded, plan, bounds=Bounds(*action_space(data.env)))
    agent = Receding(
        planner,
        scenes.render,
        goals=stage.goals,
        names=[(task.episode, task.start) for task in tasks],
        progress=progress,
    )
    scenes.place(watch=True)
    playing = time.monotonic()
    outcomes = play(scenes, agent, count=len(tasks), budget=stage.settings.budget)
    playing = time.monotonic() - playing
    records = scenes.records()
    return {
        "env": data.env,
        "protocol": stage.settings.protocol,
        "cost": plan.cost,
        "solver": plan.solver,
        **rates(outcomes),
        **floor_rates(stage.floors),
        "strata": strata(outcomes, stage.floors),
        "tasks": rows_of(tasks, outcomes, stage.floors),
        "seconds": time.monotonic() - began,
        "planning_seconds": playing,
        "seconds_per_plan": agent.seconds / max(1, agent.num_plans),
        "num_plans": agent.num_plans,
        "rollouts": pages(
            records,
            tasks,
            outcomes=outcomes,
            goals=stage.goals,
            data=data,
            read=planner.read,
            every=planner.frame_skip,
        ),
        "checkpoint": {"name": loaded.path.name, "step": loaded.step},
        **origin(data, stage.settings, stage.chosen, also=filter(None, [stage.other])),
        "config": {"score": stage.settings.model_dump(), "plan": plan.model_dump()},
        **provenance(),
    }


def _search(plan: Plan, *, own: Plan) -> str:
    """What of the search is not the run's own, for a file's name."""
    short = {
        "iterations": "i",
        "replan": "r",
        "history": "h",
        "when": "",
        "ahead": "",
        "bounds": "",
        "precision": "",
    }
    named = {"cost", "solver", "seed", "batch", "engine"}  # already, or no search
    changed = [
        name
        for name in Plan.model_fields
        if name not in named and getattr(plan, name) != getattr(own, name)
    ]
    return "".join(f"-{short.get(name, name)}{getattr(plan, name)}" for name in changed)
