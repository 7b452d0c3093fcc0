"""OGBench-Cube, one cube: an arm picks it up and puts it down; solved when it lies within 4 cm.

The simulator is stable-worldmodel's over OGBench's. Left alone it ignores its seed, draws from
numpy's global generator, recompiles its model at every reset (0.6 s) and by that destroys the
pictures of every other environment in the process; and its oracle's target never changes, so that
the arm idles. Here the model is compiled once, every draw comes from the episode's generator, and a
placed cube gets a new target.
"""

import contextlib
import copy
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sdjepa.envs import gl, library
from sdjepa.envs.base import NATIVE_SIZE, Columns, Policy

ORACLE_NOISE = 0.1  # the oracle's noise at noise 1 is drawn between 0 and this for every episode
NOISE_SHAPE = np.array([1.0, 1.0, 1.0, 3.0, 10.0])  # OGBench's, by action dimension
LEAST_MOVE_M = 0.1  # a new target is at least this far from the cube
LIFTED_M = 0.16  # the arm is out of the cube's way above this height


class Cube(gl.Filmed):
    """Five relative actions: effector x, y, z, yaw and gripper; 0.05 s a step."""

    name = "cube"
    action_dim = 5
    policies = ("expert", "plan", "idle", "random")
    state_columns = {  # noqa: RUF012
        "observation": (28,),
        "qpos": (21,),
        "qvel": (20,),
        "control": (7,),
        "privileged_block_0_pos": (3,),
        "privileged_block_0_quat": (4,),
        "privileged_block_0_yaw": (1,),
        "privileged_target_block_pos": (3,),
        "privileged_target_block_yaw": (1,),
        "proprio_joint_pos": (6,),
        "proprio_joint_vel": (6,),
        "proprio_effector_pos": (3,),
        "proprio_effector_yaw": (1,),
        "proprio_gripper_opening": (1,),
        "proprio_gripper_vel": (1,),
        "proprio_gripper_contact": (1,),
    }
    needed = ("qpos", "qvel", "privileged_block_0_pos")
    signature = ("qpos", 21)
    parts = {"arm": slice(0, 14), "cube": slice(14, 21)}  # noqa: RUF012
    distance_is = "m the cube is to be carried"
    action_is = "how the hand moves in x, y and z, turns and opens, 1 for the largest step of each"
    controlled = ("proprio_effector_pos", "proprio_effector_yaw", "proprio_gripper_opening")

    def __init__(self, *, shadow: int = 0) -> None:
        super().__init__(shadow=shadow)
        template = _template()
        # A shallow copy shares the model and has its own state: compiling another takes 2 s.
        self._env = copy.copy(template)
        self._env._data = copy.copy(template._data)
        self.action_low = self._env.action_space.low.astype(np.float32)
        self.action_high = self._env.action_space.high.astype(np.float32)
        self.reset(np.random.default_rng(0))

    def reset(self, rng: np.random.Generator) -> None:
        space = self._env.variation_space["cube"]
        drawn = {
            f"cube.{name}": rng.uniform(space[name].low, space[name].high)
            for name in ("start_position", "start_yaw", "goal_position", "goal_yaw")
        }
        self._env._np_random = np.random.default_rng(int(rng.integers(2**63)))
        # No name under `variation`: what is listed there would be drawn from an unseeded generator.
        self._env.reset(options={"variation": (), "variation_values": drawn})

    def set_state(self, row: Columns) -> None:
        mujoco: Any = importlib.import_module("mujoco")
        env, model, data = self._env, self._env._model, self._env._data
        target = data.mocap_pos.copy(), data.mocap_quat.copy()
        # Controls, clock and the solver's warm start belong to the past of another state.
        mujoco.mj_resetData(model, data)
        data.mocap_pos[:], data.mocap_quat[:] = target
        qpos, qvel = (np.asarray(row[name], dtype=np.float64) for name in ("qpos", "qvel"))
        # After a step MuJoCo's derived quantities, from which the controller and the picture are
        # made, are those of one substep earlier. Going back by it restores them too; without this
        # 2 % of replays miss and frames differ by half a grey level.
        data.qpos[:], data.qvel[:] = qpos, qvel
        if "control" in row:  # the grip, without which the gripper feels nothing
            data.ctrl[:] = row["control"]
        mujoco.mj_integratePos(model, data.qpos, qvel, -model.opt.timestep)
        mujoco.mj_forward(model, data)
        mujoco.mj_rnePostConstraint(model, data)  # the gripper's contact force
        data.qpos[:] = qpos
        env.pre_step()
        env.post_step()

    @classmethod
    def exchange(cls, row: Columns, other: Columns, part: str) -> dict[str, np.ndarray]:
        # At rest: the speed of what was exchanged belongs to another place.
        return {**super().exchange(row, other, part), "qvel": np.zeros(np.shape(row["qvel"]))}

    def set_goal(self, row: Columns) -> None:
        position = np.asarray(row["privileged_block_0_pos"], dtype=np.float64)
        quaternion = row.get("privileged_block_0_quat")
        self._env.set_target_pos(0, position, quaternion)

    def step(self, action: Float[np.ndarray, "action"]) -> None:
        self._env.step(np.asarray(action, dtype=np.float64))

    def observe(self) -> dict[str, np.ndarray]:
        info = self._env.compute_ob_info()
        seen = {name: np.asarray(info[_slashed(name)]) for name in list(self.state_columns)[1:]}
        return {"observation": self._env.compute_observation(), **seen}

    def _gap(self) -> np.ndarray:
        target = self._env._data.mocap_pos[self._env._cube_target_mocap_ids[0]]
        return self._env._data.joint("object_joint_0").qpos[:3] - target

    def distance(self) -> float:
        return float(np.linalg.norm(self._gap()))

    def solved(self) -> bool:
        return bool(self._env._compute_successes()[0])

    def subject(self) -> tuple[Any, Any, str | int]:
        return self._env._model, self._env._data, "front_pixels"

    def policy(
        self, name: str, *, noise: float, rng: np.random.Generator, demos_given: Path | None = None
    ) -> Policy:
        """`expert` carries the cube without pause; `idle` keeps its first target, as OGBench."""
        self.check_policy(name)
        if name == "random":
            return lambda: rng.uniform(self.action_low, self.action_high).astype(np.float32)
        level = rng.uniform(0, ORACLE_NOISE * noise)
        return _Oracle(self, rng, kind=name, level=level)

    def draw_target(self, rng: np.random.Generator) -> None:
        """Give the cube another place to go, well away from where it is."""
        space = self._env.variation_space["cube"]
        cube = self._env._data.joint("object_joint_0").qpos[:2]
        place = rng.uniform(space["goal_position"].low[0], space["goal_position"].high[0])
        while np.linalg.norm(place - cube) < LEAST_MOVE_M:
            place = rng.uniform(space["goal_position"].low[0], space["goal_position"].high[0])
        half = rng.uniform(0, np.pi)
        turn = np.array([np.cos(half), 0, 0, np.sin(half)])
        self._env.set_target_pos(0, np.array([*place, 0.02]), turn)

    @classmethod
    def measures(cls, columns: Columns) -> dict[str, Float[np.ndarray, "rows"]]:
        block = np.asarray(columns["privileged_block_0_pos"], dtype=np.float64)
        measures = {}
        for name, other in (
            ("block_target_dist", "privileged_target_block_pos"),
            ("effector_block_dist", "proprio_effector_pos"),
        ):
            if other in columns:
                measures[name] = np.linalg.norm(block - columns[other], axis=-1)
        for name, column in (
            ("gripper_contact", "proprio_gripper_contact"),
            ("gripper_opening", "proprio_gripper_opening"),
            ("block_yaw", "privileged_block_0_yaw"),
        ):
            if column in columns:
                values = np.asarray(columns[column], dtype=np.float64)
                measures[name] = values.reshape(len(values), -1)[:, 0]
        return measures

    @classmethod
    def events(cls, columns: Columns) -> dict[str, Int[np.ndarray, "events"]]:
        """Rows at which the gripper has just touched something or let go."""
        if "proprio_gripper_contact" not in columns:
            return {}
        contact = np.asarray(columns["proprio_gripper_contact"], dtype=np.float64)
        held = contact.reshape(len(contact), -1)[:, 0] > 0.5
        return {"gripper": np.flatnonzero(held[1:] != held[:-1]) + 1}

    @classmethod
    def path(cls, columns: Columns) -> Float[np.ndarray, "rows 2"]:
        return np.asarray(columns["privileged_block_0_pos"], dtype=np.float64)[:, :2]


class _Oracle:
    """OGBench's oracle, seeded, and given a new target when it has placed the cube."""

    def __init__(self, env: Cube, rng: np.random.Generator, *, kind: str, level: float) -> None:
        from ogbench.manipspace.oracles.markov.cube_markov import CubeMarkovOracle
        from ogbench.manipspace.oracles.plan.cube_plan import CubePlanOracle

        self._env, self._rng, self._kind = env, rng, kind
        self._level = level
        if kind == "plan":
            self._oracle = CubePlanOracle(env=env._env, noise=level)
        else:
            self._oracle = CubeMarkovOracle(env=env._env)
        self._restart()

    def _restart(self) -> None:
        with _global_numpy(self._rng):
            self._oracle.reset(None, self._env._env.compute_ob_info())

    def __call__(self) -> np.ndarray:
        info = self._env._env.compute_ob_info()
        if self._finished(info):
            if self._kind != "idle":
                self._env.draw_target(self._rng)
                info = self._env._env.compute_ob_info()
            self._restart()
        action = np.asarray(self._oracle.select_action(None, info))
        if self._kind != "plan":  # whose plan is noisy already
            action = action + self._level * NOISE_SHAPE * self._rng.standard_normal(5)
        return np.clip(action, -1, 1).astype(np.float32)

    def _finished(self, info: dict[str, Any]) -> bool:
        if self._kind != "expert" or self._oracle.done:
            return bool(self._oracle.done)
        # OGBench's oracle would now carry its empty hand to a random place: 70 % of all moments
        # without anything happening to the cube come from that and from waiting there.
        placed = np.linalg.norm(self._env._gap()) <= 0.02
        let_go = info["proprio/gripper_contact"][0] < 0.1
        return bool(placed and let_go and info["proprio/effector_pos"][2] > LIFTED_M)


@functools.cache
def _template() -> Any:
    """A simulator whose model is compiled at its first reset and kept: we vary nothing drawn."""
    gl.choose_backend()
    kind = library.load("envs.ogbench.cube_env").CubeEnv

    class CompiledOnce(kind):
        def modify_mjcf_model(self, mjcf_model: Any) -> Any:
            return super().modify_mjcf_model(mjcf_model) if self._model is None else mjcf_model

    env = CompiledOnce(
        env_type="single",
        ob_type="states",
        multiview=False,
        width=NATIVE_SIZE,
        height=NATIVE_SIZE,
        visualize_info=False,
        mode="data_collection",
        terminate_at_goal=False,
    )
    env.reset()
    return env


@contextlib.contextmanager
def _global_numpy(rng: np.random.Generator) -> Iterator[None]:
    """Let code that draws from numpy's global generator draw from `rng`, and leave no trace."""
    kept = np.random.get_state()
    np.random.seed(int(rng.integers(2**32)))
    try:
        yield
    finally:
        np.random.set_state(kept)


def _slashed(column: str) -> str:
    for group in ("privileged", "proprio"):
        if column.startswith(f"{group}_"):
            return f"{group}/{column.removeprefix(f'{group}_')}"
    return column
