"""A dataset in, the floors of its tasks out: what a score is worth before any model exists."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdjepa.config import Score
from sdjepa.data.episodes import ActionStats, Episodes
from sdjepa.runs import provenance
from sdjepa.score import adopt, play, task_list
from sdjepa.scoring.actors import floor_actors
from sdjepa.scoring.card import floor_rates, origin, rows_of, strata
from sdjepa.scoring.simulation import Simulation, simulate
from sdjepa.tasks import Outcome, Task


def measure_floors(
    data_path: Path, settings: Score, *, manifest: Path | None = None
) -> dict[str, Any]:
    """The floors of a dataset's tasks alone: no model, no rendering."""
    data = Episodes.open(data_path)
    chosen = task_list(data, settings, manifest=manifest)
    settings = adopt(settings, chosen, data)
    with simulate(data, chosen.tasks, settings) as scenes:
        stats = data.action_stats()
        floors = run_floors(scenes, data, chosen.tasks, stats=stats, settings=settings)
    idle = floors["noop"]
    return {
        "env": data.env,
        "protocol": settings.protocol,
        "num_tasks": len(chosen.tasks),
        **floor_rates(floors),
        "strata": strata(idle, floors),
        "tasks": rows_of(chosen.tasks, idle, floors),
        **origin(data, settings, chosen),
        "config": {"score": settings.model_dump()},
        **provenance(),
    }


def run_floors(
    scenes: Simulation,
    data: Episodes,
    tasks: Sequence[Task],
    *,
    stats: ActionStats,
    settings: Score,
) -> dict[str, list[Outcome]]:
    """Everybody who acts without a model, on the same tasks."""
    found = {}
    for name, actor in floor_actors(data, tasks, stats=stats, settings=settings).items():
        scenes.place()
        found[name] = play(scenes, actor, count=len(tasks), budget=settings.budget)
    return found
