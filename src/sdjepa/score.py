"""Plans to scores: choose tasks, run them, count successes. The whole protocol in one file.

A task is a start row and a goal row `offset` environment steps later in the same recorded episode.
The environment is put into the start state, and the planner sees pixels only: the recorded goal frame
and a frame of the present. It succeeds when the benchmark's own test is met at any step within the
budget; a task that is solved stops there. Floors (doing nothing, random actions, replaying the recorded
actions) run on the same tasks.

    lewm    50 tasks by the published rule: rows drawn from the whole file, training episodes included
    strict  held-out episodes only, spread over them, none solved at the start or by doing nothing
"""

import base64
import hashlib
import io
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from sdjepa.config import Plan, Score
from sdjepa.data.episodes import Episodes
from sdjepa.envs.base import Env, env_class, make
from sdjepa.errors import UserError
from sdjepa.plan.agent import Planner
from sdjepa.runs import Progress, provenance, silent, write_json
from sdjepa.seeds import numpy_stream, stream
from sdjepa.train.checkpoint import load_checkpoint

WATCHED = 6  # tasks whose path and frames are kept in the result, for the report
# Raw actions (active tasks, steps, action) to execute next, for the tasks of these numbers.
Actor = Callable[[list[int]], Float[np.ndarray, "active steps action"]]


@dataclass(frozen=True)
class Task:
    episode: int
    start: int  # raw step in the episode
    offset: int

    def rows(self, data: Episodes) -> tuple[int, int]:
        """Row of the start and row of the goal."""
        first = data.rows(self.episode).start + self.start
        return first, first + self.offset


@dataclass(frozen=True)
class Outcome:
    success: bool
    steps_to_success: int | None
    start_distance: float
    final_distance: float


def wilson95(successes: int, count: int) -> tuple[float, float]:
    """95 % Wilson interval of a success rate, in percent."""
    z, n = 1.959963984540054, count
    centre = (successes + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(successes * (n - successes) / n + z * z / 4)
    return 100 * max(0.0, centre - half), 100 * min(1.0, centre + half)


def lewm_tasks(
    lengths: Int[np.ndarray, "episodes"], *, offset: int, count: int, seed: int
) -> list[Task]:
    """The published rule, its off-by-one included: the last admissible row is never drawn."""
    episode = np.repeat(np.arange(len(lengths)), lengths)
    step = np.concatenate([np.arange(n) for n in lengths])
    valid = np.flatnonzero(step <= lengths[episode] - offset - 1)
    if len(valid) - 1 < count:
        raise UserError(_too_few(len(valid) - 1, count, offset, lengths))
    chosen = np.random.default_rng(seed).choice(len(valid) - 1, size=count, replace=False)
    return [Task(int(episode[r]), int(step[r]), offset) for r in np.sort(valid[chosen])]


def strict_tasks(
    lengths: Int[np.ndarray, "all_episodes"],
    episodes: Int[np.ndarray, "episodes"],
    *,
    offset: int,
    count: int,
    seed: int,
    trivial: Callable[[Task], bool],
) -> list[Task]:
    """Tasks of `episodes`, as evenly spread over them as their lengths allow, without trivial ones."""
    rng = numpy_stream(seed, "tasks", offset)
    queues = [
        [Task(int(e), int(s), offset) for s in rng.permutation(max(0, lengths[e] - offset))]
        for e in rng.permutation(episodes)
    ]
    tasks: list[Task] = []
    while len(tasks) < count and any(queues):
        for queue in queues:
            found = False
            while queue and not found and len(tasks) < count:
                task = queue.pop()
                found = not trivial(task)
                if found:
                    tasks.append(task)
    if len(tasks) < count:
        raise UserError(_too_few(len(tasks), count, offset, lengths[episodes]))
    return sorted(tasks, key=lambda task: (task.episode, task.start))


def _too_few(found: int, count: int, offset: int, lengths: np.ndarray) -> str:
    median = int(np.median(lengths)) if len(lengths) else 0
    return (
        f"only {max(found, 0)} of {count} tasks fit: each needs {offset} steps after its start, the "
        f"median episode has {median} rows. Lower --tasks or --offset, or collect more episodes"
    )


def place(env: Env, task: Task, *, data: Episodes) -> None:
    """Put the environment at the task's start, with its goal."""
    start, goal = task.rows(data)
    env.set_state(data.row(start))
    env.set_goal(data.row(goal))


def run(
    envs: Sequence[Env],
    actor: Actor,
    *,
    budget: int,
    watch: Callable[[int], None] = lambda number: None,
) -> list[Outcome]:
    """Let `actor` act in environments that stand at their starts; a solved one is left alone.

    `watch` is called with a task's number before its first and after each of its steps.
    """
    start_distance = [env.distance() for env in envs]
    solved_at: list[int | None] = [None] * len(envs)
    for number in range(len(envs)):
        watch(number)
    step = 0
    while step < budget:
        active = [i for i, at in enumerate(solved_at) if at is None]
        if not active:
            break
        actions = actor(active)[:, : budget - step]
        for number, sequence in zip(active, actions, strict=True):
            for ahead, action in enumerate(sequence, start=1):
                envs[number].step(action)
                watch(number)
                if envs[number].solved():
                    solved_at[number] = step + ahead
                    break
        step += actions.shape[1]
    return [
        Outcome(at is not None, at, start_distance[i], envs[i].distance())
        for i, at in enumerate(solved_at)
    ]


def noop_actor(env: Env, budget: int) -> Actor:
    return lambda active: np.zeros((len(active), budget, env.action_dim))


def random_actor(env: Env, tasks: Sequence[Task], *, budget: int, seed: int) -> Actor:
    """Uniform in the action space; a task's actions do not depend on the other tasks."""

    def act(active: list[int]) -> np.ndarray:
        return np.stack(
            [
                numpy_stream(seed, "random", tasks[i].episode, tasks[i].start).uniform(
                    env.action_low, env.action_high, size=(budget, env.action_dim)
                )
                for i in active
            ]
        )

    return act


def replay_actor(data: Episodes, tasks: Sequence[Task], *, budget: int) -> Actor:
    """The recorded actions from start to goal, then nothing."""
    recorded = data.column("action")

    def act(active: list[int]) -> np.ndarray:
        actions = np.zeros((len(active), budget, data.action_dim))
        for place_, number in enumerate(active):
            start, goal = tasks[number].rows(data)
            actions[place_, : goal - start] = recorded[start:goal][:budget]
        return actions

    return act


def planner_actor(
    planner: Planner,
    envs: Sequence[Env],
    tasks: Sequence[Task],
    *,
    goals: np.ndarray,
    size: int,
    progress: Progress = silent,
) -> Actor:
    """Plan from a fresh frame of each active task; frames are drawn only when a plan is made."""
    rounds = [0]
    keep = planner.settings.replan * planner.frame_skip

    def act(active: list[int]) -> np.ndarray:
        plans = []
        for count, number in enumerate(active, start=1):
            task, frame = tasks[number], envs[number].render(size)
            names = ("plan", task.episode, task.start, rounds[0])
            generator = stream(planner.settings.seed, *names)
            plans.append(planner.plan(frame[None], goals[number][None], streams=[generator])[0])
            progress(count, len(active), f"plan {rounds[0] + 1}")
        rounds[0] += 1
        return np.stack(plans)[:, :keep]

    return act


def score(
    path: Path,
    *,
    settings: Score | None = None,
    plan: Plan | None = None,
    data_path: Path | None = None,
    checkpoint: str = "latest",
    device: str = "cpu",
    progress: Progress = silent,
) -> Path:
    """Score a run; writes RUN/scores/<protocol>-<cost>-<solver>-o<offset>.json and returns it."""
    began = time.monotonic()
    loaded = load_checkpoint(path, checkpoint, device=device)
    settings, plan = settings or loaded.config.score, plan or loaded.config.plan
    data = Episodes.open(data_path or Path(loaded.config.data.path))
    judge = make(data.env)

    def fresh(tasks: Sequence[Task], envs: Sequence[Env]) -> Sequence[Env]:
        for env, task in zip(envs, tasks, strict=True):
            place(env, task, data=data)
        return envs

    def trivial(task: Task) -> bool:
        place(judge, task, data=data)
        idle = noop_actor(judge, settings.budget)
        return judge.solved() or run([judge], idle, budget=settings.budget)[0].success

    tasks = choose_tasks(data, settings, trivial=trivial)
    already = sum(bool(fresh([task], [judge])[0].solved()) for task in tasks)
    envs = [make(data.env) for _ in tasks]
    floor_actors = {
        "noop": noop_actor(judge, settings.budget),
        "random": random_actor(judge, tasks, budget=settings.budget, seed=settings.seed),
        "replay": replay_actor(data, tasks, budget=settings.budget),
    }
    floors = {
        name: run(fresh(tasks, envs), actor, budget=settings.budget)
        for name, actor in floor_actors.items()
    }
    goals = data.frames(np.array([task.rows(data)[1] for task in tasks]))
    planner = Planner(loaded, plan)
    actor = planner_actor(
        planner, envs, tasks, goals=goals, size=data.image_size, progress=progress
    )
    album = Album(data.env, envs, size=data.image_size, every=planner.frame_skip)
    planning = time.monotonic()
    outcomes = run(fresh(tasks, envs), actor, budget=settings.budget, watch=album.watch)
    planning = time.monotonic() - planning
    successes = sum(outcome.success for outcome in outcomes)
    rates = {name: sum(o.success for o in found) for name, found in floors.items()}
    result = {
        "env": data.env,
        "protocol": settings.protocol,
        "protocol_hash": protocol_hash(settings),
        "cost": plan.cost,
        "solver": plan.solver,
        "num_tasks": len(tasks),
        "success_rate": 100 * successes / len(tasks),
        "wilson95": wilson95(successes, len(tasks)),
        "floors": {name: 100 * rate / len(tasks) for name, rate in rates.items()},
        "floors_wilson95": {name: wilson95(rate, len(tasks)) for name, rate in rates.items()},
        "solved_at_start": already,
        "tasks": [
            {**asdict(task), "outcome": outcome.success, **asdict(outcome)}
            for task, outcome in zip(tasks, outcomes, strict=True)
        ],
        "seconds": time.monotonic() - began,
        "planning_seconds": planning,
        "rollouts": album.pages(tasks, outcomes, goals=goals, data=data),
        "checkpoint": {"name": loaded.path.name, "step": loaded.step},
        "data": {"path": str(data.path), "split_hash": data.split_hash},
        "config": {"score": settings.model_dump(), "plan": plan.model_dump()},
        **provenance(),
    }
    name = f"{settings.protocol}-{plan.cost}-{plan.solver}-o{settings.offset}.json"
    return write_json(path / "scores" / name, result)


def choose_tasks(data: Episodes, settings: Score, *, trivial: Callable[[Task], bool]) -> list[Task]:
    """The tasks of a protocol on a dataset."""
    shared = {"offset": settings.offset, "count": settings.tasks, "seed": settings.seed}
    if settings.protocol == "lewm":
        return lewm_tasks(data.lengths, **shared)
    return strict_tasks(data.lengths, data.episode_ids("test"), trivial=trivial, **shared)


def protocol_hash(settings: Score) -> str:
    """Two scores with one hash had the same rule; with the same data, the same tasks."""
    return hashlib.sha256(json.dumps(settings.model_dump(), sort_keys=True).encode()).hexdigest()[
        :12
    ]


class Album:
    """Paths and frames of the first tasks, for people to look at."""

    def __init__(self, env: str, envs: Sequence[Env], *, size: int, every: int) -> None:
        self._class, self._envs, self._size, self._every = env_class(env), envs, size, every
        self._columns: dict[int, list[dict[str, np.ndarray]]] = {}
        self._frames: dict[int, list[str]] = {}

    def watch(self, number: int) -> None:
        if number >= WATCHED:
            return
        seen = self._columns.setdefault(number, [])
        seen.append(self._envs[number].observe())
        if (len(seen) - 1) % self._every == 0:
            frame = self._envs[number].render(self._size)
            self._frames.setdefault(number, []).append(png(frame))

    def pages(
        self,
        tasks: Sequence[Task],
        outcomes: Sequence[Outcome],
        *,
        goals: np.ndarray,
        data: Episodes,
    ) -> list[dict[str, object]]:
        """One record per watched task."""
        pages = []
        for number, seen in self._columns.items():
            columns = {name: np.stack([row[name] for row in seen]) for name in seen[0]}
            goal = {
                k: np.asarray(v)[None] for k, v in data.row(tasks[number].rows(data)[1]).items()
            }
            pages.append(
                {
                    "task": number,
                    "path": self._class.path(columns),
                    "start": self._class.path(columns)[0],
                    "goal": self._class.path(goal)[0],
                    "success": outcomes[number].success,
                    "frames": self._frames[number],
                    "goal_frame": png(goals[number]),
                }
            )
        return pages


def png(frame: np.ndarray) -> str:
    """A frame as a base64 PNG."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
