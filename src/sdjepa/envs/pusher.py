"""A scripted pusher for Push-T: the state comes in, the point to drive the agent to goes out.

It draws block poses to aim for and serves them by short pushes. A push is a point of the block's
outline and the direction into it; which one is chosen follows from what a push there does to the
block, moving it along the push and turning it by the push's lever arm. Between pushes the agent
walks round the block, then lines up a little off the chosen point.
"""

import numpy as np
from jaxtyping import Float

AGENT_RADIUS = 15.0
CENTRE = np.array([0.0, 45.0])  # the block's centre of gravity, in its own coordinates
CLEAR_RADIUS = 105.0  # a circle about that centre which the block does not reach, agent included
APPROACH_GAP = 14.0  # room left between agent and outline before a push
STRIDE_PX = 30.0  # how far ahead of the agent a target is set; about 10 px are covered in a step
TURN_PX = 60.0  # a radian of turn counts as much as this many pixels
TABLE = (30.0, 482.0)  # targets stay inside the walls
BLOCK_TABLE = (130.0, 382.0)  # a block that lies here reaches no wall, however it is turned
POSITION_PX = 20.0  # the benchmark's tolerance over agent and block together
ANGLE_RAD = np.pi / 9


def _outline() -> tuple[np.ndarray, np.ndarray]:
    """Points along the T's edges and the directions into it, in the block's coordinates."""
    edges = [  # from, to, direction into the block
        ((-60, 0), (60, 0), (0, 1)),
        ((60, 0), (60, 30), (-1, 0)),
        ((-60, 0), (-60, 30), (1, 0)),
        ((-60, 30), (-30, 30), (0, -1)),
        ((30, 30), (60, 30), (0, -1)),
        ((15, 50), (15, 120), (-1, 0)),
        ((-15, 50), (-15, 120), (1, 0)),
        ((-15, 120), (15, 120), (0, -1)),
    ]
    points, inward = [], []
    for start, end, direction in edges:
        for share in (0.15, 0.5, 0.85):
            points.append(np.asarray(start) + share * np.subtract(end, start))
            inward.append(direction)
    return np.array(points, dtype=float), np.array(inward, dtype=float)


POINTS, INWARD = _outline()


def block_error(state: Float[np.ndarray, "7"], aim: Float[np.ndarray, "3"]) -> np.ndarray:
    """How the block must still move and turn to lie at `aim`: x, y, angle in -pi..pi."""
    turn = (aim[2] - state[4] + np.pi) % (2 * np.pi) - np.pi
    return np.array([aim[0] - state[2], aim[1] - state[3], turn])


def lies_at(state: Float[np.ndarray, "7"], aim: Float[np.ndarray, "3"]) -> bool:
    """Whether the block is as near to `aim` as the benchmark asks; the agent may be anywhere."""
    error = block_error(state, aim)
    return bool(np.linalg.norm(error[:2]) < POSITION_PX and abs(error[2]) < ANGLE_RAD)


class Pusher:
    """One episode's pusher; call it with the state at every step."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self.aim = self._draw_aim()
        self._choice = -1
        self._pushed = 0
        self._phase = "choose"

    def _draw_aim(self) -> Float[np.ndarray, "3"]:
        position = self._rng.uniform(*BLOCK_TABLE, size=2)
        return np.array([*position, self._rng.uniform(0, 2 * np.pi)])

    def __call__(self, state: Float[np.ndarray, "7"]) -> Float[np.ndarray, "2"]:
        agent = state[:2]
        if lies_at(state, self.aim):
            self.aim, self._phase = self._draw_aim(), "choose"
        error = self._error(state)
        if self._phase == "choose":
            self._choose(state, error)
        point, inward = self._contact(state)
        ready = point - inward * (AGENT_RADIUS + APPROACH_GAP)
        if self._phase == "approach":
            if np.linalg.norm(agent - ready) < 12:
                self._phase, self._pushed = "push", 0
            else:
                return _ahead(agent, self._round_the_block(state, agent, ready))
        self._pushed += 1
        if self._pushed > 12 or not self._useful(error):
            self._phase = "choose"
        return _ahead(agent, point + inward * STRIDE_PX)

    def _error(self, state: np.ndarray) -> np.ndarray:
        """Of the centre of gravity, about which pushes turn the block."""
        centre = _to_world(CENTRE, state)
        wanted = _to_world(CENTRE, np.array([0, 0, *self.aim, 0, 0]))
        return np.array([*(wanted - centre), block_error(state, self.aim)[2]])

    def _effects(self, state: np.ndarray) -> Float[np.ndarray, "points 3"]:
        """What a unit push at each outline point does: movement, and turn in pixels."""
        turn = _rotation(state[4])
        inward = INWARD @ turn.T
        lever = (POINTS - CENTRE) @ turn.T
        torque = lever[:, 0] * inward[:, 1] - lever[:, 1] * inward[:, 0]
        return np.column_stack([inward, torque / 40.0])

    def _choose(self, state: np.ndarray, error: np.ndarray) -> None:
        wanted = error * np.array([1, 1, TURN_PX])
        effects = self._effects(state)
        effects = effects / np.linalg.norm(effects, axis=1, keepdims=True)
        gain = effects @ (wanted / max(np.linalg.norm(wanted), 1e-6))
        points = POINTS @ _rotation(state[4]).T + state[2:4]
        ready = points - INWARD @ _rotation(state[4]).T * (AGENT_RADIUS + APPROACH_GAP)
        gain[((ready < TABLE[0]) | (ready > TABLE[1])).any(axis=1)] -= 2  # behind the wall
        gain -= 0.0005 * np.linalg.norm(ready - state[:2], axis=1)  # of equals, the nearer
        gain += 0.15 * self._rng.standard_normal(len(gain))
        self._choice = int(gain.argmax())
        self._phase = "approach"

    def _useful(self, error: np.ndarray) -> bool:
        wanted = error * np.array([1, 1, TURN_PX])
        return bool(self._last_effect @ wanted > 4)

    def _contact(self, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        turn = _rotation(state[4])
        self._last_effect = self._effects(state)[self._choice]
        return _to_world(POINTS[self._choice], state), turn @ INWARD[self._choice]

    def _round_the_block(
        self, state: np.ndarray, agent: np.ndarray, ready: np.ndarray
    ) -> Float[np.ndarray, "2"]:
        """The next point of a way to `ready` that does not run through the block."""
        centre = _to_world(CENTRE, state)
        along = ready - agent
        reach = np.clip((centre - agent) @ along / max(along @ along, 1e-6), 0, 1)
        nearest = np.linalg.norm(agent + reach * along - centre)
        if nearest > CLEAR_RADIUS - 15 or np.linalg.norm(along) < 40:
            return ready
        here = np.arctan2(*(agent - centre)[::-1])
        there = np.arctan2(*(ready - centre)[::-1])
        way = (there - here + np.pi) % (2 * np.pi) - np.pi
        if abs(way) < 0.35:
            return ready
        angle = here + np.sign(way) * min(abs(way), 0.6)
        return centre + CLEAR_RADIUS * np.array([np.cos(angle), np.sin(angle)])


def _rotation(angle: float) -> Float[np.ndarray, "2 2"]:
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, -sin], [sin, cos]])


def _to_world(point: np.ndarray, state: np.ndarray) -> np.ndarray:
    return _rotation(state[4]) @ point + state[2:4]


def _ahead(agent: np.ndarray, goal: np.ndarray) -> Float[np.ndarray, "2"]:
    """A target at most a stride away, inside the table."""
    step = goal - agent
    length = np.linalg.norm(step)
    target = agent + step * min(1.0, STRIDE_PX / max(float(length), 1e-6))
    return np.clip(target, *TABLE)
