"""Outcomes in, the numbers of a score file out, and the rule they were made under."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from sdjepa.config import Score
from sdjepa.data.episodes import Episodes
from sdjepa.data.replaying import candidate_starts, playable, unsound
from sdjepa.score import definition, departures, protocol_hash
from sdjepa.statistics import wilson95
from sdjepa.tasks import Manifest, Outcome, Task, identity

STRATA = 3


def rates(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Success in percent with its interval, and under other readings of success."""
    solved = sum(outcome.success for outcome in outcomes)
    count = len(outcomes)
    names = {name for outcome in outcomes for name in outcome.other_success}
    other = {n: sum(o.other_success.get(n, False) for o in outcomes) for n in sorted(names)}
    return {
        "num_tasks": count,
        "success_rate": 100 * solved / count,
        "wilson95": wilson95(solved, count),
        "other_success": {name: 100 * met / count for name, met in other.items()},
    }


def floor_rates(floors: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    """Percentages of those who act without a model, and how many tasks start solved."""
    found = {name: rates(outcomes) for name, outcomes in floors.items()}
    start = [outcome.solved_at_start for outcome in next(iter(floors.values()))]
    return {
        "floors": {name: rate["success_rate"] for name, rate in found.items()},
        "floors_wilson95": {name: rate["wilson95"] for name, rate in found.items()},
        "solved_at_start": sum(start),
    }


def strata(
    outcomes: Sequence[Outcome], floors: Mapping[str, Sequence[Outcome]]
) -> list[dict[str, Any]]:
    """Thirds of the tasks by how far the goal is at the start, nearest first.

    For Cube that is how far the cube must move: success on goals next door says little.
    """
    distance = np.array([outcome.start_distance for outcome in outcomes])
    order = np.argsort(distance, kind="stable")
    found = []
    for part in np.array_split(order, STRATA):
        if not len(part):
            continue
        rate = rates([outcomes[i] for i in part])
        found.append(
            {
                "from": distance[part].min(),
                "to": distance[part].max(),
                **{name: rate[name] for name in ("num_tasks", "success_rate", "wilson95")},
                "floors": {
                    name: rates([others[i] for i in part])["success_rate"]
                    for name, others in floors.items()
                },
            }
        )
    return found


def rows_of(
    tasks: Sequence[Task],
    outcomes: Sequence[Outcome],
    floors: Mapping[str, Sequence[Outcome]],
) -> list[dict[str, Any]]:
    """One record per task."""
    return [
        {
            **asdict(task),
            "outcome": outcome.success,
            **asdict(outcome),
            "floors": {name: others[i].success for name, others in floors.items()},
        }
        for i, (task, outcome) in enumerate(zip(tasks, outcomes, strict=True))
    ]


def origin(
    data: Episodes, settings: Score, chosen: Manifest, *, also: Iterable[str] = ()
) -> dict[str, Any]:
    """Which rule on which data gave which tasks; `also` says how else this departs from a rule."""
    return {
        "protocol_hash": protocol_hash(settings),
        "protocol_definition": definition(settings),
        "protocol_departures": [*departures(settings), *_of_data(data, settings), *also],
        "tasks_hash": chosen.hash,
        "data": {"path": str(data.path), **identity(data), "pack": "pack" in data.info},
    }


def _of_data(data: Episodes, settings: Score) -> list[str]:
    """How these tasks are others than the same rule has on data that are whole."""
    if "pack" in data.info:
        held = len(data.info["pack"]["starts"])
        return [f"{settings.tasks} of a pack's {held} tasks"] if settings.tasks < held else []
    starts = candidate_starts(data, settings.offset)
    bad = len(starts) - int(playable(data, settings.offset)[starts].sum())
    return [f"{bad} starts left out ({unsound(data)})"] if bad else []
