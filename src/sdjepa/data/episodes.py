"""A dataset on disk in, rows and frames out.

    rows      0        1        2      ...     n-1     one episode; row 0 is the reset state
    action    a0 ----> a1 ----> a2 -->  ...    NaN     action[t] leads from row t to row t+1

A dataset is a directory with `episodes.h5` and `dataset.json`, or anything else `stores` can open,
whose description is then made on opening. Columns are read whole and kept, frames when asked for.
"""

import functools
import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int, UInt8

from sdjepa.data.again import make_again
from sdjepa.data.described import read_described
from sdjepa.data.hdf5 import Hdf5Store
from sdjepa.data.layout import Store, reduce_frames
from sdjepa.data.nearby import folder_for, nearest, only_file, refuse_parent
from sdjepa.data.stores import open_store
from sdjepa.data.writer import CARD, FILE, FORMAT, action_moments, make_split, rows_in
from sdjepa.envs.base import UNKNOWN, called, guess
from sdjepa.errors import UserError
from sdjepa.runs import Progress, cores, silent

Split = Literal["train", "validation", "test"]
Origin = Literal["stated", "asked", "guessed"]  # dataset.json says so, or --env, or the columns
_BLOCK = 32  # frames a thread decodes before it reports
_THREADS = 32  # at most; more only wait for memory


@dataclass(frozen=True)
class ActionStats:
    """The action normaliser: moments over the NaN-free rows of training episodes."""

    mean: Float[np.ndarray, "action"]
    std: Float[np.ndarray, "action"]


class Episodes:
    """An open, read-only dataset."""

    def __init__(
        self,
        path: Path,
        store: Store,
        info: dict[str, Any] | None = None,
        *,
        size: int | None = None,
        env: str | None = None,
    ) -> None:
        self.path = path
        self.ours = info is not None
        height, width, _ = store.frame_shape
        self._side = size if size is not None and size < height == width else None
        self._store = store
        self.lengths = store.lengths  # rows per episode
        self.offsets = store.offsets  # first row of each
        self.num_rows = int(self.lengths.sum())
        self._kept: dict[str, np.ndarray] = {}
        self.info = info if info is not None else self._describe()
        self.env: str = called(env) if env else self.info["env"]
        self.env_origin: Origin = "asked" if env else self._env_origin()

    @staticmethod
    def open(path: Path, *, size: int | None = None, env: str | None = None) -> "Episodes":
        """The dataset at `path`: a directory of ours, or a file or folder of another program.

        Frames larger than `size` are reduced to it whenever they are read. An `env` is believed
        before dataset.json and the columns; "none" says that there is no simulator here.
        """
        if not path.exists():
            meant = nearest(path)
            raise UserError(
                f"no dataset at {path}; {meant}make one with: sdjepa collect ENV --out "
                f"{folder_for(path)}"
            )
        if (path / FILE).exists():
            store = Hdf5Store(path / FILE, again=functools.partial(make_again, path))
            return Episodes(path, store, read_described(path / CARD, store), size=size, env=env)
        if (path / ".collect").exists():
            raise UserError(
                f"{path} is unfinished; run the same sdjepa collect command again to finish it"
            )
        if path.is_dir() and not any(path.iterdir()):
            raise UserError(f"{path} is empty; make it with: sdjepa collect ENV --out {path}")
        if (path / CARD).exists():
            raise UserError(
                f"{path} has {CARD} but no {FILE}; restore it, or "
                + (make_again(path) or "make the dataset again")
            )
        refuse_parent(path)
        path = only_file(path)
        return Episodes(path, open_store(path), size=size, env=env)

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
    def frame_shape(self) -> tuple[int, ...]:
        """Of a frame as it is stored: height, width, colours."""
        return self._store.frame_shape

    @property
    def read_shape(self) -> tuple[int, ...]:
        """Of a frame as it is read."""
        return self.frame_shape if self._side is None else (self._side, self._side, 3)

    @property
    def image_size(self) -> int:
        """Pixels a side, as read; frames that are not square must be converted first."""
        if self._side is not None:
            return self._side
        height, width, _ = self._store.frame_shape
        if height != width:
            raise UserError(
                f"frames of {self.path} are {height} x {width}, needed square ones; run: "
                f"sdjepa data convert {self.path} OUT --size {min(height, width)}"
            )
        return height

    def require(self, size: int) -> "Episodes":
        """Itself, if its frames as read are of `size` pixels, as a model needs them."""
        if self.image_size != size:
            raise UserError(
                f"{self.path} has frames of {self.image_size} pixels, the model reads {size}; "
                "name data that fit it by --data"
            )
        return self

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of a row of every stored column but pixels; nothing is read."""
        return self._store.shapes

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column but pixels."""
        return (*self._store.shapes, "episode_idx", "step_idx")

    def beside(self, name: str) -> Path:
        """Where something made of this dataset goes: within ours, beside those of others."""
        if self.ours:
            return self.path / name
        whole = self.path.resolve() if self.path.name in ("", "..") else self.path
        return whole.with_name(f"{whole.name}.{name}")

    @property
    def fingerprint(self) -> str:
        """Tells these frames from others: their SHA-256, or of others' files size and time."""
        pixels = self.info.get("columns", {}).get("pixels", {}).get("sha256")
        if pixels:
            return pixels
        place = self.path if self.path.is_dir() else self.path.parent
        found = sorted(place.rglob("*")) if self.path.is_dir() else [self.path]
        files = [
            (str(each.relative_to(place)), each.stat()) for each in found if each.is_file()
        ]  # however the path was written
        said = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()

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
        mean, std = (np.asarray(moments[name], dtype=np.float64) for name in ("mean", "std"))
        if not (np.isfinite(mean).all() and np.isfinite(std).all()):
            raise UserError(f"{self.path}: action statistics are not finite; collect it again")
        return ActionStats(mean=mean, std=std)

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
        native = self._store.frame_shape
        shape = self.read_shape
        frames = np.empty((len(wanted), *shape), np.uint8) if out is None else out
        decoded = frames if same else np.empty((len(unique), *shape), np.uint8)

        def decode(start: int) -> None:
            stretch = slice(start, start + _BLOCK)
            if self._side is None:
                self._store.decode(unique[stretch], decoded[stretch])
                return
            whole = np.empty((len(unique[stretch]), *native), np.uint8)
            self._store.decode(unique[stretch], whole)
            decoded[stretch] = reduce_frames(whole, self._side)

        pool = ThreadPoolExecutor(max_workers=min(_THREADS, cores()))
        try:
            blocks = pool.map(decode, range(0, len(unique), _BLOCK))
            for done, _ in enumerate(blocks, start=1):
                progress(min(done * _BLOCK, len(unique)), len(unique), "frames")
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupt does not wait for all the rest
        # mode="clip" writes straight into `out`; the default goes through a copy.
        return frames if same else np.take(decoded, places, axis=0, out=frames, mode="clip")

    def _env_origin(self) -> Origin:
        """A name that was guessed when a file was converted or packed is a guess still."""
        guessed = self.info.get("env_guessed", self.env == UNKNOWN)
        return "guessed" if guessed or not self.ours else "stated"

    def _describe(self) -> dict[str, Any]:
        """What `dataset.json` would say, for data that came without one."""
        split = make_split(len(self), seed=0, validation=0.05, test=0.05)
        moments = action_moments(self.column("action"), rows_in(self.lengths, split["train"]))
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
