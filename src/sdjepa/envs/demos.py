"""Human demonstrations of Push-T: a file in, states and absolute targets out.

Two layouts are read: an `.npz` with `state`, `action` and `episode_ends`, and the folder published
with Diffusion Policy, `pusht_cchi_v7_replay.zarr`, whose arrays are blosc-compressed chunks.
"""

import functools
import hashlib
import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import h5py
import numpy as np
from jaxtyping import Float, Int

from sdjepa.errors import UserError

VARIABLE = "SDJEPA_PUSHT_DEMOS"
BLOSC_FILTER = 32001  # HDF5's registered number for blosc


@dataclass(frozen=True)
class Demos:
    """Demonstrations end to end; episode i ends before row `ends[i]`."""

    states: Float[np.ndarray, "rows 5"]  # agent x, y, block x, y, block angle
    targets: Float[np.ndarray, "rows 2"]  # where the agent was told to go, absolute
    ends: Int[np.ndarray, "episodes"]

    @property
    def sha256(self) -> str:
        """Names the demonstrations, whatever file they came from."""
        parts = (self.states, self.targets, self.ends)
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    def episode(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        start = int(self.ends[index - 1]) if index else 0
        rows = slice(start, int(self.ends[index]))
        return self.states[rows], self.targets[rows]


def find(given: Path | None) -> Path | None:
    """The demonstrations that were `given`, or those the environment variable names."""
    named = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is not None and not named.exists():
        raise UserError(f"no demonstrations at {named}; correct --demos or {VARIABLE}")
    return named


def missing() -> UserError:
    return UserError(
        "policy demos needs demonstrations: add --demos FILE (an .npz, or Diffusion Policy's "
        f"pusht_cchi_v7_replay.zarr) or set {VARIABLE}; --policy pusher needs none"
    )


@functools.cache
def read(path: Path) -> Demos:
    """Demonstrations in either layout."""
    try:
        if path.is_dir():
            states, actions = (_zarr(path / "data" / name) for name in ("state", "action"))
            ends = _zarr(path / "meta" / "episode_ends")
        else:
            with np.load(path) as arrays:
                states, actions = arrays["state"], arrays["action"]
                ends = arrays["episode_ends"]
    except (KeyError, OSError, ValueError, EOFError, BadZipFile, zlib.error) as error:
        raise UserError(
            f"{path} holds no demonstrations ({error}); needed: state, action, episode_ends in an "
            ".npz, or Diffusion Policy's pusht_cchi_v7_replay.zarr"
        ) from error
    ok = states.ndim == 2 and states.shape[1] == 5 and actions.shape == (len(states), 2)
    if not ok or not len(ends) or ends[-1] != len(states) or (np.diff(ends, prepend=0) < 1).any():
        raise UserError(
            f"{path}: state {states.shape}, action {actions.shape} and {len(ends)} episode ends do "
            "not belong together; needed state (rows, 5), action (rows, 2), ends rising to rows"
        )
    return Demos(states.astype(np.float64), actions.astype(np.float64), ends.astype(np.int64))


def _zarr(folder: Path) -> np.ndarray:
    """A zarr version 2 array stored as a folder of chunk files."""
    meta = json.loads((folder / ".zarray").read_text())
    shape, chunk = tuple(meta["shape"]), tuple(meta["chunks"])
    out = np.full(shape, meta.get("fill_value") or 0, dtype=np.dtype(meta["dtype"]))
    grid = [range(-(-size // step)) for size, step in zip(shape, chunk, strict=True)]
    for place in np.ndindex(*(len(axis) for axis in grid)):
        path = folder / ".".join(map(str, place))
        if not path.exists():
            continue  # zarr leaves out chunks that hold nothing but the fill value
        raw = _decompress(path.read_bytes(), meta["compressor"])
        values = np.frombuffer(raw, out.dtype).reshape(chunk)
        where = tuple(
            slice(i * step, min((i + 1) * step, size))
            for i, step, size in zip(place, chunk, shape, strict=True)
        )
        out[where] = values[tuple(slice(0, part.stop - part.start) for part in where)]
    return out


def _decompress(data: bytes, compressor: dict | None) -> bytes:
    if compressor is None:
        return data
    if compressor["id"] != "blosc":
        raise ValueError(f"compressor {compressor['id']!r}")
    try:
        import hdf5plugin  # noqa: F401 (registers the filter)
    except ImportError:
        raise UserError(
            "these demonstrations are blosc-compressed; run: pip install hdf5plugin, or use an .npz"
        ) from None
    # HDF5's blosc filter decodes what zarr's blosc wrote: hand it the chunk in a file in memory.
    size = int.from_bytes(data[4:8], "little")
    with h5py.File.in_memory() as file:
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((size,))
        settings.set_filter(BLOSC_FILTER, h5py.h5z.FLAG_OPTIONAL, (2, 2, 1, size, 5, 1, 0))
        space = h5py.h5s.create_simple((size,))
        kind = h5py.h5t.NATIVE_UINT8
        stored = h5py.Dataset(h5py.h5d.create(file.id, b"chunk", kind, space, settings))
        stored.id.write_direct_chunk((0,), data)
        return np.asarray(stored[:]).tobytes()
