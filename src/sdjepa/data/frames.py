"""The frame store: a dataset's frames as one uint8 array on disk, decoded once, mapped ever after.

    DIR/frames-<size>.u8      rows x size x size x 3 bytes, nothing else
    DIR/frames-<size>.json    shape, SHA-256 of the bytes, and what they were made from

<size> is the model's, where that is smaller than the recorded one. Of other programs' data both lie
beside them, with their name in front.

For data that do not fit into memory, and for many runs on one dataset: pages are shared by
all processes and fetched by the kernel when touched.
"""

import contextlib
import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from sdjepa.data.episodes import Episodes
from sdjepa.errors import UserError
from sdjepa.runs import Progress, claim, read_json, silent, write_json

_STRETCH = 2048  # frames decoded at a time
_ELSEWHERE = "--set data.frames_on=host needs none"


def frame_store(
    data: Episodes, *, check: bool = False, progress: Progress = silent
) -> UInt8[np.ndarray, "rows size size 3"]:
    """All frames as a read-only memory map, built at the first call; `check` reads it all."""
    side = data.image_size
    path = data.beside(f"frames-{side}.u8")
    shape = (data.num_rows, side, side, 3)
    if not _is_there(path):
        with _alone(path, progress) as alone:
            if not _is_there(path):  # nor has another process built it meanwhile
                digest = _build(data, path, progress, alone=alone)
                known = {"shape": list(shape), "sha256": digest, "made_from": data.fingerprint}
                write_json(_note(path), known)
    known = read_json(_note(path))
    fits = tuple(known["shape"]) == shape and path.stat().st_size == int(np.prod(shape))
    if not fits or known["made_from"] != data.fingerprint:
        raise UserError(f"{path} is not of this dataset, or cut off; remove it and its .json")
    if check and _digest(path) != known["sha256"]:
        raise UserError(f"{path} is damaged; remove it and its .json")
    return np.memmap(path, dtype=np.uint8, mode="r", shape=shape)


def _note(path: Path) -> Path:
    return path.with_suffix(".json")


def _is_there(path: Path) -> bool:
    return path.exists() and _note(path).exists()


@contextlib.contextmanager
def _alone(path: Path, progress: Progress) -> Iterator[bool]:
    """One process builds a store, of several ranks and runs that need it; the others wait.

    The lock ends with its process, however that ends. False where no locks are known.
    """
    try:
        file = path.with_name(f".{path.name}.lock").open("wb")
    except OSError as error:
        raise UserError(f"could not write beside {path}: {error.strerror}; {_ELSEWHERE}") from error
    with file:
        try:
            alone = claim(file)
        except BlockingIOError:
            progress(0, 1, "waiting for another process that stores the frames")
            alone = claim(file, wait=True)
        yield alone


def _build(data: Episodes, path: Path, progress: Progress, *, alone: bool) -> str:
    """The bytes' SHA-256; who may not be alone writes a file of its own, and the last one stays."""
    temporary = path.with_name(f".{path.name}.partial")  # written over, if left behind
    if not alone:
        host = f".{path.name}.{socket.gethostname()}"
        for left in path.parent.glob(f"{host}.*.partial"):
            _remove_of_dead(left, int(left.suffixes[-2][1:]))
        temporary = path.with_name(f"{host}.{os.getpid()}.partial")
    digest = hashlib.sha256()
    try:
        with temporary.open("wb") as file:
            for first in range(0, data.num_rows, _STRETCH):
                rows = range(first, min(first + _STRETCH, data.num_rows))
                frames = data.frames(rows)
                digest.update(frames.data)
                file.write(frames.data)
                progress(rows.stop, data.num_rows, "frames stored")
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        need = data.num_rows * data.image_size**2 * 3 / 1e9
        raise UserError(
            f"could not write {path}: {error.strerror}; it needs {need:.3g} GB; {_ELSEWHERE}"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return digest.hexdigest()


def _remove_of_dead(left: Path, process: int) -> None:
    """Remove what a process of this machine was writing that is no more."""
    with contextlib.suppress(PermissionError):  # it is somebody else's, and lives
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            left.unlink(missing_ok=True)


def background(data: Episodes, *, count: int = 301) -> UInt8[np.ndarray, "size size 3"]:
    """What does not move: the median of frames spread over the training episodes."""
    rows = np.concatenate([np.r_[data.rows(int(i))] for i in data.episode_ids("train")])
    chosen = np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64)
    frames = data.frames(rows[chosen])
    # The median of a stretch of lines at a time: a quarter of the memory, the same numbers.
    lines = [np.median(frames[:, i : i + 56], axis=0) for i in range(0, frames.shape[1], 56)]
    return np.concatenate(lines).astype(np.uint8)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return digest.hexdigest()
