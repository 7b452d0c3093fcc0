"""Two runs scored on shared tasks: who solved what, and whether chance explains the difference."""

import math
from dataclasses import dataclass

from sdjepa.report.read import Score
from sdjepa.statistics import mcnemar, wilson95


@dataclass(frozen=True)
class Paired:
    """Outcomes of two runs on the tasks both were given."""

    num_shared: int
    only_first: int
    only_second: int
    both: int
    p_value: float  # exact McNemar, two-sided
    low: float  # 95 % interval of second minus first, in points
    high: float

    @property
    def difference(self) -> float:
        """Second minus first, in percentage points."""
        return 100 * (self.only_second - self.only_first) / self.num_shared


def pair(first: Score, second: Score) -> Paired | None:
    """The comparison on shared tasks; None when the runs share none or faced different rules."""
    if (first.env, first.protocol) != (second.env, second.protocol):
        return None
    left = {task.key: task.outcome for task in first.tasks}
    shared = [(left[task.key], task.outcome) for task in second.tasks if task.key in left]
    if not shared:
        return None
    only_first = sum(a and not b for a, b in shared)
    only_second = sum(b and not a for a, b in shared)
    both = sum(a and b for a, b in shared)
    low, high = _newcombe(both, only_first, only_second, len(shared))
    return Paired(
        num_shared=len(shared),
        only_first=only_first,
        only_second=only_second,
        both=both,
        p_value=mcnemar(only_first, only_second),
        low=low,
        high=high,
    )


def _newcombe(both: int, only_first: int, only_second: int, total: int) -> tuple[float, float]:
    """Newcombe's paired interval: Wilson limits joined by the correlation of the outcomes."""
    neither = total - both - only_first - only_second
    first, second = both + only_first, both + only_second
    low_1, high_1 = (limit / 100 for limit in wilson95(first, total))
    low_2, high_2 = (limit / 100 for limit in wilson95(second, total))
    share_1, share_2 = first / total, second / total
    margin = first * (total - first) * second * (total - second)
    phi = (both * neither - only_first * only_second) / math.sqrt(margin) if margin else 0.0
    down_2, up_2 = share_2 - low_2, high_2 - share_2
    down_1, up_1 = share_1 - low_1, high_1 - share_1
    difference = share_2 - share_1
    below = math.sqrt(max(0.0, down_2**2 - 2 * phi * down_2 * up_1 + up_1**2))
    above = math.sqrt(max(0.0, up_2**2 - 2 * phi * up_2 * down_1 + down_1**2))
    return 100 * max(-1.0, difference - below), 100 * min(1.0, difference + above)
