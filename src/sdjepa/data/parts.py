"""A few recorded episodes in a file: what a worker leaves, whole or absent, and what is joined."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sdjepa.data.writer import Packed
from sdjepa.errors import UserError


def write_part(path: Path, episodes: Sequence[tuple[Packed, int]]) -> None:
    """One line of JSON that says what follows, then the bytes of it, nothing between.

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
    try:
        temporary.write_bytes(b"".join([json.dumps(head).encode(), b"\n", *body]))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(
            f"could not write {path}: {error.strerror}; free some space and run the same command "
            "again, it continues"
        ) from error


def is_whole(path: Path) -> bool:
    """Whether a part is there with all its bytes; a machine that went down may have cut it."""
    try:
        with path.open("rb") as file:
            first = file.readline()
            head = json.loads(first)
    except (FileNotFoundError, ValueError):
        return False
    held = sum(
        sum(episode["sizes"])
        + 32 * len(episode["sizes"])
        + sum(np.dtype(kind).itemsize * int(np.prod(n)) for kind, n in episode["columns"].values())
        for episode in head
    )
    return path.stat().st_size == len(first) + held


def read_part(path: Path) -> Iterator[tuple[Packed, int]]:
    """The episodes of a part."""
    whole = path.read_bytes()
    at = whole.index(b"\n")
    head, at = json.loads(whole[:at]), at + 1
    for episode in head:
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
