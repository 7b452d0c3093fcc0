"""Records of watched tasks in, what a person wants to look at out: paths and pictures."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import UInt8

from sdjepa.data.episodes import Episodes
from sdjepa.envs.base import env_class
from sdjepa.model.split import Parts, angle, radius
from sdjepa.scoring.stage import Record
from sdjepa.tasks import Outcome, Task

WATCHED = 6  # tasks whose path and frames are kept in a score, for the report


def pages(
    records: Mapping[int, Record],
    tasks: Sequence[Task],
    *,
    outcomes: Sequence[Outcome],
    goals: UInt8[np.ndarray, "tasks size size 3"],
    data: Episodes,
    read: Callable[[UInt8[np.ndarray, "frames size size 3"]], Parts],
    every: int,
) -> list[dict[str, object]]:
    """One page per watched task; `read` is the model's view of frames taken `every` steps."""
    env = env_class(data.env)
    found = []
    for number, record in records.items():
        columns = {
            name: np.stack([row[name] for row in record.columns]) for name in record.columns[0]
        }
        goal_row = data.row(tasks[number].rows(data)[1])
        goal = {name: np.asarray(value)[None] for name, value in goal_row.items()}
        path = env.path(columns)
        found.append(
            {
                "task": number,
                "path": path,
                "start": path[0],
                "goal": env.path(goal)[0],
                "success": outcomes[number].success,
                "extent": env.extent,
                "frames": [png(frame) for frame in record.frames],
                "every": every,
                **_needle(read(np.stack(record.frames))),
                "goal_frame": png(goals[number]),
            }
        )
    return found


def _needle(parts: Parts) -> dict[str, list[float]]:
    """The compass at every kept frame; nothing for a model without a progress part."""
    if parts.progress.shape[-1] < 2:
        return {}
    return {"theta": angle(parts.progress).tolist(), "radius": radius(parts.progress).tolist()}


def png(frame: UInt8[np.ndarray, "height width 3"]) -> str:
    """A frame as a base64 PNG."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
