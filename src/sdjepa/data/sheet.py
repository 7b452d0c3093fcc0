"""A contact sheet: frames in, one picture of them out, as PNG."""

import io

import numpy as np
from jaxtyping import Int, UInt8

from sdjepa.data.episodes import Episodes

DOWN, ACROSS = 3, 6  # episodes and frames of each
TASKS = 6  # of a pack, whose frames are those of starts and goals
GAP_PX, GAP_GREY = 4, 200  # seen between white frames and between dark ones
LEAST_PX = 112  # smaller frames are enlarged, each pixel to a square


def chosen(data: Episodes) -> Int[np.ndarray, "down across"]:
    """Rows of the frames to show: an episode a line, of a pack only its start and its goal."""
    down, across = (TASKS, 2) if data.info.get("pack") else (DOWN, ACROSS)
    episodes = sorted({int(i) for i in np.linspace(0, len(data) - 1, down).round()})
    lines = [
        data.rows(episode).start + np.linspace(0, data.lengths[episode] - 1, across).astype(int)
        for episode in episodes
    ]
    return np.stack(lines)


def png(frames: UInt8[np.ndarray, "down across h w 3"]) -> bytes:
    """The frames as tiles with grey between them."""
    from matplotlib import image

    buffer = io.BytesIO()
    image.imsave(buffer, tiled(frames), format="png")
    return buffer.getvalue()


def tiled(frames: UInt8[np.ndarray, "down across h w 3"]) -> UInt8[np.ndarray, "height width 3"]:
    down, across, height, width, _ = frames.shape
    times = -(-LEAST_PX // min(height, width))
    large = frames.repeat(times, axis=2).repeat(times, axis=3)
    tall, wide = times * height + GAP_PX, times * width + GAP_PX
    sheet = np.full((down, across, tall, wide, 3), GAP_GREY, dtype=np.uint8)
    sheet[:, :, :-GAP_PX, :-GAP_PX] = large
    whole = sheet.swapaxes(1, 2).reshape(down * tall, across * wide, 3)
    return whole[:-GAP_PX, :-GAP_PX]
