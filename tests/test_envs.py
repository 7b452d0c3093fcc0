"""What every environment promises: seeded scenes, exact states, columns as declared."""

import subprocess
import sys

import numpy as np
import pytest

from sdjepa.data.episodes import guess
from sdjepa.envs import base

STEPS = 30


@pytest.fixture(scope="module", params=base.NAMES)
def env(request):
    return base.make(request.param)


def test_an_environment_does_without_the_rest_of_the_library():
    """Datasets, models and solvers would be imported with it: ten seconds and a gigabyte."""
    script = (
        "import sys; from sdjepa.envs.base import make; make('tworoom'); make('pusht')\n"
        "print([n for n in ('lancedb', 'transformers', 'datasets') if n in sys.modules])\n"
        "print(any(n.startswith('stable_worldmodel.data') for n in sys.modules))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert said.stdout.split("\n")[-3:] == ["[]", "False", ""]


def roll(env, seed, *, policy=None, steps=STEPS):
    """Rows and actions of one episode, nothing drawn."""
    rng = np.random.default_rng(seed)
    env.reset(rng)
    policy = env.policy(policy or env.default_policy(None), noise=1.0, rng=rng)
    rows, actions = [env.observe()], []
    for _ in range(steps):
        actions.append(policy())
        env.step(actions[-1])
        rows.append(env.observe())
    return rows, actions


def same(rows, others):
    return all(
        np.array_equal(row[name], other[name])
        for row, other in zip(rows, others, strict=True)
        for name in row
    )


def test_an_episode_follows_from_its_generator_alone(env):
    """Not from the episodes before it, nor from numpy's global generator."""
    np.random.seed(1)
    rows, actions = roll(env, 7)
    roll(env, 8)
    np.random.seed(2)
    state = np.random.get_state()[1].copy()
    again, actions_again = roll(env, 7)
    assert same(rows, again)
    assert np.array_equal(actions, actions_again)
    assert np.array_equal(np.random.get_state()[1], state)
    assert not same(rows, roll(env, 9)[0])


def test_the_recorded_columns_are_those_declared(env):
    row = roll(env, 0, steps=1)[0][0]
    assert {name: value.shape for name, value in row.items()} == env.state_columns
    assert guess(env.state_columns) == env.name


def test_a_state_and_a_goal_are_restored_from_the_columns_needed_alone(env):
    """So a file that has these fits, and one that lacks any of them does not."""
    rows, _ = roll(env, 1)
    few = [{name: row[name] for name in env.needed} for row in (rows[0], rows[20])]
    env.set_state(few[0])
    env.set_goal(few[1])
    assert env.distance() > 0
    columns = {name: np.stack([row[name] for row in few]) for name in env.needed}
    assert env.path(columns).shape == (2, 2)
    assert all(values.shape == (2,) for values in env.measures(columns).values())
    assert all(rows.ndim == 1 for rows in env.events(columns).values())
    shapes = {name: env.state_columns[name] for name in few[0]}
    assert base.fits(env.name, shapes, env.action_dim) is None
    for name in shapes:
        without = {other: shape for other, shape in shapes.items() if other != name}
        assert name in str(base.fits(env.name, without, env.action_dim))
        assert name in str(base.fits(env.name, {**shapes, name: (3, 3)}, env.action_dim))
    assert "actions of 9 numbers" in str(base.fits(env.name, shapes, 9))


def test_a_recording_of_one_environment_fits_no_other(env):
    others = [name for name in base.NAMES if name != env.name]
    assert all(base.fits(name, env.state_columns, env.action_dim) for name in others)


def test_noise_changes_every_policy_but_those_said_to_ignore_it(env):
    for name in set(env.policies) - {"demos"}:
        drawn = []
        for noise in (0.0, 1.0):
            rng = np.random.default_rng(4)
            env.reset(rng)
            act = env.policy(name, noise=noise, rng=rng)
            drawn.append([act() for _ in range(3)])
        assert np.array_equal(*drawn) == (name in env.noiseless), name


def test_a_state_is_set_without_being_moved_and_without_a_past(env):
    rows, actions = roll(env, 3)
    for row in rows[:: STEPS // 3]:
        env.set_state(row)
        now = env.observe()
        for name in ("proprio", "state", "qpos", "qvel", "finger_pos", "proprio_effector_pos"):
            if name in row:
                assert np.array_equal(now[name], row[name]), name
    env.set_state(rows[5])
    env.step(actions[5])
    once = env.observe()
    roll(env, 4)
    env.set_state(rows[5])
    env.step(actions[5])
    twice = env.observe()
    for name in once:
        if name not in ("pos_target", "distance_to_target", "observation", "target_pos"):
            if name.startswith("privileged_target"):
                continue  # a goal is set by itself
            assert np.array_equal(once[name], twice[name]), name


def test_replaying_recorded_actions_reaches_the_recorded_goal(env):
    """The floor every score is read against: 98 % or more, or states are not restored."""
    reached = []
    for seed in range(3):
        rows, actions = roll(env, seed, steps=60)
        for start in range(0, 35, 8):
            env.set_state(rows[start])
            env.set_goal(rows[start + 25])
            solved = env.solved()
            for action in actions[start : start + 25]:
                if not solved:
                    env.step(action)
                    solved = env.solved()
            reached.append(solved)
    assert np.mean(reached) >= 0.98


def test_the_goal_row_itself_is_solved_and_at_no_distance(env):
    rows, _ = roll(env, 5)
    env.set_state(rows[20])
    env.set_goal(rows[20])
    assert env.solved()
    assert env.distance() == pytest.approx(0, abs=1e-6)
    env.set_state(rows[0])
    env.set_goal(rows[20])
    assert env.distance() > 0


def test_measures_events_and_path_need_no_simulator(env):
    rows, _ = roll(env, 6)
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    kind = base.env_class(env.name)
    measures = kind.measures(columns)
    assert measures
    assert all(values.shape == (STEPS + 1,) for values in measures.values())
    assert kind.path(columns).shape == (STEPS + 1, 2)
    for rows_at in kind.events(columns).values():
        assert ((rows_at > 0) & (rows_at <= STEPS)).all()


def test_frames_shot_and_developed_together_are_the_frames_taken_one_by_one(env):
    rng = np.random.default_rng(2)
    env.reset(rng)
    singly = []
    for _ in range(4 if env.name == "cube" else 40):  # more than a sheet holds, where that is quick
        env.shoot()
        singly.append(env.frame())
        env.step(rng.uniform(env.action_low, env.action_high))
    together = env.develop()
    assert len(together) == len(singly)
    assert all(np.array_equal(a, b) for a, b in zip(together, singly, strict=True))
    assert env.develop() == []
    assert not np.array_equal(singly[0], singly[-1])


def test_the_picture_is_the_simulators_own(env):
    """Which is drawn by none of our ways, and leaves nothing behind for the next that is."""
    rng = np.random.default_rng(4)
    env.reset(rng)
    policy = env.policy(env.policies[-1], noise=1.0, rng=rng)
    for _ in range(2):
        ours = env.frame()
        assert np.abs(env.plain().astype(int) - ours).max() <= (env.name == "tworoom")
        assert np.array_equal(env.frame(), ours)
        for _ in range(5):
            env.step(policy())


def test_a_goal_outlives_the_setting_of_a_state(env):
    """A planner whose model is the simulator sets states hundreds of times under one goal."""
    env.reset(np.random.default_rng(1))
    row = env.observe()
    env.reset(np.random.default_rng(2))
    goal = env.observe()
    env.set_goal(goal)
    env.set_state(row)
    far = env.distance()
    env.set_goal(goal)
    assert env.distance() == far > 0


def test_random_actions_fill_the_action_space(env):
    policy = env.policy("random", noise=1.0, rng=np.random.default_rng(6))
    actions = np.stack([policy() for _ in range(2000)])
    assert (env.action_low == -1).all()
    assert (env.action_high == 1).all()
    assert actions.std(0) == pytest.approx(np.full(env.action_dim, 3**-0.5), abs=0.02)


def test_a_neighbours_reset_and_goal_leave_an_environment_where_it_is(env):
    other = base.make(env.name)
    env.reset(np.random.default_rng(1))
    env.set_goal(env.observe())
    before = env.observe()
    other.reset(np.random.default_rng(2))
    other.set_goal(other.observe())
    other.policy(other.policies[-1], noise=1.0, rng=np.random.default_rng(3))
    other.step(np.full(other.action_dim, 0.5))
    for name, value in env.observe().items():
        assert np.array_equal(value, before[name]), name
    assert env.solved()


def test_an_aim_does_not_outlive_the_reset():
    for name in ("pusht", "reacher"):
        env = base.make(name)
        env.reset(np.random.default_rng(0))
        actor = {"pusht": "pusher", "reacher": "expert"}[name]
        env.policy(actor, noise=0.0, rng=np.random.default_rng(0))()
        env.reset(np.random.default_rng(1))
        if name == "pusht":
            env.set_state({"state": np.array([100.0, 100, 0, 0, 0, 0, 0])})
        assert env._aim is None
        assert not env.succeeded()
