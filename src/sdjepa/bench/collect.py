"""Where a collector's time goes: microseconds of every stage, frames a second of many workers.

For each environment: the stages of a frame in one process; frames made a second by several
processes together; whole collections, start and joining included. Where a GPU draws, also what the
drawing itself allows: ways of reading frames back, how many processes draw at a time, how long the
GPU works on a frame and its parts, and whether frames are MuJoCo's own. A line is told as soon as
it is known, and the JSON file holds all of them so far.
"""

import contextlib
import functools
import itertools
import multiprocessing
import os
import queue
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdjepa.bench import draw as drawn
from sdjepa.config import Collect
from sdjepa.data import collect as collecting
from sdjepa.data.writer import Writer, coder, digest, pack
from sdjepa.envs import gl
from sdjepa.envs.base import NAMES, Env, make
from sdjepa.errors import UserError
from sdjepa.runs import provenance, write_json
from sdjepa.seeds import numpy_stream

Tell = Callable[[str], None]
STEPS = 100  # of an episode
KEPT = 60  # frames that are hashed and compressed; more would not stay in a processor's cache
WAVES = 4  # episodes of a worker in a whole collection, at least
COLLECT_SECONDS = 6.0  # a whole collection is made as long as this, at the rate just measured


class Book:
    """Lines told and kept."""

    def __init__(self, tell: Tell, out: Path | None) -> None:
        self._tell, self._out = tell, out
        self.lines: list[dict[str, Any]] = []
        self._began = time.monotonic()

    def add(self, env: str, what: str, value: float, unit: str, **more: Any) -> None:
        at = round(time.monotonic() - self._began, 1)
        line = {"env": env, "what": what, "value": value, "unit": unit, **more, "at_s": at}
        self.lines.append(line)
        extra = "  ".join(f"{key} {item}" for key, item in more.items())
        self._tell(f"{at:6.1f} s  {env:<8} {what:<34} {value:>10,.0f} {unit}  {extra}".rstrip())
        self._write(finished=False)

    def close(self) -> None:
        """Nothing more is coming: whoever reads the file may know."""
        self._write(finished=True)

    def _write(self, *, finished: bool) -> None:
        if self._out is not None:
            write_json(self._out, {"finished": finished, "lines": self.lines, **provenance()})


def bench_collect(
    names: Sequence[str] = NAMES,
    *,
    workers: Sequence[int] = (1, 4, 16),
    turns: Sequence[int] = (0, 1, 2),
    seconds: float = 1.0,
    out: Path | None = None,
    tell: Tell = lambda line: None,
) -> list[dict[str, Any]]:
    """Measure every environment of `names`; `seconds` is the length of one measurement."""
    for name in names:
        if name not in NAMES:
            raise UserError(f"unknown environment {name!r}; there are {', '.join(NAMES)}")
    book = Book(tell, out)
    for name in names:
        best = 0.0
        for count in workers:
            for what, value, unit, more in _together(name, count, turns=turns, seconds=seconds):
                book.add(name, what, value, unit, **more)
                if what.startswith("made"):
                    best = max(best, value)
        films = issubclass(collecting.env_class(name), gl.Filmed)
        for at_once in turns if films else turns[:1]:
            _whole(book, name, workers=max(workers), rate=best, at_once=at_once)
    book.close()
    return book.lines


def _settings(name: str, **more: Any) -> Collect:
    return collecting._complete(Collect(env=name, steps=STEPS, seed=0, **more))


def _whole(book: Book, name: str, *, workers: int, rate: float, at_once: int) -> None:
    """One collection from nothing to a dataset, without its card; `at_once` draw, 0: all.

    Parts are small enough that every worker makes several: of larger ones a slow environment would
    make one per worker, all of which end together and say nothing about a rate.
    """
    each = max(1, round(rate * COLLECT_SECONDS / (STEPS + 1) / (WAVES * workers)))
    episodes = max(WAVES * workers, round(rate * COLLECT_SECONDS / (STEPS + 1)))
    settings = _settings(name, episodes=episodes, workers=workers)
    marks: list[tuple[float, int]] = []
    began = time.monotonic()
    part, usual = collecting._PART_ROWS, collecting._DRAWING_AT_ONCE
    collecting._PART_ROWS = min(part, each * (STEPS + 1))
    collecting._DRAWING_AT_ONCE = at_once
    with tempfile.TemporaryDirectory() as folder, Writer(Path(folder), image_size=224) as writer:
        collecting._join(
            settings,
            Path(folder),
            writer,
            progress=lambda done, total, note="": marks.append((time.monotonic(), done)),
        )
        took = time.monotonic() - began
        size = sum(path.stat().st_size for path in Path(folder).glob(".episodes*"))
    collecting._PART_ROWS, collecting._DRAWING_AT_ONCE = part, usual
    rows = episodes * (STEPS + 1)
    crew = {"workers": workers, "drawing_at_once": at_once}
    more = {**crew, "frames": rows, "bytes_a_frame": round(size / rows)}
    steady = steady_rate(marks, workers=workers)
    if steady is not None:
        book.add(name, "collected, steady", steady * (STEPS + 1), "frames/s", **more)
    book.add(name, "collected, start included", rows / took, "frames/s", **crew)
    book.add(name, "collected, first part after", 1e3 * (marks[0][0] - began), "ms", **crew)


def steady_rate(marks: Sequence[tuple[float, int]], *, workers: int) -> float | None:
    """Episodes a second after as many parts as workers; a mark is a part, when and up to where.

    None: with few parts after those it would tell how parts are made in step, not how fast.
    """
    if len(marks) < (WAVES - 1) * workers:
        return None
    (start, before), (end, after) = marks[workers - 1], marks[-1]
    return (after - before) / (end - start)


Line = tuple[str, float, str, dict[str, Any]]


def _together(name: str, count: int, *, turns: Sequence[int], seconds: float) -> Iterator[Line]:
    """The same jobs in `count` processes at once, one job after another."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sdjepa.bench.collect"])
    jobs: list[tuple[str, int]] = []
    if count == 1:
        jobs.append(("stages", 0))
    films = issubclass(collecting.env_class(name), gl.Filmed)
    if films:
        held = [0] if count == 1 else [n for n in turns if n < count]
        jobs += [(kind, n) for kind in drawn.KINDS for n in (held if kind != "frame" else [0])]
    jobs += [("made", n) for n in (turns if films and count > 1 else [0]) if n < count]
    barrier, lines = context.Barrier(count), context.Queue()
    locks = {n: context.Semaphore(n) for n in turns if n}
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(
                target=_work, args=(name, jobs, seconds, barrier, lines, locks, folder, i == 0)
            )
            for i in range(count)
        ]
        for process in processes:
            process.start()
        yield from _gather(processes, lines, jobs, count=count)


def _gather(
    processes: Sequence[Any], lines: Any, jobs: Sequence[tuple[str, int]], *, count: int
) -> Iterator[Line]:
    """Rates are summed over processes, other lines handed on."""
    open_jobs = {job: [] for job in jobs if job[0] != "stages"}
    finished = 0
    while finished < count:
        try:
            message = lines.get(timeout=1.0)
        except queue.Empty:
            if any(process.exitcode for process in processes):
                for process in processes:
                    process.terminate()
                yield "a worker died", float(count), "workers", {}
                return
            continue
        if message is None:
            finished += 1
        elif isinstance(message, tuple) and len(message) == 4:
            yield message
        else:
            job, span = message
            open_jobs[job].append(span)
            if len(open_jobs[job]) == count:
                what, turns = job
                more = {"workers": count} | ({"drawing_at_once": turns} if turns else {})
                yield what, drawn.together(open_jobs[job]), "frames/s", more
    for process in processes:
        process.join()


def _work(
    name: str,
    jobs: Sequence[tuple[str, int]],
    seconds: float,
    barrier: Any,
    lines: Any,
    locks: dict[int, Any],
    folder: str,
    first: bool,
) -> None:
    """One process of several; the first also measures what one alone can."""
    collecting._one_thread()
    env, settings = make(name), _settings(name)
    collecting.record(env, settings, 0)  # warm
    drawing: drawn.Drawing | None = None
    if isinstance(env, gl.Filmed):
        drawing = drawn.Drawing(env, settings, numpy_stream(0, "bench", os.getpid()))
    episodes = itertools.count(1000 * os.getpid())
    for kind, turns in jobs:
        barrier.wait()
        turn = locks[turns] if turns else contextlib.nullcontext()
        gl.take_turns(turn)
        if kind == "stages":
            if drawing is not None:
                for line in drawing.gpu_times():
                    lines.put(line)
            for line in _stages(env, settings, Path(folder)):
                lines.put(line)
        elif kind == "made":
            found = drawn.span(functools.partial(_make, env, settings, episodes), seconds)
            lines.put(((kind, turns), found))
        else:
            assert drawing is not None
            lines.put(((kind, turns), drawing.span(kind, turn, seconds)))
    lines.put(None)


def _make(env: Env, settings: Collect, episodes: Iterator[int]) -> int:
    return len(collecting.record(env, settings, next(episodes))[0].frames)


def _stages(env: Env, settings: Collect, folder: Path) -> Iterator[Line]:
    """Microseconds a frame costs in each stage of one process."""

    def line(what: str, took: float, frames: int) -> Line:
        return f"stage: {what}", 1e6 * took / frames, "us/frame", {}

    episodes, spent = 3, {"simulate": 0.0, "observe": 0.0, "draw": 0.0}
    frames: list[np.ndarray] = []
    columns: dict[str, list[np.ndarray]] = {"action": []}
    for episode in range(episodes):
        rng = numpy_stream(1, "stages", episode)
        env.reset(rng)
        policy = env.policy(settings.policy, noise=1.0, rng=rng, demos_given=None)
        for _ in range(STEPS):
            began = time.perf_counter()
            row = env.observe()
            env.succeeded()
            spent["observe"] += time.perf_counter() - began
            began = time.perf_counter()
            env.shoot()
            done = env.finished()
            spent["draw"] += time.perf_counter() - began
            frames += done if len(frames) < KEPT else []
            for name, value in row.items():
                columns.setdefault(name, []).append(value)
            began = time.perf_counter()
            action = policy()
            if action is not None:
                env.step(action)
            spent["simulate"] += time.perf_counter() - began
            columns["action"].append(np.zeros(env.action_dim, np.float32))
        began = time.perf_counter()
        done = env.develop()
        spent["draw"] += time.perf_counter() - began
        frames += done if len(frames) < KEPT else []
    for what, took in spent.items():
        yield line(what, took, episodes * STEPS)
    whole, squeeze = [np.ascontiguousarray(frame) for frame in frames], coder()
    for what, work in (("hash", digest), ("compress", lambda frame: squeeze.compress(frame.data))):
        began = time.perf_counter()
        for frame in whole:
            work(frame)
        yield line(what, time.perf_counter() - began, len(frames))
    rows = {name: np.stack(values[: len(frames)]) for name, values in columns.items()}
    packed = pack(rows, frames)
    began = time.perf_counter()
    for number in range(20):
        collecting._write_part(folder / f"part-{number}", [(packed, 0)])
    yield line("write a part", time.perf_counter() - began, 20 * len(frames))
    with Writer(folder / "joined", image_size=224) as writer:
        began = time.perf_counter()
        for number in range(20):
            for episode, _ in collecting._read_part(folder / f"part-{number}"):
                writer.add(episode)
        yield line("join", time.perf_counter() - began, 20 * len(frames))
