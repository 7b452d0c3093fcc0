"""Tasks simulated here, or in worker processes: the same calls, the same answers.

A worker that dies is replaced, its tasks are put back to their starts and moved through everything
they had done before; simulators are deterministic, so nobody can tell. One that keeps dying stops
the score with an error. A simulation that failed is never counted as a miss.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from sdjepa.config import Score
from sdjepa.crew import begin, forkserver_context
from sdjepa.data.episodes import Episodes
from sdjepa.errors import UserError
from sdjepa.interrupts import held
from sdjepa.runs import cores
from sdjepa.scoring.album import WATCHED
from sdjepa.scoring.stage import Moved, Place, Record, Stage
from sdjepa.tasks import Task

MOST_RESTARTS = 3  # of one worker
LOST = (EOFError, ConnectionError, OSError)


class Simulation:
    """A `Stage`, or several in worker processes: the same calls, the same answers."""

    def __init__(
        self,
        env: str,
        places: Sequence[Place],
        *,
        size: int,
        watched: Sequence[int] = (),
        every: int = 5,
        workers: int = 1,
    ) -> None:
        count = max(1, min(workers or cores(), len(places)))
        shares = [range(n, len(places), count) for n in range(count)]
        build = [
            Build(env, {i: places[i] for i in share}, size, tuple(watched), every)
            for share in shares
        ]
        self._share = {i: n for n, share in enumerate(shares) for i in share}
        self._crew: list[Alone | Worker]
        self._crew = [Alone(build[0])] if count == 1 else [Worker(b) for b in build]
        self.num_tasks = len(places)

    def __enter__(self) -> "Simulation":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for member in self._crew:
            member.close(at_once=error is not None)

    def place(self, *, watch: bool = False) -> None:
        """Every task back to its start."""
        self._ask("place", range(self.num_tasks), watch=watch)

    def measure(self, tasks: Sequence[int]) -> dict[int, Moved]:
        return self._ask("measure", tasks)

    def advance(self, moves: Mapping[int, Float[np.ndarray, "steps action"]]) -> dict[int, Moved]:
        return self._ask("advance", moves)

    def render(self, tasks: Sequence[int]) -> UInt8[np.ndarray, "tasks size size 3"]:
        frames = self._ask("render", tasks)
        return np.stack([frames[number] for number in tasks])

    def records(self) -> dict[int, Record]:
        return dict(sorted(self._ask("records", range(self.num_tasks)).items()))

    @property
    def processes(self) -> list[int]:
        """Process ids of the workers; empty when there are none."""
        return [member.pid for member in self._crew if isinstance(member, Worker)]

    def _ask(self, verb: str, given: Iterable[int] | Mapping[int, Any], **said: bool) -> Any:
        """Send every worker its share, then gather the answers."""
        shares: dict[int, list[int]] = {}
        for number in given:
            shares.setdefault(self._share[number], []).append(number)
        for crew, numbers in shares.items():
            part = {n: given[n] for n in numbers} if isinstance(given, Mapping) else numbers
            self._crew[crew].send((verb, part, said))
        answers: dict[int, Any] = {}
        for crew in shares:
            answers |= self._crew[crew].receive() or {}
        return answers


def simulate(
    data: Episodes, tasks: Sequence[Task], settings: Score, *, every: int = 5
) -> Simulation:
    """Environments for the tasks; the first few are watched, a frame `every` so many steps."""
    rows = [task.rows(data) for task in tasks]
    return Simulation(
        data.env,
        [Place(data.row(start), data.row(goal)) for start, goal in rows],
        size=data.image_size,
        watched=range(min(WATCHED, len(tasks))),
        every=every,
        workers=settings.workers,
    )


@dataclass(frozen=True)
class Build:
    env: str
    places: dict[int, Place]
    size: int
    watched: tuple[int, ...]
    every: int

    def stage(self) -> Stage:
        return Stage(self.env, self.places, size=self.size, watched=self.watched, every=self.every)


Request = tuple[str, Any, dict[str, bool]]


class Alone:
    """The stage in this process."""

    def __init__(self, build: Build) -> None:
        self._stage = build.stage()

    def send(self, request: Request) -> None:
        verb, given, said = request
        self._answer = getattr(self._stage, verb)(given, **said)

    def receive(self) -> Any:
        return self._answer

    def close(self, *, at_once: bool) -> None:
        self._stage.close()


class Worker:
    """A stage in another process, restarted with its memory when it dies."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._restarts = 0
        self._past: list[Request] = []  # what changed the stage since its tasks were last placed
        self._pending: Request | None = None
        self._start()

    def _start(self) -> None:
        context = forkserver_context("sdjepa.scoring.simulation")
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_serve, args=(theirs, self._build), daemon=True
        )
        with held():
            self._process.start()
        theirs.close()  # so that a dead worker closes the pipe

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def send(self, request: Request) -> None:
        self._pending = request
        try:
            self._pipe.send(request)
        except LOST:
            self._revive()

    def receive(self) -> Any:
        assert self._pending is not None
        while True:
            try:
                answer = self._await()
                break
            except LOST:
                self._revive()
        if self._pending[0] == "place":
            self._past = []
        if self._pending[0] in ("place", "measure", "advance"):
            self._past.append(self._pending)
        return answer

    def _await(self) -> Any:
        wait([self._pipe, self._process.sentinel])
        kind, answer = self._pipe.recv()
        if kind == "refused":
            raise UserError(answer)
        return answer

    def _revive(self) -> None:
        """A new process brought to where the old one was, and asked again."""
        while True:
            self._restarts += 1
            self._process.join()
            if self._restarts > MOST_RESTARTS:
                raise RuntimeError(
                    f"a simulation worker died {self._restarts} times (exit code "
                    f"{self._process.exitcode}); free some memory or lower --workers"
                )
            self._pipe.close()
            self._start()
            try:
                for request in self._past:
                    self._pipe.send(request)
                    self._await()
                assert self._pending is not None
                self._pipe.send(self._pending)
                return
            except LOST:
                continue

    def close(self, *, at_once: bool) -> None:
        """Unless `at_once`, what it is doing may come to its end."""
        self._pipe.close()
        self._process.join(timeout=0 if at_once else 5)
        if self._process.is_alive():
            self._process.terminate()


def _serve(pipe: Connection, build: Build) -> None:
    """The life of a worker: answer until the other end is gone."""
    begin()
    stage = None
    while True:
        try:
            verb, given, said = pipe.recv()
        except EOFError:
            break
        try:
            stage = stage or build.stage()
            answer = "answer", getattr(stage, verb)(given, **said)
        except UserError as error:
            answer = "refused", str(error)
        pipe.send(answer)
    if stage is not None:
        stage.close()
