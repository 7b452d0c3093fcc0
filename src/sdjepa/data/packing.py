"""Episodes ready to be written: frames compressed and hashed, each by itself."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import zstandard
from jaxtyping import UInt8

ZSTD_LEVEL = 3


@dataclass(frozen=True)
class Packed:
    """One episode, its frames already compressed."""

    columns: Mapping[str, np.ndarray]  # every recorded column but pixels; rows first
    frames: Sequence[bytes]
    digests: UInt8[np.ndarray, "rows 32"]  # SHA-256 of every raw frame


def digest(frame: UInt8[np.ndarray, "h w 3"]) -> bytes:
    """SHA-256 of a raw frame."""
    return hashlib.sha256(np.ascontiguousarray(frame).data).digest()


def coder() -> zstandard.ZstdCompressor:
    """Makes chunks of frames; not to be shared by threads, which it does not survive."""
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL)


class Packing:
    """Frames of one episode, compressed and hashed as they come: they need not wait in memory."""

    def __init__(self, *, compressed: bool = True) -> None:
        self._coder = coder() if compressed else None
        self._frames: list[bytes] = []
        self._digests: list[bytes] = []

    def add(self, frame: UInt8[np.ndarray, "h w 3"]) -> None:
        whole = np.ascontiguousarray(frame)
        self._digests.append(digest(whole))
        coded = whole.tobytes() if self._coder is None else self._coder.compress(whole.data)
        self._frames.append(coded)

    def close(self, columns: Mapping[str, np.ndarray]) -> Packed:
        for name, values in columns.items():
            assert len(values) == len(self._frames), f"{name}: {len(values)} rows"
        digests = np.frombuffer(b"".join(self._digests), np.uint8).reshape(len(self._frames), 32)
        return Packed(columns=columns, frames=self._frames, digests=digests)


def pack(
    columns: Mapping[str, np.ndarray],
    frames: Sequence[UInt8[np.ndarray, "h w 3"]],
    *,
    compressed: bool = True,
) -> Packed:
    """Compress one episode's frames and hash them."""
    packing = Packing(compressed=compressed)
    for frame in frames:
        packing.add(frame)
    return packing.close(columns)
