"""A dataset on disk in, rows and frames out.

    rows      0        1        2      ...     n-1     one episode; row 0 is the reset state
    action    a0 ----> a1 ----> a2 -->  ...    NaN     action[t] leads from row t to row t+1

A dataset is a directory with `episodes.h5` and `dataset.json`, or any HDF5 file in LeWM's layout,
whose description is then made on opening. Columns are read whole and kept, frames when asked for.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import h5py
import numpy as np
import zstandard
from jaxtyping import Float, Int, UInt8

from sdjepa.data.writer import (
    CARD,
    FILE,
    FORMAT,
    ZSTD_FILTER,
    action_moments,
    make_split,
    train_rows,
)
from sdjepa.envs.base import guess
from sdjepa.errors import UserError
from sdjepa.runs import Progress, read_json, silent

Split = Literal["train", "validation", "test"]
_NOT_ROWS = {"ep_len", "ep_offset", "pixels"}
_BLOCK = 64  # frames a thread decodes before it reports


@dataclass(frozen=True)
class ActionStats:
    """The action normaliser: moments over the NaN-free rows of training episodes."""

    mean: Float[np.ndarray, "action"]
    std: Float[np.ndarray, "action"]


class Episodes:
    """An open, read-only dataset."""

    def __init__(self, path: Path, file: h5py.File, info: dict[str, Any] | None) -> None:
        self.path = path
        self._file = file
        self._stored = _stored_columns(file, path)
        self.lengths = self._whole("ep_len").astype(np.int64)  # rows per episode
        self.offsets = self._whole("ep_offset").astype(np.int64)  # first row of each
        self._pixels = self._stored["pixels"]
        self.num_rows = int(self.lengths.sum())
        self._kept: dict[str, np.ndarray] = {}
        self._check()
        self.info = info if info is not None else self._describe()
        self.env: str = self.info["env"]

    @staticmethod
    def open(path: Path) -> "Episodes":
        """The dataset in directory `path`, or in the HDF5 file `path`."""
        if not path.exists():
            raise UserError(f"no dataset at {path}; make one with: sdjepa collect ENV --out {path}")
        source, info = path, None
        if path.is_dir():
            source = path / FILE
            if not source.exists():
                raise UserError(_explain_missing(path))
            info = read_json(path / CARD)
            if info.get("format") != FORMAT:
                raise UserError(
                    f"{path / CARD} has format {info.get('format')}, this program reads {FORMAT}"
                )
        try:
            file = h5py.File(source, "r")
        except OSError as error:
            raise UserError(
                f"{source} is truncated or no HDF5 file ({_first_line(error)}); make it again"
            ) from error
        try:
            return Episodes(path, file, info)
        except UserError:
            file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "Episodes":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def action_dim(self) -> int:
        return self.column("action").shape[1]

    @property
    def image_size(self) -> int:
        return int(self._pixels.shape[1])

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column but pixels."""
        return tuple(name for name in self._stored if name not in _NOT_ROWS)

    @property
    def split_hash(self) -> str:
        """Names the split: equal for two datasets whose episodes are divided alike."""
        split = {name: self.info["split"][name] for name in ("train", "validation", "test")}
        return hashlib.sha256(json.dumps(split).encode()).hexdigest()[:16]

    def episode_ids(self, split: Split) -> Int[np.ndarray, "chosen"]:
        """The episodes of one side of the split."""
        return np.asarray(self.info["split"][split], dtype=np.int64)

    def rows(self, episode: int) -> slice:
        """The rows of one episode."""
        start = int(self.offsets[episode])
        return slice(start, start + int(self.lengths[episode]))

    def column(self, name: str) -> np.ndarray:
        """A whole column; the last action of an episode is NaN, whoever wrote the file."""
        if name not in self.columns:
            raise UserError(
                f"{self.path} has no column {name!r}; it has {', '.join(sorted(self.columns))}"
            )
        if name not in self._kept:
            values = self._whole(name)
            if name == "action":
                values = values.astype(np.float32)
                values[self.offsets + self.lengths - 1] = np.nan
            self._kept[name] = values
        return self._kept[name]

    def row(self, index: int) -> dict[str, np.ndarray]:
        """Every column but pixels, at one row."""
        return {name: self.column(name)[index] for name in self.columns}

    def episode(self, episode: int) -> dict[str, np.ndarray]:
        """Every column but pixels, over one episode."""
        rows = self.rows(episode)
        return {name: self.column(name)[rows] for name in self.columns}

    def action_stats(self) -> ActionStats:
        """The normaliser that belongs to this dataset."""
        moments = self.info["action"]
        return ActionStats(
            mean=np.asarray(moments["mean"], dtype=np.float64),
            std=np.asarray(moments["std"], dtype=np.float64),
        )

    def frames(
        self, rows: Iterable[int] | Int[np.ndarray, "n"], *, progress: Progress = silent
    ) -> UInt8[np.ndarray, "n h w 3"]:
        """Frames of `rows`, in that order; repeats are decoded once."""
        wanted = np.asarray(rows, dtype=np.int64)
        unique, places = np.unique(wanted, return_inverse=True)
        if len(unique) and not 0 <= unique[0] <= unique[-1] < self.num_rows:
            raise IndexError(f"rows {unique[0]}..{unique[-1]} of a dataset of {self.num_rows}")
        decoded = np.empty((len(unique), *self._pixels.shape[1:]), dtype=np.uint8)
        starts = range(0, len(unique), _BLOCK)

        def decode(start: int) -> None:
            self._decode(unique[start : start + _BLOCK], decoded[start : start + _BLOCK])

        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            for done, _ in enumerate(pool.map(decode, starts), start=1):
                progress(min(done * _BLOCK, len(unique)), len(unique), "frames")
        same = len(unique) == len(wanted) and np.array_equal(places, np.arange(len(wanted)))
        return decoded if same else decoded[places]

    def _decode(self, rows: np.ndarray, out: np.ndarray) -> None:
        try:
            if not self._coded_by_us():
                for start, stop in _runs(rows):
                    self._pixels.read_direct(
                        out, np.s_[rows[start] : rows[stop - 1] + 1], np.s_[start:stop]
                    )
                return
            decoder = zstandard.ZstdDecompressor()
            for place, row in enumerate(rows):
                _, chunk = self._pixels.id.read_direct_chunk((int(row), 0, 0, 0))
                raw = decoder.decompress(chunk, max_output_size=out[place].nbytes)
                out[place] = np.frombuffer(raw, np.uint8).reshape(out.shape[1:])
        except (OSError, ValueError, zstandard.ZstdError) as error:
            raise UserError(
                f"frames of {self.path} cannot be read ({_first_line(error)}): the file is "
                "damaged, or its compression needs: pip install hdf5plugin"
            ) from error

    def _coded_by_us(self) -> bool:
        settings = self._pixels.id.get_create_plist()
        one_frame = self._pixels.chunks == (1, *self._pixels.shape[1:])
        return (
            one_frame and settings.get_nfilters() == 1 and settings.get_filter(0)[0] == ZSTD_FILTER
        )

    def _whole(self, name: str) -> np.ndarray:
        try:
            return np.asarray(self._stored[name][:])
        except OSError as error:
            raise UserError(
                f"{self.path}: column {name!r} is damaged ({_first_line(error)}); make it again"
            ) from error

    def _check(self) -> None:
        shape = self._pixels.shape
        if self._pixels.dtype != np.uint8 or len(shape) != 4 or shape[3] != 3:
            raise UserError(
                f"{self.path}: pixels are {self._pixels.dtype} {shape}, "
                "needed uint8 (rows, H, W, 3)"
            )
        if not len(self.lengths):
            raise UserError(f"{self.path} holds no episode; collect some")
        if len(self.lengths) != len(self.offsets) or (self.lengths < 1).any():
            raise UserError(
                f"{self.path}: ep_len and ep_offset do not describe episodes; make it again"
            )
        ends = self.offsets + self.lengths
        if self.offsets.min() < 0 or ends.max() > shape[0]:
            raise UserError(
                f"{self.path}: episodes reach row {ends.max()} of {shape[0]}; make it again"
            )
        action = self._stored["action"]
        if action.dtype.kind != "f" or action.ndim != 2:
            raise UserError(
                f"{self.path}: action is {action.dtype} {action.shape}, needed float (rows, dims)"
            )
        for name in self.columns:
            found = self._stored[name].shape
            if found[:1] != shape[:1]:
                raise UserError(f"{self.path}: {name} has {found[0]} rows, pixels {shape[0]}")

    def _describe(self) -> dict[str, Any]:
        """What `dataset.json` would say, for a file that came without one."""
        split = make_split(len(self), seed=0, validation=0.05, test=0.05)
        shapes = {name: self._stored[name].shape[1:] for name in self.columns}
        return {
            "format": FORMAT,
            "env": guess(shapes),
            "num_episodes": len(self),
            "num_rows": self.num_rows,
            "split": split,
            "action": action_moments(
                self.column("action"), train_rows(self.lengths, split["train"])
            ),
        }


def _stored_columns(file: h5py.File, path: Path) -> dict[str, h5py.Dataset]:
    """Every numeric dataset of the file, by our name for it."""
    stored: dict[str, h5py.Dataset] = {}

    def visit(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiub":
            # A slash makes HDF5 groups; the published files have an underscore there.
            stored[{"ep_idx": "episode_idx"}.get(name, name.replace("/", "_"))] = item

    file.visititems(visit)
    for needed in ("pixels", "action", "ep_len", "ep_offset"):
        if needed not in stored:
            raise UserError(
                f"{path} has no column {needed!r}; it has {', '.join(sorted(stored)) or 'none'}"
            )
    return stored


def _explain_missing(path: Path) -> str:
    if (path / ".collect").exists():
        return f"{path} is unfinished; finish it by running the same sdjepa collect command again"
    return f"{path} holds no {FILE}; make one with: sdjepa collect ENV --out {path}"


def _runs(rows: np.ndarray) -> list[tuple[int, int]]:
    """Stretches of consecutive rows, as positions in `rows`."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    edges = [0, *breaks.tolist(), len(rows)]
    return list(itertools.pairwise(edges))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
