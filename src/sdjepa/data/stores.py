"""Where columns and frames are kept: a path comes in, an open `Store` goes out.

A store knows rows and nothing of their meaning. LeWM's HDF5 layout is read by `hdf5`; all else
stable-worldmodel can load (Lance, folders of images, video) is read through its own readers, one
stretch of an episode at a time.
"""

import contextlib
import functools
import multiprocessing
import re
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from sdjepa.data.hdf5 import Hdf5Store
from sdjepa.data.layout import (
    DAMAGE,
    DERIVED,
    PIXELS,
    Store,
    first_line,
    is_state,
    misplaced,
    runs,
    unusable,
)
from sdjepa.data.nearby import HDF5_SUFFIXES
from sdjepa.errors import UserError


class Unreadable(Exception):
    """What the library raised when it was asked."""


class LibraryStore:
    """Whatever stable-worldmodel's `load_dataset` opens, read through the reader it returns."""

    def __init__(self, path: Path) -> None:
        try:
            with warnings.catch_warnings():  # of games it does not find
                warnings.simplefilter("ignore")
                from stable_worldmodel.data.utils import load_dataset
        except ModuleNotFoundError as error:
            raise UserError(
                f"reading {path} needs {error.name!r}; run: pip install 'sdjepa[envs]'"
            ) from error
        # Its video reader looks for a folder `video`, its writer makes one of the column's name.
        films = sorted(film.parent.name for film in path.glob("*/ep_0.mp4"))
        if films:
            _silence_films()
        # Its Lance reader switches the whole process to another way of starting workers.
        method = multiprocessing.get_start_method(allow_none=True)
        try:
            named = {"video_keys": films} if films else {}
            self._reader: Any = self._ask(load_dataset, str(path.resolve()), **named)
        except ImportError as error:  # of one of its formats
            raise _missing(path, error) from error
        except Unreadable as error:
            # Its advice for what it does not know is about an argument of its own.
            why = "" if str(error).startswith("No format") else f" ({error})"
            raise UserError(
                f"{path} is no dataset that can be read{why}; readable are LeWM's HDF5, "
                "stable-worldmodel's formats, and LeRobot v3 through sdjepa data convert"
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
        if wrong := unusable(_channels_last(first[PIXELS]), first["action"]):
            raise UserError(f"{path}: {'; '.join(wrong)}")
        self.frame_shape = _channels_last(first[PIXELS]).shape[1:]
        self._names: dict[str, str] = {}  # of theirs, by ours
        for name, value in first.items():
            if name in (PIXELS, *DERIVED) or not is_state(value.shape):
                continue
            if value.dtype.kind in "fiub":
                other = self._names.setdefault(name.replace("/", "_"), name)
                if other != name:
                    raise UserError(f"{path}: {other!r} and {name!r} would be one; rename one")
        self.shapes = {ours: first[name].shape[1:] for ours, name in self._names.items()}
        if wrong := misplaced(self.lengths, self.offsets, num_rows=int(self.lengths.sum())):
            raise UserError(f"{path}: {'; '.join(wrong)}")

    def _chunk(self, episode: int, start: int, stop: int) -> dict[str, np.ndarray]:
        wanted = (np.array([value]) for value in (episode, start, stop))
        try:
            (chunk,) = self._ask(self._reader.load_chunk, *wanted)
            return {name: np.asarray(value) for name, value in chunk.items()}
        except ImportError as error:
            raise _missing(self._path, error) from error
        except (Unreadable, *DAMAGE) as error:
            raise self._damaged(f"episode {episode}", error) from error

    def column(self, name: str) -> np.ndarray:
        try:
            return np.asarray(self._ask(self._reader.get_col_data, self._names[name]))
        except (Unreadable, *DAMAGE) as error:
            raise self._damaged(f"column {name!r}", error) from error

    def _ask(self, work: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """What the library says; what it raises at damage is anything, panics of Rust included."""
        try:
            return _librarian().submit(_quietly, work, *given, **named).result()
        except (ImportError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            said = re.sub(r", \S+\.rs:\d+:\d+$", "", first_line(error))  # where in its source
            raise Unreadable(said) from error

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


def open_store(path: Path) -> Store:
    """The store at `path`, by what it looks like."""
    if path.is_file() and (path.suffix in HDF5_SUFFIXES or h5py.is_hdf5(path)):
        return Hdf5Store(path)
    if (path / "meta" / "info.json").exists():
        raise UserError(
            f"{path} is a LeRobot dataset; make it ours first: sdjepa data convert {path} OUT"
        )
    return LibraryStore(path)


def _channels_last(frames: np.ndarray) -> np.ndarray:
    return frames.transpose(0, 2, 3, 1) if frames.ndim == 4 and frames.shape[1] == 3 else frames


@functools.cache
def _librarian() -> ThreadPoolExecutor:
    """The one thread that asks the library: its readers say nothing about others, and that of
    videos is told how to hand over pictures once in a process, which holds in that thread only."""
    return ThreadPoolExecutor(1)


def _quietly(work: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """In the librarian's thread alone: two that change what is warned of leave it changed."""
    with warnings.catch_warnings():  # of the library's ways with buffers and processes
        warnings.simplefilter("ignore")
        return work(*given, **named)


def _silence_films() -> None:
    """What is wrong with a film is told in one line, by us."""
    with contextlib.suppress(ImportError):
        from decord import logging

        logging.set_level(logging.QUIET)


def _missing(path: Path, error: ImportError) -> UserError:
    """A reader of the library that lacks a package; of videos it is decord, as its message says."""
    return UserError(f"{path} cannot be read ({first_line(error)}); install it with pip")
