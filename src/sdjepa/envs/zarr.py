"""Arrays stored as zarr version 2: a folder with its metadata and a file per chunk.

As much of it as Diffusion Policy's demonstrations need. What is beyond that is refused, as is a
missing chunk: zarr takes it for the fill value, but here it is a download that was interrupted.
"""

import json
import math
import re
from pathlib import Path

import h5py
import numpy as np

from sdjepa.errors import UserError

BLOSC_FILTER = 32001  # HDF5's registered number for blosc
MOST = 10**7  # numbers in an array; the published demonstrations have 128,250
SIZES = f"one or two whole numbers from 1, their product up to {MOST}"


def read(root: Path, name: str) -> np.ndarray:
    """The array `name` of the group `root`."""
    meta = _metadata(root, name)
    shape, chunk = meta["shape"], meta["chunks"]
    out = np.empty(shape, meta["dtype"])
    size = math.prod(chunk) * out.itemsize
    grid = (-(-whole // step) for whole, step in zip(shape, chunk, strict=True))
    for place in np.ndindex(*grid):
        file = f"{name}/{'.'.join(map(str, place))}"
        try:
            raw = (root / file).read_bytes()
        except FileNotFoundError:
            raise UserError(f"{root} lacks chunk {file}; fetch it again") from None
        if meta.get("compressor"):
            raw = _blosc(raw, size)
        if len(raw) != size:
            raise UserError(f"{root}: chunk {file} is cut short or damaged; fetch it again")
        starts = [i * step for i, step in zip(place, chunk, strict=True)]
        part = out[
            tuple(slice(start, start + step) for start, step in zip(starts, chunk, strict=True))
        ]
        values = np.frombuffer(raw, out.dtype).reshape(chunk)
        part[...] = values[tuple(map(slice, part.shape))]
    return out


def _metadata(root: Path, name: str) -> dict:
    file = root / name / ".zarray"
    try:
        meta = json.loads(file.read_text())
    except FileNotFoundError:
        if (root / "zarr.json").exists() or file.with_name("zarr.json").exists():
            raise UserError(f"{root} is zarr v3; needed v2, as published: fetch it again") from None
        raise UserError(
            f"{root} lacks {name}/.zarray; needed Diffusion Policy's pusht_cchi_v7_replay.zarr, or "
            "an .npz of state, action, episode_ends"
        ) from None
    except (ValueError, RecursionError):
        meta = None
    if not isinstance(meta, dict):
        raise UserError(f"{file} does not describe a zarr v2 array; fetch it again")
    shape, chunks = _sizes(meta.get("shape")), _sizes(meta.get("chunks"))
    compressor = meta.get("compressor")
    blosc = isinstance(compressor, dict) and compressor.get("id") == "blosc"
    understood = {
        "zarr_format": (meta.get("zarr_format", 2) == 2, "2"),
        "shape": (shape, SIZES),
        "chunks": (chunks and len(chunks) == len(shape), SIZES),
        "dtype": (
            re.fullmatch(r"[<>|]([iu][1248]|f[248])", str(meta.get("dtype"))),
            "numbers, like <f4",
        ),
        "compressor": (compressor is None or blosc, '{"id": "blosc"} or null'),
        "filters": (not meta.get("filters"), "null"),
        "order": (meta.get("order", "C") == "C", "C"),
        "dimension_separator": (meta.get("dimension_separator", ".") == ".", "."),
    }
    for key, (ok, needed) in understood.items():
        if not ok:
            found = json.dumps(meta.get(key))[:80]
            raise UserError(f"{file}: {key} {found} is not understood; needed {needed}")
    return meta


def _sizes(said: object) -> list[int]:
    """The sizes of axes that were said; none where they are not, or not of what fits in memory."""
    if not isinstance(said, list) or len(said) > 2:
        return []
    if not all(type(size) is int and size > 0 for size in said):
        return []
    return said if math.prod(said) <= MOST else []


def _blosc(data: bytes, size: int) -> bytes:
    """The `size` bytes that blosc made `data` of; nothing where it did not."""
    try:
        import hdf5plugin  # noqa: F401 (registers the filter)
    except ImportError:
        raise UserError(
            "these demonstrations are blosc-compressed; run: pip install hdf5plugin, or use an .npz"
        ) from None
    said = [int.from_bytes(data[at : at + 4], "little") for at in (4, 12)]
    if said != [size, len(data)]:
        return b""
    # HDF5's blosc filter decodes what zarr's blosc wrote: hand it the chunk in a file in memory.
    with h5py.File.in_memory() as file:
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((size,))
        settings.set_filter(BLOSC_FILTER, h5py.h5z.FLAG_OPTIONAL, (2, 2, 1, size, 5, 1, 0))
        space = h5py.h5s.create_simple((size,))
        kind = h5py.h5t.NATIVE_UINT8
        stored = h5py.Dataset(h5py.h5d.create(file.id, b"chunk", kind, space, settings))
        stored.id.write_direct_chunk((0,), data)
        try:
            return np.asarray(stored[:]).tobytes()
        except OSError:
            return b""
