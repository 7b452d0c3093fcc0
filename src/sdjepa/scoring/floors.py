"""A dataset in, the floors of its tasks out: what a score is worth before any model exists."""

from pathlib import Path
from typing import Any

from sdjepa.config import Score
from sdjepa.data.episodes import Episodes
from sdjepa.runs import provenance
from sdjepa.score import adopt, origin, run_floors, simulate, task_list
from sdjepa.scoring.card import floor_rates, rows_of, strata


def measure_floors(
    data_path: Path, settings: Score, *, manifest: Path | None = None
) -> dict[str, Any]:
    """The floors of a dataset's tasks alone: no model, no rendering."""
    data = Episodes.open(data_path)
    chosen = task_list(data, settings, manifest=manifest)
    settings = adopt(settings, chosen)
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
