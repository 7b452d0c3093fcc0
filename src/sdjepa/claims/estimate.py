"""Outcomes of several seeds on one task list in, a number with its 95 % interval out.

Seeds on one list are no further tasks: tasks are the units, a task counts with its mean over seeds,
and how much the seeds' own rates differ is added. One seed has no such spread; what is said then is
about that model and not about how it was made.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray

from sdjepa.statistics import Z95, tasks_needed, wilson95

MARGIN = 15.0  # points under the published level down to which an interval may reach


@dataclass(frozen=True)
class Estimate:
    """A number, its 95 % interval where there is one, and how many units it was made from."""

    value: float
    interval95: tuple[float, float] | None
    count: int  # tasks or episodes
    seeds: int
    differing: float = 0.0  # of a difference: share of tasks only one side solves

    @property
    def low(self) -> float:
        return self.value if self.interval95 is None else self.interval95[0]

    @property
    def high(self) -> float:
        return self.value if self.interval95 is None else self.interval95[1]


def success(outcomes: Bool[ndarray, "seeds tasks"]) -> Estimate:
    """Success in percent, by Wilson's interval for as many tasks as the outcomes are worth."""
    seeds, tasks = outcomes.shape
    rate = float(outcomes.mean())
    variance = float(outcomes.mean(0).var(ddof=1)) / tasks if tasks > 1 else 0.0
    variance += _between(outcomes)
    # No spread (all solved, or none) says nothing about how many outcomes were independent.
    worth = rate * (1 - rate) / variance if variance > 0 else tasks
    worth = min(worth, float(outcomes.size)) if seeds > 1 else float(tasks)
    return Estimate(100 * rate, wilson95(rate * worth, worth), tasks, seeds)


def difference(
    first: Bool[ndarray, "seeds tasks"],
    second: Bool[ndarray, "others tasks"],
    *,
    matched: bool = False,
) -> Estimate:
    """Second less first on shared tasks, in points.

    Two made-up tasks, one solved by each side alone, join the list for the interval: runs that
    agree on every task still leave doubt. With one seed a side it is Bonett and Price's interval.
    `matched` rows are the same model acting in two ways, whose seeds differ together.
    """
    tasks = first.shape[1]
    assert second.shape[1] == tasks
    per_task = second.mean(0) - first.mean(0)
    joined = np.concatenate([per_task, [1.0, -1.0]])
    centre = float(joined.mean())
    again = (
        _between(second.astype(float) - first) if matched else _between(first) + _between(second)
    )
    variance = float(joined.var()) / (tasks + 2) + again
    half = Z95 * math.sqrt(variance)
    differing = np.mean([[np.mean(a != b) for a in first] for b in second])
    return Estimate(
        value=100 * float(per_task.mean()),
        interval95=(100 * max(-1.0, centre - half), 100 * min(1.0, centre + half)),
        count=tasks,
        seeds=min(len(first), len(second)),
        differing=float(differing),
    )


def _between(outcomes: Bool[ndarray, "seeds tasks"] | Float[ndarray, "seeds tasks"]) -> float:
    """Variance of the mean that comes from training again."""
    seeds = len(outcomes)
    return float(outcomes.mean(1).var(ddof=1)) / seeds if seeds > 1 else 0.0


def over_episodes(values: Sequence[float | None]) -> Estimate | None:
    """Mean over episodes with the interval of a large sample; None where nothing was measured."""
    known = np.array([value for value in values if value is not None and math.isfinite(value)])
    if known.size < 2:
        return None
    half = Z95 * float(known.std(ddof=1)) / math.sqrt(known.size)
    mean = float(known.mean())
    return Estimate(mean, (mean - half, mean + half), known.size, 1)


def over_seeds(found: Sequence[Estimate]) -> Estimate:
    """One number from readings of several seeds on the same episodes: doubts of both kinds add."""
    values = np.array([one.value for one in found])
    between = float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0
    mean, count = float(values.mean()), min(one.count for one in found)
    if any(one.interval95 is None for one in found):
        return Estimate(mean, None, count, len(found))
    down = float(np.mean([one.value - one.low for one in found]))
    up = float(np.mean([one.high - one.value for one in found]))
    seeds = Z95 * math.sqrt(between)
    interval = (mean - math.hypot(down, seeds), mean + math.hypot(up, seeds))
    return Estimate(mean, interval, count, len(found))


def tasks_for_level(published: float) -> int:
    """Tasks on which a run at the published level would be told from one MARGIN points lower."""
    count = 1
    while published - wilson95(published / 100 * count, count)[0] > MARGIN:
        count += 1
    return count


def tasks_for_difference(found: Estimate, size: float) -> int:
    """Tasks to see a difference of `size` points, and for an interval too short to hold both."""
    gap = min(abs(size) / 100, 0.99)
    differing = max((found.differing * found.count + 1) / (found.count + 2), gap)
    power = tasks_needed(0.5 - gap / 2, 0.5 + gap / 2, differing=min(differing, 1.0))
    shorter = found.count * ((found.high - found.low) / abs(size)) ** 2
    return max(power, math.ceil(shorter))
