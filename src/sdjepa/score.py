"""Plans to scores: choose tasks, run them, count successes. The whole protocol in one file.

A task is a start row and a goal row `offset` environment steps later in the same recorded episode.
The environment is put into the start state, and the planner sees pixels only: the recorded goal
frame and a frame of the present. It succeeds when the benchmark's own test is met at any step
within the budget; a task that is solved stops there. Floors (doing nothing, random actions,
replaying the recorded actions) run on the same tasks.

    lewm    50 tasks by the published rule: rows drawn from the whole file, training included
    strict  200 tasks of held-out episodes, spread over them, none solved at the start or by doing
            nothing

`scoring/` applies it to a trained model, to those who act without one (floors) and to a planner
whose model is the simulator (ceiling).
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int

from sdjepa.config import BUDGET_PER_OFFSET, PROTOCOL_TASKS, Score
from sdjepa.data.episodes import Episodes
from sdjepa.data.replaying import misfit, playable
from sdjepa.envs.base import NAMES, Env, make
from sdjepa.errors import UserError
from sdjepa.scoring.actors import noop
from sdjepa.scoring.stage import Actor, Here, Place, Scenes
from sdjepa.seeds import numpy_stream
from sdjepa.tasks import Manifest, Outcome, Task, check_playable, identity, packed_tasks, too_few

SWEEP_OFFSETS = (25, 50, 75, 100)


@dataclass(frozen=True)
class Protocol:
    """A frozen definition; another field, or another meaning of a word here, is a new version."""

    name: str
    episodes: Literal["all", "validation", "test"]
    starts: str
    refused: tuple[str, ...]
    tasks: int
    offset: int = 25
    budget_per_offset: int = BUDGET_PER_OFFSET
    seed: int = 42
    success: str = "the benchmark's test at any step from 1 to the budget"
    after_success: str = "frozen"
    frames: str = "goal as recorded, present as rendered"
    version: int = 1


_STRICT = Protocol(
    "strict",
    episodes="test",
    starts="one per episode in turn, in random order, until there are enough",
    refused=("solved at the start", "solved by zero actions within the budget"),
    tasks=PROTOCOL_TASKS["strict"],
)
PROTOCOLS = {
    "lewm": Protocol(
        "lewm",
        episodes="all",
        starts="rows without replacement, sorted; the last admissible row is never drawn",
        refused=(),
        tasks=PROTOCOL_TASKS["lewm"],
    ),
    "strict": _STRICT,
    # For choosing recipes and settings: what is chosen on these may be reported on the others.
    "choose": replace(
        _STRICT, name="choose", episodes="validation", tasks=PROTOCOL_TASKS["choose"]
    ),
}


def definition(settings: Score) -> dict[str, Any]:
    """The protocol a score was made under, its numbers as they were used."""
    used = {name: getattr(settings, name) for name in ("tasks", "offset", "budget", "seed")}
    return asdict(PROTOCOLS[settings.protocol]) | used


def protocol_hash(settings: Score) -> str:
    """Two scores with one hash had the same rule; with the same data, the same tasks."""
    said = json.dumps(definition(settings), sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def departures(settings: Score) -> list[str]:
    """How the settings differ from the protocol as it is frozen."""
    frozen = PROTOCOLS[settings.protocol]
    expected = {"tasks": frozen.tasks, "offset": frozen.offset, "seed": frozen.seed}
    expected["budget"] = frozen.budget_per_offset * settings.offset
    return [
        f"{name} {getattr(settings, name)} instead of {value}"
        for name, value in expected.items()
        if getattr(settings, name) != value
    ]


# --- which tasks


def choose_tasks(data: Episodes, settings: Score, *, trivial: Callable[[Task], bool]) -> list[Task]:
    """The tasks of a protocol on a dataset, or those an evaluation pack was made of."""
    shared: dict[str, Any] = {"offset": settings.offset, "count": settings.tasks}
    if "pack" in data.info:
        return list(packed_tasks(data, **shared))
    shared |= {"seed": settings.seed, "playable": playable(data, settings.offset)}
    if PROTOCOLS[settings.protocol].episodes == "all":
        return lewm_tasks(data.lengths, **shared)
    return strict_tasks(data.lengths, _held_out(data, settings), trivial=trivial, **shared)


def _held_out(data: Episodes, settings: Score) -> Int[np.ndarray, "episodes"]:
    """The episodes a protocol takes its tasks from."""
    side = PROTOCOLS[settings.protocol].episodes
    if side == "all":
        return np.arange(len(data))
    found = data.episode_ids(side)
    if not len(found):
        more = "at least 3 episodes" if len(data) < 3 else f"with collect.{side}_share above 0"
        raise UserError(
            f"{data.path} has no {side} episode, and {settings.protocol} takes only those; "
            f"collect {more}, or say --protocol lewm"
        )
    return found


def lewm_tasks(
    lengths: Int[np.ndarray, "episodes"],
    *,
    offset: int,
    count: int,
    seed: int,
    playable: Bool[np.ndarray, "rows"],
) -> list[Task]:
    """The published rule, its off-by-one included: the last admissible row is never drawn.

    Those at which no simulator could be put are not admissible.
    """
    episode = np.repeat(np.arange(len(lengths)), lengths)
    step = np.concatenate([np.arange(n) for n in lengths])
    long = step <= lengths[episode] - offset - 1
    valid, bad = np.flatnonzero(long & playable), int((long & ~playable).sum())
    if len(valid) - 1 < count:
        raise UserError(too_few(len(valid) - 1, count, offset, lengths, never=True, bad=bad))
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
    playable: Bool[np.ndarray, "rows"],
) -> list[Task]:
    """Tasks of `episodes`, as evenly spread over them as their lengths allow, no trivial ones."""
    rng, first = numpy_stream(seed, "tasks", offset), np.cumsum(lengths) - lengths
    drawn = [(e, rng.permutation(max(0, lengths[e] - offset))) for e in rng.permutation(episodes)]
    queues = [
        [Task(int(e), int(s), offset) for s in starts if playable[first[e] + s]]
        for e, starts in drawn
    ]
    of = sum(map(len, queues))
    bad = sum(len(starts) for _, starts in drawn) - of
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
        raise UserError(too_few(len(tasks), count, offset, lengths[episodes], of=of, bad=bad))
    return sorted(tasks, key=lambda task: (task.episode, task.start))


def check_room(data: Episodes, settings: Score) -> None:
    """Refuse a score, before any of several is planned, for which the episodes are too short."""
    if "pack" in data.info:
        return
    lengths, offset = data.lengths[_held_out(data, settings)], settings.offset
    never = PROTOCOLS[settings.protocol].episodes == "all"  # the last row is
    starts = int(np.maximum(lengths - offset, 0).sum()) - never
    if starts < settings.tasks:
        raise UserError(too_few(starts, settings.tasks, offset, lengths, never=never))


def task_list(data: Episodes, settings: Score, *, manifest: Path | None = None) -> Manifest:
    """The tasks of the protocol on `data`, or exactly those of a manifest file.

    A pack's tasks were chosen before, and by which protocol it says itself.
    """
    if amiss := misfit(data):
        raise UserError(f"{data.path} has {amiss}; convert it with the right --env")
    if data.env not in NAMES:
        known = ", ".join(NAMES)
        raise UserError(
            f"{data.path} is of none of {known} as far as its columns and dataset.json tell, and "
            "without a simulator there are no tasks; if it is of one, say so: "
            f"sdjepa data convert {data.path} OUT --env NAME; a model of it is read by its compass"
        )
    if manifest is not None:
        found = Manifest.read(manifest)
        found.check(data, manifest)
        check_playable(data, found.tasks)
        return found
    settings = of_pack(data, settings)
    tasks = choose_tasks(data, settings, trivial=solved_by_nothing(data, settings))
    check_playable(data, tasks)  # those of a pack
    return Manifest(
        env=data.env,
        protocol=settings.protocol,
        protocol_hash=protocol_hash(settings),
        data=identity(data),
        tasks=tuple(tasks),
    )


def of_pack(data: Episodes, settings: Score) -> Score:
    """Settings that say by what the tasks of a pack were chosen, where these are from one."""
    pack = data.info.get("pack", {})
    chose = {name: pack.get(name, getattr(settings, name)) for name in ("protocol", "seed")}
    return settings.model_copy(update=chose)


def adopt(settings: Score, chosen: Manifest, data: Episodes) -> Score:
    """Settings that say what the task list is, whoever chose it."""
    settings = of_pack(data, settings)
    offsets = {task.offset for task in chosen.tasks}
    if len(offsets) != 1:
        raise UserError(f"a score needs tasks of one offset, found {sorted(offsets)}")
    said = {"protocol": chosen.protocol, "tasks": len(chosen.tasks), "offset": offsets.pop()}
    return settings.model_copy(update=said)


def solved_by_nothing(data: Episodes, settings: Score) -> Callable[[Task], bool]:
    """Whether a task is solved at its start or by zero actions within the budget."""
    judge = make(data.env)
    idle = noop(judge.action_dim, settings.budget)

    def trivial(task: Task) -> bool:
        place(judge, task, data=data)
        return judge.solved() or run([judge], idle, budget=settings.budget)[0].success

    return trivial


def place(env: Env, task: Task, *, data: Episodes) -> None:
    """Put the environment at the task's start, with its goal."""
    start, goal = task.rows(data)
    Place(data.row(start), data.row(goal)).put(env)


# --- running them


def play(scenes: Scenes, actor: Actor, *, count: int, budget: int) -> list[Outcome]:
    """Let `actor` act on `count` tasks that stand at their starts; a solved one is left alone."""
    first = scenes.measure(range(count))
    last = dict(first)
    other: list[dict[str, bool]] = [{} for _ in range(count)]
    solved_at: dict[int, int] = {}
    step = 0
    while step < budget and len(solved_at) < count:
        active = [number for number in range(count) if number not in solved_at]
        actions = actor(active)[:, : budget - step]
        moved = scenes.advance(dict(zip(active, actions, strict=True)))
        for number, done in moved.items():
            for name, met in done.other.items():
                other[number][name] = met or other[number].get(name, False)
            if done.solved:
                solved_at[number] = step + done.steps
        last |= moved
        step += actions.shape[1]
    return [
        Outcome(
            success=i in solved_at,
            steps_to_success=solved_at.get(i),
            start_distance=first[i].distance,
            final_distance=last[i].distance,
            solved_at_start=first[i].solved,
            other_success=other[i],
        )
        for i in range(count)
    ]


def run(
    envs: Sequence[Env],
    actor: Actor,
    *,
    budget: int,
    watch: Callable[[int], None] = lambda number: None,
) -> list[Outcome]:
    """`play` on environments of this process that stand at their starts.

    `watch` is called with a task's number before its first and after each of its steps.
    """
    return play(Here(dict(enumerate(envs)), watch), actor, count=len(envs), budget=budget)
