"""What a benchmark of collecting says is what was done in the time it took."""

import pytest

from sdjepa.bench import collect, draw


def in_step(parts: int, *, workers: int, size: int, seconds: float) -> list[tuple[float, int]]:
    """Marks of workers that start late, make parts in step, and are joined in no time."""
    return [(100 + seconds * (1 + i // workers), size * (i + 1)) for i in range(parts)]


def test_parts_that_end_together_are_no_rate():
    # One part a worker: the last and the first end within a moment, which is not what a part takes.
    assert collect.steady_rate(in_step(16, workers=16, size=5, seconds=9.0), workers=16) is None


@pytest.mark.parametrize("size", [1, 5])
def test_the_steady_rate_is_that_of_workers_in_step(size):
    marks = in_step(64, workers=16, size=size, seconds=2.0)
    assert collect.steady_rate(marks, workers=16) == pytest.approx(16 * size / 2.0)


def test_several_together_are_counted_from_the_first_beginning_to_the_last_end():
    assert draw.together([(10, 1.0, 2.0), (20, 1.5, 4.0)]) == pytest.approx(10.0)
