"""An environment, a planner and the film of what happens: everything live, nothing concurrent.

One `step` is one step of the environment. Whoever interferes (another goal, a teleport, another
scene, time running backwards) makes the next frame not follow from the last; the model is not told,
its foresight is what the surprise is measured against, and the planner looks again.
"""

import io
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy import ndarray
from PIL import Image
from torch import Tensor

from sdjepa.config import Plan as Settings
from sdjepa.data.episodes import Episodes
from sdjepa.envs import gl
from sdjepa.envs.base import Columns, make, reduce
from sdjepa.errors import UserError
from sdjepa.model.split import angle, radius
from sdjepa.plan.agent import Receding
from sdjepa.plan.batch import Bounds
from sdjepa.seeds import numpy_stream
from sdjepa.tasks import Task
from sdjepa.train.checkpoint import Checkpoint
from sdjepa.watch.deal import deal, far_state
from sdjepa.watch.film import Film, Goal, Mark, Moment
from sdjepa.watch.search import Interrupted, Sketch, WatchedPlanner, sketch

REVERSED = 10  # frames shown backwards


class World:
    """The live scene; all calls from one thread, the one that made it (GL contexts are shy)."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        data: Episodes,
        *,
        seed: int = 0,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._size = checkpoint.config.model.image_size
        if data.image_size != self._size:
            raise UserError(
                f"{data.path} has frames of {data.image_size} pixels, the model reads "
                f"{self._size}; give its own data with --data"
            )
        self.checkpoint, self.data, self._interrupted = checkpoint, data, interrupted
        self.settings = checkpoint.config.plan
        self.env, self._ghost = make(data.env), make(data.env)
        self._rng = numpy_stream(seed, "watch")
        self.tasks = deal(
            data,
            offset=checkpoint.config.score.offset,
            rng=self._rng,
            trivial=self._trivial,
        )
        self.sketch: Sketch | None = None
        self._films = 0
        self.change(self.settings)
        self.begin(0)

    # --- which task

    def _trivial(self, task: Task) -> bool:
        self._put(task)
        return self.env.solved()

    def _put(self, task: Task) -> None:
        start, goal = task.rows(self.data)
        self.env.set_state(self.data.row(start))
        self.env.set_goal(self.data.row(goal))

    def begin(self, number: int) -> None:
        """A new film of task `number` of those dealt."""
        if not 0 <= number < len(self.tasks):
            raise UserError(f"there are tasks 0 to {len(self.tasks) - 1}, not {number}")
        self.number, task = number, self.tasks[number]
        self._films += 1
        budget = self.checkpoint.config.score.budget
        self.film = Film(self._films, f"Episode {task.episode}, step {task.start}", budget)
        self._backwards: deque[Columns] = deque()
        self.sketch = None
        self._forget()
        self._put(task)
        self._aim_recorded(task)
        self._see(np.zeros(self.env.action_dim))

    # --- how it plans

    def change(self, settings: Settings) -> None:
        """Plan differently from now on; the weights stay."""
        if settings.cost in ("angular", "progress") and self.checkpoint.config.model.k < 2:
            raise UserError(f"cost {settings.cost} needs a model with a progress part")
        bounds = Bounds(self.env.action_low, self.env.action_high)
        self._planner = WatchedPlanner(
            self.checkpoint, settings, bounds=bounds, interrupted=self._interrupted
        )
        self.settings = settings
        self._forget()

    def _forget(self) -> None:
        """Drop the plan; the next step begins with a look."""
        self._agent: Receding | None = None
        self._ahead: deque[ndarray] = deque()

    @property
    def plan_due(self) -> bool:
        """Whether the next step begins with a search."""
        return not self._ahead and not self._backwards

    def _plan(self) -> None:
        if self._agent is None:
            self._agent = Receding(
                self._planner,
                lambda _: self.env.render(self._size)[None],
                goals=self._goal_frame[None],
                names=[("watch", self.film.number, len(self.film.moments))],
            )
        before, began = self._agent.num_plans, time.monotonic()
        self._ahead.extend(self._agent([0])[0])
        if self._agent.num_plans == before:
            return
        took, row = time.monotonic() - began, self.film.steps
        self.film.plans.append(row)
        if self.env.extent is not None:
            state = self.film.moments[-1].columns
            self.sketch = sketch(self._planner, self._ghost, state=state, row=row, seconds=took)

    # --- time

    def step(self) -> bool:
        """One step of the environment; False where the search was interrupted instead."""
        self._refuse_full()
        if self._backwards:
            self._set(self._backwards.popleft())
            self._see(np.zeros(self.env.action_dim))
            return True
        try:
            if not self._ahead:
                self._plan()
        except Interrupted:
            self._forget()
            return False
        action = self._ahead.popleft()
        self.env.step(action)
        self._see(action)
        return True

    @torch.no_grad()
    def _see(self, action: Float[ndarray, "action"]) -> None:
        env, film, goal = self.env, self.film, self.film.goals[-1]
        frame = env.frame()
        given = reduce(frame, self._size)
        latent = self._planner.encode(given[None])[0]
        columns = env.observe()
        theta, r = self._needle(latent)
        surprise = turn = None
        foreseen = self._foresee(action)
        if foreseen is not None:
            surprise = float((latent - foreseen).square().sum())
            before, _ = self._needle(foreseen)
            if theta is not None and before is not None:
                turn = abs((theta - before + np.pi) % (2 * np.pi) - np.pi)
        if env.solved() and film.solved_at is None:
            film.solved_at = len(film.moments)
        film.moments.append(
            Moment(
                columns=columns,
                action=np.asarray(action, dtype=np.float64),
                latent=latent,
                place=_place(env.path({name: value[None] for name, value in columns.items()})),
                theta=theta,
                radius=r,
                to_goal=float((latent - goal.latent).norm()),
                distance=env.distance(),
                surprise=surprise,
                turn=turn,
                picture=png(frame),
                seen=png(given),
            )
        )

    def _needle(self, latent: Float[Tensor, "latent"]) -> tuple[float | None, float | None]:
        progress = self.checkpoint.model.split(latent).progress
        if len(progress) < 2:
            return None, None
        return float(angle(progress)), float(radius(progress))

    def _foresee(self, action: Float[ndarray, "action"]) -> Float[Tensor, "latent"] | None:
        """What the model expected of the coming frame one block ago, from what it had seen then."""
        film, skip, now = self.film, self._planner.frame_skip, len(self.film.moments)
        rows = [now - skip * n for n in range(self.checkpoint.config.model.history, 0, -1)]
        rows = [row for row in rows if row >= 0]
        if not rows:
            return None
        acted = [*(moment.action for moment in film.moments[rows[0] + 1 :]), action]
        blocks = self._planner.blocks(np.stack(acted)[None])
        latents = torch.stack([film.moments[row].latent for row in rows])
        return self.checkpoint.model.predict(latents[None], blocks)[0, -1]

    # --- interference

    def aim(self, x: float, y: float) -> None:
        """Put the goal where somebody points."""
        self._aim(self.env.goal_at(self.film.goals[-1].row, np.array([x, y])))
        self._mark("goal moved")

    def teleport(self, x: float | None = None, y: float | None = None) -> None:
        """The agent is suddenly elsewhere: where somebody points, or in a far recorded state."""
        if x is not None and y is not None:
            there = self.env.agent_at(self.film.moments[-1].columns, np.array([x, y]))
        else:
            here = np.asarray(self.film.moments[-1].place)
            there = far_state(self.data, here, rng=self._rng)
        self._jump("teleport", there)

    def swap(self) -> None:
        """State and goal of another task, without a word to the model."""
        self._refuse_full()
        others = [n for n in range(len(self.tasks)) if n != self.number] or [self.number]
        self.number = int(self._rng.choice(others))
        self._put(self.tasks[self.number])
        self._aim_recorded(self.tasks[self.number])
        self._mark("scene swapped")
        self._see(np.zeros(self.env.action_dim))

    def reverse(self) -> None:
        """The coming frames are the last ones, backwards."""
        past = [moment.columns for moment in self.film.moments[-REVERSED - 1 : -1]]
        if not past:
            raise UserError("there is nothing to run backwards yet: take some steps first")
        self._backwards = deque(reversed(past))
        self._mark("time reversed")

    @property
    def rewinding(self) -> bool:
        """Whether frames of the past are still to be shown."""
        return bool(self._backwards) and not self.film.full

    def _jump(self, label: str, state: Columns) -> None:
        self._refuse_full()
        self._mark(label)
        self._set(state)
        self._see(np.zeros(self.env.action_dim))

    def _refuse_full(self) -> None:
        if self.film.full:
            raise UserError(f"this film is full ({len(self.film.moments)} frames); take a new task")

    def _set(self, state: Columns) -> None:
        self.env.set_state(state)
        self.env.set_goal(self.film.goals[-1].row)

    def _mark(self, label: str) -> None:
        """Note the interference; whatever was reached before it is to be reached again."""
        self.film.solved_at = None
        self.film.marks.append(Mark(len(self.film.moments), label))
        self._forget()

    # --- the goal

    def _aim_recorded(self, task: Task) -> None:
        """The goal as recorded, as in a score."""
        row = task.rows(self.data)[1]
        self._show_goal(self.data.row(row), self.data.frames([row])[0])

    def _aim(self, goal: Columns) -> None:
        """A goal nobody recorded: its picture is drawn by the environment."""
        self._ghost.set_state(goal)
        self.env.set_goal(goal)
        self._show_goal(self._ghost.observe(), self._ghost.render(self._size))

    @torch.no_grad()
    def _show_goal(self, row: Columns, frame: UInt8[ndarray, "size size 3"]) -> None:
        latent = self._planner.encode(frame[None])[0]
        theta, r = self._needle(latent)
        place = _place(self.env.path({name: np.asarray(row[name])[None] for name in row}))
        self._goal_frame = frame
        self.film.goals.append(Goal(row, latent, theta, r, place, png(frame)))

    def close(self) -> None:
        """Give back what the simulators hold, in the thread that took it."""
        self.env.close()
        self._ghost.close()
        gl.close_all()


def _place(path: Float[ndarray, "one 2"]) -> tuple[float, float]:
    return float(path[0, 0]), float(path[0, 1])


def png(frame: UInt8[ndarray, "height width 3"]) -> bytes:
    """A frame as PNG, quickly: a live picture is looked at once."""
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()
