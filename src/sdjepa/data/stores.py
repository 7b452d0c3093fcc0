"""Where columns and frames are kept: a path comes in, an open `Store` goes out.

A store knows rows and nothing of their meaning. LeWM's HDF5 layout is read here, ours included, in
any compression; all else stable-worldmodel can load (Lance, folders of images, video) is read
through its own readers, one stretch of an episode at a time.
"""

import functools
import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
import zstandard
from jaxtyping import Int, UInt8

from sdjepa.data.writer import ZSTD_FILTER
from sdjepa.errors import UserError

PIXELS = "pixels"
_INDEX = ("ep_len", "ep_offset")
_FEW = 1024  # frames found one by one (12 us each) before all are looked up at once (3 us each)
# Bookkeeping whose meaning differs between writers; the episode structure gives it anew.
_DERIVED = {"ep_idx", "episode_idx", "step_idx"}

# What reading a damaged file raises: RuntimeError is HDF5's, an address may be beyond any file.
_DAMAGE = (OSError, ValueError, IndexError, OverflowError, RuntimeError, zstandard.ZstdError)


class Store(Protocol):
    """Flat columns with an episode structure; frames are uint8 (height, width, 3)."""

    lengths: Int[np.ndarray, "episodes"]
    offsets: Int[np.ndarray, "episodes"]
    frame_shape: tuple[int, ...]
    shapes: dict[str, tuple[int, ...]]  # of a row of every column but pixels

    def column(self, name: str) -> np.ndarray: ...

    def decode(
        self, rows: Int[np.ndarray, "n"], out: UInt8[np.ndarray, "n height width 3"]
    ) -> None:
        """Fill `out` with the frames of `rows`, which ascend; called from several threads."""
        ...

    def close(self) -> None: ...


class Hdf5Store:
    """One HDF5 file in LeWM's layout."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # Not in stable-worldmodel's SWMR mode: HDF5 then reads a truncated file for ever.
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise UserError(
                f"{path} is truncated or no HDF5 file ({first_line(error)}); make it again"
            ) from error
        try:
            self._open()
        except UserError:
            self._file.close()
            raise
        except _DAMAGE as error:
            self._file.close()
            raise UserError(f"{path} is damaged ({first_line(error)}); make it again") from error

    def _open(self) -> None:
        self._stored = self._find_columns()
        self.lengths = self.column("ep_len").astype(np.int64)
        self.offsets = self.column("ep_offset").astype(np.int64)
        self._pixels = self._stored[PIXELS]
        self.frame_shape = tuple(self._pixels.shape[1:])
        self._ours = self._coded_by_us()
        self._asked, self._places = 0, None
        self._finding = threading.Lock()
        self.shapes = {
            name: tuple(stored.shape[1:])
            for name, stored in self._stored.items()
            if name not in (PIXELS, *_INDEX)
        }
        self._check()

    def _find_columns(self) -> dict[str, h5py.Dataset]:
        found: dict[str, h5py.Dataset] = {}

        def visit(name: str, item: h5py.Dataset | h5py.Group) -> None:
            if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiub":
                # A slash makes HDF5 groups; the published files have an underscore there.
                found[name.replace("/", "_")] = item

        self._file.visititems(visit)
        for needed in (PIXELS, "action", *_INDEX):
            if needed not in found:
                have = ", ".join(sorted(found)) or "none"
                raise UserError(f"{self._path} has no column {needed!r}; it has {have}")
        # Other pictures than the camera's, a goal's say, are no state.
        return {
            name: stored
            for name, stored in found.items()
            if name not in _DERIVED and (name == PIXELS or 0 < stored.ndim < 4)
        }

    def _check(self) -> None:
        shape, action = self._pixels.shape, self._stored["action"]
        if self._pixels.dtype != np.uint8 or len(shape) != 4 or shape[3] != 3:
            raise UserError(
                f"{self._path}: pixels are {self._pixels.dtype} {shape}, "
                "needed uint8 (rows, H, W, 3)"
            )
        if action.dtype.kind != "f" or action.ndim != 2:
            raise UserError(
                f"{self._path}: action is {action.dtype} {action.shape}, needed float (rows, dims)"
            )
        for name in self.shapes:
            rows = self._stored[name].shape[0]
            if rows != shape[0]:
                raise UserError(f"{self._path}: {name} has {rows} rows, pixels {shape[0]}")
        check_structure(self, num_rows=shape[0], path=self._path)

    def column(self, name: str) -> np.ndarray:
        try:
            return np.asarray(self._stored[name][:])
        except _DAMAGE as error:
            raise UserError(
                f"{self._path}: column {name!r} is damaged ({first_line(error)}); make it again"
            ) from error

    def decode(self, rows: np.ndarray, out: np.ndarray) -> None:
        try:
            if self._ours:
                decompress(self._chunks(rows), out)
            else:
                for start, stop in runs(rows):
                    source = np.s_[rows[start] : rows[stop - 1] + 1]
                    self._pixels.read_direct(out, source, np.s_[start:stop])
        except _DAMAGE as error:
            raise UserError(
                f"frames of {self._path} cannot be read ({first_line(error)}): the file is "
                "damaged, or its compression needs: pip install hdf5plugin"
            ) from error

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


class LibraryStore:
    """Whatever stable-worldmodel's `load_dataset` opens, read through the reader it returns."""

    def __init__(self, path: Path) -> None:
        try:
            from stable_worldmodel.data.utils import load_dataset
        except ModuleNotFoundError as error:
            raise UserError(
                f"reading {path} needs {error.name!r}; run: pip install 'sdjepa[envs]'"
            ) from error
        # Its video reader looks for a folder `video`, its writer makes one of the column's name.
        films = sorted(film.parent.name for film in path.glob("*/ep_0.mp4"))
        # Its Lance reader switches the whole process to another way of starting workers.
        method = multiprocessing.get_start_method(allow_none=True)
        try:
            named = {"video_keys": films} if films else {}
            self._reader: Any = self._ask(load_dataset, str(path.resolve()), **named)
        except ImportError as error:  # of one of its formats
            raise _missing(path, error) from error
        except (*_DAMAGE, KeyError, TypeError) as error:
            raise UserError(
                f"{path} is no dataset that can be read ({first_line(error)}); readable are LeWM's "
                "HDF5, stable-worldmodel's formats, and LeRobot v3 through sdjepa data convert"
            ) from error
        finally:
            multiprocessing.set_start_method(method, force=True)
        self._path = path
        self.lengths = np.asarray(self._reader.lengths, dtype=np.int64)
        self.offsets = np.asarray(self._reader.offsets, dtype=np.int64)
        if not len(self.lengths):
            raise UserError(f"{path} holds no episode; collect some")
        first = self._chunk(0, 0, 1)
        for needed in (PIXELS, "action"):
            if needed not in first:
                raise UserError(f"{path} has no column {needed!r}; it has {', '.join(first)}")
        self.frame_shape = _channels_last(first[PIXELS]).shape[1:]
        self._names = {
            name.replace("/", "_"): name
            for name, value in first.items()
            if name not in (PIXELS, *_DERIVED) and value.ndim < 4 and value.dtype.kind in "fiub"
        }
        self.shapes = {ours: first[name].shape[1:] for ours, name in self._names.items()}
        check_structure(self, num_rows=int(self.lengths.sum()), path=path)

    def _chunk(self, episode: int, start: int, stop: int) -> dict[str, np.ndarray]:
        wanted = (np.array([value]) for value in (episode, start, stop))
        try:
            (chunk,) = self._ask(self._reader.load_chunk, *wanted)
            return {name: np.asarray(value) for name, value in chunk.items()}
        except ImportError as error:
            raise _missing(self._path, error) from error
        except (*_DAMAGE, KeyError, TypeError) as error:
            raise self._damaged(f"episode {episode}", error) from error

    def column(self, name: str) -> np.ndarray:
        try:
            return np.asarray(self._ask(self._reader.get_col_data, self._names[name]))
        except (*_DAMAGE, KeyError, TypeError) as error:
            raise self._damaged(f"column {name!r}", error) from error

    def _ask(self, work: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return _librarian().submit(work, *given, **named).result()

    def _damaged(self, what: str, error: Exception) -> UserError:
        return UserError(
            f"{what} of {self._path} cannot be read ({first_line(error)}); make the dataset again"
        )

    def decode(self, rows: np.ndarray, out: np.ndarray) -> None:
        for start, stop in runs(rows):
            while start < stop:  # a run may reach over several episodes
                episode = int(np.searchsorted(self.offsets, rows[start], side="right")) - 1
                begin = int(rows[start] - self.offsets[episode])
                count = min(stop - start, int(self.lengths[episode]) - begin)
                chunk = self._chunk(episode, begin, begin + count)
                out[start : start + count] = _channels_last(chunk[PIXELS])
                start += count

    def close(self) -> None:
        """Nothing is held open between reads."""


def decompress(chunks: list[bytes], out: UInt8[np.ndarray, "n height width 3"]) -> None:
    """Fill `out` with zstd frames, straight into its memory and all in one call.

    The call lets other threads run while it decodes, and needs Python for nothing in between.
    """
    reader = zstandard.ZstdDecompressor().stream_reader(b"".join(chunks), read_across_frames=True)
    if reader.readinto(out.data) != out.nbytes or reader.read(1):
        raise ValueError(f"a frame does not have {out[0].nbytes} bytes")


def open_store(path: Path) -> Store:
    """The store at `path`, by what it looks like."""
    if path.is_file() and path.suffix in (".h5", ".hdf5"):
        return Hdf5Store(path)
    if (path / "meta" / "info.json").exists():
        raise UserError(
            f"{path} is a LeRobot dataset; make it ours first: sdjepa data convert {path} OUT"
        )
    return LibraryStore(path)


def check_structure(store: Store, *, num_rows: int, path: Path) -> None:
    """Refuse an episode structure that does not cover existing rows."""
    lengths, offsets = store.lengths, store.offsets
    if not len(lengths):
        raise UserError(f"{path} holds no episode; collect some")
    if lengths.ndim != 1 or lengths.shape != offsets.shape or (lengths < 1).any():
        raise UserError(f"{path}: ep_len and ep_offset do not describe episodes; make it again")
    ends = offsets + lengths
    if offsets.min() < 0 or ends.max() > num_rows:
        raise UserError(f"{path}: episodes reach row {ends.max()} of {num_rows}; make it again")
    if ends[-1] != num_rows or not np.array_equal(offsets[1:], ends[:-1]) or offsets[0]:
        raise UserError(f"{path}: episodes leave rows out, or are not in order; make it again")


def runs(rows: np.ndarray) -> list[tuple[int, int]]:
    """Stretches of consecutive rows, as positions in `rows`."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    return list(itertools.pairwise([0, *breaks.tolist(), len(rows)]))


def _channels_last(frames: np.ndarray) -> np.ndarray:
    return frames.transpose(0, 2, 3, 1) if frames.shape[1] == 3 else frames


def reduce_frames(frames: UInt8[np.ndarray, "n h w 3"], side: int) -> UInt8[np.ndarray, "n s s 3"]:
    """Frames at `side` pixels, by area averaging."""
    if frames.shape[1:3] == (side, side):
        return np.ascontiguousarray(frames)
    import cv2

    return np.stack(
        [cv2.resize(frame, (side, side), interpolation=cv2.INTER_AREA) for frame in frames]
    )


@functools.cache
def _librarian() -> ThreadPoolExecutor:
    """The one thread that asks the library: its readers say nothing about others, and that of
    videos is told how to hand over pictures once in a process, which holds in that thread only."""
    return ThreadPoolExecutor(1)


def _missing(path: Path, error: ImportError) -> UserError:
    """A reader of the library that lacks a package; of videos it is decord, as its message says."""
    return UserError(f"{path} cannot be read ({first_line(error)}); install it with pip")


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
