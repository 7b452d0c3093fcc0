"""Whole episodes come in, one table of per-step signals goes out; every diagnostic reads only that.

Two time bases. *Rows* are all recorded frames. *Steps* are the frames the model lives on, one per
`frame_skip` rows, each with the action block that leads to the next:

    row     0  1  2  3  4  5  6  7  8  9  10 ...
    step    0              1               2 ...
    action  |---- block 0 -|--- block 1 ---|

Latents are kept in the basis of the split, progress first. Three different things are easily all
called the change of the angle, so they have three names: `observed_jump` (rows), `angular_velocity`
(steps) and `angle_error` (observed against predicted, steps).
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from sdjepa.errors import UserError
from sdjepa.runs import write_atomic


def wrap(angle_rad: Float[ndarray, "*shape"]) -> Float[ndarray, "*shape"]:
    """The same angle in [-pi, pi)."""
    return (angle_rad + np.pi) % (2 * np.pi) - np.pi


def plane_angle(points: Float[ndarray, "*shape k"]) -> Float[ndarray, "*shape"]:
    """Angle of the first two coordinates, in radians, as `sdjepa.model.split.angle`."""
    return np.arctan2(points[..., 1], points[..., 0])


@dataclass(frozen=True)
class EpisodeTrace:
    """One episode as the model sees it, beside what the environment knows about it."""

    index: int
    latents: Float[ndarray, "rows latent"]  # progress first
    actions: Float[ndarray, "steps block"]  # normalised; block i leads from step i to i + 1
    predicted: Float[ndarray, "scored latent"]  # teacher-forced, of steps history..steps-1
    rollouts: Float[ndarray, "starts horizon latent"]  # from one latent; NaN past the end
    measures: Mapping[str, Float[ndarray, "rows"]]
    events: Mapping[str, Int[ndarray, "count"]]  # rows
    path: Float[ndarray, "rows 2"]
    k: int
    frame_skip: int

    @property
    def num_rows(self) -> int:
        return len(self.latents)

    @property
    def num_steps(self) -> int:
        return len(self.actions)

    @property
    def history(self) -> int:
        return self.num_steps - len(self.predicted)

    @property
    def step_rows(self) -> Int[ndarray, "steps"]:
        """The row of each step."""
        return np.arange(self.num_steps) * self.frame_skip

    @property
    def steps(self) -> Float[ndarray, "steps latent"]:
        """Latents of the steps."""
        return self.latents[self.step_rows]

    @property
    def progress(self) -> Float[ndarray, "rows k"]:
        return self.latents[:, : self.k]

    @property
    def content(self) -> Float[ndarray, "rows rest"]:
        return self.latents[:, self.k :]

    @property
    def theta(self) -> Float[ndarray, "rows"]:
        """The angle, unwrapped along the episode."""
        return np.unwrap(plane_angle(self.progress))

    @property
    def radius(self) -> Float[ndarray, "rows"]:
        """Length of the whole progress part."""
        return np.linalg.norm(self.progress, axis=-1)

    @property
    def plane_radius(self) -> Float[ndarray, "rows"]:
        """Length of the two coordinates the angle is made of; near 0 the angle means nothing."""
        return np.linalg.norm(self.progress[:, :2], axis=-1)

    @property
    def observed_jump(self) -> Float[ndarray, "rows-1"]:
        """How far the angle moves from one row to the next; entry i belongs to row i + 1."""
        return np.abs(np.diff(self.theta))

    @property
    def angular_velocity(self) -> Float[ndarray, "steps-1"]:
        """How far the angle moves from one step to the next; entry i belongs to step i + 1."""
        return np.abs(np.diff(np.unwrap(plane_angle(self.steps))))

    @property
    def angle_error(self) -> Float[ndarray, "scored"]:
        """Angle between observed and predicted, in [0, pi]; entry i belongs to step history + i."""
        seen = self.steps[self.history :]
        return np.abs(wrap(plane_angle(seen) - plane_angle(self.predicted)))

    @property
    def latent_error(self) -> Float[ndarray, "scored"]:
        """Squared prediction error summed over the latent; entry i belongs to step history + i."""
        return ((self.steps[self.history :] - self.predicted) ** 2).sum(-1)

    def event_steps(self, name: str) -> Int[ndarray, "count"]:
        """Events on the step base: the first step at or after each, each step once."""
        found = np.unique(-(-np.asarray(self.events[name], int) // self.frame_skip))
        return found[found < self.num_steps]


@dataclass(frozen=True)
class Trace:
    """The traced episodes of one run."""

    env: str
    k: int  # width read as progress
    stand_in: bool  # the model has no progress part; its first coordinates stand in
    frame_skip: int
    history: int
    episodes: tuple[EpisodeTrace, ...]

    @property
    def measure_names(self) -> list[str]:
        """Measures every episode has, in the environment's order."""
        first, *rest = self.episodes
        return [name for name in first.measures if all(name in e.measures for e in rest)]

    @property
    def event_names(self) -> list[str]:
        """Kinds of event that occur at all, in the environment's order."""
        names = dict.fromkeys(name for e in self.episodes for name in e.events)
        return [name for name in names if any(len(e.events.get(name, ())) for e in self.episodes)]


def save(trace: Trace, path: Path, *, key: str) -> Path:
    """The trace as one npz without pickles; `key` says what it was made from."""
    arrays: dict[str, ndarray] = {}
    for number, e in enumerate(trace.episodes):
        for name in ("latents", "actions", "predicted", "rollouts", "path"):
            arrays[f"{number}/{name}"] = getattr(e, name)
        for name, series in e.measures.items():
            arrays[f"{number}/measure/{name}"] = np.asarray(series)
        for name, rows in e.events.items():
            arrays[f"{number}/event/{name}"] = np.asarray(rows, int)
    header = {
        "key": key,
        "env": trace.env,
        "k": trace.k,
        "stand_in": trace.stand_in,
        "frame_skip": trace.frame_skip,
        "history": trace.history,
        "episodes": [e.index for e in trace.episodes],
    }
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return write_atomic(path, buffer.getvalue())


def load(path: Path, *, key: str) -> Trace | None:
    """The saved trace if it was made from `key`, else None."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it and run again") from error
    header = json.loads(arrays["header"].tobytes())
    if header["key"] != key:
        return None
    episodes = []
    for number, index in enumerate(header["episodes"]):
        prefix = f"{number}/"
        own = {name[len(prefix) :]: a for name, a in arrays.items() if name.startswith(prefix)}
        episodes.append(
            EpisodeTrace(
                index=index,
                latents=own["latents"],
                actions=own["actions"],
                predicted=own["predicted"],
                rollouts=own["rollouts"],
                path=own["path"],
                measures={n[8:]: a for n, a in own.items() if n.startswith("measure/")},
                events={n[6:]: a for n, a in own.items() if n.startswith("event/")},
                k=header["k"],
                frame_skip=header["frame_skip"],
            )
        )
    return Trace(
        env=header["env"],
        k=header["k"],
        stand_in=header["stand_in"],
        frame_skip=header["frame_skip"],
        history=header["history"],
        episodes=tuple(episodes),
    )
