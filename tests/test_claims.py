"""Claims are judged by rule: planted runs get the verdict their outcomes deserve, and no other."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from report_runs import further, planted_trace, write_diagnosis
from sdjepa.claims.account import BEGIN, END, account, markdown
from sdjepa.claims.estimate import Estimate as E
from sdjepa.claims.estimate import difference, over_seeds, success, tasks_for_level
from sdjepa.claims.evidence import trained_as
from sdjepa.claims.finding import ABSENT, APPEARS, MISSING, UNCLEAR, WITH_CONTROL, Finding
from sdjepa.claims.judge import level_verdict
from sdjepa.claims.paper import at, paper
from sdjepa.claims.reading import Null, compass_verdict
from sdjepa.compass.correlation import correlation
from sdjepa.compass.order import order
from sdjepa.compass.probe import probe
from sdjepa.errors import UserError
from sdjepa.resolve import RUNGS, resolve
from sdjepa.runs import Run, read_json, write_json
from sdjepa.statistics import tasks_needed, wilson95

ROOT = Path(__file__).parents[1]
ENV, K = "pusht", 8


def solved(tasks: int, count: int, *, seed: int = 0) -> np.ndarray:
    """`count` of `tasks` solved, the same ones for the same seed."""
    outcome = np.zeros(tasks, bool)
    outcome[np.random.default_rng(seed).permutation(tasks)[:count]] = True
    return outcome


def plant(
    folder: Path,
    rung: str,
    outcomes: np.ndarray,
    *,
    seed: int = 0,
    protocol: str = "strict",
    cost: str | None = None,
    first_episode: int = 0,
    settings: tuple[str, ...] = (),
    name: str = "",
    floors: dict[str, float] | None = None,
) -> Path:
    """A kept run with one score; tasks are named by `first_episode`."""
    changes = [f"train.seed={seed}", f"collect.env={ENV}", f"score.protocol={protocol}"]
    config = resolve(rung=rung, k=K, settings=[*changes, *settings])
    path = folder / (name or f"{rung}-{seed}")
    run = path if path.exists() else Run.create(path, config).path
    count = len(outcomes)
    cost = cost or config.plan.cost
    record: dict[str, Any] = {
        "env": ENV, "protocol": protocol, "cost": cost, "solver": "cem", "num_tasks": count,
        "success_rate": 100 * outcomes.mean(), "wilson95": wilson95(outcomes.sum(), count),
        "floors": floors or {"noop": 0.0, "random": 1.0, "replay": 100.0},
        "data": {"split_hash": "same"}, "tasks_hash": "listed",
        "config": {
            "score": {"protocol": protocol, "offset": 25, "budget": 50, "tasks": count},
            "plan": config.plan.model_dump() | {"cost": cost},
        },
        "tasks": [
            {"episode": first_episode + i, "start": 0, "offset": 25, "outcome": bool(one)}
            for i, one in enumerate(outcomes)
        ],
    }  # fmt: skip
    write_json(run / "scores" / f"{protocol}-{cost}-cem-o25.json", record)
    return run


def verdict(folder: Path, claim: str) -> Finding:
    return next(
        found
        for found in account(folder).findings
        if (found.claim, found.env, found.k) == (claim, ENV, K)
    )


@pytest.mark.parametrize(
    ("a2", "word"),
    [(900, APPEARS), (800, ABSENT), (700, ABSENT)],
    ids=["better", "equal", "worse"],
)
def test_a_difference_appears_only_where_it_was_planted(tmp_path, a2, word):
    tasks = 1000
    base = solved(tasks, 800)
    same = base.copy()
    change = np.flatnonzero(~base)[: max(0, a2 - 800)], np.flatnonzero(base)[: max(0, 800 - a2)]
    same[change[0]], same[change[1]] = True, False
    for seed in (0, 1):
        plant(tmp_path, "A0", base, seed=seed)
        plant(tmp_path, "A2", same, seed=seed)
    found = verdict(tmp_path, "better-than-lewm")
    assert found.verdict == word
    assert found.ours is not None
    assert found.ours.value == pytest.approx((a2 - 800) / 10)
    assert found.ours.seeds == 2
    assert found.runs == ("A0-0", "A0-1", "A2-0", "A2-1")
    assert "80.0" in found.control
    assert "noop 0.0" in found.control


def test_a_small_difference_on_few_tasks_cannot_be_told_and_says_how_many_would(tmp_path):
    plant(tmp_path, "A0", solved(50, 47))
    plant(tmp_path, "A2", solved(50, 48))
    found = verdict(tmp_path, "better-than-lewm")
    assert found.verdict == UNCLEAR
    assert "one seed" in found.why
    needed = int(found.why.split("about ")[1].split(" tasks")[0].replace(",", ""))
    assert needed >= tasks_needed(0.4935, 0.5065, differing=0.02) > 50


def test_agreeing_on_every_task_excludes_nothing_small():
    everything = np.ones((1, 50), bool)
    found = difference(everything, everything)
    assert found.value == 0
    assert found.low < -3
    assert found.high > 3


def test_runs_on_other_tasks_are_not_paired(tmp_path):
    plant(tmp_path, "A0", solved(200, 100))
    plant(tmp_path, "A2", solved(200, 190), first_episode=1000)
    found = verdict(tmp_path, "better-than-lewm")
    assert found.verdict == MISSING
    assert "different task lists" in found.why
    assert account(tmp_path).pairs == ()


def test_runs_of_other_recipes_are_not_set_against_each_other(tmp_path):
    plant(tmp_path, "A0", solved(200, 100))
    plant(tmp_path, "A2", solved(200, 190), settings=("train.batch=256",))
    assert verdict(tmp_path, "better-than-lewm").verdict == MISSING
    recipes = account(tmp_path).recipes
    assert [r["runs"] for r in recipes.values() if r["departures"] == ["train.batch = 256"]] == [
        ["A2-0"]
    ]


def test_which_recipe_decides_does_not_depend_on_how_it_scored(tmp_path):
    for seed in (0, 1):
        plant(tmp_path, "A2", solved(50, 10), seed=seed, protocol="lewm")
    lucky = ("train.batch=256",)
    plant(tmp_path, "A2", solved(50, 50), protocol="lewm", settings=lucky, name="lucky")
    found = verdict(tmp_path, "success-best-k")
    assert found.runs == ("A2-0", "A2-1")
    assert found.verdict == ABSENT


def test_a_run_kept_twice_is_one_seed(tmp_path):
    for name in ("first", "again"):
        plant(tmp_path, "A2", solved(50, 48), protocol="lewm", name=name)
    found = verdict(tmp_path, "success-best-k")
    assert found.ours is not None
    assert (found.ours.seeds, found.runs) == (1, ("again",))


@pytest.mark.parametrize("other", ["plan.replan=1", "plan.pull=100", "plan.correlation=0.5"])
def test_another_search_or_size_bears_on_nothing(tmp_path, other):
    plant(tmp_path, "A2", solved(50, 49), protocol="lewm", settings=(other,))
    assert "not under the published search" in verdict(tmp_path, "success-best-k").why
    small = ("model.image_size=112",)
    plant(tmp_path, "A2", solved(50, 49), protocol="lewm", settings=small, name="small", seed=1)
    assert verdict(tmp_path, "success-best-k").verdict == MISSING


def test_a_level_has_its_strict_score_and_floors_beside_it(tmp_path):
    plant(tmp_path, "A2", solved(50, 48), protocol="lewm")
    plant(tmp_path, "A2", solved(200, 140), protocol="strict")
    found = verdict(tmp_path, "success-best-k")
    assert found.verdict == APPEARS
    assert found.control.startswith("strict 70.0 (")
    assert "noop 0.0" in found.control


def test_two_costs_of_one_run_are_paired_with_themselves(tmp_path):
    for seed in (0, 1):
        plant(tmp_path, "A2", solved(200, 190 - 60 * seed), seed=seed)
        plant(tmp_path, "A2", solved(200, 80 - 60 * seed), seed=seed, cost="progress")
    found = verdict(tmp_path, "progress-alone-cannot-plan")
    assert found.verdict == APPEARS
    assert found.ours is not None
    # Both seeds lose 55 points: that the seeds differ from each other adds no doubt to it.
    assert found.ours.high - found.ours.low < 20


def test_no_difference_is_claimed_only_within_the_bound(tmp_path):
    plant(tmp_path, "A2", solved(2000, 1000))
    plant(tmp_path, "A2", solved(2000, 1010), cost="full")
    assert verdict(tmp_path, "whole-latent-cost").verdict == APPEARS
    plant(tmp_path, "A2", solved(2000, 1400), cost="full")
    assert verdict(tmp_path, "whole-latent-cost").verdict == ABSENT


def test_level_rule():
    few, many = success(solved(5, 4)[None]), success(solved(200, 180)[None])
    floors = {"noop": 0.0, "replay": 100.0}
    assert level_verdict(few, 90.0, floors=floors)[0] == UNCLEAR
    assert level_verdict(many, 90.0, floors=floors)[0] == APPEARS
    assert level_verdict(many, 97.3, floors=floors)[0] == ABSENT
    assert level_verdict(many, 90.0, floors={"random": 92.0})[0] == WITH_CONTROL
    assert tasks_for_level(90.0) <= 50  # the published number of tasks can show a level


def test_seeds_are_no_tasks():
    one = solved(100, 80)
    alone, thrice = success(one[None]), success(np.stack([one] * 3))
    assert (alone.low, alone.high) == pytest.approx(wilson95(80, 100))
    # Three seeds that solve the same tasks are worth one, not three hundred tasks.
    assert thrice.high - thrice.low == pytest.approx(alone.high - alone.low, rel=0.02)
    unlike = success(np.stack([solved(100, n, seed=n) for n in (60, 80, 100)]))
    assert unlike.high - unlike.low > thrice.high - thrice.low


def test_one_seed_a_side_gives_bonett_and_prices_interval():
    first, second = np.zeros(60, bool), np.zeros(60, bool)
    first[:9], second[5:29] = True, True  # 5 solved by the first alone, 20 by the second
    found = difference(first[None], second[None])
    p, q = 21 / 62, 6 / 62
    half = 1.959964 * math.sqrt((p + q - (p - q) ** 2) / 62)
    assert found.interval95 == pytest.approx((100 * (p - q - half), 100 * (p - q + half)))
    assert found.value == pytest.approx(25.0)


def test_training_again_is_counted_as_chance():
    """Equal methods whose seeds differ by three points rarely look unequal with two seeds a side.

    Counted without the spread between seeds, every fifth pair of equal methods does.
    """
    rng = np.random.default_rng(0)
    told = []
    for _ in range(300):
        ease = rng.beta(8, 1, 200)
        rates = [ease + rng.normal(0, 0.03) for _ in range(4)]
        solved_by = np.stack([rng.random(200) < rate for rate in rates])
        found = difference(solved_by[:2], solved_by[2:])
        told.append(found.low > 0 or found.high < 0)
    assert np.mean(told) < 0.10


def null(p: float, *, mean: float = 0.3, p95: float = 0.5, observed: float = 0.9) -> Null:
    return Null("planes", observed, mean, p95, p)


def test_compass_rule():
    ours, wide = E(0.9, (0.85, 0.95), 40, 1), E(0.9, (0.2, 1.6), 4, 1)
    tested = {"holds"}

    def word(found: E, published: float | None, *nulls: Null) -> str:
        return compass_verdict(found, published, nulls=nulls, status=tested)[0]

    assert word(ours, 0.91, null(0.005)) == APPEARS
    assert word(ours, 0.99, null(0.005)) == APPEARS
    assert "smaller" in compass_verdict(ours, 0.99, nulls=[null(0.005)], status=tested)[1]
    assert word(ours, 0.99, null(0.5)) == ABSENT
    assert word(ours, 0.91, null(0.005), null(0.5, mean=0.88, p95=0.95)) == WITH_CONTROL
    assert word(wide, 0.91, null(0.2)) == UNCLEAR
    assert word(ours, None, null(0.005), null(0.5)) == WITH_CONTROL
    assert word(ours, None, null(0.5)) == ABSENT
    assert compass_verdict(ours, 0.91, nulls=[null(0.005)], status={"not tested"})[0] == MISSING
    gap, other = E(-0.02, (-0.24, 0.19), 40, 1), null(0.9, observed=-0.1)
    assert compass_verdict(gap, 0.03, nulls=[other], status=tested, above_zero=True)[0] == UNCLEAR


def test_readings_of_several_seeds_keep_the_doubt_of_one():
    found = over_seeds([E(0.5, (0.4, 0.6), 40, 1), E(0.5, (0.4, 0.6), 40, 1)])
    assert found.interval95 == pytest.approx((0.4, 0.6))
    apart = over_seeds([E(0.3, (0.2, 0.4), 40, 1), E(0.7, (0.6, 0.8), 40, 1)])
    assert apart.low < 0.2


def test_a_compass_file_is_read_where_the_claims_say(tmp_path):
    run = plant(tmp_path, "A2", solved(50, 40))
    beside = {"mean": 0.2, "p95": 0.3, "p": 0.005}
    scheme = {name: {"leave_one_out": {"mean": mean, "ci95": [mean - 0.1, mean + 0.1],
              "values": [mean - 0.02, mean, mean + 0.02]}}
              for name, mean in {"progress": 0.9, "clock": 0.5}.items()}  # fmt: skip
    controls = dict.fromkeys(("random_k", "clock", "clock_polynomial_k"), beside)
    body = {
        "status": "holds", "episodes": [1, 2, 3], "split": "test",
        "results": {"per_episode": scheme},
        "nulls": {"leave_one_out": controls, "blocked": {"random_k": beside}},
    }  # fmt: skip
    write_json(run / "compass" / "probe.json", body | {"against": body | {"run": "a0"}})
    found = verdict(tmp_path, "progress-is-readable")
    assert found.verdict == APPEARS
    assert (found.published, found.ours) == (0.908, E(0.9, (0.8, 1.0), 3, 1))
    assert found.control.endswith("against 0.90")
    del body["nulls"]["blocked"]
    gap = verdict(tmp_path, "progress-beats-the-clock")
    assert gap.published == pytest.approx(0.291)
    assert gap.ours is not None
    assert gap.ours.value == pytest.approx(0.4)
    # A number whose control was not measured is no evidence.
    write_json(run / "compass" / "probe.json", body)
    assert verdict(tmp_path, "progress-is-readable").verdict == MISSING


def test_every_path_of_the_claims_exists_in_a_real_compass(tmp_path):
    """Names in the claims' table are those the diagnostics write, nulls with their p-values."""
    trace = planted_trace(num_episodes=4)
    made = [correlation(trace, seed=0, draws=19, planes=9), order(trace, seed=0)]
    made += [probe(trace, seed=0, projections=9, draws=19, resplits=2), *further(trace)]
    for found in made:
        write_diagnosis(tmp_path, found)
    given = {"distance_to_target", "room_changed"}  # what the planted episodes call theirs
    for claim in paper().claims:
        for row in claim.rows:
            if (reading := row.reading) is None:
                continue
            record = read_json(tmp_path / "compass" / f"{reading.diagnostic}.json")
            paths = [reading.value, reading.interval, reading.less]
            paths += [f"{path}.p" for path in reading.controls]
            for path in filter(None, paths):
                names = [n for n in given if n in str(record["results"])]
                parts = path.split(".")
                known = [path] + [
                    ".".join([*parts[:i], name, *parts[i + 1 :]])
                    for i in range(len(parts))
                    for name in names
                ]
                assert any(at(record, one) is not None for one in known), (claim.id, path)


def test_published_gains_come_from_the_published_table():
    gains = next(claim for claim in paper().claims if claim.id == "better-than-lewm")
    assert {row.env: row.published for row in gains.rows} == {
        "tworoom": 3.0,
        "pusht": 1.3,
        "reacher": 2.0,
        "cube": -2.0,
    }


def test_a_folder_without_runs_measures_nothing(tmp_path, sdjepa):
    found = account(tmp_path)
    assert {one.verdict for one in found.findings} == {MISSING}
    code, out, _ = sdjepa("claims", tmp_path)
    assert code == 0
    assert all(f"`{claim.id}`" in out for claim in paper().claims)
    code, _, err = sdjepa("claims", tmp_path / "nowhere")
    assert code == 2
    assert "sdjepa ledger" in err


def test_prose_around_the_marks_stays_and_missing_marks_name_the_next_command(tmp_path, sdjepa):
    page, out = tmp_path / "page.md", tmp_path / "claims.json"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    folder = tmp_path / "kept"
    plant(folder, "A2", solved(50, 48), protocol="lewm")
    assert sdjepa("claims", folder, "--write", page, "--out", out)[0] == 0
    assert page.read_text() == f"before\n{BEGIN}\n{markdown(account(folder))}{END}\nafter\n"
    assert '"success-best-k"' in out.read_text()
    for text in ("no marks\n", f"{BEGIN}\nnever closed\n"):
        page.write_text(text)
        code, _, err = sdjepa("claims", folder, "--write", page)
        assert code == 2
        assert f"--write {page}" in " ".join(err.split())
        assert page.read_text() == text


def test_the_page_says_what_the_kept_results_say(monkeypatch):
    """If this fails: sdjepa claims results --write docs/reproduction.md"""
    monkeypatch.chdir(ROOT)
    text = Path("docs/reproduction.md").read_text()
    assert text.partition(BEGIN)[2].partition(END)[0] == "\n" + markdown(account(Path("results")))


@pytest.mark.parametrize("rung", ["A0", "A2", "A2_full", "A2_split_full", "A4", "A5"])
def test_a_run_is_known_by_how_it_was_trained_whatever_it_plans_with(rung):
    own = resolve(rung=rung)
    assert trained_as(own) == rung
    other = "content" if RUNGS[rung]["plan.cost"] == "full" else "full"
    assert trained_as(resolve(rung=rung, settings=[f"plan.cost={other}"])) == rung


def test_a_damaged_score_is_named(tmp_path):
    run = plant(tmp_path, "A2", solved(50, 48))
    write_json(run / "scores" / "x.json", {"env": ENV})
    with pytest.raises(UserError, match=r"x\.json is no score"):
        account(tmp_path)
