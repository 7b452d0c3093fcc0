"""A real teleport: the simulator moves the scene while the planner works, and the planner goes on.

The paper describes this and shows a recorded film instead. Here the same tasks are run twice: left
alone, and with the scene replaced before the second plan, the goal kept. Reported: how far the
angle jumps, whether the predictor notices, and whether the planner still arrives.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from sdjepa.compass.detection import auroc
from sdjepa.compass.reader import Reader
from sdjepa.compass.result import Diagnosis, said
from sdjepa.compass.signals import errors
from sdjepa.compass.trace import plane_angle, wrap
from sdjepa.data.episodes import Episodes
from sdjepa.envs.base import Env, make
from sdjepa.errors import UserError
from sdjepa.plan.agent import Planner
from sdjepa.runs import Progress, silent
from sdjepa.score import Actor, Task, run
from sdjepa.score import place as put
from sdjepa.seeds import numpy_stream, stream
from sdjepa.statistics import wilson95
from sdjepa.train.checkpoint import Checkpoint

TASKS = 8
_TITLE = "A real teleport under a running planner"
_QUESTION = "When the scene is really moved, does the angle jump, and does the planner recover?"


class _Film:
    """Frames of every task at every step, and where each was cut."""

    def __init__(self, envs: Sequence[Env], size: int) -> None:
        self._envs, self._size = envs, size
        self.frames: list[list[ndarray]] = [[] for _ in envs]
        self.cut: list[int | None] = [None] * len(envs)
        self.first_plan: dict[int, ndarray] = {}  # raw actions of each task before any cut

    def watch(self, number: int) -> None:
        self.frames[number].append(self._envs[number].render(self._size))


def teleport(
    checkpoint: Checkpoint,
    source: Episodes,
    chosen: list[int],
    *,
    k: int,
    seed: int,
    tasks: int = TASKS,
    progress: Progress = silent,
) -> Diagnosis:
    """Success, jump and prediction error, with and without a teleport before the second plan."""
    planner, settings = Planner(checkpoint), checkpoint.config.score
    offset = settings.offset
    able = [e for e in chosen if source.lengths[e] > offset + 1]
    if len(able) < 2:
        reason = f"fewer than two chosen episodes are longer than {offset} steps"
        return Diagnosis("teleport", _TITLE, _QUESTION, "not tested", reason, {})
    rng = numpy_stream(seed, "compass", "teleport")
    order = rng.permutation(able)
    picked = [
        Task(int(e), int(rng.integers(source.lengths[e] - offset)), offset) for e in order[:tasks]
    ]
    donors = [source.rows(int(order[(i + 1) % len(order)])) for i in range(len(picked))]
    landing = [int(rng.integers(rows.start, rows.stop)) for rows in donors]
    try:
        envs = [make(source.env) for _ in picked]
    except UserError as error:
        return Diagnosis("teleport", _TITLE, _QUESTION, "not tested", str(error), {})
    # One plan before the cut, and the whole published budget after it.
    before = planner.settings.replan * planner.frame_skip
    budget = before + settings.budget
    goals = source.frames(np.array([task.rows(source)[1] for task in picked]))
    reader = Reader(checkpoint.model)
    results: dict[str, Any] = {"tasks": [[t.episode, t.start] for t in picked], "budget": budget}
    try:
        for name, cut in (("left_alone", False), ("teleported", True)):
            film = _Film(envs, source.image_size)
            actor = _actor(
                planner, envs, picked, goals, film, source, landing if cut else None, progress
            )
            for env, task in zip(envs, picked, strict=True):
                put(env, task, data=source)
            outcomes = run(envs, actor, budget=budget, watch=film.watch)
            won = sum(outcome.success for outcome in outcomes)
            results[name] = {
                "success_rate": 100 * won / len(picked),
                "wilson95": wilson95(won, len(picked)),
                "final_distance": [o.final_distance for o in outcomes],
                **_signals(film, reader, planner, k=k),
            }
    finally:
        for env in envs:
            env.close()
    return Diagnosis("teleport", _TITLE, _QUESTION, "shown", _sentence(results), results)


def _actor(
    planner: Planner,
    envs: Sequence[Env],
    tasks: Sequence[Task],
    goals: ndarray,
    film: _Film,
    source: Episodes,
    landing: list[int] | None,
    progress: Progress,
) -> Actor:
    rounds = 0
    keep = planner.settings.replan * planner.frame_skip

    def act(active: list[int]) -> Float[ndarray, "active steps action"]:
        nonlocal rounds
        if rounds == 1 and landing is not None:
            for i in active:
                envs[i].set_state(source.row(landing[i]))
                envs[i].set_goal(source.row(tasks[i].rows(source)[1]))
                film.cut[i] = len(film.frames[i])
                film.watch(i)
        streams: list[torch.Generator] = [
            stream(planner.settings.seed, "teleport", tasks[i].episode, tasks[i].start, rounds)
            for i in active
        ]
        frames = np.stack([envs[i].render(source.image_size) for i in active])
        plans = planner.plan(frames, goals[active], streams=streams, progress=progress)
        if rounds == 0:
            film.first_plan = dict(zip(active, plans[:, :keep], strict=True))
        rounds += 1
        return plans[:, :keep]

    return act


def _signals(film: _Film, reader: Reader, planner: Planner, *, k: int) -> dict[str, Any]:
    """Jumps of the angle and prediction errors at the cut (or at the same row), and elsewhere."""
    before = planner.settings.replan * planner.frame_skip
    at_cut, elsewhere, paths, surprise = [], [], [], []
    for number, (frames, cut) in enumerate(zip(film.frames, film.cut, strict=True)):
        latents = reader.encode(np.stack(frames))
        theta = plane_angle(latents)
        jump = np.abs(wrap(np.diff(theta)))
        place = cut if cut is not None else before
        paths.append({"theta": np.unwrap(theta), "cut": cut})
        if place > len(jump):  # solved before the moment of the cut
            continue
        at_cut.append(float(jump[place - 1]))
        elsewhere.append(np.delete(jump, place - 1))
        guess = _foreseen(latents, film.first_plan[number], reader, planner)
        found = errors(latents[place], guess, k=k)
        surprise.append({name: float(value) for name, value in found.items()})
    calm = np.concatenate(elsewhere) if elsewhere else np.zeros(0)
    scores = np.concatenate([calm, at_cut])
    return {
        "jump_at_cut": at_cut,
        "median_jump_elsewhere": float(np.median(calm)) if calm.size else float("nan"),
        "auroc_of_jump": float(auroc(scores, np.arange(len(scores)) >= len(calm))),
        "prediction_errors": surprise,
        "paths": paths,
    }


def _foreseen(
    latents: Float[ndarray, "rows latent"],
    actions: Float[ndarray, "steps action"],
    reader: Reader,
    planner: Planner,
) -> Float[ndarray, "latent"]:
    """What the model expects at the end of the first plan, from the steps just before."""
    skip, blocks = planner.frame_skip, planner.settings.replan
    history = min(planner.model.config.history, blocks)
    normalised = (actions - planner.stats.mean) / planner.stats.std
    plan = normalised.reshape(blocks, -1)[blocks - history :]
    window = latents[np.arange(blocks - history, blocks) * skip]
    return reader.following(window[None], plan[None].astype(np.float32))[0]


def _sentence(results: dict[str, Any]) -> str:
    alone, moved = results["left_alone"], results["teleported"]
    jump = float(np.median(moved["jump_at_cut"])) if moved["jump_at_cut"] else float("nan")
    wrong = [
        float(np.median([e["latent_error"] for e in side["prediction_errors"]] or [np.nan]))
        for side in (moved, alone)
    ]
    return (
        f"the angle jumps {said(jump)} rad at the teleport against "
        f"{said(moved['median_jump_elsewhere'])} rad at other steps (AUROC "
        f"{said(moved['auroc_of_jump'])}), and the prediction error is {said(wrong[0])} against "
        f"{said(wrong[1])} when left alone; the planner arrives in {moved['success_rate']:.0f} % "
        f"of {len(results['tasks'])} teleported tasks and in {alone['success_rate']:.0f} % of the "
        f"same tasks left alone"
    )
