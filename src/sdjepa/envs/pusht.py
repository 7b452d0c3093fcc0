"""Push-T: a disc pushes a T-shaped block about a table.

The simulator is stable-worldmodel's. Its own setter runs a physics step after assigning, which
moves the agent up to 4 px and loses a tenth of all replays; here a state is assigned into a fresh
space and nothing runs. The picture is the simulator's, drawn only where something moves.
"""

import os
from pathlib import Path
from types import ModuleType

import numpy as np
from jaxtyping import Float, Int, UInt8

from sdjepa.envs import demos, library
from sdjepa.envs.base import Columns, Env, Policy, speed
from sdjepa.envs.pusher import (
    ANGLE_RAD,
    BLOCK_TABLE,
    POSITION_PX,
    TABLE,
    Pusher,
    block_error,
    lies_at,
)
from sdjepa.envs.table import Table

GOAL_XY = np.array([256.0, 256.0])  # the pose drawn in green, which the demonstrations aim for
GOAL_ANGLE = np.pi / 4
ACTION_PX = 100.0  # an action of 1 asks for a point this far from the agent
NOISE_PX = 20.0  # standard deviation, at noise 1, of the noisiest episode's targets


class PushT(Env):
    """State: agent x, y, block x, y, block angle, agent velocity x, y; pixels of a 512 px table."""

    name = "pusht"
    action_dim = 2
    policies = ("demos", "pusher", "random")
    state_columns = {  # noqa: RUF012
        "state": (7,),
        "proprio": (4,),
        "block_pose": (3,),
        "n_contacts": (),
    }
    needed = ("state",)
    signature = ("state", 7)
    parts = {"agent": slice(0, 2), "block": slice(2, 5)}  # noqa: RUF012
    distance_is = "px, of agent and block together"
    action_is = (
        f"where the agent is to go, seen from where it is: (target - agent) / {ACTION_PX:g} px"
    )
    controlled = ("proprio",)
    extent = (0.0, 512.0, 0.0, 512.0)

    def __init__(self, *, shadow: int = 0) -> None:
        super().__init__(shadow=shadow)
        self.check_shadow(shadow)
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        self._module: ModuleType = library.load("envs.pusht.env")
        self._env = self._module.PushT()
        self.action_low = self._env.action_space.low.astype(np.float32)
        self.action_high = self._env.action_space.high.astype(np.float32)
        self._aim: np.ndarray | None = None
        self._env.reset(seed=0)
        self._table = self._draw_table()
        self.reset(np.random.default_rng(0))

    def reset(self, rng: np.random.Generator) -> None:
        self._env.reset(seed=int(rng.integers(2**31)))
        # The simulator draws goal angles down to -2 pi, where its own wrapping goes wrong.
        self.set_goal({"state": np.asarray(self._env.goal_state)})
        # The reset has stepped the goal scene in this space; its contacts must not outlive it.
        self.set_state({"state": self._env._get_obs()})
        self._aim = None

    def set_state(self, row: Columns) -> None:
        x, y, block_x, block_y, angle, speed_x, speed_y = np.asarray(row["state"], float).tolist()
        env = self._env
        env._setup()
        env.agent.position = (x, y)
        env.agent.velocity = (speed_x, speed_y)
        env.block.angle = angle  # before the position: the block turns about its centre of gravity
        env.block.position = (block_x, block_y)
        env.space.reindex_shapes_for_body(env.agent)
        env.space.reindex_shapes_for_body(env.block)

    def set_goal(self, row: Columns) -> None:
        goal = np.array(row["state"], dtype=np.float64)
        goal[4] %= 2 * np.pi
        self._env._set_goal_state(goal)

    def step(self, action: Float[np.ndarray, "action"]) -> None:
        """The simulator's step, number for number, without the observation it would return."""
        env = self._env
        env.n_contact_points = 0
        agent, space, dt = env.agent, env.space, env.dt
        x, y = agent.position
        ask_x, ask_y = (
            x + float(action[0]) * env.action_scale,
            y + float(action[1]) * env.action_scale,
        )
        for _ in range(int(1 / (dt * env.control_hz))):
            (x, y), (vx, vy) = agent.position, agent.velocity
            push_x = (ask_x - x) * env.k_p + (0 - vx) * env.k_v
            push_y = (ask_y - y) * env.k_p + (0 - vy) * env.k_v
            agent.velocity = (vx + push_x * dt, vy + push_y * dt)
            space.step(dt)

    def observe(self) -> dict[str, np.ndarray]:
        env = self._env
        state, substeps = env._get_obs(), int(1 / (env.dt * env.control_hz))
        return {
            "state": state,
            "proprio": np.concatenate([state[:2], state[5:]]),
            "block_pose": np.array([*env.block.position, env.block.angle]),
            "n_contacts": np.asarray(np.ceil(env.n_contact_points / substeps), dtype=np.int64),
        }

    def distance(self) -> float:
        return float(np.linalg.norm(self._env.goal_state[:4] - self._env._get_obs()[:4]))

    def shortfall(self) -> float:
        """The distance and the block's turn, each in units of what the benchmark tolerates."""
        turn = block_error(self._env._get_obs(), self._env.goal_state[2:5])[2]
        return float(np.hypot(self.distance() / POSITION_PX, turn / ANGLE_RAD))

    def solved(self) -> bool:
        return bool(self._env.eval_state(self._env.goal_state, self._env._get_obs())[0])

    def succeeded(self) -> bool:
        """Whether the block lies where the present policy wants it."""
        return self._aim is not None and lies_at(self._env._get_obs(), self._aim)

    def frame(self) -> UInt8[np.ndarray, "224 224 3"]:
        return self._table.frame(self._env)

    def plain(self) -> UInt8[np.ndarray, "224 224 3"]:
        return np.asarray(self._env.render())

    def agent_at(self, row: Columns, point: Float[np.ndarray, "2"]) -> dict[str, np.ndarray]:
        """The disc alone goes there and stands still; the block stays."""
        state = np.array(row["state"], dtype=np.float64)
        state[:2], state[5:] = np.clip(point, *TABLE), 0.0
        return {"state": state}

    def goal_at(self, row: Columns, point: Float[np.ndarray, "2"]) -> dict[str, np.ndarray]:
        """The block goes there; the disc goes with it, so that it stands by the block as before."""
        state = np.array(row["state"], dtype=np.float64)
        shift = np.clip(point, *BLOCK_TABLE) - state[2:4]
        state[:4] += np.tile(shift, 2)
        state[:2], state[5:] = np.clip(state[:2], *TABLE), 0.0
        return {"state": state}

    def _draw_table(self) -> Table:
        """The table and its green goal, drawn by the simulator."""
        env = self._env
        env.space.remove(*list(env.space.shapes))  # a list: the property is a view of what is left
        env.render()
        table = Table(self._module, env)
        env._setup()
        table.furnish(env, library.load("envs.utils").light_color)
        return table

    @classmethod
    def default_policy(cls, demos_given: Path | None) -> str:
        """Replays of demonstrations where there are some, the scripted pusher where not."""
        return "demos" if demos.find(demos_given) else "pusher"

    @classmethod
    def describe_policy(cls, name: str, demos_given: Path | None) -> dict[str, str]:
        if name != "demos":
            return {}
        found = demos.find(demos_given)
        if found is None:
            raise demos.missing()
        return {"demos_sha256": demos.read(found).sha256}

    def policy(
        self, name: str, *, noise: float, rng: np.random.Generator, demos_given: Path | None = None
    ) -> Policy:
        self.check_policy(name)
        if name == "random":
            return lambda: rng.uniform(self.action_low, self.action_high).astype(np.float32)
        # A level per episode: nearly clean episodes show the task, noisy ones what else can happen.
        level_px = rng.uniform(0, NOISE_PX * noise)
        if name == "demos":
            found = demos.find(demos_given)
            if found is None:
                raise demos.missing()
            return self._replay(demos.read(found), level_px, rng)
        pusher = Pusher(rng)
        return lambda: self._push(pusher, level_px, rng)

    def _replay(self, demos_read: demos.Demos, level_px: float, rng: np.random.Generator) -> Policy:
        demo = int(rng.integers(len(demos_read.ends)))
        states, targets = demos_read.episode(demo)
        # A stretch that begins anywhere in the first half, so that every phase of the task is seen
        # and something is left to see.
        start = int(rng.integers(0, max(1, len(states) // 2)))
        self.set_state({"state": np.concatenate([states[start], np.zeros(2)])})
        self._aim = np.array([*GOAL_XY, GOAL_ANGLE])
        left = iter(targets[start:])

        def act() -> np.ndarray | None:
            target = next(left, None)
            return None if target is None else self._toward(target, level_px, rng)

        return act

    def _push(self, pusher: Pusher, level_px: float, rng: np.random.Generator) -> np.ndarray:
        target = pusher(self._env._get_obs())
        self._aim = pusher.aim
        return self._toward(target, level_px, rng)

    def _toward(self, target: np.ndarray, level_px: float, rng: np.random.Generator) -> np.ndarray:
        agent = np.array(self._env.agent.position)
        noisy = target + level_px * rng.standard_normal(2)
        # The simulator does not clip; beyond 1 lie 0.06 % of the demonstrators' actions.
        action = np.clip((noisy - agent) / ACTION_PX, self.action_low, self.action_high)
        return action.astype(np.float32)

    @classmethod
    def measures(cls, columns: Columns) -> dict[str, Float[np.ndarray, "rows"]]:
        state = np.asarray(columns["state"], dtype=np.float64)
        turn = (state[:, 4] - GOAL_ANGLE + np.pi) % (2 * np.pi) - np.pi
        return {
            "block_goal_dist": np.linalg.norm(state[:, 2:4] - GOAL_XY, axis=-1),
            "block_angle_err": np.abs(turn),
            "agent_block_dist": np.linalg.norm(state[:, :2] - state[:, 2:4], axis=-1),
            "agent_speed": speed(state[:, :2]),
        }

    @classmethod
    def events(cls, columns: Columns) -> dict[str, Int[np.ndarray, "events"]]:
        """The first row at which the block has moved, and every row at which it starts to."""
        state = np.asarray(columns["state"], dtype=np.float64)
        turn = np.abs((np.diff(state[:, 4]) + np.pi) % (2 * np.pi) - np.pi)
        moved = (np.linalg.norm(np.diff(state[:, 2:4], axis=0), axis=-1) > 0.1) | (turn > 1e-3)
        begins = np.flatnonzero(moved & ~np.concatenate([[False], moved[:-1]])) + 1
        return {"first_contact": begins[:1], "contact": begins}

    @classmethod
    def path(cls, columns: Columns) -> Float[np.ndarray, "rows 2"]:
        return np.asarray(columns["state"], dtype=np.float64)[:, :2]
