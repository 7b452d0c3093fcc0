"""A contact sheet: a few frames of a dataset in, one picture of them out, with what each is."""

import io
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt8

from sdjepa.data.episodes import Episodes

DOWN, ACROSS = 3, 6  # episodes and frames of each
TASKS = 6  # of a pack, whose frames are those of starts and goals
LEAST_PX = 112  # smaller frames are enlarged, each pixel to a square
GAP_PX, HEAD_PX, LEFT_PX = 12, 20, 92  # between tiles, for words above each and beside a line
PAPER, EDGE, INK = 255, 190, "#444444"  # an edge is seen around white frames and around dark ones
DPI = 100
ENDS = ("start", "goal")


def contact_sheet(data: Episodes) -> tuple[bytes, str]:
    """The picture as PNG, and what it shows."""
    rows = chosen(data)
    frames = data.frames(rows.ravel())
    steps, episodes = data.column("step_idx")[rows], data.column("episode_idx")[rows[:, 0]]
    if "pack" in data.info:
        starts = data.info["pack"]["starts"]
        names = [f"task {task}\nepisode {starts[task][0]}" for task in episodes]
        captions = [
            [f"{ENDS[at]}, step {starts[task][1] + step}" for at, step in enumerate(line)]
            for task, line in zip(episodes, steps, strict=True)
        ]
        shown = f"start and goal of {len(rows)} task{'s' * (len(rows) > 1)}"
    else:
        names = [f"episode {episode}" for episode in episodes]
        captions = [[f"step {step}" for step in line] for line in steps]
        shown = f"{len(rows)} episode{'s' * (len(rows) > 1)} from start to end"
    tiles = frames.reshape(*rows.shape, *frames.shape[1:])
    return png(tiles, names=names, captions=captions), shown


def chosen(data: Episodes) -> Int[np.ndarray, "down across"]:
    """Rows of the frames to show: an episode a line, of a pack only its start and its goal."""
    down, across = (TASKS, 2) if "pack" in data.info else (DOWN, ACROSS)
    episodes = sorted({int(i) for i in np.linspace(0, len(data) - 1, down).round()})
    across = min(across, *(int(data.lengths[episode]) for episode in episodes))  # none twice
    lines = [
        data.rows(episode).start + np.linspace(0, data.lengths[episode] - 1, across).astype(int)
        for episode in episodes
    ]
    return np.stack(lines)


def png(
    frames: UInt8[np.ndarray, "down across h w 3"],
    *,
    names: Sequence[str],
    captions: Sequence[Sequence[str]],
) -> bytes:
    """Frames as tiles; `names` stand beside the lines, `captions` above the tiles."""
    from matplotlib.figure import Figure

    sheet, left, top = tiled(frames)
    height, width, _ = sheet.shape
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    figure.figimage(sheet)

    words = [(GAP_PX, y, name, "top") for name, y in zip(names, top, strict=True)]
    for line, y in zip(captions, top, strict=True):
        words += [(x, y - 5, caption, "baseline") for caption, x in zip(line, left, strict=True)]
    for x, y, text, held_by in words:
        figure.text(x / width, 1 - y / height, text, va=held_by, size=8, color=INK)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def tiled(
    frames: UInt8[np.ndarray, "down across h w 3"],
) -> tuple[UInt8[np.ndarray, "height width 3"], list[int], list[int]]:
    """The sheet without words, and where its tiles begin from the left and from the top."""
    down, across, height, width, _ = frames.shape
    times = -(-LEAST_PX // min(height, width))
    tall, wide = times * height, times * width
    left = [LEFT_PX + (wide + GAP_PX) * column for column in range(across)]
    top = [HEAD_PX + (tall + HEAD_PX) * line for line in range(down)]
    sheet = np.full((top[-1] + tall + GAP_PX, left[-1] + wide + GAP_PX, 3), PAPER, dtype=np.uint8)
    for y, line in zip(top, frames, strict=True):
        for x, frame in zip(left, line, strict=True):
            sheet[y - 1 : y + tall + 1, x - 1 : x + wide + 1] = EDGE
            sheet[y : y + tall, x : x + wide] = frame.repeat(times, 0).repeat(times, 1)
    return sheet, left, top
