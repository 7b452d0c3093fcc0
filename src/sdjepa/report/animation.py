"""An edited episode as a film: the frame the model sees, and theta drawn as it goes.

Made from `compass/surprise.json` alone. Blue before the first cut, vermilion after it; grey is the
same episode left alone. The frame has a coloured border where the film was cut.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw

from sdjepa.report.style import BLUE, FAINT, INK, PAPER, VERMILION

SIDE, WIDTH, MARGIN = 224, 640, 16  # pixels
FRAME_MS = 100
BORDER_FRAMES = 3  # how long a cut stays marked


def film(pair: Mapping[str, Any], mode: str) -> bytes:
    """A looping GIF of the chosen pair under one edit."""
    edit = pair["modes"][mode]
    theta = np.unwrap(np.asarray(edit["theta"], float))
    clean = np.unwrap(np.asarray(pair["theta_clean"], float))
    low, high = min(theta.min(), clean.min()) - 0.3, max(theta.max(), clean.max()) + 0.3
    pictures = {
        name: [_picture(text) for text in pair["frames"][name]] for name in ("own", "donor")
    }
    shots = []
    for step, (source, row) in enumerate(zip(edit["source"], edit["row"], strict=True)):
        canvas = Image.new("RGB", (WIDTH, SIDE + 2 * MARGIN), PAPER)
        draw = ImageDraw.Draw(canvas)
        canvas.paste(pictures["donor" if source else "own"][row], (MARGIN, MARGIN))
        if any(0 <= step - cut < BORDER_FRAMES for cut in edit["cuts"]):
            edge = (MARGIN - 4, MARGIN - 4, MARGIN + SIDE + 3, MARGIN + SIDE + 3)
            draw.rectangle(edge, outline=VERMILION, width=4)
        draw.text((SIDE + 2 * MARGIN, MARGIN - 8), f"theta, step {step}, {mode}", fill=INK)
        _trace(draw, clean, len(clean), low=low, high=high, colour=FAINT)
        first = edit["cuts"][0]
        _trace(draw, theta[: min(step + 1, first)], len(theta), low=low, high=high, colour=BLUE)
        after = theta[: step + 1].copy()
        after[: max(first - 1, 0)] = np.nan
        _trace(draw, after, len(theta), low=low, high=high, colour=VERMILION)
        shots.append(canvas.quantize(64))
    out = io.BytesIO()
    shots[0].save(
        out, "GIF", save_all=True, append_images=shots[1:], duration=FRAME_MS, loop=0, optimize=True
    )
    return out.getvalue()


def _picture(text: str) -> Image.Image:
    image = Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")
    return image.resize((SIDE, SIDE), Image.Resampling.NEAREST)


def _trace(
    draw: ImageDraw.ImageDraw,
    values: Float[np.ndarray, "steps"],
    total: int,
    *,
    low: float,
    high: float,
    colour: str,
) -> None:
    """A line from left to right; missing values are left out."""
    left, right = SIDE + 2 * MARGIN, WIDTH - MARGIN
    x = left + (right - left) * np.arange(len(values)) / max(total - 1, 1)
    y = MARGIN + SIDE - SIDE * (values - low) / (high - low)
    points: Sequence[tuple[float, float]] = [
        (float(a), float(b)) for a, b in zip(x, y, strict=True) if np.isfinite(b)
    ]
    if len(points) > 1:
        draw.line(list(points), fill=colour, width=2)
