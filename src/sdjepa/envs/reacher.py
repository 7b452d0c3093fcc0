"""Reacher: a two-link arm whose joints must match those of a goal picture (task `qpos_match`).

The simulator is stable-worldmodel's over dm_control's. dm_control starts a new episode by itself,
and says nothing, 500 steps in or at the step after a success; here it never does. The benchmark
compares raw joint angles although the shoulder turns without limit; `other_success` gives the
wrapped reading.
"""

import copy
import functools
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from sdjepa.envs import gl, library
from sdjepa.envs.base import Columns, Policy

LINK_M = 0.12  # both links, finger included
WRIST_RAD = 2.6  # aims stay off the wrist's stop at 2.79
GAIN = 2.0  # of the expert's PD control, in action units per radian
# The wrist carries a tenth of the shoulder's inertia: more damping and it trembles at this rate.
DAMPING = np.array([0.2, 0.02])
NOISE = 0.25  # standard deviation of the expert's action noise at noise 1


class Reacher(gl.Filmed):
    """Two torques, two joint angles; 0.04 s a step."""

    name = "reacher"
    action_dim = 2
    policies = ("random", "expert")  # the public data are random actions, whatever their card says
    state_columns = {  # noqa: RUF012
        "observation": (6,),
        "qpos": (2,),
        "qvel": (2,),
        "finger_pos": (2,),
        "target_pos": (2,),
        "score": (),
    }
    needed = ("qpos", "qvel")
    signature = ("qpos", 2)
    distance_is = "rad, of the joint that is further off"
    action_is = "the torques of shoulder and wrist, 1 for the largest"
    controlled = ("qpos", "qvel")

    def __init__(self, *, shadow: int = 0) -> None:
        super().__init__(shadow=shadow)
        self._env = copy.copy(_template())
        self._env.env = _own_physics(self._env.env)
        self.action_low = self._env.action_space.low.astype(np.float32)
        self.action_high = self._env.action_space.high.astype(np.float32)
        self._aim: np.ndarray | None = None

    @property
    def _control(self):
        """dm_control's environment, under the wrapper that scales actions."""
        return self._env.env._env

    def reset(self, rng: np.random.Generator) -> None:
        self._env.reset(seed=int(rng.integers(2**31)))
        self._env.env.task.target_qpos = None  # the simulator would keep the last task's goal
        self._aim = None

    def set_state(self, row: Columns) -> None:
        qpos, qvel = (np.asarray(row[name], dtype=np.float64) for name in ("qpos", "qvel"))
        self._env.set_state(qpos, qvel)
        self._env._cumulative_reward = 0

    def set_goal(self, row: Columns) -> None:
        self._env.set_target_qpos(np.asarray(row["qpos"], dtype=np.float64))

    def step(self, action: Float[np.ndarray, "action"]) -> None:
        self._control._reset_next_step = False
        self._env.step(np.asarray(action))

    def observe(self) -> dict[str, np.ndarray]:
        info, env = self._env.info, self._env.env
        seen = self._env._obs_to_array(env.task.get_observation(env.physics))
        record = {name: info[name] for name in ("qpos", "qvel", "finger_pos", "target_pos")}
        return {"observation": seen, **record, "score": np.asarray(info["score"], np.float64)}

    def _difference(self) -> np.ndarray:
        target = self._env.env.task.target_qpos
        if target is None:
            return np.full(2, np.inf)
        return self._env.env.physics.data.qpos - target

    def distance(self) -> float:
        return float(np.abs(self._difference()).max())

    def solved(self) -> bool:
        return self._env.env.task.get_termination(self._env.env.physics) is not None

    def other_success(self) -> dict[str, bool]:
        difference = self._difference()
        if not np.isfinite(difference).all():
            return {"wrapped": False}
        wrapped = np.abs((difference + np.pi) % (2 * np.pi) - np.pi)
        return {"wrapped": bool((wrapped < self._env.env.task.qpos_threshold).all())}

    def succeeded(self) -> bool:
        if self._aim is None:
            return False
        gap = np.abs(self._env.env.physics.data.qpos - self._aim)
        return bool((gap < self._env.env.task.qpos_threshold).all())

    def subject(self) -> tuple[Any, Any, str | int]:
        physics = self._env.env.physics
        return physics.model.ptr, physics.data.ptr, self._env.camera_id

    def policy(
        self, name: str, *, noise: float, rng: np.random.Generator, demos_given: Path | None = None
    ) -> Policy:
        self.check_policy(name)
        if name == "random":
            return lambda: rng.uniform(self.action_low, self.action_high).astype(np.float32)
        self._draw_aim(rng)
        return lambda: self._expert(noise, rng)

    def _draw_aim(self, rng: np.random.Generator) -> None:
        self._aim = rng.uniform([-np.pi, -WRIST_RAD], [np.pi, WRIST_RAD])
        shoulder, wrist = self._aim
        finger = LINK_M * np.array(
            [
                np.cos(shoulder) + np.cos(shoulder + wrist),
                np.sin(shoulder) + np.sin(shoulder + wrist),
            ]
        )
        # The invisible ball goes where the finger should, so that its distance means something.
        named = self._env.env.physics.named
        named.model.geom_pos["target", :2] = finger
        named.data.geom_xpos["target", :2] = finger  # else its old place stands until a step

    def _expert(self, noise: float, rng: np.random.Generator) -> np.ndarray:
        """PD control to the aim; a new aim is drawn where one has been reached."""
        if self.succeeded():
            self._draw_aim(rng)
        data = self._env.env.physics.data
        action = GAIN * (self._aim - data.qpos) - DAMPING * data.qvel
        action = np.clip(action, -1, 1) + NOISE * noise * rng.standard_normal(2)
        return np.clip(action, self.action_low, self.action_high).astype(np.float32)

    @classmethod
    def measures(cls, columns: Columns) -> dict[str, Float[np.ndarray, "rows"]]:
        measures = {}
        if "finger_pos" in columns and "target_pos" in columns:
            gap = np.asarray(columns["finger_pos"], dtype=np.float64) - columns["target_pos"]
            measures["ee_target_dist"] = np.linalg.norm(gap, axis=-1)
        if "qvel" in columns:
            measures["joint_speed"] = np.linalg.norm(columns["qvel"], axis=-1).astype(np.float64)
        if "score" in columns and not np.isnan(columns["score"]).all():
            measures["score"] = np.asarray(columns["score"], dtype=np.float64).reshape(-1)
        return measures

    @classmethod
    def events(cls, columns: Columns) -> dict[str, Int[np.ndarray, "events"]]:
        return {}

    @classmethod
    def path(cls, columns: Columns) -> Float[np.ndarray, "rows 2"]:
        if "finger_pos" in columns:
            return np.asarray(columns["finger_pos"], dtype=np.float64)
        shoulder, wrist = np.asarray(columns["qpos"], dtype=np.float64).T
        both = shoulder + wrist
        return LINK_M * np.column_stack(
            [np.cos(shoulder) + np.cos(both), np.sin(shoulder) + np.sin(both)]
        )


@functools.cache
def _template() -> Any:
    """A simulator, its target made invisible; made once, as compiling one takes half a second."""
    gl.choose_backend()
    module = library.load("envs.dmcontrol.reacher")
    env = module.ReacherDMControlWrapper(task="qpos_match")
    env.reset(seed=0)
    return env


def _own_physics(shared: Any) -> Any:
    """Another dm_control environment of the same task, with its own model and state."""
    module = library.load("envs.dmcontrol.reacher")
    physics = shared.physics.copy(share_model=False)
    task = module.ReacherQPosMatchTask(target_size=shared.task._target_size)
    control = module.control.Environment(physics, task)  # without the 20 s limit
    return module.action_scale.Wrapper(control, minimum=-1.0, maximum=1.0)
