"""One HDF5 file in LeWM's layout, ours included, in any compression."""

import contextlib
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zstandard
from jaxtyping import Int, UInt8

from sdjepa.data.layout import (
    DAMAGE,
    DERIVED,
    PIXELS,
    first_line,
    is_state,
    misplaced,
    runs,
    unusable,
)
from sdjepa.data.writer import ZSTD_FILTER
from sdjepa.errors import UserError

_INDEX = ("ep_len", "ep_offset")
_NEEDED = {  # and how one writes what lacks
    PIXELS: "uint8 frames, (rows, height, width, 3)",
    "action": "floats, (rows, dims), one row for each frame",
    "ep_len": "how many rows each episode has",
    "ep_offset": "the running sum of ep_len, from 0",
}
_COPY = "copy or download it again"  # what helps where bytes are wrong
_STRETCH = 1024  # chunks of a column read at a time; HDF5 takes 7 kB of memory for each
_CACHE = 1 << 29  # bytes of decoded chunks at most
_FEW = 1024  # frames found one by one (12 us each) before all are looked up at once (3 us each)


class Hdf5Store:
    """One HDF5 file in LeWM's layout."""

    def __init__(self, path: Path, *, again: Callable[[], str] = lambda: "") -> None:
        """`again` says how a file of ours is made once more; somebody else's is to be mended."""
        self._path = path
        self._again = again
        try:
            # Not in stable-worldmodel's SWMR mode: HDF5 then reads a truncated file for ever.
            self._file = h5py.File(path, "r")
        except PermissionError as error:
            raise UserError(f"{path} may not be read by you; make it readable") from error
        except OSError as error:
            raise UserError(
                f"{path} is truncated or no HDF5 file ({first_line(error)}); {self._mend(_COPY)}"
            ) from error
        try:
            self._open()
        except UserError:
            self._file.close()
            raise
        except DAMAGE as error:
            self._file.close()
            raise UserError(
                f"{path} is damaged ({first_line(error)}); {self._mend(_COPY)}"
            ) from error

    def _mend(self, remedy: str) -> str:
        return self._again() or remedy

    def _wrong(self, found: str, remedy: str) -> UserError:
        return UserError(f"{self._path}: {found}; {self._mend(remedy)}")

    def _open(self) -> None:
        self._stored = self._find_columns()
        self._pixels = self._stored[PIXELS]
        self.frame_shape = tuple(self._pixels.shape[1:])
        self._ours = self._coded_by_us()
        if not self._ours and self._pixels.chunks:
            self._cache_chunks(self._pixels.chunks)
        self._load_filters()
        self.lengths, self.offsets = (self._whole_numbers(name) for name in _INDEX)
        self._asked, self._places = 0, None
        self._finding = threading.Lock()
        self.shapes = {
            name: tuple(stored.shape[1:])
            for name, stored in self._stored.items()
            if name not in (PIXELS, *_INDEX)
        }
        self._check()

    def _cache_chunks(self, chunk: tuple[int, ...]) -> None:
        """Keep decoded chunks of many rows until all these are read, not to decode them once more.

        As many as one stretch of rows lies in, and as many again for those who read beside it.
        """
        shape, name = self._pixels.shape, str(self._pixels.name)
        band = math.prod(-(-side // of) for side, of in zip(shape[1:], chunk[1:], strict=True))
        size = math.prod(chunk)
        count = min(2 * band, max(1, _CACHE // size))
        cached = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        cached.set_chunk_cache(10 * count + 1, count * size, 0.75)  # slots, bytes, HDF5's own share
        del self._pixels, self._stored[PIXELS]  # else it is the same opened one
        self._pixels = h5py.Dataset(h5py.h5d.open(self._file.id, name.encode(), cached))
        self._stored[PIXELS] = self._pixels

    def _whole_numbers(self, name: str) -> Int[np.ndarray, "episodes"]:
        found = self.column(name)
        if not np.isfinite(found).all() or (found % 1).any():
            raise self._wrong(f"{name} are not whole numbers", "store it as integers")
        return found.astype(np.int64)

    def _find_columns(self) -> dict[str, h5py.Dataset]:
        found: dict[str, h5py.Dataset] = {}
        other: dict[str, h5py.Dataset] = {}  # of no numbers

        def visit(name: str, item: h5py.Dataset | h5py.Group) -> None:
            if not isinstance(item, h5py.Dataset) or item.shape is None:  # which holds nothing
                return
            # A slash makes HDF5 groups; the published files have an underscore there.
            flat = name.replace("/", "_")
            if item.dtype.kind not in "fiub":
                other[flat] = item
            else:
                if flat in found:
                    raise self._wrong(f"two columns are called {flat!r}", "rename one of them")
                found[flat] = item

        self._file.visititems(visit)
        for needed, what in _NEEDED.items():
            if needed in other:
                kept = other[needed]
                said = f"{needed} is {kept.dtype} {kept.shape}"
                raise self._wrong(f"{said}, needed numbers", f"write it: {what}")
            if needed not in found:
                have = ", ".join(sorted(found)) or "none"
                raise self._wrong(f"no column {needed!r}, it has {have}", f"write it: {what}")
        rows, episodes = found[PIXELS].shape[:1], found[_INDEX[0]].shape

        def is_kept(name: str, stored: h5py.Dataset) -> bool:
            if name in _NEEDED:
                return True
            about_episodes = stored.shape[:1] == episodes != rows
            return name not in DERIVED and is_state(stored.shape) and not about_episodes

        return {name: stored for name, stored in found.items() if is_kept(name, stored)}

    def _load_filters(self) -> None:
        """What others compress by has a package that HDF5 knows nothing of until it is imported."""
        apart = {PIXELS} if self._ours else set()  # these we decode ourselves
        lists = [
            stored.id.get_create_plist()
            for name, stored in self._stored.items()
            if name not in apart
        ]
        wanted = {each.get_filter(i)[0] for each in lists for i in range(each.get_nfilters())}
        if not all(map(h5py.h5z.filter_avail, wanted)):
            with contextlib.suppress(ModuleNotFoundError):
                import hdf5plugin  # noqa: F401 (registers filters)
        missing = [str(code) for code in sorted(wanted) if not h5py.h5z.filter_avail(code)]
        if missing:
            raise UserError(
                f"{self._path} is compressed by filter {', '.join(missing)} of HDF5, which is not "
                "here; run: pip install hdf5plugin"
            )

    def _check(self) -> None:
        shape, action = self._pixels.shape, self._stored["action"]
        if wrong := unusable(self._pixels, action):
            raise self._wrong(*wrong)
        for name in self.shapes:
            rows = self._stored[name].shape[0]
            if rows != shape[0]:
                raise self._wrong(
                    f"{name} has {rows} rows, pixels {shape[0]}",
                    f"write one row of {name} for each frame, or leave it out",
                )
        if wrong := misplaced(self.lengths, self.offsets, num_rows=shape[0]):
            raise self._wrong(*wrong)

    def column(self, name: str) -> np.ndarray:
        stored = self._stored[name]
        try:
            if stored.chunks is None:
                return np.asarray(stored[()])
            found = np.empty(stored.shape, stored.dtype)
            step = _STRETCH * stored.chunks[0]
            for first in range(0, len(found), step):
                rows = np.s_[first : first + step]
                found[rows] = stored[rows]
            return found
        except DAMAGE as error:
            raise UserError(
                f"{self._path}: column {name!r} is damaged ({first_line(error)}); "
                f"{self._mend(_COPY)}"
            ) from error

    def decode(self, rows: np.ndarray, out: np.ndarray) -> None:
        try:
            if self._ours:
                decompress(self._chunks(rows), out)
            else:
                for start, stop in runs(rows):
                    source = np.s_[rows[start] : rows[stop - 1] + 1]
                    self._pixels.read_direct(out, source, np.s_[start:stop])
        except DAMAGE as error:
            said = f"frames of {self._path} cannot be read ({first_line(error)})"
            if self._ours:
                raise UserError(f"{said}: the file is damaged; {self._mend(_COPY)}") from error
            raise UserError(f"{said}: the file is damaged; {_COPY}") from error

    def _chunks(self, rows: np.ndarray) -> list[bytes]:
        """Frames as they are stored, several to a piece; many are read past HDF5 and its lock."""
        with self._finding:
            self._asked += len(rows)
            # Versions of HDF5 differ on whether addresses count a block put before the file.
            if self._places is None and self._asked > _FEW and not self._file.userblock_size:
                self._places = self._find_chunks()
        if self._places is None:
            ids = ((int(row), 0, 0, 0) for row in rows)
            return [self._pixels.id.read_direct_chunk(place)[1] for place in ids]
        begins, ends = self._places[rows].T
        breaks = np.flatnonzero(begins[1:] != ends[:-1]) + 1  # most lie one behind the other
        firsts, lasts = begins[[0, *breaks]].tolist(), ends[[*(breaks - 1), -1]].tolist()
        # Not mapped into memory: a fault would then be a signal, and waiting for a disk stop all.
        file = self._file.id.get_vfd_handle()
        return [os.pread(file, last - at, at) for at, last in zip(firsts, lasts, strict=True)]

    def _find_chunks(self) -> Int[np.ndarray, "rows 2"]:
        """Where in the file each compressed frame begins and ends; twice 0 if it is missing."""
        places = np.zeros((self._pixels.shape[0], 2), dtype=np.int64)

        def note(chunk: Any) -> None:
            places[chunk.chunk_offset[0]] = chunk.byte_offset, chunk.byte_offset + chunk.size

        self._pixels.id.chunk_iter(note)
        return places

    def _coded_by_us(self) -> bool:
        settings = self._pixels.id.get_create_plist()
        return (
            self._pixels.chunks == (1, *self.frame_shape)
            and settings.get_nfilters() == 1
            and settings.get_filter(0)[0] == ZSTD_FILTER
        )

    def close(self) -> None:
        self._file.close()


def decompress(chunks: list[bytes], out: UInt8[np.ndarray, "n height width 3"]) -> None:
    """Fill `out` with zstd frames, straight into its memory and all in one call.

    The call lets other threads run while it decodes, and needs Python for nothing in between.
    """
    reader = zstandard.ZstdDecompressor().stream_reader(b"".join(chunks), read_across_frames=True)
    if reader.readinto(out.data) != out.nbytes or reader.read(1):
        raise ValueError(f"a frame does not have {out[0].nbytes} bytes")
