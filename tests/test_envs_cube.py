"""Cube: seeds that count, pictures that survive a neighbour's reset, an arm that does not idle."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from sdjepa.envs import base, gl, library
from sdjepa.envs.cube import NOISE_SHAPE


@pytest.fixture(scope="module")
def env():
    return base.make("cube")


@pytest.fixture(scope="module")
def other():
    return base.make("cube")


def drive(env, name, seed, steps):
    rng = np.random.default_rng(seed)
    env.reset(rng)
    policy = env.policy(name, noise=1.0, rng=rng)
    rows, actions = [env.observe()], []
    for _ in range(steps):
        actions.append(policy())
        env.step(actions[-1])
        rows.append(env.observe())
    return rows, actions


def test_two_environments_given_one_seed_show_one_scene(env, other):
    env.reset(np.random.default_rng(5))
    np.random.random(3)
    other.reset(np.random.default_rng(5))
    for name, value in env.observe().items():
        assert np.array_equal(value, other.observe()[name]), name
    other.reset(np.random.default_rng(6))
    assert not np.array_equal(env.observe()["qpos"], other.observe()["qpos"])


def test_every_scene_has_its_own_cube_and_target(env):
    """What is named under `variation` alone is left at its default: one place for all cubes."""
    seen = []
    for seed in range(6):
        env.reset(np.random.default_rng(seed))
        row = env.observe()
        cube, target = row["privileged_block_0_pos"][:2], row["privileged_target_block_pos"][:2]
        seen.append([*cube, *target, *row["privileged_block_0_yaw"]])
    assert (np.std(seen, axis=0) > 0.02).all()


def test_a_gripper_that_held_the_cube_holds_it_again(env):
    """Without its controls the gripper lets go, and says that it feels nothing."""
    rows, _ = drive(env, "expert", 1, 60)
    grips = np.array([row["proprio_gripper_contact"][0] for row in rows])
    held = int(np.flatnonzero(grips > 0.9)[5])  # after the first it is the grip, not the blow
    env.set_state(rows[held])
    assert abs(env.observe()["proprio_gripper_contact"][0] - grips[held]) < 0.05
    without = {name: value for name, value in rows[held].items() if name != "control"}
    env.set_state(without)
    assert env.observe()["proprio_gripper_contact"][0] < grips[held] - 0.5


def test_a_neighbours_reset_leaves_pictures_and_model_alone(env, other):
    """Left alone, a reset recompiles the model and destroys every other environment's pictures."""
    env.reset(np.random.default_rng(1))
    before, model = env.frame(), env._env._model
    other.reset(np.random.default_rng(2))
    other.frame()
    other.reset(np.random.default_rng(3))
    env.reset(np.random.default_rng(1))
    assert env._env._model is model
    assert np.array_equal(env.frame(), before)


def test_closing_a_painter_leaves_another_context_alone(env):
    env.reset(np.random.default_rng(1))
    before = env.frame()
    second = gl.Painter(env._env._model, size=64, shadow=0)
    second.paint(env._env._data, "front_pixels")
    env.frame()
    second.close()
    assert np.array_equal(env.frame(), before)


def test_a_restored_state_gives_the_recorded_picture_and_the_recorded_future(env):
    """MuJoCo's derived quantities lag the state by a substep; a plain setter loses the lag."""
    rows, actions = drive(env, "expert", 1, 40)
    frame = env.frame()
    env.set_state(rows[40])
    assert np.array_equal(env.frame(), frame)
    env.set_state(rows[12])
    for action in actions[12:37]:
        env.step(action)
    assert np.abs(env.observe()["qpos"] - rows[37]["qpos"]).max() < 1e-5


def test_solved_is_the_termination_of_the_benchmarks_task_mode(env):
    kind = library.load("envs.ogbench.cube_env").CubeEnv
    task = kind(env_type="single", ob_type="states", mode="task", terminate_at_goal=True)
    task.reset()
    rng = np.random.default_rng(4)
    env.reset(rng)
    row = env.observe()
    both = set()
    for _ in range(12):
        goal = row["privileged_block_0_pos"] + rng.normal(size=3) * 0.03
        env.set_state(row)
        env.set_goal({"privileged_block_0_pos": goal})
        task.set_state(row["qpos"], row["qvel"])
        task.set_target_pos(0, goal)
        terminated = task.step(np.zeros(5))[2]
        env.step(np.zeros(5))
        assert env.solved() == terminated
        both.add(bool(terminated))
    assert both == {True, False}


def test_the_expert_leaves_few_moments_in_which_nothing_happens_to_the_cube(env):
    still = {}
    for name in ("expert", "idle"):
        gaps = []
        for seed in range(2):
            rows, _ = drive(env, name, seed, 150)
            places = np.stack([row["privileged_block_0_pos"] for row in rows])
            gaps.append(np.linalg.norm(places[25:] - places[:-25], axis=1) <= 0.04)
        still[name] = np.mean(np.concatenate(gaps))
    assert still["expert"] < 0.2
    assert still["idle"] > 0.4


def test_the_planning_oracle_draws_from_the_episode_and_not_from_numpys_global_generator(env):
    np.random.seed(1)
    _, actions = drive(env, "plan", 3, 12)
    np.random.seed(2)
    assert np.array_equal(actions, drive(env, "plan", 3, 12)[1])


def test_gripper_events_are_the_rows_just_after_a_flip():
    contact = np.array([0, 0, 0.4, 0.6, 1, 0.9, 0.2, 0])[:, None]
    events = base.env_class("cube").events({"proprio_gripper_contact": contact})
    assert events["gripper"].tolist() == [3, 6]


def test_a_smaller_shadow_map_changes_pixels_a_little_and_only_when_asked(env):
    env.reset(np.random.default_rng(1))
    small = gl.Painter(env._env._model, size=base.NATIVE_SIZE, shadow=512)
    assert env._env._model.vis.quality.shadowsize == 4096  # the model is other painters', too
    gap = np.abs(small.paint(env._env._data, "front_pixels").astype(int) - env.frame())
    small.close()
    assert 0 < gap.mean() < 1


def test_all_cubes_of_a_process_draw_by_one_context(env, other):
    env.frame()
    before = dict(gl._painters)
    other.frame()
    assert gl._painters == before


def test_a_new_target_is_the_episodes_own_and_well_away_from_the_cube(env):
    env.reset(np.random.default_rng(0))
    drawn = []
    for number in (1, 2):
        np.random.seed(number)
        rng = np.random.default_rng(3)
        for _ in range(30):
            env.draw_target(rng)
            row = env.observe()
            target = row["privileged_target_block_pos"]
            assert np.linalg.norm((target - row["privileged_block_0_pos"])[:2]) >= 0.1
            drawn.append(target)
    assert np.array_equal(drawn[:30], drawn[30:])


@pytest.mark.parametrize("name", ["expert", "plan"])
def test_noise_is_added_once_in_ogbenchs_shape_and_not_at_all_where_none_is_asked_for(env, name):
    for noise in (0.0, 0.3):
        rng = np.random.default_rng(0)
        env.reset(rng)
        policy = env.policy(name, noise=noise, rng=rng)
        policy._oracle.select_action = lambda seen, info: np.zeros(5)
        spread = np.std([policy() for _ in range(400)], axis=0)
        if noise and name == "expert":
            assert spread / spread[0] == pytest.approx(NOISE_SHAPE, rel=0.2)
            assert 0 < spread[0] <= 0.03
        else:  # a plan is noisy before it is asked for
            assert not spread.any()


def test_a_goal_is_where_it_was_after_a_state_is_set(env):
    env.reset(np.random.default_rng(1))
    row = env.observe()
    env.reset(np.random.default_rng(2))
    target = env.observe()["privileged_target_block_pos"]
    env.set_state(row)
    assert np.array_equal(env.observe()["privileged_target_block_pos"], target)


def test_measures_are_what_they_are_called_the_goals_first():
    columns = {
        "privileged_block_0_pos": np.array([[0.0, 0, 0], [0.3, 0.4, 0]]),
        "privileged_target_block_pos": np.zeros((2, 3)),
        "proprio_effector_pos": np.array([[3.0, 4, 0], [0.3, 0.4, 1]]),
        "proprio_gripper_contact": np.array([[0.0], [1.0]]),
        "proprio_gripper_opening": np.array([[0.5], [0.25]]),
        "privileged_block_0_yaw": np.array([[0.1], [0.2]]),
    }
    kind = base.env_class("cube")
    found = {name: values.tolist() for name, values in kind.measures(columns).items()}
    assert list(found.items()) == [
        ("block_target_dist", [0, 0.5]),
        ("effector_block_dist", [5, 1]),
        ("gripper_contact", [0, 1]),
        ("gripper_opening", [0.5, 0.25]),
        ("block_yaw", [0.1, 0.2]),
    ]
    assert kind.path(columns).tolist() == [[0, 0], [0.3, 0.4]]


def test_an_exchanged_part_is_at_rest(env):
    rows, _ = drive(env, "random", 1, 5)
    assert np.abs(rows[5]["qvel"]).max() > 0
    mixed = env.exchange(rows[5], rows[0], "cube")
    assert not mixed["qvel"].any()
    assert np.array_equal(mixed["qpos"][:14], rows[5]["qpos"][:14])
    assert np.array_equal(mixed["qpos"][14:], rows[0]["qpos"][14:])


@pytest.mark.parametrize(("off", "there"), [(0.039, True), (0.041, False)])
def test_the_benchmark_asks_for_4_cm(env, off, there):
    """As a number: a release of the library that asks for another gives other scores."""
    env.reset(np.random.default_rng(0))
    row = env.observe()
    for way in np.eye(3):
        env.set_goal({"privileged_block_0_pos": row["privileged_block_0_pos"] + off * way})
        env.set_state(row)
        assert env.solved() == there


def test_the_distance_counts_height(env):
    env.reset(np.random.default_rng(0))
    row = env.observe()
    env.set_goal({"privileged_block_0_pos": row["privileged_block_0_pos"] + [0.3, 0, 0.4]})
    assert env.distance() == pytest.approx(0.5)


def test_the_picture_does_not_show_the_target(env):
    env.reset(np.random.default_rng(1))
    row = env.observe()
    env.set_goal(row | {"privileged_block_0_pos": row["privileged_block_0_pos"] + [0.1, 0.1, 0.1]})
    before = env.frame()
    env.set_goal(row | {"privileged_block_0_pos": row["privileged_block_0_pos"] - [0.1, 0.1, -0.1]})
    env.set_state(row)
    assert np.array_equal(env.frame(), before)


def test_each_shadow_map_has_its_own_pictures(env):
    env.reset(np.random.default_rng(1))
    small = base.make("cube", shadow=512)
    small.reset(np.random.default_rng(1))
    whole = env.frame()
    asked = small.frame()
    small.shoot()
    assert 0 < np.abs(asked.astype(int) - whole).mean() < 1
    assert np.array_equal(small.develop()[0], asked)
    assert np.array_equal(env.frame(), whole)


def test_a_thread_draws_by_a_context_of_its_own(env):
    """A context belongs to the thread that made it: Lance's writer once asked from its own."""

    def elsewhere():
        made = base.make("cube")
        made.reset(np.random.default_rng(1))
        frame = made.frame()
        gl.close_all()
        return frame

    env.reset(np.random.default_rng(1))
    frame = env.frame()
    with ThreadPoolExecutor(1) as pool:
        assert np.array_equal(pool.submit(elsewhere).result(), frame)
    assert np.array_equal(env.frame(), frame)


def test_the_expert_is_done_when_the_cube_lies_there_let_go_and_the_hand_is_above(env):
    """OGBench's oracle would now carry its empty hand to a random place and wait there."""
    env.reset(np.random.default_rng(0))
    env.set_goal(env.observe())
    for name in ("expert", "idle"):
        policy = env.policy(name, noise=0.0, rng=np.random.default_rng(0))
        for contact, height, done in ((0.0, 0.2, True), (1.0, 0.2, False), (0.0, 0.1, False)):
            info = {
                "proprio/gripper_contact": np.array([contact]),
                "proprio/effector_pos": np.array([0.4, 0.0, height]),
            }
            assert policy._finished(info) == (done and name == "expert")
