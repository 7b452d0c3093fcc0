"""LeRobot v3 datasets in a local folder: parquet rows and video files in, whole episodes out.

    meta/info.json                     features, rates, path patterns
    meta/episodes/chunk-*/file-*       one row per episode: its length, where its rows and video are
    data/chunk-*/file-*.parquet        rows of many episodes
    videos/CAMERA/chunk-*/file-*.mp4   frames of many episodes, end to end

Names with dots become names with underscores; the action column becomes `action`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from sdjepa.data.layout import OWN_COLUMNS, first_line, reduce_frames
from sdjepa.errors import UserError
from sdjepa.runs import read_json

_BOOKKEEPING = {"timestamp", "frame_index", "episode_index", "index", "task_index"}
_NUMBERS = ("float", "int", "uint", "bool")

# What descriptions and tables of other shapes than LeRobot's raise when they are read.
_MISFITS = (TypeError, ValueError, IndexError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class LeRobot:
    """An opened LeRobot dataset and which of its features are the camera and the action."""

    path: Path
    info: dict[str, Any]
    camera: str
    action: str
    episodes: list[dict[str, Any]]

    @staticmethod
    def open(path: Path, *, camera: str | None = None, action: str | None = None) -> "LeRobot":
        """`camera` and `action` name features; by default the only camera, and `action`."""
        with _readable(path / "meta"):
            return LeRobot._open(path, camera, action)

    @staticmethod
    def _open(path: Path, camera: str | None, action: str | None) -> "LeRobot":
        info = read_json(path / "meta" / "info.json")
        if not str(info.get("codebase_version", "")).startswith("v3"):
            raise UserError(
                f"{path} is LeRobot {info.get('codebase_version')}, needed v3; convert it with "
                "LeRobot's own convert_dataset_v21_to_v30 first"
            )
        features = info["features"]
        name = action or "action"
        if name not in features or features[name]["dtype"] not in ("float32", "float64"):
            numeric = [n for n, f in features.items() if f["dtype"].startswith("float")]
            raise UserError(
                f"{path} has no float feature {name!r}; choose --action from {', '.join(numeric)}"
            )
        chosen = _choose_camera(path, features, camera)
        _refuse_names(path, [_rename(n, action=name) for n in _columns(features)])
        episodes = _rows_of(path, sorted((path / "meta" / "episodes").glob("*/*.parquet")))
        if not episodes or any(int(episode["length"]) < 1 for episode in episodes):
            raise UserError(f"{path} has no episodes, or one without a row; fetch it again")
        return LeRobot(path, info, chosen, name, sorted(episodes, key=_number))

    def __len__(self) -> int:
        return len(self.episodes)

    def frame_shape(self) -> tuple[int, ...]:
        """Of the camera's pictures: height, width, colours."""
        with _readable(self.path):
            first = self.episodes[0]
            return next(self._pictures(first, self._rows(self._table(first), first))).shape

    def reduced(
        self, side: int
    ) -> Iterator[tuple[dict[str, np.ndarray], UInt8[np.ndarray, "n side side 3"]]]:
        """Columns and frames of every episode, in order; each frame is reduced as it comes."""
        with _readable(self.path):
            tables: dict[Path, _Table] = {}
            for episode in self.episodes:
                path = self._table_path(episode)
                if path not in tables:
                    tables = {path: self._table(episode)}  # one file at a time in memory
                rows = self._rows(tables[path], episode)
                pictures = self._pictures(episode, rows)
                frames = [reduce_frames(picture[None], side)[0] for picture in pictures]
                yield self._columns(rows), np.stack(frames)

    def _table_path(self, episode: dict[str, Any]) -> Path:
        where = {name: episode[f"data/{name}"] for name in ("chunk_index", "file_index")}
        return self.path / self.info["data_path"].format(**where)

    def _table(self, episode: dict[str, Any]) -> "_Table":
        grouped: _Table = {}
        for row in _rows_of(self.path, [self._table_path(episode)]):
            grouped.setdefault(_number(row), []).append(row)
        return grouped

    def _rows(self, table: "_Table", episode: dict[str, Any]) -> list[dict[str, Any]]:
        rows = table.get(_number(episode), [])
        if len(rows) != episode["length"]:
            raise UserError(
                f"{self._table_path(episode)} holds {len(rows)} rows of episode "
                f"{_number(episode)}, needed {episode['length']}; fetch the dataset again"
            )
        return sorted(rows, key=lambda row: row["frame_index"])

    def _columns(self, rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        columns = {}
        features = self.info["features"]
        for name in _columns(features):
            values = np.asarray([row[name] for row in rows], dtype=features[name]["dtype"])
            values = values.reshape(len(rows), *features[name]["shape"])
            columns[_rename(name, action=self.action)] = values
        return columns

    def _pictures(
        self, episode: dict[str, Any], rows: list[dict[str, Any]]
    ) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
        if self.info["features"][self.camera]["dtype"] == "image":
            return (self._still(row[self.camera]["bytes"]) for row in rows)
        return self._film(episode, len(rows))

    def _still(self, coded: bytes) -> UInt8[np.ndarray, "h w 3"]:
        import cv2

        picture = cv2.imdecode(np.frombuffer(coded, np.uint8), cv2.IMREAD_COLOR)
        if picture is None:
            raise UserError(f"{self.path}: a picture of {self.camera} is damaged; fetch it again")
        return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)

    def _film(self, episode: dict[str, Any], count: int) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
        """By PyAV, as LeRobot itself: OpenCV cannot read AV1, which most of its videos are."""
        try:
            import av
            from av.error import FFmpegError
        except ModuleNotFoundError as error:
            raise UserError("reading LeRobot's videos needs: pip install av") from error

        prefix = f"videos/{self.camera}"
        where = {name: episode[f"{prefix}/{name}"] for name in ("chunk_index", "file_index")}
        path = self.path / self.info["video_path"].format(video_key=self.camera, **where)
        if not path.exists():
            raise UserError(
                f"{self.path} has no video {path.relative_to(self.path)}; fetch it again"
            )
        begin, apart = float(episode[f"{prefix}/from_timestamp"]), 1 / float(self.info["fps"])
        found = 0
        try:
            with av.open(str(path)) as film:
                if not film.streams.video:
                    raise UserError(f"{path} is damaged (no pictures); fetch the dataset again")
                stream = film.streams.video[0]
                stream.thread_type = "AUTO"
                assert stream.time_base is not None
                film.seek(int(begin / stream.time_base), stream=stream)  # a key frame, or before
                for picture in film.decode(stream):
                    if picture.time is None or picture.time < begin - apart / 2:
                        continue
                    if abs(picture.time - begin - found * apart) > apart / 2:
                        raise UserError(
                            f"{path}: a picture is missing at {begin + found * apart:.3f} s (the "
                            f"next is at {picture.time:.3f} s); fetch it again, or correct "
                            f"meta/info.json where it does not have {1 / apart:g} a second"
                        )
                    yield picture.to_ndarray(format="rgb24")
                    found += 1
                    if found == count:
                        return
        except FFmpegError as error:
            raise UserError(
                f"{path} is damaged ({first_line(error)}); fetch the dataset again"
            ) from error
        raise UserError(f"{path} ends after {found} of {count} pictures; fetch the dataset again")


_Table = dict[int, list[dict[str, Any]]]  # rows of an episode, by its number


def _columns(features: dict[str, Any]) -> list[str]:
    """Features that are rows of numbers, and whose meaning a dataset of ours does not give anew."""
    numeric = [name for name, f in features.items() if f["dtype"].startswith(_NUMBERS)]
    return [name for name in numeric if name not in _BOOKKEEPING]


def _rename(name: str, *, action: str) -> str:
    if name == action:
        return "action"
    return "action_unused" if name == "action" else name.replace(".", "_")


def _refuse_names(path: Path, names: list[str]) -> None:
    """Refuse features that would be one column, or one that every dataset has anyway."""
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"{path} has two features that would be called {name!r}; rename one of them"
            )
        if name in OWN_COLUMNS:
            raise UserError(
                f"{path} has a feature {name!r}, as a column of every dataset is called; rename it"
            )


def _choose_camera(path: Path, features: dict[str, Any], asked: str | None) -> str:
    """The only camera, or the only one that ends as asked."""
    cameras = [name for name, f in features.items() if f["dtype"] in ("video", "image")]
    if not cameras:
        raise UserError(f"{path} has no camera, only {', '.join(features)}; nothing to learn from")
    if asked is None and len(cameras) > 1:
        raise UserError(f"{path} has the cameras {', '.join(cameras)}; choose one by --camera")
    fits = [name for name in cameras if asked in (None, name)]
    fits = fits or [name for name in cameras if name.endswith(f".{asked}")]
    if len(fits) > 1:
        raise UserError(f"{path} has several cameras {asked!r}: {', '.join(fits)}; name one whole")
    if not fits:
        raise UserError(f"{path} has no camera {asked!r}; it has {', '.join(cameras)}")
    return fits[0]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What is not as LeRobot writes it is said in one line."""
    try:
        yield
    except UserError:
        raise
    except KeyError as error:
        raise UserError(f"{path} lacks {error}; fetch it again") from error
    except _MISFITS as error:
        raise UserError(
            f"{path} does not read as LeRobot writes it ({first_line(error)}); fetch it again"
        ) from error


def _number(row: dict[str, Any]) -> int:
    return int(row["episode_index"])


def _rows_of(path: Path, files: list[Path]) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError as error:
        raise UserError("reading LeRobot data needs: pip install pyarrow") from error
    if not files:
        raise UserError(f"{path} has no episode table under meta/episodes; fetch it again")
    for file in files:
        if not file.exists():
            raise UserError(f"{path} has no {file.relative_to(path)}; fetch it again")
    try:
        return [row for file in files for row in parquet.read_table(file).to_pylist()]
    except (OSError, ArrowException) as error:
        raise UserError(f"{path}: a parquet file is damaged ({error}); fetch it again") from error
