"""A dataset in, a score out whose model is the simulator: what a perfect model would reach.

Beside a trained model's score on the same tasks it tells a bad model from a bad planner or task. It
is no bound: the search may miss what is there, and the environment's distance may say less than its
test of success does. Tasks are shared out one by one among worker processes, and a task's outcome
depends on its own random numbers only.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdjepa.config import Plan, Score
from sdjepa.crew import Count, Crew
from sdjepa.data.episodes import ActionStats, Episodes
from sdjepa.envs.base import make
from sdjepa.plan.simulator import Measure, check, receding, simulator_planner
from sdjepa.runs import Progress, provenance, silent
from sdjepa.score import adopt, run, task_list
from sdjepa.scoring.card import floor_rates, origin, rates, rows_of, strata
from sdjepa.scoring.floors import run_floors
from sdjepa.scoring.simulation import simulate
from sdjepa.scoring.stage import Place
from sdjepa.tasks import Outcome, Task

# What a score file says instead of the part of the latent that was compared.
COSTS: dict[Measure, str] = {"distance": "simulator", "success": "simulator-success"}


@dataclass(frozen=True)
class Job:
    """One task with all it takes to attempt it in another process."""

    env: str
    place: Place
    name: tuple[int, int]  # episode and start: decides the random numbers
    stats: ActionStats
    plan: Plan
    frame_skip: int
    budget: int
    measure: Measure


def jobs_of(
    data: Episodes,
    tasks: Sequence[Task],
    *,
    plan: Plan,
    frame_skip: int,
    budget: int,
    measure: Measure = "distance",
) -> list[Job]:
    """A job per task."""
    ends = [task.rows(data) for task in tasks]
    return [
        Job(
            env=data.env,
            place=Place(data.row(start), data.row(goal)),
            name=(task.episode, task.start),
            stats=data.action_stats(),
            plan=plan,
            frame_skip=frame_skip,
            budget=budget,
            measure=measure,
        )
        for task, (start, goal) in zip(tasks, ends, strict=True)
    ]


@dataclass(frozen=True)
class Attempt:
    """How a job went."""

    outcome: Outcome
    num_plans: int
    seconds: float  # of searching


def attempt(job: Job) -> Attempt:
    """Plan and act on one task until it is solved or its budget is spent."""
    world, dream = make(job.env), make(job.env)
    try:
        for env in (world, dream):
            job.place.put(env)
        planner = simulator_planner(
            world,
            dream,
            stats=job.stats,
            settings=job.plan,
            frame_skip=job.frame_skip,
            measure=job.measure,
        )
        agent = receding(planner, job.name)
        (outcome,) = run([world], agent, budget=job.budget)
    finally:
        world.close()
        dream.close()
    return Attempt(outcome, agent.num_plans, agent.seconds)


def attempt_all(jobs: Sequence[Job], *, workers: int, progress: Progress = silent) -> list[Attempt]:
    """Every job's attempt, in order; which process made it changes nothing."""
    crew: Crew[Attempt] = Crew(workers, jobs=len(jobs), preload="sdjepa.scoring.ceiling")

    def look() -> None:
        done, solved = crew.counts.sum(axis=0)
        progress(int(done), len(jobs), f"tasks, {solved} solved")

    with crew:
        made = [crew.submit(_attempt, job) for job in jobs]
        attempts = [crew.wait(each, look=look) for each in made]
        look()
    return attempts


def _attempt(job: Job, count: Count) -> Attempt:
    done = attempt(job)
    count(1, int(done.outcome.success))
    return done


def measure_ceiling(
    data_path: Path,
    settings: Score,
    *,
    plan: Plan,
    frame_skip: int = 5,
    measure: Measure = "distance",
    manifest: Path | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """The score of a planner whose model is the simulator; same tasks, same search, no pixels."""
    began = time.monotonic()
    check(plan)
    data = Episodes.open(data_path)
    chosen = task_list(data, settings, manifest=manifest)
    settings, tasks = adopt(settings, chosen, data), chosen.tasks
    with simulate(data, tasks, settings) as scenes:
        stats = data.action_stats()
        floors = run_floors(scenes, data, tasks, stats=stats, settings=settings)
    jobs = jobs_of(
        data,
        tasks,
        plan=plan,
        frame_skip=frame_skip,
        budget=settings.budget,
        measure=measure,
    )
    playing = time.monotonic()
    attempts = attempt_all(jobs, workers=settings.workers, progress=progress)
    playing = time.monotonic() - playing
    outcomes = [attempt.outcome for attempt in attempts]
    num_plans = sum(attempt.num_plans for attempt in attempts)
    return {
        "env": data.env,
        "protocol": settings.protocol,
        "cost": COSTS[measure],
        "solver": plan.solver,
        **rates(outcomes),
        **floor_rates(floors),
        "strata": strata(outcomes, floors),
        "tasks": rows_of(tasks, outcomes, floors),
        "seconds": time.monotonic() - began,
        "planning_seconds": playing,
        "seconds_per_plan": sum(attempt.seconds for attempt in attempts) / max(1, num_plans),
        "num_plans": num_plans,
        "rollouts": [],
        "checkpoint": None,
        **origin(data, settings, chosen),
        "config": {
            "score": settings.model_dump(),
            "plan": plan.model_dump() | {"cost": COSTS[measure]},
        },
        **provenance(),
    }
