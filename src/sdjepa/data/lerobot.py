"""LeRobot v3 datasets in a local folder: parquet rows and video files in, whole episodes out.

    meta/info.json                     features, rates, path patterns
    meta/episodes/chunk-*/file-*       one row per episode: its length, where its rows and video are
    data/chunk-*/file-*.parquet        rows of many episodes
    videos/CAMERA/chunk-*/file-*.mp4   frames of many episodes, end to end

Names with dots become names with underscores; the action column becomes `action`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from sdjepa.errors import UserError
from sdjepa.runs import read_json

_BOOKKEEPING = {"timestamp", "frame_index", "episode_index", "index", "task_index"}


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
        try:
            return LeRobot._open(path, camera, action)
        except KeyError as error:
            raise UserError(f"{path}: its meta folder lacks {error}; fetch it again") from error

    @staticmethod
    def _open(path: Path, camera: str | None, action: str | None) -> "LeRobot":
        info = read_json(path / "meta" / "info.json")
        if not str(info.get("codebase_version", "")).startswith("v3"):
            raise UserError(
                f"{path} is LeRobot {info.get('codebase_version')}, needed v3; convert it with "
                "LeRobot's own tool first"
            )
        features = info["features"]
        cameras = [name for name, f in features.items() if f["dtype"] in ("video", "image")]
        if camera is None and len(cameras) != 1:
            raise UserError(
                f"{path} has the cameras {', '.join(cameras) or '(none)'}; choose with --camera"
            )
        chosen = camera or cameras[0]
        if chosen not in cameras:
            raise UserError(f"{path} has no camera {chosen!r}; it has {', '.join(cameras)}")
        name = action or "action"
        if name not in features or features[name]["dtype"] not in ("float32", "float64"):
            numeric = [n for n, f in features.items() if f["dtype"].startswith("float")]
            raise UserError(
                f"{path} has no float feature {name!r}; choose --action from {', '.join(numeric)}"
            )
        episodes = _rows_of(path, sorted((path / "meta" / "episodes").glob("*/*.parquet")))
        return LeRobot(path, info, chosen, name, sorted(episodes, key=_number))

    def __len__(self) -> int:
        return len(self.episodes)

    def __iter__(self) -> Iterator[tuple[dict[str, np.ndarray], UInt8[np.ndarray, "n h w 3"]]]:
        """Columns and frames of every episode, in order."""
        try:
            yield from self._each()
        except KeyError as error:
            raise UserError(f"{self.path} lacks {error}; fetch it again") from error

    def _each(self) -> Iterator[tuple[dict[str, np.ndarray], UInt8[np.ndarray, "n h w 3"]]]:
        tables: dict[Path, dict[int, list[dict[str, Any]]]] = {}
        for episode in self.episodes:
            where = {
                "chunk_index": episode["data/chunk_index"],
                "file_index": episode["data/file_index"],
            }
            table = self.path / self.info["data_path"].format(**where)
            if table not in tables:
                grouped: dict[int, list[dict[str, Any]]] = {}
                for row in _rows_of(self.path, [table]):
                    grouped.setdefault(_number(row), []).append(row)
                tables = {table: grouped}  # one file at a time in memory
            rows = tables[table].get(_number(episode), [])
            if len(rows) != episode["length"]:
                raise UserError(
                    f"{table} holds {len(rows)} rows of episode {_number(episode)}, needed "
                    f"{episode['length']}; fetch the dataset again"
                )
            rows.sort(key=lambda row: row["frame_index"])
            yield self._columns(rows), self._frames(episode, rows)

    def _columns(self, rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        columns = {}
        for name, feature in self.info["features"].items():
            numeric = feature["dtype"].startswith(("float", "int", "bool"))
            if numeric and name not in _BOOKKEEPING:
                values = np.asarray([row[name] for row in rows], dtype=feature["dtype"])
                columns[self._rename(name)] = values
        return columns

    def _rename(self, name: str) -> str:
        if name == self.action:
            return "action"
        return "action_unused" if name == "action" else name.replace(".", "_")

    def _frames(
        self, episode: dict[str, Any], rows: list[dict[str, Any]]
    ) -> UInt8[np.ndarray, "n h w 3"]:
        import cv2

        pictures: list[Any]
        if self.info["features"][self.camera]["dtype"] == "image":
            coded = [np.frombuffer(row[self.camera]["bytes"], np.uint8) for row in rows]
            pictures = [cv2.imdecode(picture, cv2.IMREAD_COLOR) for picture in coded]
        else:
            pictures = self._video(episode, len(rows))
        if any(picture is None for picture in pictures):
            raise UserError(f"{self.path}: a picture of {self.camera} is damaged; fetch it again")
        return np.stack([cv2.cvtColor(picture, cv2.COLOR_BGR2RGB) for picture in pictures])

    def _video(self, episode: dict[str, Any], count: int) -> list[np.ndarray]:
        import cv2

        prefix = f"videos/{self.camera}"
        where = {
            "video_key": self.camera,
            "chunk_index": episode[f"{prefix}/chunk_index"],
            "file_index": episode[f"{prefix}/file_index"],
        }
        path = self.path / self.info["video_path"].format(**where)
        if not path.exists():
            raise UserError(
                f"{self.path} has no video {path.name} of {self.camera}; fetch it again"
            )
        film = cv2.VideoCapture(str(path))
        first = round(episode[f"{prefix}/from_timestamp"] * self.info["fps"])
        film.set(cv2.CAP_PROP_POS_FRAMES, first)
        pictures = []
        while len(pictures) < count:
            ok, picture = film.read()
            if not ok:
                film.release()
                raise UserError(
                    f"{path}: frame {first + len(pictures)} cannot be decoded; the file is cut "
                    "off, or its codec unknown here: ffmpeg -i IN -c:v libx264 OUT helps then"
                )
            pictures.append(picture)
        film.release()
        return pictures


def _number(row: dict[str, Any]) -> int:
    return int(row["episode_index"])


def _rows_of(path: Path, files: list[Path]) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ModuleNotFoundError as error:
        raise UserError("reading LeRobot data needs: pip install pyarrow") from error
    if not files:
        raise UserError(f"{path} has no episode table under meta/episodes; fetch it again")
    try:
        return [row for file in files for row in parquet.read_table(file).to_pylist()]
    except (OSError, ArrowInvalid) as error:
        raise UserError(f"{path}: a parquet file is damaged ({error}); fetch it again") from error
