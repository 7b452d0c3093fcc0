"""Who acts without a model: nobody, two kinds of chance, and the recording itself.

A score means little without them: in some environments a third of the tasks solve themselves.
"""

from collections.abc import Callable, Sequence

import numpy as np

from sdjepa.config import Score
from sdjepa.data.episodes import ActionStats, Episodes
from sdjepa.envs.base import make
from sdjepa.scoring.stage import Actor
from sdjepa.seeds import numpy_stream
from sdjepa.tasks import Task


def noop(action_dim: int, budget: int) -> Actor:
    return lambda active: np.zeros((len(active), budget, action_dim))


def chance_actor(
    tasks: Sequence[Task], draw: Callable[[np.random.Generator], np.ndarray], *, seed: int
) -> Actor:
    """Actions `draw`n for the whole budget; a task's do not depend on the other tasks."""
    streams = [(seed, "random", task.episode, task.start) for task in tasks]
    return lambda active: np.stack([draw(numpy_stream(*streams[i])) for i in active])


def replay(data: Episodes, tasks: Sequence[Task], *, budget: int) -> Actor:
    """The recorded actions from start to goal, then nothing."""
    recorded = data.column("action")

    def act(active: list[int]) -> np.ndarray:
        actions = np.zeros((len(active), budget, data.action_dim))
        for place_, number in enumerate(active):
            start, goal = tasks[number].rows(data)
            actions[place_, : goal - start] = recorded[start:goal][:budget]
        return actions

    return act


def floor_actors(
    data: Episodes, tasks: Sequence[Task], *, stats: ActionStats, settings: Score
) -> dict[str, Actor]:
    """Who else acts: nobody, two kinds of chance, and the recording itself."""
    shape = (settings.budget, data.action_dim)
    low, high = action_space(data.env)
    mean, std = stats.mean, stats.std
    chance = {
        "random": lambda rng: rng.uniform(low, high, size=shape),
        "gaussian": lambda rng: mean + std * rng.standard_normal(shape),
    }
    return {
        "noop": noop(data.action_dim, settings.budget),
        **{name: chance_actor(tasks, draw, seed=settings.seed) for name, draw in chance.items()},
        "replay": replay(data, tasks, budget=settings.budget),
    }


def action_space(name: str) -> tuple[np.ndarray, np.ndarray]:
    env = make(name)
    return env.action_low, env.action_high
