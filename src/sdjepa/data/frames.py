"""The frame store: a dataset's frames as one uint8 array on disk, decoded once, mapped ever after.

    DIR/frames-<size>.u8      rows x size x size x 3 bytes, nothing else
    DIR/frames-<size>.json    shape, SHA-256 of the bytes, and of the pixels they were made from

For data that do not fit into memory, and for many runs on one dataset: pages are shared by
all processes and fetched by the kernel when touched.
"""

import hashlib
import os
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from sdjepa.data.episodes import Episodes
from sdjepa.errors import UserError
from sdjepa.runs import Progress, read_json, silent, write_json

_STRETCH = 2048  # frames decoded at a time


def frame_store(
    data: Episodes, *, size: int | None = None, check: bool = False, progress: Progress = silent
) -> UInt8[np.ndarray, "rows size size 3"]:
    """All frames as a read-only memory map, built at the first call; `check` reads it all."""
    side = size or data.image_size
    if side > data.image_size:
        raise UserError(f"frames of {data.path} are {data.image_size} px; {side} would invent some")
    folder = data.path if data.path.is_dir() else data.path.parent
    path = folder / f"frames-{side}.u8"
    shape = (data.num_rows, side, side, 3)
    source = data.info.get("columns", {}).get("pixels", {}).get("sha256")
    note = path.with_suffix(".json")
    if path.exists() and note.exists():
        known = read_json(note)
        fits = tuple(known["shape"]) == shape and path.stat().st_size == int(np.prod(shape))
        if not fits or known["made_from"] != source:
            raise UserError(f"{path} is not of this dataset, or cut off; remove it and its .json")
        if check and _digest(path) != known["sha256"]:
            raise UserError(f"{path} is damaged; remove it and its .json")
    else:
        digest = _build(data, path, side, progress)
        write_json(note, {"shape": list(shape), "sha256": digest, "made_from": source})
    return np.memmap(path, dtype=np.uint8, mode="r", shape=shape)


def _build(data: Episodes, path: Path, side: int, progress: Progress) -> str:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    digest = hashlib.sha256()
    try:
        with temporary.open("wb") as file:
            for first in range(0, data.num_rows, _STRETCH):
                rows = range(first, min(first + _STRETCH, data.num_rows))
                frames = reduce_frames(data.frames(rows), side)
                digest.update(frames.data)
                file.write(frames.data)
                progress(rows.stop, data.num_rows, "frames stored")
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        need = data.num_rows * side * side * 3 / 1e9
        raise UserError(
            f"could not write {path}: {error.strerror}; it needs {need:.1f} GB"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return digest.hexdigest()


def background(data: Episodes, *, count: int = 301) -> UInt8[np.ndarray, "size size 3"]:
    """What does not move: the median of frames spread over the training episodes."""
    rows = np.concatenate([np.r_[data.rows(int(i))] for i in data.episode_ids("train")])
    chosen = np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64)
    frames = data.frames(rows[chosen])
    # The median of a stretch of lines at a time: a quarter of the memory, the same numbers.
    lines = [np.median(frames[:, i : i + 56], axis=0) for i in range(0, frames.shape[1], 56)]
    return np.concatenate(lines).astype(np.uint8)


def reduce_frames(frames: UInt8[np.ndarray, "n h w 3"], side: int) -> UInt8[np.ndarray, "n s s 3"]:
    """Frames at `side` pixels, by area averaging."""
    if frames.shape[1:3] == (side, side):
        return np.ascontiguousarray(frames)
    import cv2

    return np.stack(
        [cv2.resize(frame, (side, side), interpolation=cv2.INTER_AREA) for frame in frames]
    )


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return digest.hexdigest()
