"""Frames of a few traced episodes beside their angle, so that a person sees what the needle saw."""

import base64
import io
from collections.abc import Callable

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray
from PIL import Image

from sdjepa.compass.result import Diagnosis
from sdjepa.compass.trace import Trace

SHOWN = 8  # the episodes that events and change points give as examples, too
THUMBNAIL = 112  # pixels

# Frames of one episode at these rows.
Frames = Callable[[int, Int[ndarray, "rows"]], UInt8[ndarray, "rows height width 3"]]


def film(
    trace: Trace, frames: Frames, *, extent: tuple[float, float, float, float] | None = None
) -> Diagnosis:
    """One frame per model step of the first episodes; `extent` is what a frame covers of a path."""
    episodes = []
    for e in trace.episodes[:SHOWN]:
        rows = np.arange(0, e.num_rows, trace.frame_skip)
        episodes.append(
            {
                "episode": e.index,
                "rows": rows,
                "theta": e.theta[rows],
                "frames": [_png(frame) for frame in frames(e.index, rows)],
            }
        )
    return Diagnosis(
        diagnostic="film",
        title="What the needle saw",
        question="Which angle does the latent take at which moment of an episode?",
        status="shown",
        reason=f"one frame per model step of {len(episodes)} episodes, for the eye",
        results={"episodes": episodes, "every": trace.frame_skip, "extent": extent},
    )


def thumbnails(frames: UInt8[ndarray, "rows height width 3"]) -> list[str]:
    """Frames as base64 PNG of at most THUMBNAIL pixels a side."""
    stride = -(-frames.shape[1] // THUMBNAIL)
    return [_png(np.ascontiguousarray(frame[::stride, ::stride])) for frame in frames]


def _png(frame: UInt8[ndarray, "height width 3"]) -> str:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
