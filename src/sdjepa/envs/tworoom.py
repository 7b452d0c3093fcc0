"""Two rooms, a wall, a door: a dot walks to a target it is not shown.

The simulator is stable-worldmodel's. Its picture is drawn here in a tenth of the time, by blending
the dot into a window of a background drawn once by the simulator itself; its step is taken without
the observation it would return.
"""

import copy
import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8

from sdjepa.envs import library
from sdjepa.envs.base import Columns, Env, Policy, speed

SOLVED_PX = 16.0  # the benchmark's constant, written inside its step function
DOOR_TOLERANCE_PX = 10.5  # the expert turns to the target this close to the door's centre
# Beyond 42 px of a dot of standard deviation 7 its opacity is below 2**-25, so in float32 the
# background stays as it is: the window is exact, not an approximation.
WINDOW_PX = 42


class TwoRoom(Env):
    """The agent moves up to 5 px a step in a 224 px arena with one door in the wall at x = 112."""

    name = "tworoom"
    action_dim = 2
    policies = ("expert", "random")
    state_columns = {  # noqa: RUF012
        "proprio": (2,),
        "state": (2,),
        "pos_agent": (2,),
        "pos_target": (2,),
        "distance_to_target": (),
    }
    needed = ("proprio",)
    signature = ("proprio", 2)
    distance_is = "px from the agent to its target"
    action_is = "the agent's step in x and y, 1 for 5 px"
    controlled = ("proprio",)
    extent = (-0.5, 223.5, -0.5, 223.5)  # pixel centres are whole numbers
    WALL_X = 112.0

    def __init__(self, *, shadow: int = 0) -> None:
        super().__init__(shadow=shadow)
        self.check_shadow(shadow)
        template, self._background = _template()
        # A shallow copy shares what never changes and has its own agent and target.
        self._env = copy.copy(template)
        self.action_low = self._env.action_space.low.astype(np.float32)
        self.action_high = self._env.action_space.high.astype(np.float32)
        self._grid = np.arange(self._env.IMG_SIZE, dtype=np.float32)
        # Channels by themselves: numpy is slow where the last axis has three elements.
        self._planes = np.ascontiguousarray(self._background.transpose(2, 0, 1), dtype=np.float32)
        self._measured: tuple[Any, Any, float] = (None, None, 0.0)
        self._read_agent()

    def reset(self, rng: np.random.Generator) -> None:
        self._env._render_frame = lambda agent_pos: None  # of the goal: nobody here looks at it
        try:
            self._env.reset(seed=int(rng.integers(2**31)))
        finally:
            del self._env._render_frame
        self._read_agent()

    def _read_agent(self) -> None:
        """What only a reset changes; the simulator's spaces take microseconds to ask."""
        env, agent = self._env, self._env.variation_space["agent"]
        self._speed_px = np.float32(agent["speed"].value.item())
        self._radius = radius = float(agent["radius"].value.item())
        self._paint = agent["color"].value.astype(np.float32)
        # Of the two rooms, where nothing is touched: left, right of each, and top and bottom.
        near, far = env.BORDER_SIZE + radius, env.IMG_SIZE - env.BORDER_SIZE - radius
        reach = env.wall_thickness // 2 + radius
        rooms = ((near, env.WALL_CENTER - reach), (env.WALL_CENTER + reach, far))
        self._rooms = rooms if env.wall_axis == 1 else ()
        self._high = near, far

    def set_state(self, row: Columns) -> None:
        self._env._set_state(np.asarray(row["proprio"], dtype=np.float32))

    def set_goal(self, row: Columns) -> None:
        self._set_target(np.asarray(row["proprio"], dtype=np.float32))

    def step(self, action: Float[np.ndarray, "action"]) -> None:
        env, before = self._env, self._env.agent_position
        clipped = np.minimum(np.maximum(np.asarray(action, dtype=np.float32), -1), 1)
        wanted = before.numpy() + clipped * self._speed_px
        after = torch.from_numpy(wanted)
        if not self._free(before.tolist(), wanted.tolist()):
            after = env._apply_collisions(before, after)
        env.agent_position = after

    def _free(self, before: list[float], wanted: list[float]) -> bool:
        """Whether a step stays within a room without touching a wall: nothing else happens then."""
        low, high = self._high
        return low <= wanted[1] <= high and any(
            left <= wanted[0] <= right and (before[0] < self.WALL_X) == (right < self.WALL_X)
            for left, right in self._rooms
        )

    def observe(self) -> dict[str, np.ndarray]:
        agent = self._env.agent_position.numpy().copy()
        return {
            "proprio": agent,
            "state": agent,
            "pos_agent": agent,
            "pos_target": self._env.target_position.numpy().copy(),
            "distance_to_target": np.asarray(self.distance(), dtype=np.float32),
        }

    def distance(self) -> float:
        agent, target, value = self._measured
        if agent is not self._env.agent_position or target is not self._env.target_position:
            agent, target = self._env.agent_position, self._env.target_position
            value = float(torch.linalg.vector_norm(agent - target))
            self._measured = agent, target, value  # asked for three times a step
        return value

    def solved(self) -> bool:
        return self.distance() < SOLVED_PX

    def frame(self) -> UInt8[np.ndarray, "224 224 3"]:
        import cv2

        x, y = self._env.agent_position.tolist()
        size = self._env.IMG_SIZE
        if not (0 <= x < size and 0 <= y < size):  # which the simulator draws in a way of its own
            return self.plain()
        left, right = max(0, round(x) - WINDOW_PX), min(size, round(x) + WINDOW_PX + 1)
        top, bottom = max(0, round(y) - WINDOW_PX), min(size, round(y) + WINDOW_PX + 1)
        radius = self._radius
        dx2 = np.square(self._grid[left:right] - np.float32(x))
        dy2 = np.square(self._grid[top:bottom] - np.float32(y))
        opacity = (dy2[:, None] + dx2[None, :]) / np.float32(-2 * radius * radius)
        torch.from_numpy(opacity).exp_()  # the simulator's; numpy's differs in the last bit
        opacity /= opacity.max()
        place, clear = np.s_[top:bottom, left:right], 1 - opacity
        blended = []
        for plane, paint in zip(self._planes, self._paint, strict=True):
            channel = plane[place] * clear
            if paint:  # else it adds nothing
                channel += paint * opacity
            blended.append(channel.astype(np.uint8))
        image = self._background.copy()
        image[place] = cv2.merge(blended)
        return image

    def plain(self) -> UInt8[np.ndarray, "224 224 3"]:
        return np.asarray(self._env.render())

    def _set_target(self, position: Float[np.ndarray, "2"]) -> None:
        # Not the simulator's setter: that one redraws a goal picture nobody here looks at, and
        # refuses goals beyond the range its own targets are drawn from.
        self._env.target_position = torch.tensor(position)  # a copy

    def agent_at(self, row: Columns, point: Float[np.ndarray, "2"]) -> dict[str, np.ndarray]:
        """Where the dot would be held up if it stood there: walls push it to their nearer side."""
        there = torch.from_numpy(np.asarray(point, dtype=np.float32))
        return {"proprio": self._env._apply_collisions(there, there).numpy()}

    def policy(
        self, name: str, *, noise: float, rng: np.random.Generator, demos_given: Path | None = None
    ) -> Policy:
        self.check_policy(name)
        if name == "random":
            return lambda: rng.uniform(self.action_low, self.action_high).astype(np.float32)
        return lambda: self._expert(noise, rng)

    def _expert(self, noise: float, rng: np.random.Generator) -> np.ndarray:
        """Through the door to the target; a new target is drawn where one has been reached."""
        if self.solved():
            space = self._env.variation_space["target"]["position"]
            self._set_target(rng.uniform(space.low, space.high).astype(np.float32))
        agent = self._env.agent_position.numpy()
        waypoint = self._env.target_position.numpy()
        if (agent[0] > self.WALL_X) != (waypoint[0] > self.WALL_X):
            door = np.array([self.WALL_X, float(self._env.door_positions[0])], dtype=np.float32)
            if np.linalg.norm(door - agent) > DOOR_TOLERANCE_PX:
                waypoint = door
        direction = waypoint - agent
        direction = direction / max(float(np.linalg.norm(direction)), 1e-8)
        action = direction + noise * rng.standard_normal(2)
        return np.clip(action, self.action_low, self.action_high).astype(np.float32)

    @classmethod
    def measures(cls, columns: Columns) -> dict[str, Float[np.ndarray, "rows"]]:
        position = np.asarray(columns["proprio"], dtype=np.float64)[:, :2]
        measures = {}
        if "distance_to_target" in columns:
            distance = np.asarray(columns["distance_to_target"], dtype=np.float64)
            measures["agent_target_dist"] = distance.reshape(-1)
        elif "pos_target" in columns:
            gap = position - columns["pos_target"][:, :2]
            measures["agent_target_dist"] = np.linalg.norm(gap, axis=-1)
        return {**measures, "agent_speed": speed(position)}

    @classmethod
    def events(cls, columns: Columns) -> dict[str, Int[np.ndarray, "events"]]:
        right = np.asarray(columns["proprio"])[:, 0] > cls.WALL_X
        return {"door": np.flatnonzero(right[1:] != right[:-1]) + 1}

    @classmethod
    def path(cls, columns: Columns) -> Float[np.ndarray, "rows 2"]:
        return np.asarray(columns["proprio"], dtype=np.float64)[:, :2]


@functools.cache
def _template() -> tuple[Any, UInt8[np.ndarray, "224 224 3"]]:
    """A simulator and its scene without a dot; made once, as building one takes 0.1 s."""
    env = library.load("envs.two_room.env").TwoRoomEnv()
    env.reset(seed=0)
    far = torch.full((2,), -1e4)
    return env, np.ascontiguousarray(env._render_frame(far).numpy().transpose(1, 2, 0))
