"""What a benchmark of collecting says is what was done in the time it took."""

import pytest

from sdjepa.bench import collect


def in_step(parts: int, *, workers: int, size: int, seconds: float) -> list[tuple[float, int]]:
    """Marks of workers that start late, make parts in step, and are joined in no time."""
    return [(100 + seconds * (1 + i // workers), size * (i + 1)) for i in range(parts)]


@pytest.mark.parametrize("size", [1, 5])
def test_the_steady_rate_is_that_of_workers_in_step(size):
    marks = in_step(64, workers=16, size=size, seconds=2.0)
    assert collect.steady_rate(marks, workers=16) == pytest.approx(16 * size / 2.0)


def test_a_collection_is_stopped_when_every_worker_made_parts_and_its_rate_is_known(monkeypatch):
    """By a clock on which a part takes a worker two seconds, and parts are joined as they come."""
    joined = []

    def join(settings, parts, writer, *, progress):
        assert settings.episodes >= 10_000
        for number in range(settings.episodes):
            monkeypatch.setattr(collect.time, "monotonic", lambda at=2.0 + number / 2: at)
            joined.append(number)
            progress(number + 1, settings.episodes)
        return []

    monkeypatch.setattr(collect.collecting, "_join", join)
    for seconds, parts in ((0.1, 12), (100.0, 204)):
        joined.clear()
        monkeypatch.setattr(collect.time, "monotonic", lambda: 0.0)
        lines = {
            what: value for what, value, *_ in collect._collection("tworoom", 4, seconds=seconds)
        }
        assert len(joined) == parts
        assert lines["collected, steady"] == pytest.approx(2 * 101)
        assert lines["collected, first part after"] == pytest.approx(2000)
