"""A series in, the places where its level changes out; and how well those meet the true events.

Two detectors on squared error about segment means. `binary` is greedy and told how many changes to
find. `penalised` is exact and finds how many by itself, paying a price for each.
"""

from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

MIN_SIZE = 2


class _Cost:
    """Squared error of any segment about its own mean, from running sums."""

    def __init__(self, series: Float[ndarray, "time dim"]) -> None:
        series = series - series.mean(0)  # keeps the difference of large squares harmless
        start = np.zeros((1, series.shape[1]))
        self.sums = np.concatenate([start, np.cumsum(series, axis=0)])
        self.squares = np.concatenate([start, np.cumsum(series**2, axis=0)]).sum(-1)

    def __call__(self, low: int | ndarray, high: int | ndarray) -> ndarray:
        total = self.sums[high] - self.sums[low]
        count = np.maximum(np.asarray(high) - np.asarray(low), 1)
        return self.squares[high] - self.squares[low] - (total**2).sum(-1) / count


def _as_table(series: ndarray) -> ndarray:
    return np.asarray(series, float).reshape(len(series), -1)


def binary(
    series: Float[ndarray, "time"] | Float[ndarray, "time dim"], count: int, *, jump: int = 1
) -> Int[ndarray, "found"]:
    """Change points by repeatedly splitting the segment that gains most.

    With `jump` above 1 only positions that many steps after a segment's start are tried.
    """
    table = _as_table(series)
    cost, edges = _Cost(table), [0, len(table)]
    for _ in range(count):
        best, place = -np.inf, -1
        for low, high in pairwise(edges):
            tried = np.arange(low, high, jump)
            tried = tried[(tried - low >= MIN_SIZE) & (high - tried >= MIN_SIZE)]
            if not tried.size:
                continue
            gain = cost(low, high) - cost(low, tried) - cost(tried, high)
            at = int(np.flatnonzero(gain == gain.max())[-1])  # of equals the last, as in ruptures
            if gain[at] > best:
                best, place = float(gain[at]), int(tried[at])
        if place < 0:
            break
        edges = sorted([*edges, place])
    return np.array(edges[1:-1], int)


def penalised(
    series: Float[ndarray, "time"] | Float[ndarray, "time dim"], penalty: float
) -> Int[ndarray, "found"]:
    """Change points of the segmentation with the least squared error plus `penalty` per change."""
    table = _as_table(series)
    size, cost = len(table), _Cost(table)
    best, back = np.full(size + 1, np.inf), np.zeros(size + 1, int)
    best[0] = -penalty
    for end in range(MIN_SIZE, size + 1):
        starts = np.arange(end - MIN_SIZE + 1)
        total = best[starts] + cost(starts, np.full(starts.size, end)) + penalty
        back[end] = int(total.argmin())
        best[end] = total[back[end]]
    found, end = [], size
    while end > 0 and back[end] > 0:
        end = back[end]
        found.append(end)
    return np.array(found[::-1], int)


def bic_penalty(series: Float[ndarray, "time"] | Float[ndarray, "time dim"]) -> float:
    """The price of one more segment by BIC, with the noise taken from step-to-step differences."""
    table = _as_table(series)
    steps = np.diff(table, axis=0)
    spread = np.median(np.abs(steps - np.median(steps, axis=0)), axis=0) * 1.4826
    # A difference of two independent errors has twice the variance of one.
    noise = float((spread**2).mean()) / 2
    return max(noise, 1e-12) * (table.shape[1] + 1) * np.log(len(table))


def match_published(
    found: Int[ndarray, "found"], truth: Int[ndarray, "true"], tolerance: int
) -> int:
    """Matches when each detection in turn takes the nearest free event within reach."""
    free, matched = [int(event) for event in truth], 0
    for place in sorted(map(int, found)):
        near = [(abs(place - event), i) for i, event in enumerate(free)]
        if near and min(near)[0] <= tolerance:
            free.pop(min(near)[1])
            matched += 1
    return matched


def match_best(found: Int[ndarray, "found"], truth: Int[ndarray, "true"], tolerance: int) -> int:
    """The largest possible number of one-to-one matches within `tolerance`.

    On a line, pairing the leftmost detection and event that reach each other loses nothing.
    """
    left, right, matched = sorted(map(int, found)), sorted(map(int, truth)), 0
    i = j = 0
    while i < len(left) and j < len(right):
        if abs(left[i] - right[j]) <= tolerance:
            matched, i, j = matched + 1, i + 1, j + 1
        elif left[i] < right[j]:
            i += 1
        else:
            j += 1
    return matched


def f1(matched: float | ndarray, num_found: int, num_true: int) -> float | ndarray:
    """Harmonic mean of precision and recall; 0 when nothing was found and nothing was there."""
    return 2 * matched / max(num_found + num_true, 1)
