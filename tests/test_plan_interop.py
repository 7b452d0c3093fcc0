"""stable-worldmodel's solvers and evaluation run our model, and our planner runs its LeWM."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from sdjepa.config import Model, Plan, Score
from sdjepa.data.episodes import ActionStats, Episodes
from sdjepa.errors import UserError
from sdjepa.interop.lewm_keys import from_lewm, lewm_config
from sdjepa.interop.lewm_peer import instantiate
from sdjepa.interop.planning import (
    CostModel,
    compare_solvers,
    lewm_planner,
    plan_config,
    scalers,
)
from sdjepa.model.world_model import WorldModel
from sdjepa.plan.agent import Planner, Receding
from sdjepa.score import task_list
from sdjepa.seeds import derive, stream
from sdjepa.train.checkpoint import load_checkpoint
from small import SIZES, stir
from test_plan import small_checkpoint, some_frames

pytest.importorskip("stable_worldmodel")
STATS = ActionStats(mean=np.array([0.5, -1.0]), std=np.array([2.0, 0.25]))
# 32 * 3 * 10 numbers a round: a multiple of 16, so that one large draw is many small ones.
EXACT: dict[str, Any] = {"candidates": 32, "elites": 8, "iterations": 5, "horizon": 3, "replan": 3}


def their_cem(planner: Planner, *, seed: int, tasks: int, batch_size: int) -> Any:
    from gymnasium.spaces import Box
    from stable_worldmodel.solver import CEMSolver

    settings = planner.settings
    solver = CEMSolver(
        model=CostModel(planner),
        batch_size=batch_size,
        num_samples=settings.candidates,
        n_steps=settings.iterations,
        topk=settings.elites,
        seed=seed,
    )
    space = Box(-1.0, 1.0, (tasks, 2))
    solver.configure(action_space=space, n_envs=tasks, config=plan_config(planner))
    return solver


def info(frames: np.ndarray, goals: np.ndarray) -> dict[str, torch.Tensor]:
    return {
        "pixels": torch.from_numpy(frames)[:, None],
        "goal": torch.from_numpy(goals)[:, None],
        "step_idx": torch.zeros(len(frames), 1),
    }


def test_their_cem_on_our_cost_is_our_cem_to_the_last_bit():
    planner = Planner(small_checkpoint(**EXACT))
    frames, goals = some_frames(1), some_frames(1, seed=1)
    solver = their_cem(planner, seed=derive(3, "task"), tasks=1, batch_size=1)
    theirs = planner.raw_actions(solver.solve(info(frames, goals))["actions"])
    ours = planner.plan(frames, goals, streams=[stream(3, "task")])
    assert np.array_equal(ours, theirs)


def test_costs_of_a_batch_are_the_costs_of_its_tasks():
    """Their LeWM mixes goals up when tasks share a batch, silently so when tasks = candidates."""
    planner = Planner(small_checkpoint())
    model = CostModel(planner)
    frames, goals = some_frames(4), some_frames(4, seed=1)
    candidates = torch.randn(4, 4, 3, 10, generator=stream(0))
    expanded = {
        name: value[:, None].expand(-1, 4, *value.shape[1:])
        for name, value in info(frames, goals).items()
    }
    together = model.get_cost(expanded, candidates)
    for i in range(4):
        alone = {
            name: value[i : i + 1] for name, value in expanded.items() if name != "sdjepa_cost"
        }
        assert_close(model.get_cost(alone, candidates[i : i + 1])[0], together[i])
    assert not torch.allclose(together[0], together[1])


def test_frames_that_were_transformed_are_refused():
    model = CostModel(Planner(small_checkpoint()))
    wrong = {"pixels": torch.zeros(1, 2, 1, 3, 28, 28), "goal": torch.zeros(1, 2, 1, 3, 28, 28)}
    with pytest.raises(UserError, match="no transform"):
        model.get_cost(wrong, torch.zeros(1, 2, 3, 10))


def test_their_evaluation_drives_our_checkpoint_as_we_do(
    trained: Path, tiny_data: Path, tmp_path: Path
):
    """Their World, policy and solver with the random numbers of our task execute our plan."""
    import stable_worldmodel as swm
    from stable_worldmodel.data.formats.hdf5 import HDF5Dataset
    from stable_worldmodel.policy import WorldModelPolicy

    settings = Plan(candidates=16, elites=4, iterations=3)
    planner = Planner(load_checkpoint(trained), settings)
    data = Episodes.open(tiny_data)
    task = task_list(data, Score(tasks=1)).tasks[0]
    names = (task.episode, task.start)
    seed = derive(settings.seed, "plan", *names, 0)
    done: list[np.ndarray] = []

    class Watched(WorldModelPolicy):
        def get_action(self, info_dict: dict[str, Any], **kwargs: Any) -> np.ndarray:
            done.append(super().get_action(info_dict, **kwargs))
            return done[-1]

    world = swm.World("swm/TwoRoom-v1", num_envs=1, image_shape=(28, 28), max_episode_steps=100)
    solver = their_cem(planner, seed=seed, tasks=1, batch_size=1)
    world.set_policy(Watched(solver, plan_config(planner), process=scalers(planner)))
    copy = shutil.copy(tiny_data / "episodes.h5", tmp_path)  # HDF5 refuses two ways of opening
    dataset = HDF5Dataset(path=copy, keys_to_load=["pixels", "action", "proprio"])
    calls = [
        {"method": "_set_state", "args": {"state": {"value": "proprio"}}},
        {"method": "_set_goal_state", "args": {"goal_state": {"value": "goal_proprio"}}},
    ]
    found = world.evaluate(
        dataset=dataset,
        episodes_idx=[task.episode],
        start_steps=[task.start],
        goal_offset=task.offset,
        eval_budget=25,
        callables=calls,
    )
    start, goal = data.frames(np.array(task.rows(data)))
    agent = Receding(planner, lambda _: start[None], goals=goal[None], names=[names])
    ours = agent([0])[0]
    executed = np.stack(done)[:, 0]
    assert len(executed) in range(1, 26)
    assert found["episode_successes"].shape == (1,)
    np.testing.assert_allclose(executed, ours[: len(executed)], atol=1e-5)


def test_our_planner_imagines_with_their_lewm():
    """The same weights, once as their object and once as ours, give the same plan."""
    pytest.importorskip("transformers")
    shape = Model.model_validate(SIZES | {"k": 0, "dropout": 0.0})
    theirs = instantiate(lewm_config(shape))
    stir(theirs)
    ours = WorldModel(shape)
    from_lewm(ours, theirs.state_dict(), keys="new")
    settings = Plan.model_validate(EXACT | {"cost": "full"})
    checkpoint = small_checkpoint(**EXACT, cost="full")
    planner = Planner(type(checkpoint)(ours.eval(), checkpoint.config, STATS, 0, Path()))
    other = lewm_planner(theirs, STATS, settings=settings)
    frames, goals = some_frames(3), some_frames(3, seed=1)
    assert_close(other.encode(frames), planner.encode(frames), atol=1e-5, rtol=0)
    streams = [[stream(0, "task", i) for i in range(3)] for _ in range(2)]
    plans = [
        p.plan(frames, goals, streams=s) for p, s in zip((planner, other), streams, strict=True)
    ]
    np.testing.assert_allclose(plans[1], plans[0], atol=1e-3)


def test_their_solver_can_be_scored_under_our_protocol(trained: Path, tiny_data: Path):
    settings = Score(protocol="strict", tasks=2, budget=10)
    plan = Plan(candidates=8, elites=4, iterations=2, replan=1)
    ours, theirs, test = compare_solvers(trained, tiny_data, settings=settings, plan=plan)
    assert test.num_tasks == len(ours) == len(theirs) == 2
    assert all(a.final_distance != a.start_distance for a in theirs)
    assert [a.final_distance for a in ours] != [b.final_distance for b in theirs]
