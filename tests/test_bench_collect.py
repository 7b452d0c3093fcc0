"""What a benchmark of collecting says is what was done in the time it took."""

import functools
import os

import pytest

from sdjepa.bench import collect


def test_the_steady_rate_counts_what_was_made_in_the_time_whenever_it_was_written():
    """Fifteen workers make a part a second; what they made while one started is not counted."""
    made = sorted(number + 0.01 * worker for worker in range(15) for number in range(1, 21))
    assert collect.steady_rate(made, start=10.5, end=20.5) == pytest.approx(15)
    assert collect.steady_rate(made, start=0.5, end=20.5) == pytest.approx(15)


@pytest.mark.parametrize("behind", [0, 3])
def test_a_collection_is_stopped_when_every_worker_made_parts_and_its_rate_is_known(
    monkeypatch, behind
):
    """By a clock on which a part takes four workers two seconds, written when more are made."""
    written = []

    def join(settings, parts, writer, *, joined):
        assert settings.episodes >= 10_000
        for number in range(behind):
            make(parts, number)
        for number in range(settings.episodes):
            make(parts, number + behind)
            monkeypatch.setattr(collect.time, "time", functools.partial(at, number + behind))
            written.append(number)
            joined(number + 1)
        return []

    def at(number):
        return 2.0 + number / 2

    def make(parts, number):
        path = parts / f"part-{number:06d}"
        path.touch()
        os.utime(path, (at(number), at(number)))

    monkeypatch.setattr(collect.collecting, "_join", join)
    for seconds, parts in ((0.1, 12), (100.0, 204)):
        written.clear()
        monkeypatch.setattr(collect.time, "time", lambda: 0.0)
        lines = {
            what: (value, more)
            for what, value, _, more in collect._collection("tworoom", 4, seconds=seconds)
        }
        assert len(written) == parts
        rate, more = lines["collected, steady"]
        assert rate == pytest.approx(2 * 101)
        assert more["parts_waiting"] == [behind, behind]
        assert lines["collected, first part after"][0] == pytest.approx(1e3 * at(behind))
