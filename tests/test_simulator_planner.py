"""The simulator as the planner's model: the same search, true consequences, a score like others."""

from dataclasses import asdict
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from sdjepa.compare import compare
from sdjepa.config import Plan, Score
from sdjepa.data.episodes import ActionStats, Episodes
from sdjepa.envs.base import Env, make
from sdjepa.errors import UserError
from sdjepa.ledger import table
from sdjepa.plan.batch import BatchPlanner
from sdjepa.plan.simulator import Measure, Simulator, receding, simulator_planner
from sdjepa.runs import read_json, write_json
from sdjepa.score import place
from sdjepa.scoring.ceiling import attempt_all, jobs_of, measure_ceiling
from sdjepa.scoring.trained import score
from sdjepa.tasks import Task

SEARCH = Plan(candidates=32, elites=6, iterations=5)
RULES = Score(protocol="strict", tasks=6)


def placed(data: Episodes, task: Task, settings: Plan) -> tuple[Env, BatchPlanner]:
    """A world at the task's start and what plans in it."""
    world, dream = make(data.env), make(data.env)
    for env in (world, dream):
        place(env, task, data=data)
    stats = data.action_stats()
    return world, simulator_planner(world, dream, stats=stats, settings=settings, frame_skip=5)


@pytest.fixture(scope="module")
def measured(tiny_data: Path) -> dict:
    return measure_ceiling(tiny_data, RULES, plan=SEARCH)


def test_nearly_every_task_is_solved_and_none_by_doing_nothing(measured: dict):
    assert measured["success_rate"] >= 80
    assert measured["floors"]["noop"] == 0
    assert (measured["cost"], measured["checkpoint"]) == ("simulator", None)
    for task in measured["tasks"]:
        assert task["final_distance"] < task["start_distance"], task


def test_workers_change_nothing(tiny_data: Path, measured: dict):
    data, seen = Episodes.open(tiny_data), []
    tasks = [Task(task["episode"], task["start"], 25) for task in measured["tasks"]]
    jobs = jobs_of(data, tasks, plan=SEARCH, frame_skip=5, budget=50)
    apart = attempt_all(
        jobs, workers=2, progress=lambda done, total, note="": seen.append((done, total))
    )
    for task, there in zip(measured["tasks"], apart, strict=True):
        assert asdict(there.outcome).items() <= task.items()
    assert seen == sorted(seen)
    assert seen[-1] == (6, 6)


def test_a_tasks_outcome_does_not_depend_on_the_other_tasks(tiny_data: Path, measured: dict):
    """The outcome of a task alone, planned in environments nobody used before."""
    data = Episodes.open(tiny_data)
    whole = measured["tasks"][3]
    world, planner = placed(data, Task(whole["episode"], whole["start"], 25), SEARCH)
    agent = receding(planner, (whole["episode"], whole["start"]))
    for action in agent([0])[0]:
        world.step(action)
        if world.solved():
            break
    assert world.solved() == (whole["steps_to_success"] is not None)
    assert world.distance() == whole["final_distance"]


@pytest.mark.parametrize("env", ["tworoom", "pusht"])
@pytest.mark.parametrize("when", ["last", "min", "sum"])
def test_a_candidates_cost_is_what_executing_it_comes_to(
    env: str, when: Literal["last", "min", "sum"]
):
    """From where the world stands after some steps, not only from a task's start."""
    world, dream = make(env), make(env)
    world.reset(np.random.default_rng(1))
    goal = world.observe()
    world.reset(np.random.default_rng(2))
    for each in (world, dream):
        each.set_goal(goal)
    world.step(np.array([0.5, -0.5]))
    world.set_state(world.observe())
    stats = ActionStats(mean=np.array([0.1, -0.05]), std=np.array([0.3, 0.4]))
    dynamics = Simulator(world, dream, stats=stats, frame_skip=5)
    candidates = torch.randn(3, 4, dynamics.block, generator=torch.Generator().manual_seed(0))
    settings = Plan(when=when, cost="angular")  # which a simulator has no use for
    planner = simulator_planner(world, dream, stats=stats, settings=settings, frame_skip=5)
    still = world.observe()
    situation = torch.zeros(1, 1, 1), torch.zeros(1, 0, dynamics.block), torch.zeros(1, 1)
    costs = planner._engine.cost(*situation)(candidates[None])[0]
    for cost, actions in zip(costs, planner.raw_actions(candidates), strict=True):
        world.set_state(still)
        squares = []
        for number, action in enumerate(actions, start=1):
            world.step(action)
            if number % 5 == 0:
                squares.append(world.distance() ** 2)
        assert len(squares) == 4
        real = {"last": squares[-1], "min": min(squares), "sum": sum(squares)}[when]
        assert float(cost) == pytest.approx(real, rel=1e-5)


@pytest.mark.parametrize(("measure", "far"), [("distance", 0.0), ("success", 0.5 / (np.pi / 9))])
def test_the_measure_of_success_sees_what_the_distance_leaves_out(measure: Measure, far: float):
    """A block in its place but turned is at no distance, and not solved."""
    world, dream = make("pusht"), make("pusht")
    goal = np.array([200.0, 200.0, 300.0, 300.0, 1.0, 0.0, 0.0])
    for env in (world, dream):
        env.set_goal({"state": goal})
        # A whole turn more is the same place.
        env.set_state({"state": goal + np.eye(7)[4] * (0.5 + 2 * np.pi)})
    stats = ActionStats(mean=np.zeros(2), std=np.ones(2))
    simulator = Simulator(world, dream, stats=stats, frame_skip=5, measure=measure)
    reached = simulator.rollout(torch.zeros(1, 1, 1), torch.zeros(1, 0, 10), torch.zeros(1, 1, 10))
    assert reached.item() == pytest.approx(far, abs=1e-6)
    assert not dream.solved()


@pytest.mark.parametrize("env", ["tworoom", "pusht", "reacher"])
def test_being_there_falls_short_of_nothing(env: str):
    world = make(env)
    world.reset(np.random.default_rng(3))
    world.set_goal(world.observe())
    assert world.shortfall() == pytest.approx(0.0, abs=1e-6)
    assert world.solved()
    world.close()


def test_planning_leaves_the_world_where_it_is(tiny_data: Path):
    data = Episodes.open(tiny_data)
    world, planner = placed(data, Task(0, 0, 25), SEARCH)
    before = world.observe()
    receding(planner, (0, 0))([0])
    for name, value in world.observe().items():
        assert np.array_equal(value, before[name]), name


def test_a_search_that_needs_gradients_is_refused(tiny_data: Path):
    with pytest.raises(UserError, match="no gradients"):
        measure_ceiling(tiny_data, RULES, plan=Plan(solver="gradient"))


def test_it_stands_beside_a_models_score(a_run: Path, tiny_data: Path, sdjepa, tmp_path: Path):
    """On the tasks of the model's own list: paired by compare, a line in the ledger."""
    [model] = score(a_run)
    out = tmp_path / "ceiling.json"
    (listed,) = (a_run / "tasks").glob("*.json")
    search = [f"--set=plan.{key}={getattr(SEARCH, key)}" for key in ("candidates", "elites")]
    words = ("--manifest", listed, "--iterations", "5", "--workers", "1", *search, "--out", out)
    code, said, err = sdjepa("ceiling", tiny_data, *words)
    assert code == 0, err
    assert said.strip() == str(out)
    assert "simulator" in err
    first, second = compare([model, out])
    result = read_json(out)
    assert set(read_json(model)) == set(result)
    assert second.success_rate == result["success_rate"] > first.success_rate
    assert second.against_first is not None
    assert second.against_first.num_tasks == 4
    folder = tmp_path / "results"
    (folder / "perfect").mkdir(parents=True)
    (folder / "perfect" / "config.toml").write_bytes((a_run / "config.toml").read_bytes())
    write_json(folder / "perfect" / "scores" / "strict-simulator.json", result)
    assert (
        "| 25 | simulator-success | cem 32 x 5, replan 5, history 1 |" in table(folder).read_text()
    )
