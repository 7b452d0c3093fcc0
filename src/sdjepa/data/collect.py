"""A policy in an environment in, a dataset out; the seed decides every byte, the workers none.

Episode i draws everything from the stream (seed, "episode", i). Workers leave groups of episodes as
part files under OUT/.collect, each whole or absent; the main process joins them, in order, into the
dataset. A killed collection is continued by the same command: parts that exist are not made again.
"""

import functools
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sdjepa.config import Collect
from sdjepa.data.card import card
from sdjepa.data.writer import Packed, Packing, Writer, make_split
from sdjepa.envs.base import Env, env_class, make, reduce
from sdjepa.errors import UserError
from sdjepa.runs import Progress, Run, read_json, silent, write_json
from sdjepa.seeds import numpy_stream

PARTS = ".collect"
_PART_ROWS = 512  # about; decides what a kill loses and how evenly workers are loaded


def collect(settings: Collect, out: Path, *, progress: Progress = silent) -> Path:
    """Make the dataset `out`, or continue making it."""
    settings = _complete(settings)
    if (out / "episodes.h5").exists():
        raise UserError(f"{out} already holds a dataset; remove it or choose another --out")
    described = env_class(settings.env).describe_policy(settings.policy, _demos(settings))
    parts = out / PARTS
    with Run(parts).lock():
        _claim(parts, settings)
        with Writer(out, image_size=settings.size) as writer:
            reached = _join(settings, parts, writer, progress=progress)
            split = make_split(
                settings.episodes,
                seed=settings.seed,
                validation=settings.validation_share,
                test=settings.test_share,
            )
            chosen = settings.model_dump(exclude={"workers"})
            policy = {
                "name": settings.policy,
                "noise": settings.noise,
                "success_share": sum(map(bool, reached)) / len(reached),
                "successes_per_episode": sum(reached) / len(reached),
                **described,
            }
            info = {"env": settings.env, "seed": settings.seed, "policy": policy, "collect": chosen}
            writer.finish(info, split=split)
    shutil.rmtree(parts)
    card(out, progress=progress)
    return out


def _complete(settings: Collect) -> Collect:
    """Fill in what the environment decides, and refuse what it cannot do."""
    env = env_class(settings.env)
    policy = settings.policy
    if policy == "auto":
        policy = env.default_policy(_demos(settings))
    env.check_policy(policy)
    episodes = settings.episodes
    if settings.frames:
        episodes = -(-settings.frames // (settings.steps + 1))
    # Refuses shares that leave nothing to train on before an hour is spent, not after.
    make_split(episodes, seed=0, validation=settings.validation_share, test=settings.test_share)
    return settings.model_copy(update={"policy": policy, "episodes": episodes})


def _demos(settings: Collect) -> Path | None:
    return Path(settings.demos) if settings.demos else None


def _claim(parts: Path, settings: Collect) -> None:
    """Remember what is being collected; parts of something else are not continued."""
    said = settings.model_dump(exclude={"workers"})
    path = parts / "settings.json"
    if path.exists():
        found = read_json(path)
        for key, value in said.items():
            if found.get(key) != value:
                raise UserError(
                    f"{parts.parent} holds an unfinished collection with {key} = {found.get(key)}, "
                    f"not {value}; finish that one, or remove {parts}"
                )
    write_json(path, said)


def _join(settings: Collect, parts: Path, writer: Writer, *, progress: Progress) -> list[int]:
    """Have every part made and written, in order; how often each episode reached its goal."""
    size = max(1, _PART_ROWS // (settings.steps + 1))
    groups = [
        range(first, min(first + size, settings.episodes))
        for first in range(0, settings.episodes, size)
    ]
    reached: list[int] = []
    began, fresh = time.monotonic(), 0
    with _Crew(settings, num_groups=len(groups)) as crew:
        jobs = [
            crew.submit(_make_part, settings, group, parts / f"part-{i:06d}")
            for i, group in enumerate(groups)
        ]
        for group, job in zip(groups, jobs, strict=True):
            path, made = crew.wait(job)
            rows = 0
            for episode, goals in _read_part(path):
                writer.add(episode)
                reached.append(goals)
                rows += len(episode.frames)
            fresh += rows * made
            rate = fresh / max(time.monotonic() - began, 1e-9)
            progress(group.stop, settings.episodes, f"{rate:,.0f} frames/s")
    return reached


class _Crew:
    """Worker processes, or this process where one is enough."""

    def __init__(self, settings: Collect, *, num_groups: int) -> None:
        self._size = min(settings.workers or os.cpu_count() or 1, num_groups)
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "_Crew":
        if self._size > 1:
            # forkserver: torch is imported once, children are forked from a process that holds no
            # threads, no GL context and no GPU.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["sdjepa.data.collect"])
            self._pool = ProcessPoolExecutor(
                self._size, mp_context=context, initializer=_one_thread
            )
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(
        self, work: Callable[..., tuple[Path, bool]], *arguments: Any
    ) -> Future[tuple[Path, bool]] | Callable[[], tuple[Path, bool]]:
        if self._pool is None:
            return functools.partial(work, *arguments)
        return self._pool.submit(work, *arguments)

    def wait(
        self, job: Future[tuple[Path, bool]] | Callable[[], tuple[Path, bool]]
    ) -> tuple[Path, bool]:
        try:
            return job.result() if isinstance(job, Future) else job()
        except BrokenProcessPool as error:
            raise UserError(
                "a worker was killed, perhaps for lack of memory; run the same command again to "
                "continue, with fewer --workers if it happens twice"
            ) from error


def _one_thread() -> None:
    # Sixteen workers with sixteen threads each stand still.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("LP_NUM_THREADS", "1")  # Mesa's software renderer


@functools.cache
def _env(name: str, shadow: int) -> Env:
    """A process makes its environment once."""
    return make(name, shadow=shadow)


def _make_part(settings: Collect, group: range, path: Path) -> tuple[Path, bool]:
    """Record the episodes of `group` into `path`; says whether that was still to do."""
    if path.exists():
        return path, False
    env = _env(settings.env, settings.shadow)
    _write_part(path, [record(env, settings, episode) for episode in group])
    return path, True


def _write_part(path: Path, episodes: Sequence[tuple[Packed, int]]) -> None:
    """One line of JSON that says what follows, then the bytes of it, nothing between.

    Not an `.npz`: unpacking one costs the joining process more than writing the dataset does.
    """
    head, body = [], []
    for packed, goals in episodes:
        columns = {name: np.ascontiguousarray(values) for name, values in packed.columns.items()}
        shapes = {name: (values.dtype.str, values.shape) for name, values in columns.items()}
        sizes = [len(frame) for frame in packed.frames]
        head.append({"goals": int(goals), "sizes": sizes, "columns": shapes})
        body += [*packed.frames, packed.digests.tobytes(), *(v.tobytes() for v in columns.values())]
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        temporary.write_bytes(b"".join([json.dumps(head).encode(), b"\n", *body]))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(
            f"could not write {path}: {error.strerror}; free some space and run the same command "
            "again, it continues"
        ) from error


def _read_part(path: Path) -> Iterator[tuple[Packed, int]]:
    whole = path.read_bytes()
    at = whole.index(b"\n")
    head, at = json.loads(whole[:at]), at + 1
    for episode in head:
        frames = []
        for size in episode["sizes"]:
            frames.append(whole[at : at + size])
            at += size
        digests = np.frombuffer(whole, np.uint8, 32 * len(frames), at).reshape(-1, 32)
        at += digests.nbytes
        columns = {}
        for name, (kind, shape) in episode["columns"].items():
            values = np.frombuffer(whole, kind, int(np.prod(shape)), at).reshape(shape)
            at += values.nbytes
            columns[name] = values.copy()  # else every part would stay in memory
        yield Packed(columns, frames, digests.copy()), episode["goals"]


def record(env: Env, settings: Collect, episode: int) -> tuple[Packed, int]:
    """Episode number `episode` of the dataset, and how often it reached what its policy wanted."""
    rng = numpy_stream(settings.seed, "episode", episode)
    env.reset(rng)
    policy = env.policy(
        settings.policy, noise=settings.noise, rng=rng, demos_given=_demos(settings)
    )
    rows, actions, goals, before = [], [], 0, False
    packing = Packing()
    while True:
        rows.append(env.observe())
        env.shoot()
        # At once, while they are in the processor's cache, and so that none wait in memory.
        for frame in env.finished():
            packing.add(reduce(frame, settings.size))
        now = env.succeeded()
        goals += now and not before  # a policy without a next goal may rest at the last one
        before = now
        action = policy() if len(actions) < settings.steps else None
        if action is None:
            break
        actions.append(np.asarray(action, dtype=np.float32))
        env.step(actions[-1])
    actions.append(np.full(env.action_dim, np.nan, dtype=np.float32))
    columns = {name: np.stack([row[name] for row in rows]) for name in env.state_columns}
    for frame in env.develop():
        packing.add(reduce(frame, settings.size))
    return packing.close({"action": np.stack(actions), **columns}), goals
