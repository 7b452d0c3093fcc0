"""Counts of solved tasks in, doubt out: intervals, paired tests, the size a claim needs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from jaxtyping import Bool

from sdjepa.seeds import numpy_stream

Z95 = 1.959963984540054
RESAMPLES = 10_000


def wilson95(successes: float, count: float) -> tuple[float, float]:
    """95 % Wilson interval of a success rate, in percent; a count may be an effective one."""
    z, n = Z95, count
    centre = (successes + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(successes * (n - successes) / n + z * z / 4)
    return 100 * max(0.0, centre - half), 100 * min(1.0, centre + half)


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value: would a fair coin split the tasks that differ as unevenly?"""
    total, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(total, i) for i in range(fewer + 1)) / 2**total
    return min(1.0, 2 * tail)


@dataclass(frozen=True)
class Paired:
    """Two runs on one task list; differences are second minus first, in percentage points."""

    num_tasks: int
    only_first: int
    only_second: int
    difference: float
    interval95: tuple[float, float]  # bootstrap over tasks
    p_value: float  # McNemar, exact


def paired(
    first: Sequence[bool], second: Sequence[bool], *, seed: int = 0, resamples: int = RESAMPLES
) -> Paired:
    """The comparison of two lists of outcomes, task by task."""
    a, b = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    assert a.shape == b.shape == (len(a),)
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    return Paired(
        num_tasks=len(a),
        only_first=only_first,
        only_second=only_second,
        difference=100 * (only_second - only_first) / len(a),
        interval95=_bootstrap(a, b, seed=seed, resamples=resamples),
        p_value=mcnemar(only_first, only_second),
    )


def _bootstrap(
    a: Bool[np.ndarray, "tasks"], b: Bool[np.ndarray, "tasks"], *, seed: int, resamples: int
) -> tuple[float, float]:
    """Percentiles of the mean difference over tasks drawn with replacement.

    A task's difference is -1, 0 or 1: only how often each is drawn matters, a multinomial.
    """
    n = len(a)
    shares = np.array([(a & ~b).mean(), (b & ~a).mean()])
    drawn = numpy_stream(seed, "bootstrap").multinomial(
        n, [*shares, 1 - shares.sum()], size=resamples
    )
    low, high = np.percentile(100 * (drawn[:, 1] - drawn[:, 0]) / n, [2.5, 97.5])
    return float(low), float(high)


def tasks_needed(
    first: float,
    second: float,
    *,
    power: float = 0.8,
    level: float = 0.05,
    differing: float | None = None,
) -> int:
    """Tasks needed to tell two success rates (shares) apart with this power.

    Without `differing` the runs face different tasks, and the answer is per run. With it they share
    one list, and it is the share of tasks that only one of them solves: at least the difference.
    """
    gap = abs(second - first)
    if not 0 < gap < 1:
        raise ValueError(
            f"two different shares between 0 and 1 are needed, found {first}, {second}"
        )
    z_level, z_power = NormalDist().inv_cdf(1 - level / 2), NormalDist().inv_cdf(power)
    if differing is None:
        middle = (first + second) / 2
        under_null = math.sqrt(2 * middle * (1 - middle))
        under_claim = math.sqrt(first * (1 - first) + second * (1 - second))
    else:
        if not gap - 1e-9 <= differing <= 1:
            raise ValueError(f"at least {gap:.3f} of tasks must differ, found {differing}")
        under_null, under_claim = math.sqrt(differing), math.sqrt(max(0.0, differing - gap * gap))
    return math.ceil(((z_level * under_null + z_power * under_claim) / gap) ** 2)


def unrelated(first: float, second: float) -> float:
    """The share of tasks only one of two runs solves, when their successes are independent."""
    return first * (1 - second) + second * (1 - first)
