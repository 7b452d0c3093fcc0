"""Boxes of a picture."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sdjepa.envs.reach import frame
from sdjepa.envs.shadow import NOTHING

SIZE = 12
edges = st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)).filter(lambda e: e[0] < e[1])
boxes = st.tuples(edges, edges).map(lambda e: (e[0][0], e[1][0], e[0][1], e[1][1]))


def painted(found) -> np.ndarray:
    count = np.zeros((SIZE, SIZE), dtype=int)
    for left, low, right, high in found:
        assert left <= right
        assert low <= high
        count[low:high, left:right] += 1
    return count


@given(inner=boxes, outer=boxes)
def test_a_frame_is_all_around_and_never_within(inner, outer):
    found = painted(frame(inner, outer, size=SIZE))
    assert found.max() <= 1  # nothing is drawn twice
    left, low, right, high = inner
    assert not found[low:high, left:right].any()
    grown = painted([(max(left - 1, 0), max(low - 1, 0), right + 1, high + 1)]) > 0
    needed = ((painted([outer]) > 0) | grown) & ~(painted([inner]) > 0)
    assert found[needed].all()


def test_around_nothing_is_everything_asked_for():
    assert frame(NOTHING, (1, 2, 3, 4), size=SIZE) == [(1, 2, 3, 4)]
