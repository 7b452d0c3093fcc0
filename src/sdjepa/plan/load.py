"""`sdjepa.load(RUN)`: a trained model for people with their own robot.

model = sdjepa.load("runs/a2")
actions = model.plan(frame, goal_frame)      # raw actions, to be executed in order
driver = model.toward(goal_frame)            # or: look, act, look again
while not there():
    for action in driver.act(camera()):
        robot.step(action)
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from sdjepa.errors import UserError
from sdjepa.model.split import angle, radius
from sdjepa.plan.agent import Planner, Receding
from sdjepa.plan.batch import Bounds, Situation
from sdjepa.resolve import change
from sdjepa.seeds import stream
from sdjepa.train.checkpoint import Checkpoint, load_checkpoint


class Loaded:
    """A checkpoint with its planner; needs neither an environment nor a dataset."""

    def __init__(self, checkpoint: Checkpoint, *, bounds: Bounds | None = None) -> None:
        self.checkpoint = checkpoint
        self.planner = Planner(checkpoint, bounds=bounds)

    @property
    def image_size(self) -> int:
        """Pixels a side of the frames it takes, which are RGB."""
        return self.checkpoint.config.model.image_size

    def plan(
        self,
        frame: UInt8[np.ndarray, "height width 3"],
        goal_frame: UInt8[np.ndarray, "height width 3"],
        *,
        past_frames: Sequence[UInt8[np.ndarray, "height width 3"]] = (),
        past_actions: Float[np.ndarray, "past_steps action"] | None = None,
        seed: int | None = None,
    ) -> Float[np.ndarray, "steps action"]:
        """Raw actions that should lead from `frame` to `goal_frame`.

        `past_frames` are earlier frames, oldest first, one action block apart; `past_actions` are
        the raw actions executed since the first of them.
        """
        planner = self.planner
        seen = [self._checked(f, "a frame") for f in (*past_frames, frame)]
        goal = self._checked(goal_frame, "the goal frame")
        steps = len(past_frames) * planner.frame_skip
        width = len(planner.stats.mean)
        done = np.zeros((0, width)) if past_actions is None else np.asarray(past_actions)
        if done.shape != (steps, width):
            raise UserError(
                f"{len(past_frames)} past frames need {steps} x {width} past actions "
                f"({planner.frame_skip} between two frames), found {done.shape}"
            )
        if len(seen) > planner.model.config.history:
            raise UserError(
                f"the model reads {planner.model.config.history} frames, not {len(seen)}"
            )
        latents = planner.encode(np.stack([*seen, goal]))
        situation = Situation(latents[None, :-1], planner.blocks(done[None]), latents[-1:])
        chosen = planner.settings.seed if seed is None else seed
        found = planner.search(
            situation, streams=[stream(chosen, "plan", "one", device=planner.device)]
        )
        return planner.raw_actions(found.actions)[0]

    def toward(self, goal_frame: UInt8[np.ndarray, "height width 3"]) -> "Driver":
        """A driver that looks, plans and remembers until the goal is reached."""
        return Driver(self, self._checked(goal_frame, "the goal frame"))

    def read(
        self, frames: UInt8[np.ndarray, "count height width 3"]
    ) -> dict[str, Float[np.ndarray, "count ..."]]:
        """Progress, content, angle (radians) and radius of frames; no angle where k = 0."""
        parts = self.planner.read(np.stack([self._checked(f, "a frame") for f in frames]))
        found = {"progress": parts.progress, "content": parts.content}
        if parts.progress.shape[-1]:
            found |= {"angle": angle(parts.progress), "radius": radius(parts.progress)}
        return {name: value.cpu().numpy() for name, value in found.items()}

    def _checked(self, frame: UInt8[np.ndarray, "height width 3"], what: str) -> np.ndarray:
        frame = np.asarray(frame)
        size = self.image_size
        if frame.shape != (size, size, 3) or frame.dtype != np.uint8:
            raise UserError(
                f"{what} is {frame.shape} of {frame.dtype}; this model takes ({size}, {size}, 3) "
                "of uint8, RGB: resize it first, by area averaging as the training frames were"
            )
        return frame


class Driver:
    """One task on the way to its goal: receding horizon, history and warm start included."""

    def __init__(self, loaded: Loaded, goal: UInt8[np.ndarray, "height width 3"]) -> None:
        self._loaded = loaded
        self._frame = goal
        self._agent = Receding(
            loaded.planner, lambda _: self._frame[None], goals=goal[None], names=[("drive",)]
        )

    def act(self, frame: UInt8[np.ndarray, "height width 3"]) -> Float[np.ndarray, "steps action"]:
        """Raw actions to execute before the next frame is needed."""
        self._frame = self._loaded._checked(frame, "a frame")
        return self._agent([0])[0]


def load(
    run: Path,
    *,
    checkpoint: str,
    device: str,
    settings: Sequence[str],
    bounds: tuple[Sequence[float], Sequence[float]] | None,
) -> Loaded:
    """The model of a run; `sdjepa.load` explains the arguments."""
    loaded = load_checkpoint(run, checkpoint, device=device)
    config = change(loaded.config, list(settings))
    loaded = Checkpoint(loaded.model, config, loaded.stats, loaded.step, loaded.path)
    space = None if bounds is None else Bounds(np.array(bounds[0]), np.array(bounds[1]))
    return Loaded(loaded, bounds=space)
