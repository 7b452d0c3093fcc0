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


def test_random_actions_fill_the_action_space(env):
    rng = np.random.default_rng(6)
    env.reset(rng)
    policy = env.policy("random", noise=1.0, rng=rng)
    actions = np.stack([policy() for _ in range(2000)])
    assert actions.std(0) == pytest.approx([0.577, 0.577], abs=0.02)  # the public file's 0.5767
