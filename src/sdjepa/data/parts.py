"""A few recorded episodes in a file: what a worker leaves, whole or absent, and what is joined."""

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sdjepa.data.packing import Packed
from sdjepa.runs import unwritable


def write_part(path: Path, episodes: Sequence[tuple[Packed, int]]) -> None:
    """One line of JSON that says what follows and its checksum, then the bytes of it.

    Not an `.npz`: unpacking one costs the joining process more than writing the dataset does.
    """
    head, body = [], []
    for packed, goals in episodes:
        columns = {name: np.ascontiguousarray(values) for name, values in packed.columns.items()}
        shapes = {name: (values.dtype.str, values.shape) for name, values in columns.items()}
        sizes = [len(frame) for frame in packed.frames]
        head.append({"goals": int(goals), "sizes": sizes, "columns": shapes})
        body += [*packed.frames, packed.digests.tobytes(), *(v.tobytes() for v in columns.values())]
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    rest = b"".join(body)
    line = json.dumps({"crc32": zlib.crc32(rest), "episodes": head}).encode()
    try:
        with temporary.open("wb") as file:
            file.write(line + b"\n")
            file.write(rest)  # by itself: megabytes need not be copied to stand behind the line
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise unwritable(
            path, error, then=", and run the same command again: it continues"
        ) from error


def is_whole(path: Path) -> bool:
    """Whether a part is there, and as it was written; a machine that went down may have spoilt it.

    Looked at where a part was there already: of one that was just made nothing needs to be known.
    """
    try:
        line, _, rest = path.read_bytes().partition(b"\n")
        return json.loads(line)["crc32"] == zlib.crc32(rest)
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return False


def read_part(path: Path) -> Iterator[tuple[Packed, int]]:
    """The episodes of a part."""
    whole = path.read_bytes()
    at = whole.index(b"\n")
    head, at = json.loads(whole[:at]), at + 1
    for episode in head["episodes"]:
        frames = []
        for size in episode["sizes"]:
            frames.append(whole[at : at + size])
            at += size
        digests = np.frombuffer(whole, np.uint8, 32 * len(frames), at).reshape(-1, 32)
        at += digests.nbytes
        columns = {}
        for name, (kind, shape) in episode["columns"].items():
            values = np.frombuffer(whole, kind, int(np.prod(shape)), at).reshape(shape)
            at += values.nbytes
            columns[name] = values.copy()  # else every part would stay in memory
        yield Packed(columns, frames, digests.copy()), episode["goals"]
