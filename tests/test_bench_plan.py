"""`bench plan`: a figure is told when it is known, and one way's failure costs no other its own."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sdjepa.bench import plan as bench_plan
from sdjepa.bench import ways as bench_ways
from sdjepa.bench.plan import PlanBench, Timing
from sdjepa.bench.ways import Way
from sdjepa.runs import read_json
from small import Crash


class Clock:
    """Time that passes only when a way plans."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[str] = []
        self.stop_at = ""

    def way(self, who: str, tasks: int, seconds: float) -> Way:
        def plan() -> Tensor:
            self.now += seconds
            self.told.append(who)
            if who == self.stop_at:
                raise Crash
            if who == "broken":
                raise RuntimeError("no kernel for this")
            return torch.zeros(tasks, 5, 10)

        return Way(who, tasks, plan)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    def programme(*_: Any) -> Iterator[tuple[Way, Any]]:
        for who, tasks, seconds in (
            ("theirs fp32", 1, 1.0),
            ("broken", 1, 0.25),
            ("ours", 1, 0.25),
            ("ours", 50, 4.0),
            ("theirs fp32", 50, 40.0),
        ):
            yield clock.way(who, tasks, seconds), lambda _: 1.5

    monkeypatch.setattr(bench_plan, "programme", programme)
    monkeypatch.setattr(bench_plan.time, "perf_counter", lambda: clock.now)
    return clock


def test_figures_come_one_by_one_and_ratios_when_both_sides_are_known(clock: Clock):
    known: list[PlanBench] = []
    for result in bench_plan.bench_plan(small=True, repeats=3, seconds=2.0):
        known.append(result)
        assert len(result.timings) == len(known)
    last = known[-1]
    assert [last.ratio(t) for t in last.timings] == [1.0, None, 4.0, 10.0, 1.0]
    assert known[3].ratio(known[3].timings[3]) is None
    assert "no kernel for this" in last.lines()[2]
    assert last.timings[1].seconds is None


def test_a_way_is_timed_no_longer_than_its_budget_but_once_at_least(clock: Clock):
    *_, last = bench_plan.bench_plan(small=True, repeats=3, seconds=2.0)
    assert [t.repeats for t in last.timings] == [2, 0, 3, 1, 1]
    # Theirs at fifty tasks is theirs at one, again and again: it needs no warming up.
    assert clock.told.count("theirs fp32") == 1 + 2 + 1
    assert [t.first_seconds is None for t in last.timings] == [False, True, False, False, True]


def test_only_the_ways_asked_for_are_timed(clock: Clock):
    *_, last = bench_plan.bench_plan(small=True, repeats=1, only=["ours"])
    assert [(t.who, t.tasks) for t in last.timings] == [("ours", 1), ("ours", 50)]
    assert set(clock.told) == {"ours"}


def test_a_benchmark_cut_off_leaves_what_it_measured(clock: Clock, sdjepa, tmp_path):
    out = tmp_path / "plan.json"
    words = ("bench", "plan", "--small", "--repeats", "1", "--out", out)
    clock.stop_at = "ours"
    with pytest.raises(Crash):
        sdjepa(*words)
    known = read_json(out)
    assert known["finished"] is False
    assert [t["who"] for t in known["timings"]] == ["theirs fp32", "broken"]
    clock.stop_at = ""
    assert sdjepa(*words)[0] == 0
    assert read_json(out)["finished"] is True


def test_what_a_faster_way_gives_up_is_measured():
    """Wrong latents and dear plans show, whatever the time they took."""
    model = bench_plan.awake(bench_plan.build(SMALLEST, seed=0)).eval()
    settings = bench_plan.Plan(cost="full", candidates=8, elites=2, iterations=2)
    price = bench_ways.Price(model, settings, *bench_ways._frames(2, 16))
    way = bench_ways._our_way(model, settings, price, ("eager", "fp32"))
    assert way.planner is not None
    assert price.latent_error(way.planner) < 1e-4
    plan = way.plan()
    assert price(plan) < price(torch.zeros_like(plan))
    rolled = way.planner._engine._rollout
    way.planner._engine._rollout = lambda *given: rolled(*given).roll(1, dims=0)
    assert price.latent_error(way.planner) > 0.5


SMALLEST = bench_plan.Model(
    image_size=16, patch=8, encoder_width=12, encoder_depth=1, encoder_mlp=12, latent=8,
    projector_hidden=8, predictor_width=8, predictor_depth=2, predictor_heads=2,
    predictor_head_dim=4, predictor_mlp=8, k=0, dropout=0.0, action_dim=2, frame_skip=5,
)  # fmt: skip


def test_a_line_says_what_is_known():
    timing = Timing("ours", 50, 2.0, 0.5, (0.4, 0.6), 3, 7.25, 1e-3)
    bench = PlanBench("cpu", {"candidates": 300}, 10, {}, (timing,))
    assert "500.0 ms a plan" in bench.line(timing)
    assert "10.00 ms a task" in bench.line(timing)
    assert bench.as_json()["timings"][0]["seconds_per_task"] == 0.01  # type: ignore[index]
