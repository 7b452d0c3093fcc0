"""Evaluation packs: tasks of a dataset in, a few megabytes out that stand in for it when scoring.

A pack is itself a dataset, one short episode per task: rows from start to goal with every column,
the frames of start and goal, and black frames between. It carries the action statistics of the
dataset it was made from, so a model is scored as if the whole of it were there. A run that is kept
with its weights has a pack with it, in RUN/pack.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sdjepa.data.episodes import Episodes
from sdjepa.data.packing import pack
from sdjepa.data.writer import Writer, refuse_taken
from sdjepa.errors import UserError
from sdjepa.runs import Progress, silent


def write_pack(
    data: Episodes,
    starts: Sequence[tuple[int, int]],
    out: Path,
    *,
    offset: int,
    protocol: str,  # that chose them
    seed: int,  # by which it did
    progress: Progress = silent,
) -> Path:
    """The pack of tasks that begin at `starts`, pairs of episode and step."""
    if "pack" in data.info:
        raise UserError(f"{data.path} is a pack already; make another from the dataset itself")
    refuse_taken(out)
    if not starts:
        raise UserError("a pack needs at least one task")
    black = np.zeros((data.image_size, data.image_size, 3), dtype=np.uint8)
    described = {
        "env": data.env,
        "env_guessed": data.env_origin == "guessed",
        "pack": {
            "offset": offset,
            "protocol": protocol,
            "seed": seed,
            "starts": [list(pair) for pair in starts],
            "of": {"name": data.path.name, "rows": data.num_rows, "split_hash": data.split_hash},
        },
    }
    split = {"seed": 0, "train": [], "validation": [], "test": list(range(len(starts)))}
    with Writer(out, image_size=data.image_size) as writer:
        for done, (episode, step) in enumerate(starts, start=1):
            if not 0 <= step < data.lengths[episode] - offset:
                raise UserError(
                    f"episode {episode} has {data.lengths[episode]} rows: no goal lies {offset} "
                    f"steps after step {step}"
                )
            first = data.rows(episode).start + step
            rows = slice(first, first + offset + 1)
            start, goal = data.frames([first, first + offset])
            columns = {
                name: np.array(data.column(name)[rows])
                for name in data.columns
                if name not in ("episode_idx", "step_idx")
            }
            columns["action"][-1] = np.nan
            frames = [start, *[black] * (offset - 1), goal] if offset else [start]
            writer.add(pack(columns, frames))
            progress(done, len(starts), "tasks")
        return writer.finish(described, split=split, action=data.info["action"])
