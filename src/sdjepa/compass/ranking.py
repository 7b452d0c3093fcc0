"""Does the planner's cost order candidates as the simulator does?

Candidates are rolled out twice from the same start: in imagination, where the planner reads its
cost, and in the simulator, where the true distance to the goal is measured. A third reading, the
cost of the frame really reached, tells a wrong imagination from a cost that means little.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from sdjepa.compass.association import spearman
from sdjepa.compass.nulls import bootstrap_mean, sign_flipped, summary
from sdjepa.compass.result import Diagnosis, said, said_p
from sdjepa.config import Plan
from sdjepa.data.episodes import Episodes
from sdjepa.envs.base import Env, make
from sdjepa.errors import UserError
from sdjepa.plan.agent import Planner
from sdjepa.plan.costs import candidate_cost
from sdjepa.runs import Progress, silent
from sdjepa.score import Task
from sdjepa.score import place as put
from sdjepa.seeds import numpy_stream
from sdjepa.train.checkpoint import Checkpoint

TASKS = 12
CANDIDATES = 24
NEARBY = 0.5  # spread of candidates around the recorded actions, in normalised units
_TITLE = "Imagined cost against real distance"
_QUESTION = "Are the action sequences the planner likes best also the best ones in reality?"


@dataclass(frozen=True)
class Readings:
    """What is known of the candidates of one task."""

    imagined: Float[ndarray, "candidates"]  # the planner's cost
    reached: Float[ndarray, "candidates"]  # the same cost of the frame really reached
    distance: Float[ndarray, "candidates"]  # the simulator's distance to the goal


def ranking(
    checkpoint: Checkpoint,
    source: Episodes,
    chosen: list[int],
    *,
    seed: int,
    tasks: int = TASKS,
    candidates: int = CANDIDATES,
    progress: Progress = silent,
) -> Diagnosis:
    """Rank correlation per task, for broad candidates and for candidates near the recorded ones."""
    planner = Planner(checkpoint)
    blocks = planner.settings.horizon
    offset = min(checkpoint.config.score.offset, blocks * planner.frame_skip)
    picked = _tasks(source, chosen, offset, blocks * planner.frame_skip, tasks, seed=seed)
    if not picked:
        reason = f"no chosen episode is longer than the {blocks} action blocks of a plan"
        return Diagnosis("ranking", _TITLE, _QUESTION, "not tested", reason, {})
    try:
        env = make(source.env)
    except UserError as error:
        return Diagnosis("ranking", _TITLE, _QUESTION, "not tested", str(error), {})
    results: dict[str, Any] = {
        "tasks": [[t.episode, t.start] for t in picked],
        "offset": offset,
        "candidates": candidates,
        "cost": planner.settings.cost,
    }
    nulls: dict[str, Any] = {}
    try:
        for kind in ("broad", "nearby"):
            found = []
            for number, task in enumerate(picked):
                rng = numpy_stream(seed, "compass", "ranking", kind, task.episode, task.start)
                actions = _candidates(planner, source, task, kind, candidates, rng=rng)
                found.append(_read(planner, env, source, task, actions))
                progress(number + 1, len(picked), f"tasks, ranking {kind}")
            results[kind], nulls[kind] = summarise(found, seed=seed)
    finally:
        env.close()
    return Diagnosis(
        "ranking", _TITLE, _QUESTION, "shown", _sentence(results, nulls), results, nulls
    )


def _tasks(
    source: Episodes, chosen: list[int], offset: int, reach: int, count: int, *, seed: int
) -> list[Task]:
    rng = numpy_stream(seed, "compass", "ranking")
    room = {e: int(source.lengths[e]) - max(offset, reach) - 1 for e in chosen}
    able = [e for e in chosen if room[e] > 0]
    picked = rng.permutation(able)[:count] if able else []
    return [Task(int(e), int(rng.integers(room[int(e)])), offset) for e in picked]


def _candidates(
    planner: Planner,
    source: Episodes,
    task: Task,
    kind: str,
    count: int,
    *,
    rng: np.random.Generator,
) -> Float[ndarray, "candidates horizon block"]:
    shape = (count, planner.settings.horizon, planner.model.block)
    noise = rng.standard_normal(shape)
    if kind == "broad":
        return planner.settings.initial_std * noise
    start = task.rows(source)[0]
    steps = planner.settings.horizon * planner.frame_skip
    raw = source.column("action")[start : start + steps]
    recorded = np.nan_to_num((raw - planner.stats.mean) / planner.stats.std).reshape(shape[1:])
    return recorded + NEARBY * noise


@torch.no_grad()
def _read(planner: Planner, env: Env, source: Episodes, task: Task, actions: ndarray) -> Readings:
    settings: Plan = planner.settings
    blocks = torch.from_numpy(actions.astype(np.float32)).to(planner.device)
    raw = planner.raw_actions(blocks)
    start, goal = source.frames(np.array(task.rows(source)))
    frames, distance = [], []
    for sequence in raw:
        put(env, task, data=source)
        for action in sequence:
            env.step(action)
        frames.append(env.render(source.image_size))
        distance.append(env.distance())
    tensor = torch.from_numpy(np.stack([start, goal, *frames])).to(planner.device)
    latents = planner.model.encode(tensor[:, None])[:, 0]
    aim = planner.model.split(latents[1:2])
    count = len(actions)
    rolled = planner.model.rollout(latents[:1, None].expand(count, -1, -1), blocks[:, :0], blocks)
    imagined = candidate_cost(planner.model.split(rolled[None]), aim, settings=settings)[0]
    really = candidate_cost(planner.model.split(latents[None, 2:, None]), aim, settings=settings)[0]
    return Readings(imagined.cpu().numpy(), really.cpu().numpy(), np.array(distance))


def summarise(found: list[Readings], *, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Mean rank correlations over tasks, and how good the favourite really is."""
    pairs = {
        "imagined_cost_and_distance": [spearman(r.imagined, r.distance) for r in found],
        "reached_cost_and_distance": [spearman(r.reached, r.distance) for r in found],
        "imagined_and_reached_cost": [spearman(r.imagined, r.reached) for r in found],
    }
    results: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for name, values in pairs.items():
        rho = np.array(values, float)
        rng = numpy_stream(seed, "compass", "ranking", name)
        known = rho[np.isfinite(rho)]
        mean = float(known.mean()) if known.size else float("nan")
        results[name] = {"mean": mean, "ci95": bootstrap_mean(rho, rng=rng), "per_task": rho}
        nulls[name] = summary(mean, sign_flipped(rho, 999, rng=rng))
    # Where the favourite of the imagination stands among the real distances: 0 best, 0.5 chance.
    standing = [float((r.distance < r.distance[r.imagined.argmin()]).mean()) for r in found]
    results["standing_of_favourite"] = {"mean": float(np.mean(standing)), "per_task": standing}
    results["scatter"] = [
        {"imagined": r.imagined, "reached": r.reached, "distance": r.distance} for r in found[:6]
    ]
    return results, nulls


def _sentence(results: dict[str, Any], nulls: dict[str, Any]) -> str:
    broad, near = results["broad"], results["nearby"]
    name = "imagined_cost_and_distance"
    return (
        f"over {len(results['tasks'])} tasks the planner's {results['cost']} cost orders "
        f"candidates as the simulator does with rank correlation {said(broad[name]['mean'])} "
        f"({said_p(nulls['broad'][name]['p'])}) for broad and {said(near[name]['mean'])} "
        f"({said_p(nulls['nearby'][name]['p'])}) for candidates near the recorded actions; with "
        f"the frame really reached it would be {said(broad['reached_cost_and_distance']['mean'])}; "
        f"{100 * broad['standing_of_favourite']['mean']:.0f} % of candidates end nearer than its "
        f"favourite (50 % is chance)"
    )
