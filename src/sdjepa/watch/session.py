"""One thread that owns the world and everyone who watches it.

Commands come in through a small queue, states go out as the newest snapshot only: whoever is slow
misses frames, and nothing piles up. The world is made in the thread that uses it.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sdjepa.config import Plan as Settings
from sdjepa.errors import UserError
from sdjepa.watch.film import Film
from sdjepa.watch.messages import Aim, Begin, Change, Command, Interfere, Move, Save, Teleport
from sdjepa.watch.record import record
from sdjepa.watch.search import Sketch
from sdjepa.watch.world import World

WAITING = 32  # commands that may wait; a person does not press faster
PAUSE_S = 1.5  # between two tasks of an endless show
RATE_WINDOW_S = 3.0
PLAN_KEYS = ("solver", "cost", "scale", "gamma", "replan")


@dataclass(frozen=True)
class Snapshot:
    """What is to be shown now; the film may have grown since, `rows` of it belong to this."""

    film: Film
    rows: int
    task: int
    running: bool
    planning: bool
    endless: bool
    pace: int
    rate: float | None  # environment steps a second, measured
    settings: Settings
    sketch: Sketch | None


@dataclass(frozen=True)
class Answer:
    """What came of a command, for the viewer who gave it."""

    error: str | None = None
    saved: Path | None = None


Reply = Callable[[Answer], None]


class Session:
    """The live show; `send` may be called from any thread."""

    def __init__(self, build: Callable[[Callable[[], bool]], World], *, out: Path) -> None:
        self._build, self._out = build, out
        self._commands: queue.Queue[tuple[Command, Reply]] = queue.Queue(WAITING)
        self._urgent, self._closing, self._ready, self._ended = (
            threading.Event() for _ in range(4)
        )
        self._thread = threading.Thread(target=self._live, name="world", daemon=True)
        self._listeners: list[Callable[[], None]] = []
        self._refused: UserError | None = None
        self._running, self._endless, self._pace = False, False, 20
        self._next_task_at: float | None = None
        self._times: deque[float] = deque(maxlen=256)
        self.snapshot: Snapshot | None = None

    # --- from other threads

    def start(self) -> World:
        """Make the world; what it refuses is raised here."""
        self._thread.start()
        self._ready.wait()
        if self._refused is not None:
            raise self._refused
        if not self.alive:
            raise RuntimeError("the simulation ended before it began; see above")
        return self._world

    @property
    def alive(self) -> bool:
        """Whether the world is still there; a bug may have ended it."""
        return not self._ended.is_set()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, from the world's thread, whenever there is something new or it ends."""
        self._listeners.append(listener)

    def send(self, command: Command, reply: Reply) -> None:
        """Have a command obeyed soon."""
        try:
            self._commands.put_nowait((command, reply))
        except queue.Full:
            reply(Answer(error="too many commands at once; wait a moment"))
            return
        if not isinstance(command, Move | Save):
            self._urgent.set()  # whatever is being planned is about to be out of date

    def close(self) -> None:
        """End the thread; waits for it."""
        self._closing.set()
        self._urgent.set()
        self._thread.join(timeout=10)

    # --- in the world's thread

    def _live(self) -> None:
        try:
            try:
                self._world = self._build(self._interrupted)
            except UserError as error:
                self._refused = error
                return
            self._publish()
            self._ready.set()
            due = time.monotonic()
            while not self._closing.is_set():
                self._obey(wait_s=due - time.monotonic() if self._active else 0.2)
                if self._active and time.monotonic() >= due:
                    due = max(due + 1 / self._pace, time.monotonic())
                    self._advance()
            self._world.close()
        finally:
            self._ended.set()
            self._ready.set()
            for listener in self._listeners:
                listener()

    def _interrupted(self) -> bool:
        """Whether a search should be given up for what waits."""
        asked = self._urgent.is_set() and not self._commands.empty()
        return asked or self._closing.is_set()

    @property
    def _active(self) -> bool:
        return self._running or self._world.rewinding or self._next_task_at is not None

    def _obey(self, *, wait_s: float) -> None:
        """Carry out all that waits; where nothing does, wait for it."""
        while True:
            try:
                command, reply = self._commands.get(timeout=max(wait_s, 0.001))
            except queue.Empty:
                return
            self._urgent.clear()
            try:
                reply(self._carry_out(command))
            except UserError as error:
                reply(Answer(error=str(error)))
            self._publish()
            wait_s = 0.0

    def _carry_out(self, command: Command) -> Answer:
        world = self._world
        match command:
            case Move(do="run"):
                self._running, self._next_task_at = not world.film.full, None
            case Move(do="pause"):
                self._running, self._next_task_at = False, None
            case Move():
                self._running, self._next_task_at = False, None
                self._step()
            case Begin(number=number):
                following = (world.number + 1) % len(world.tasks)
                self._begin(following if number is None else number)
            case Interfere(do="restart"):
                self._begin(world.number)
            case Interfere(do="swap"):
                world.swap()
            case Interfere():
                world.reverse()
            case Teleport(x=x, y=y):
                world.teleport(x, y)
            case Aim(x=x, y=y):
                world.aim(x, y)
            case Save():
                return Answer(saved=record(world, self._out))
            case Change():
                self._change(command)
        return Answer()

    def _begin(self, number: int) -> None:
        self._world.begin(number)
        self._next_task_at = None
        self._times.clear()

    def _change(self, wanted: Change) -> None:
        said = wanted.model_dump(exclude_none=True)
        self._pace = said.get("pace", self._pace)
        self._endless = said.get("endless", self._endless)
        plan = {key: said[key] for key in PLAN_KEYS if key in said}
        if plan:
            tree = self._world.settings.model_dump() | plan
            if tree["replan"] > tree["horizon"]:
                raise UserError(f"the plan is {tree['horizon']} blocks long; replan within it")
            self._world.change(Settings.model_validate(tree))

    def _advance(self) -> None:
        if self._next_task_at is not None:
            if time.monotonic() >= self._next_task_at:
                self._begin((self._world.number + 1) % len(self._world.tasks))
                self._running = True
                self._publish()
        elif self._world.film.full:
            self._end()
            self._publish()
        else:
            self._step()

    def _end(self) -> None:
        """The task is over: rest, or rest a little."""
        self._running = False
        self._next_task_at = time.monotonic() + PAUSE_S if self._endless else None

    def _step(self) -> None:
        world, film = self._world, self._world.film
        if world.plan_due:
            self._publish(planning=True)
        before = film.solved_at
        if not world.step():
            return
        self._times.append(time.monotonic())
        arrived = before is None and film.solved_at is not None
        if (arrived or film.steps == film.budget) and self._running:
            self._end()
        self._publish()

    def _rate(self) -> float | None:
        """Steps a second over the last moments, searches included."""
        since = time.monotonic() - RATE_WINDOW_S
        recent = [moment for moment in self._times if moment > since]
        if len(recent) < 2:
            return None
        return (len(recent) - 1) / (recent[-1] - recent[0])

    def _publish(self, *, planning: bool = False) -> None:
        world = self._world
        self.snapshot = Snapshot(
            film=world.film,
            rows=len(world.film.moments),
            task=world.number,
            running=self._running,
            planning=planning,
            endless=self._endless,
            pace=self._pace,
            rate=self._rate(),
            settings=world.settings,
            sketch=world.sketch,
        )
        for listener in self._listeners:
            listener()
