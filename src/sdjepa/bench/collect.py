"""Where a collector's time goes: microseconds of every stage, frames a second of many workers.

For each environment: the stages of a frame in one process and, where a GPU draws, how long it works
on a frame and its parts, and whether frames are MuJoCo's own; then collections by so many workers,
each stopped when its rate is known. A line is told as soon as it is known, and the JSON file holds
all of them so far.
"""

import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sdjepa.bench import draw as drawn
from sdjepa.config import Collect
from sdjepa.crew import forkserver_context, one_thread
from sdjepa.data import collect as collecting
from sdjepa.data.packing import coder, digest, pack
from sdjepa.data.parts import read_part, write_part
from sdjepa.data.writer import Writer
from sdjepa.envs import gl
from sdjepa.envs.base import NAMES, Env, make
from sdjepa.errors import UserError
from sdjepa.runs import provenance, write_json
from sdjepa.seeds import numpy_stream

Tell = Callable[[str], None]
STEPS = 100  # of an episode
KEPT = 60  # frames that are hashed and compressed; more would not stay in a processor's cache
WAVES = 3  # parts of a worker in a collection, at least
NO_END = 10_000  # episodes; it is stopped before


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


class Enough(Exception):
    """A collection has gone on for long enough."""


def bench_collect(
    names: Sequence[str] = NAMES,
    *,
    workers: Sequence[int] = (1, 16),
    seconds: float = 8.0,
    out: Path | None = None,
    tell: Tell = lambda line: None,
) -> list[dict[str, Any]]:
    """Measure every environment of `names`; a steady rate is taken over `seconds` at least."""
    for name in names:
        if name not in NAMES:
            raise UserError(f"unknown environment {name!r}; there are {', '.join(NAMES)}")
    book = Book(tell, out)
    for name in names:
        for count in workers:
            lines = _alone(name) if count == 1 else iter(())
            for what, value, unit, more in itertools.chain(
                lines, _collection(name, count, seconds=seconds)
            ):
                book.add(name, what, value, unit, **more)
    book.close()
    return book.lines


def _settings(name: str, **more: Any) -> Collect:
    return collecting._complete(Collect(env=name, steps=STEPS, seed=0, **more))


Line = tuple[str, float, str, dict[str, Any]]


def _collection(name: str, workers: int, *, seconds: float) -> Iterator[Line]:
    """A collection from nothing, until enough of it is known."""
    settings = _settings(name, episodes=NO_END, workers=workers)
    marks: list[tuple[float, int]] = []
    began = time.time()  # as files are dated

    def joined(done: int) -> None:
        marks.append((time.time(), done))
        waited = marks[-1][0] - marks[min(workers, len(marks)) - 1][0]
        if len(marks) >= WAVES * workers and waited >= seconds:
            raise Enough

    with tempfile.TemporaryDirectory() as folder, Writer(Path(folder), image_size=224) as writer:
        with contextlib.suppress(Enough):
            collecting._join(settings, Path(folder), writer, joined=joined)
        size = sum(path.stat().st_size for path in Path(folder).glob(".episodes*"))
        made = sorted(path.stat().st_mtime for path in Path(folder).glob("part-*"))
    rows, took = marks[-1][1] * (STEPS + 1), marks[-1][0] - began
    start, end = marks[workers - 1][0], marks[-1][0]
    rate = steady_rate(made, start=start, end=end) * marks[0][1] * (STEPS + 1)
    crew = {"workers": workers}
    more = {**crew, "frames": rows, "bytes_a_frame": round(size / rows)}
    # Of a writer that does not keep up more and more would wait.
    waiting = [
        sum(each <= when for each in made) - written
        for when, written in ((start, workers), (end, len(marks)))
    ]
    yield "collected, steady", rate, "frames/s", {**more, "parts_waiting": waiting}
    yield "collected, start included", rows / took, "frames/s", crew
    yield "collected, first part after", 1e3 * (marks[0][0] - began), "ms", crew


def steady_rate(made: Sequence[float], *, start: float, end: float) -> float:
    """Parts a second, by when they were made: parts are written in order, some long after."""
    return sum(start < each <= end for each in made) / (end - start)


def _alone(name: str) -> Iterator[Line]:
    """What one process can measure, in one that gives the GPU back when it ends."""
    context = forkserver_context("sdjepa.bench.collect")
    told, tells = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=_measure, args=(name, tells, folder))
        process.start()
        tells.close()
        while True:
            try:
                yield told.recv()
            except EOFError:
                break
        process.join()
    if process.exitcode:
        yield "the process died", float(process.exitcode), "", {}


def _measure(name: str, tells: Any, folder: str) -> None:
    one_thread()
    env, settings = make(name), _settings(name)
    collecting.record(env, settings, 0)  # warm
    if isinstance(env, gl.Filmed):
        drawing = drawn.Drawing(env, settings, numpy_stream(0, "bench"))
        for line in drawing.gpu_times():
            tells.send(line)
    for line in _stages(env, settings, Path(folder)):
        tells.send(line)
    tells.close()


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
        write_part(folder / f"part-{number}", [(packed, 0)])
    yield line("write a part", time.perf_counter() - began, 20 * len(frames))
    with Writer(folder / "joined", image_size=224) as writer:
        began = time.perf_counter()
        for number in range(20):
            for episode, _ in read_part(folder / f"part-{number}"):
                writer.add(episode)
        yield line("join", time.perf_counter() - began, 20 * len(frames))
