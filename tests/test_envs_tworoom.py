"""Two-Room is the benchmark's Two-Room: same success, same picture, same expert."""

import numpy as np
import pytest

from sdjepa.envs import base
from sdjepa.errors import UserError

WALL = base.env_class("tworoom").WALL_X


@pytest.fixture(scope="module")
def env():
    return base.make("tworoom")


def test_solved_is_the_simulators_own_termination(env):
    rng = np.random.default_rng(0)
    both = set()
    for _ in range(40):
        env.reset(rng)
        env.set_goal({"proprio": env.observe()["proprio"] + rng.uniform(-14, 14, 2)})
        *_, terminated, _, info = env._env.step(rng.uniform(-1, 1, 2))
        assert env.solved() == terminated
        assert env.distance() == pytest.approx(info["distance_to_target"], abs=0)
        both.add(terminated)
    assert both == {True, False}


def test_the_windowed_picture_is_the_simulators(env):
    rng = np.random.default_rng(1)
    differ = []
    for _ in range(60):
        env.reset(rng)
        gap = np.abs(env.frame().astype(int) - env._env.render().astype(int))
        assert gap.max() <= 1
        differ.append((gap > 0).mean())
    # None here. A processor may round an exponential by where it lies in memory, but not so many
    # as numpy's rounds otherwise: those are 4e-4.
    assert np.mean(differ) < 1e-5


@pytest.mark.parametrize(
    "place",
    [(0, 0), (223.9, 100), (224, 100), (-1, 50), (300, 50), (-60, 50), (50, -90), (50, 270)],
)
def test_a_dot_outside_is_drawn_as_the_simulator_draws_it(env, place):
    """Other people's data may have it anywhere."""
    env.set_state({"proprio": np.array(place, dtype=np.float32)})
    assert np.abs(env.frame().astype(int) - env.plain()).max() <= 1


def test_a_goal_is_a_copy(env):
    env.set_state({"proprio": np.array([40.0, 100.0])})
    goal = np.array([43.0, 104.0], dtype=np.float32)
    env.set_goal({"proprio": goal})
    goal[:] = 0
    assert env.observe()["pos_target"].tolist() == [43, 104]


def test_a_step_is_the_simulators_step_at_every_wall(env):
    rng = np.random.default_rng(7)
    stopped = 0
    for _ in range(400):
        env.reset(rng)
        start = rng.uniform([14, 14], [210, 210]).astype(np.float32)
        start[0] += rng.choice([0.0, WALL - start[0] + rng.uniform(-14, 14)])
        action = rng.uniform(-1.3, 1.3, 2).astype(np.float32)
        env.set_state({"proprio": start})
        env.step(action)
        ours, distance = env.observe()["proprio"], env.distance()
        env.set_state({"proprio": start})
        _, _, terminated, _, info = env._env.step(action)
        assert np.array_equal(ours, info["proprio"])
        assert distance == info["distance_to_target"]
        assert env.solved() == terminated
        stopped += not np.allclose(ours, start + 5 * np.clip(action, -1, 1), atol=1e-4)
    assert 20 < stopped < 380


def test_a_recorded_state_is_restored_exactly(env):
    rng = np.random.default_rng(2)
    env.reset(rng)
    row, frame = env.observe(), env.frame()
    action = np.array([0.3, -0.9], dtype=np.float32)
    env.step(action)
    after = env.observe()
    env.reset(rng)
    env.set_state(row)
    assert np.array_equal(env.frame(), frame)
    env.step(action)
    assert np.array_equal(env.observe()["proprio"], after["proprio"])


def test_the_noiseless_expert_reaches_every_target_through_the_door(env):
    rng = np.random.default_rng(3)
    for _ in range(20):
        env.reset(rng)
        policy = env.policy("expert", noise=0.0, rng=rng)
        for _ in range(80):
            if env.solved():
                break
            env.step(policy())
        assert env.solved()


def test_a_reached_target_is_replaced_by_another(env):
    rng = np.random.default_rng(4)
    env.reset(rng)
    env.set_goal(env.observe())
    policy = env.policy("expert", noise=0.0, rng=rng)
    before = env.observe()["pos_target"]
    policy()
    assert not np.array_equal(env.observe()["pos_target"], before)


def test_a_smaller_picture_keeps_the_mean_colour(env):
    env.reset(np.random.default_rng(5))
    small, large = env.render(64), env.render(224)
    assert small.shape == (64, 64, 3)
    assert np.allclose(small.mean((0, 1)), large.mean((0, 1)), atol=0.6)


def test_door_events_are_the_rows_just_after_a_change_of_room():
    kind = base.env_class("tworoom")
    x = np.array([90.0, 100, 111, 114, 120, 113, 110])
    columns = {
        "proprio": np.stack([x, np.full(7, 49.0)], 1),
        "pos_target": np.tile([60.0, 49.0], (7, 1)),
    }
    assert kind.events(columns)["door"].tolist() == [3, 6]
    measures = kind.measures(columns)
    assert next(iter(measures)) == "agent_target_dist"
    assert measures["agent_target_dist"].tolist() == [30, 40, 51, 54, 60, 53, 50]
    assert measures["agent_speed"].tolist() == [0, 10, 11, 3, 6, 7, 3]


def test_unknown_names_are_answered_with_the_known_ones(env):
    with pytest.raises(UserError, match="tworoom"):
        base.make("threeroom")
    with pytest.raises(UserError, match="expert, random"):
        env.policy("exprt", noise=0, rng=np.random.default_rng(0))


@pytest.mark.slow
def test_the_expert_is_the_librarys_expert_and_the_real_package_still_imports(env):
    """Loading one module alone must leave the whole package importable afterwards."""
    from stable_worldmodel.envs.two_room import ExpertPolicy

    theirs = ExpertPolicy(action_noise=0.0)
    theirs.action_repeat_prob = 0.0
    rng = np.random.default_rng(6)
    for _ in range(50):
        env.reset(rng)
        if env.solved():
            continue
        row = env.observe()
        theirs.set_env(env._env)
        wanted = theirs.get_action({"state": row["state"], "goal_state": row["pos_target"]})
        got = env.policy("expert", noise=0.0, rng=rng)()
        assert np.allclose(got, wanted, atol=1e-6)


def test_16_px_is_not_yet_there(env):
    for far, there in ((15.99, True), (16.0, False), (16.01, False)):
        env.set_state({"proprio": np.array([40.0, 100.0])})
        env.set_goal({"proprio": np.array([40.0 + far, 100.0])})
        assert env.solved() == there


def test_a_noisy_experts_actions_are_within_bounds(env):
    rng = np.random.default_rng(0)
    env.reset(rng)
    policy = env.policy("expert", noise=2.0, rng=rng)
    assert max(np.abs(policy()).max() for _ in range(50)) == 1


def test_a_target_that_replaces_a_reached_one_is_the_episodes_own(env):
    found = []
    for seed in (1, 2):
        np.random.seed(seed)
        env.reset(np.random.default_rng(0))
        env.set_goal(env.observe())
        env.policy("expert", noise=0.0, rng=np.random.default_rng(1))()
        found.append(env.observe()["pos_target"])
    assert np.array_equal(*found)


def test_a_recorded_distance_is_the_measure():
    kind = base.env_class("tworoom")
    columns = {"proprio": np.zeros((2, 2)), "distance_to_target": np.array([7.0, 3.0])}
    assert kind.measures(columns)["agent_target_dist"].tolist() == [7, 3]


def test_another_goal_is_at_another_distance_though_the_agent_stands_still(env):
    env.set_state({"proprio": np.array([40.0, 100.0])})
    for far in (30.0, 50.0):
        env.set_goal({"proprio": np.array([40.0 + far, 100.0])})
        assert env.distance() == far
