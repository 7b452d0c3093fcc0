"""Episodes in, a dataset directory out: DIR/episodes.h5 and DIR/dataset.json, whole or not at all.

The HDF5 layout is LeWM's: one flat dataset per column, `ep_len` and `ep_offset` beside them, frames
one per chunk. Chunks are zstd frames under HDF5's registered filter number, coded and decoded by
the `zstandard` package, so neither end needs an HDF5 plug-in; programs that have one read them too.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
from jaxtyping import Int

from sdjepa.data.packing import ZSTD_LEVEL, Packed
from sdjepa.data.sink import Sink
from sdjepa.errors import UserError
from sdjepa.interrupts import held
from sdjepa.runs import provenance, unwritable, write_json
from sdjepa.seeds import numpy_stream

ZSTD_FILTER = 32015  # HDF5's registered number for zstd
FORMAT = 1
FILE = "episodes.h5"
CARD = "dataset.json"
PARTIAL = f".{FILE}.partial"
DATASETS_HAVE = (FILE, ".collect", "meta/info.json")  # ours, one that is being made, LeRobot's
SPLITS = ("train", "validation", "test")


def refuse_dataset(path: Path) -> None:
    """Refuse to put anything else into a dataset; whoever makes it again removes all of it."""
    if any((path / name).exists() for name in DATASETS_HAVE):
        raise UserError(f"{path} is a dataset; name a folder of the run's own")


def refuse_taken(out: Path) -> None:
    """Refuse a place that holds anything, a dataset or not, or lies inside a dataset."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; name a folder of its own")
    if (out / FILE).exists():
        raise UserError(f"{out} already holds a dataset; remove it or choose another place")
    if out.resolve() == Path.cwd():
        raise UserError("the dataset would lie among the files here; name a folder of its own")
    for above in out.resolve().parents:
        if any((above / name).exists() for name in DATASETS_HAVE):
            raise UserError(f"{out} lies inside the dataset {above}; choose a place outside it")
    # What a writer that was killed left behind is written anew.
    others = {each.name for each in out.iterdir()} - {PARTIAL} if out.is_dir() else set()
    if others:
        first = ", ".join(sorted(others)[:3]) + (", ..." if len(others) > 3 else "")
        raise UserError(f"{out} holds other files ({first}); name a folder of its own")


class Writer:
    """Writes one dataset; leaving the block without `finish` leaves nothing behind.

    Ctrl-C waits for the end of each call: HDF5 calls the sink, and what is raised there is lost.
    """

    def __init__(self, out: Path, *, image_size: int, compress: bool = True) -> None:
        self._out = out
        self._size = image_size
        self._compress = compress
        self._temporary = out / PARTIAL
        self._lengths: list[int] = []
        self._columns: dict[str, list[np.ndarray]] = {}
        self._digests: list[np.ndarray] = []

    def __enter__(self) -> "Writer":
        opened = False
        try:
            with held():
                self._open()
                opened = True
        except KeyboardInterrupt as stop:  # which came before it was opened, or meanwhile
            if opened:
                self.__exit__(type(stop), stop, None)
            raise
        return self

    def _open(self) -> None:
        self._out.mkdir(parents=True, exist_ok=True)
        try:
            with self._told():
                self._sink = Sink(self._temporary)
        except UserError:
            self._remove_folder()
            raise
        if (self._out / FILE).exists():  # since this place was looked at
            self._undo()
            raise UserError(f"{self._out} holds a dataset that another process has just written")
        # v110: the chunks of a growing dataset are found through an array, not a tree.
        self._file = h5py.File(self._sink, "w", libver=("v110", "v110"))
        shape = (1, self._size, self._size, 3)
        self._pixels = _frame_dataset(self._file, shape, compress=self._compress)
        self._rows = 0

    @held()
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._undo()

    def _undo(self) -> None:
        """Leave nothing behind, but what was there and what is another's."""
        if self._sink.in_place():
            self._temporary.unlink()
        self._sink.close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        with contextlib.suppress(OSError):
            self._out.rmdir()  # where nothing else is in it

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What a disk refuses within is told in one line."""
        try:
            yield
        except BlockingIOError as error:
            raise UserError(
                f"{self._out} is being written by another process; wait for it, or choose another "
                "place"
            ) from error
        except OSError as error:
            then = ", and run the same command again"
            raise unwritable(self._out / FILE, error, then=then) from error

    @held()
    def add(self, episode: Packed) -> None:
        """Append one episode."""
        rows = len(episode.frames)
        for name, values in episode.columns.items():
            assert len(values) == rows, f"{name} has {len(values)} rows for {rows} frames"
            self._columns.setdefault(name, []).append(np.asarray(values))
        self._pixels.resize(self._rows + rows, axis=0)
        for i, chunk in enumerate(episode.frames):
            self._pixels.id.write_direct_chunk((self._rows + i, 0, 0, 0), chunk)
        with self._told():
            self._sink.check()
        self._digests.append(episode.digests)
        self._lengths.append(rows)
        self._rows += rows

    def finish(
        self,
        info: Mapping[str, Any],
        *,
        split: Mapping[str, Any],
        action: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write the columns and the description, and give the dataset its name.

        `action` gives the action statistics where they are not those of these training rows.
        """
        lengths = np.asarray(self._lengths)
        columns = self._settle(lengths)
        described = {name: describe(values) for name, values in columns.items()}
        pixels = hashlib.sha256(np.concatenate(self._digests).tobytes()).hexdigest()
        described["pixels"] = {
            "dtype": "uint8",
            "shape": [self._size, self._size, 3],
            "sha256": pixels,
            "sha256_of": "the SHA-256 digests of the raw frames, in row order",
        }
        record = {
            "format": FORMAT,
            **info,
            "num_episodes": len(lengths),
            "num_rows": int(lengths.sum()),
            "image_size": self._size,
            "action_dim": int(columns["action"].shape[1]),
            "columns": described,
            "action": action or action_moments(columns["action"], rows_in(lengths, split["train"])),
            "split": dict(split),
            **provenance(),
        }
        with held(), self._told():  # a dataset has both or none
            if not self._sink.in_place():
                raise BlockingIOError(f"{self._temporary} is another's")
            write_json(self._out / CARD, record)
            self._temporary.replace(self._out / FILE)
        return self._out

    @held()
    def _settle(self, lengths: Int[np.ndarray, "episodes"]) -> dict[str, np.ndarray]:
        """The columns, now in the file and all of it on the disk."""
        columns = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        columns["episode_idx"] = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        columns["step_idx"] = np.concatenate([np.arange(n, dtype=np.int64) for n in lengths])
        for name, values in columns.items():
            self._file.create_dataset(name, data=values)
        self._file.create_dataset("ep_len", data=lengths.astype(np.int32))
        offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
        self._file.create_dataset("ep_offset", data=offsets)
        self._file.close()
        with self._told():
            self._sink.settle()
        return columns


def _frame_dataset(
    file: h5py.File, chunk: tuple[int, int, int, int], *, compress: bool
) -> h5py.Dataset:
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_chunk(chunk)
    settings.set_obj_track_times(False)  # the same rows are to give the same file
    if compress:
        # Optional, or HDF5 would look for a plug-in that only its own coding path needs.
        settings.set_filter(ZSTD_FILTER, h5py.h5z.FLAG_OPTIONAL, (ZSTD_LEVEL,))
    space = h5py.h5s.create_simple((0, *chunk[1:]), (h5py.h5s.UNLIMITED, *chunk[1:]))
    kind = h5py.h5t.NATIVE_UINT8
    return h5py.Dataset(h5py.h5d.create(file.id, b"pixels", kind, space, settings))


def describe(values: np.ndarray) -> dict[str, Any]:
    """Schema, checksum and statistics of a column, these of its finite rows."""
    record: dict[str, Any] = {
        "dtype": str(values.dtype),
        "shape": list(values.shape[1:]),
        "sha256": hashlib.sha256(np.ascontiguousarray(values).data).hexdigest(),
    }
    if values.dtype.kind in "fiub":
        flat = values.reshape(len(values), -1).astype(np.float64)
        whole = flat[np.isfinite(flat).all(axis=1)]
        if len(whole):
            record["statistics"] = {
                "mean": whole.mean(0),
                "std": whole.std(0),
                "min": whole.min(0),
                "max": whole.max(0),
            }
    return record


def rows_in(lengths: np.ndarray, episodes: Sequence[int] | np.ndarray) -> np.ndarray:
    """Which rows belong to these episodes."""
    chosen = np.zeros(len(lengths), dtype=bool)
    chosen[np.asarray(episodes, dtype=np.int64)] = True
    return np.repeat(chosen, lengths)


def action_moments(action: np.ndarray, rows: np.ndarray) -> dict[str, list[float]]:
    """Mean and population standard deviation over training rows without NaN or infinity."""
    kept = action[rows].astype(np.float64)
    kept = kept[np.isfinite(kept).all(axis=1)]
    if not len(kept):
        raise UserError("no training row has an action; collect more or longer episodes")
    return {"mean": kept.mean(0).tolist(), "std": kept.std(0).tolist()}


def make_split(num_episodes: int, *, seed: int, validation: float, test: float) -> dict[str, Any]:
    """A seeded split by episode; of three or more, every share above 0 gets at least one."""
    if validation + test >= 1:
        raise UserError(
            f"collect.validation_share and collect.test_share add up to {validation + test:g} and "
            "must stay below 1: the rest is for training"
        )
    order = numpy_stream(seed, "split").permutation(num_episodes)
    counts = [
        0 if share == 0 or num_episodes < 3 else max(1, round(share * num_episodes))
        for share in (validation, test)
    ]
    if sum(counts) >= num_episodes and num_episodes:
        raise UserError(
            f"shares of {validation:g} and {test:g} of {num_episodes} episodes leave none for "
            "training; lower collect.validation_share or collect.test_share, or collect more"
        )
    ends = np.cumsum(counts)
    parts = {
        "validation": order[: ends[0]],
        "test": order[ends[0] : ends[1]],
        "train": order[ends[1] :],
    }
    return {"seed": seed} | {name: sorted(parts[name].tolist()) for name in SPLITS}
