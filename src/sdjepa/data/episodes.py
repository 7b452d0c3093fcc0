"""A dataset on disk in, rows and frames out.

    rows      0        1        2      ...     n-1     one episode; row 0 is the reset state
    action    a0 ----> a1 ----> a2 -->  ...    NaN     action[t] leads from row t to row t+1

A dataset is a directory with `episodes.h5` and `dataset.json`, or anything else `stores` can open,
whose description is then made on opening. Columns are read whole and kept, frames when asked for.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int, UInt8

from sdjepa.data.stores import Hdf5Store, Store, open_store
from sdjepa.data.writer import CARD, FILE, FORMAT, action_moments, make_split, train_rows
from sdjepa.envs.base import guess
from sdjepa.errors import UserError
from sdjepa.runs import Progress, read_json, silent

Split = Literal["train", "validation", "test"]
_BLOCK = 32  # frames a thread decodes before it reports
_THREADS = 32  # at most; more only wait for memory


@dataclass(frozen=True)
class ActionStats:
    """The action normaliser: moments over the NaN-free rows of training episodes."""

    mean: Float[np.ndarray, "action"]
    std: Float[np.ndarray, "action"]


class Episodes:
    """An open, read-only dataset."""

    def __init__(self, path: Path, store: Store, info: dict[str, Any] | None = None) -> None:
        self.path = path
        self._store = store
        self.lengths = store.lengths  # rows per episode
        self.offsets = store.offsets  # first row of each
        self.num_rows = int(self.lengths.sum())
        self._kept: dict[str, np.ndarray] = {}
        self.info = info if info is not None else self._describe()
        self.env: str = self.info["env"]

    @staticmethod
    def open(path: Path) -> "Episodes":
        """The dataset at `path`: a directory of ours, or a file or folder of another program."""
        if not path.exists():
            raise UserError(f"no dataset at {path}; make one with: sdjepa collect ENV --out {path}")
        if (path / FILE).exists():
            info = read_json(path / CARD)
            if info.get("format") != FORMAT:
                raise UserError(
                    f"{path / CARD} has format {info.get('format')}, this program reads {FORMAT}"
                )
            return Episodes(path, Hdf5Store(path / FILE), info)
        if (path / ".collect").exists():
            raise UserError(
                f"{path} is unfinished; run the same sdjepa collect command again to finish it"
            )
        if path.is_dir() and not any(path.iterdir()):
            raise UserError(f"{path} is empty; make it with: sdjepa collect ENV --out {path}")
        return Episodes(path, open_store(path))

    def close(self) -> None:
        self._store.close()

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
        return self._store.shapes["action"][0]

    @property
    def image_size(self) -> int:
        """Pixels a side; frames that are not square must be converted first."""
        height, width, _ = self._store.frame_shape
        if height != width:
            raise UserError(
                f"frames of {self.path} are {height} x {width}, needed square ones; run: "
                f"sdjepa data convert {self.path} OUT --size {min(height, width)}"
            )
        return height

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column but pixels."""
        return (*self._store.shapes, "episode_idx", "step_idx")

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
            self._kept[name] = self._read(name)
        return self._kept[name]

    def _read(self, name: str) -> np.ndarray:
        if name == "episode_idx":
            return np.repeat(np.arange(len(self)), self.lengths)
        if name == "step_idx":
            return np.concatenate([np.arange(length) for length in self.lengths])
        values = self._store.column(name)
        if name == "action":
            values = values.astype(np.float32)
            values[self.offsets + self.lengths - 1] = np.nan
        return values

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
        self,
        rows: Iterable[int] | Int[np.ndarray, "n"],
        *,
        out: UInt8[np.ndarray, "n h w 3"] | None = None,
        progress: Progress = silent,
    ) -> UInt8[np.ndarray, "n h w 3"]:
        """Frames of `rows`, in that order, in `out` if given; repeats are decoded once."""
        wanted = np.asarray(rows, dtype=np.int64)
        unique, places = np.unique(wanted, return_inverse=True)
        if len(unique) and not 0 <= unique[0] <= unique[-1] < self.num_rows:
            raise IndexError(f"rows {unique[0]}..{unique[-1]} of a dataset of {self.num_rows}")
        same = np.array_equal(unique, wanted)
        frames = np.empty((len(wanted), *self._store.frame_shape), np.uint8) if out is None else out
        decoded = frames if same else np.empty((len(unique), *self._store.frame_shape), np.uint8)

        def decode(start: int) -> None:
            stretch = slice(start, start + _BLOCK)
            self._store.decode(unique[stretch], decoded[stretch])

        with ThreadPoolExecutor(max_workers=min(_THREADS, os.cpu_count() or 1)) as pool:
            blocks = pool.map(decode, range(0, len(unique), _BLOCK))
            for done, _ in enumerate(blocks, start=1):
                progress(min(done * _BLOCK, len(unique)), len(unique), "frames")
        # mode="clip" writes straight into `out`; the default goes through a copy.
        return frames if same else np.take(decoded, places, axis=0, out=frames, mode="clip")

    def _describe(self) -> dict[str, Any]:
        """What `dataset.json` would say, for data that came without one."""
        split = make_split(len(self), seed=0, validation=0.05, test=0.05)
        moments = action_moments(self.column("action"), train_rows(self.lengths, split["train"]))
        return {
            "format": FORMAT,
            "env": guess(self._store.shapes),
            "num_episodes": len(self),
            "num_rows": self.num_rows,
            "image_size": self._store.frame_shape[0],
            "action_dim": self.action_dim,
            "split": split,
            "action": moments,
        }
