"""Reacher: dm_control's silent resets, and the angle that does not wrap."""

import gc

import numpy as np
import pytest

from sdjepa.envs import base, gl


@pytest.fixture(scope="module")
def env():
    made = base.make("reacher")
    yield made
    # The simulator's own renderer, used here to compare with, frees its GL objects by number in
    # whichever context is current. Have it done now, and begin with new contexts afterwards.
    made.close()
    gc.collect()
    gl.close_all()


def test_no_reset_happens_by_itself_at_step_500(env):
    """Left alone, dm_control draws a new pose there and says nothing."""
    rng = np.random.default_rng(0)
    env.reset(rng)
    policy = env.policy("random", noise=1.0, rng=rng)
    before = env.observe()["qpos"]
    for _ in range(520):
        env.step(policy())
        now = env.observe()["qpos"]
        assert np.abs(now - before).max() < 0.5
        before = now


def test_no_reset_happens_by_itself_after_a_success(env):
    env.reset(np.random.default_rng(1))
    env.set_goal(env.observe())
    before = env.observe()["qpos"]
    for _ in range(4):
        env.step(np.array([0.2, 0.0]))
        assert np.abs(env.observe()["qpos"] - before).max() < 0.2


def test_a_goal_does_not_outlive_the_reset(env):
    rng = np.random.default_rng(2)
    env.reset(rng)
    env.set_goal(env.observe())
    assert env.solved()
    env.reset(rng)
    env._env.env.physics.data.qpos[:] = 0
    assert not env.solved()
    assert env.distance() == np.inf


def test_solved_is_the_simulators_own_termination(env):
    rng = np.random.default_rng(3)
    both = set()
    for _ in range(40):
        env.reset(rng)
        env.set_goal({"qpos": env.observe()["qpos"] + rng.normal(size=2) * 0.06})
        terminated = env._env.step(np.zeros(2))[2]
        assert env.solved() == terminated
        both.add(bool(terminated))
    assert both == {True, False}


def test_a_full_turn_of_the_shoulder_fails_the_benchmark_and_passes_wrapped(env):
    env.reset(np.random.default_rng(4))
    qpos = env.observe()["qpos"]
    env.set_goal({"qpos": qpos + np.array([2 * np.pi, 0])})
    assert not env.solved()
    assert env.other_success() == {"wrapped": True}
    env.set_goal({"qpos": qpos + np.array([2 * np.pi + 0.1, 0])})
    assert env.other_success() == {"wrapped": False}
    assert env.distance() == pytest.approx(2 * np.pi + 0.1)


def test_the_picture_is_dm_controls_and_is_restored_exactly(env):
    rng = np.random.default_rng(5)
    env.reset(rng)
    for _ in range(5):
        env.step(rng.uniform(-1, 1, 2))
    row, frame = env.observe(), env.frame()
    assert np.array_equal(frame, env._env.render())
    env.reset(rng)
    other = env.frame()
    assert not np.array_equal(other, frame)
    env.set_state(row)
    assert np.array_equal(env.frame(), frame)


def test_the_expert_reaches_aim_after_aim(env):
    reached = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        env.reset(rng)
        policy = env.policy("expert", noise=1.0, rng=rng)
        for _ in range(100):
            reached += env.succeeded()
            if env.succeeded():
                row = env.observe()  # the ball stands where the finger should be
                assert np.linalg.norm(row["finger_pos"] - row["target_pos"]) < 0.02
            env.step(policy())
    assert reached >= 6


def test_the_ball_is_where_the_expert_wants_the_finger_from_the_first_row_on(env):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        env.reset(rng)
        policy = env.policy("expert", noise=0.0, rng=rng)
        first = env.observe()["target_pos"]
        env.step(policy())
        assert np.array_equal(env.observe()["target_pos"], first)


@pytest.mark.parametrize(("off", "there"), [(0.049, True), (-0.049, True), (0.051, False)])
@pytest.mark.parametrize("joint", [0, 1])
def test_the_benchmark_asks_for_a_twentieth_of_a_radian(env, joint, off, there):
    """As a number: a release of the library that asks for another gives other scores."""
    env.reset(np.random.default_rng(4))
    env.set_goal({"qpos": env.observe()["qpos"] + off * np.eye(2)[joint]})
    assert env.solved() == there


def test_who_takes_pictures_in_between_is_noticed(env):
    other = base.make("reacher")
    for each in (env, other):
        each.reset(np.random.default_rng(0))
    env.shoot()
    other.shoot()
    assert env.finished() == []
    with pytest.raises(AssertionError, match="another took pictures"):
        env.shoot()
    assert env.develop() == []
    assert len(other.develop()) == 1
    env.shoot()
    assert len(env.develop()) == 1


def test_random_actions_fill_the_action_space(env):
    rng = np.random.default_rng(6)
    env.reset(rng)
    policy = env.policy("random", noise=1.0, rng=rng)
    actions = np.stack([policy() for _ in range(2000)])
    assert actions.std(0) == pytest.approx([0.577, 0.577], abs=0.02)  # the public file's 0.5767


def test_measures_are_what_they_are_called_the_goals_first():
    kind = base.env_class("reacher")
    columns = {
        "finger_pos": np.array([[0.0, 0.1], [0.03, 0.04]]),
        "target_pos": np.array([[0.0, 0.0], [0.0, 0.0]]),
        "qvel": np.array([[3.0, 4], [0, 0]]),
        "score": np.array([0.5, 1.0]),
    }
    found = kind.measures(columns)
    assert list(found) == ["ee_target_dist", "joint_speed", "score"]
    columns["target_pos"][1] = [0.03, 0.0]
    assert kind.measures(columns)["ee_target_dist"] == pytest.approx([0.1, 0.04])
    assert found["joint_speed"].tolist() == [5, 0]


def test_the_path_from_angles_is_the_fingers(env):
    rows = []
    for seed in range(5):
        env.reset(np.random.default_rng(seed))
        rows.append(env.observe())
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    angles = {"qpos": columns["qpos"]}
    assert env.path(angles) == pytest.approx(env.path(columns), abs=1e-3)


def test_the_distance_is_that_of_the_joint_further_off_and_both_must_match(env):
    env.reset(np.random.default_rng(4))
    qpos = env.observe()["qpos"]
    env.set_goal({"qpos": qpos + np.array([0.01, -0.3])})
    assert env.distance() == pytest.approx(0.3)
    assert env.other_success() == {"wrapped": False}


def test_no_noise_gives_the_experts_own_action(env):
    env.reset(np.random.default_rng(4))
    policy = env.policy("expert", noise=0.0, rng=np.random.default_rng(1))
    assert np.array_equal(policy(), policy())


def test_a_part_of_an_episode_given_up_is_not_in_the_next(env):
    env.reset(np.random.default_rng(0))
    for _ in range(3):
        env.shoot()
    again = base.make("reacher")
    again.reset(np.random.default_rng(1))
    again.shoot()
    assert len(again.develop()) == 1


def test_an_aim_that_is_reached_is_replaced_by_another(env):
    env.reset(np.random.default_rng(0))
    policy = env.policy("expert", noise=0.0, rng=np.random.default_rng(0))
    env._aim = env.observe()["qpos"]
    assert env.succeeded()
    policy()
    assert not env.succeeded()


def test_a_neighbours_aim_does_not_move_this_ones_ball():
    env, other = base.make("reacher"), base.make("reacher")
    env.reset(np.random.default_rng(0))
    row = env.observe()
    other.reset(np.random.default_rng(1))
    other.policy("expert", noise=0.0, rng=np.random.default_rng(1))
    env.set_state(row)
    assert np.array_equal(env.observe()["target_pos"], row["target_pos"])
