"""LeRobot v3 folders: the right camera, in its own colours, every picture at its row."""

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from sdjepa.data.convert import convert
from sdjepa.data.episodes import Episodes
from sdjepa.errors import UserError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
av = pytest.importorskip("av")
cv2 = pytest.importorskip("cv2")

FPS, LENGTHS, SHAPE = 10, (7, 5), (64, 96, 3)
CODECS = {
    "av1": ("libsvtav1", {"g": "2", "crf": "30"}),  # LeRobot's own
    "h264": ("libx264", {"g": "250", "bf": "3"}),  # pictures that are not coded in order
}


def colour(camera: int, episode: int, step: int) -> list[int]:
    return [50 + 150 * camera, 30 + 60 * episode, 60 + 20 * step]


def lerobot(root: Path, *, kind: str, cameras: tuple[str, ...] = ("front",)) -> Path:
    """Two episodes in one table; camera number n has its films in file number n. `kind` is that of
    the films, or "image"."""
    names = [f"observation.images.{camera}" for camera in cameras]
    dtype = "image" if kind == "image" else "video"
    features = {
        **{name: {"dtype": dtype, "shape": list(SHAPE), "names": None} for name in names},
        "observation.state": {"dtype": "float32", "shape": [3], "names": None},
        "action": {"dtype": "float32", "shape": [2], "names": None},
        "wish": {"dtype": "float32", "shape": [3], "names": None},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
        "frame_index": {"dtype": "int64", "shape": [1], "names": None},
        "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    }
    info = {
        "codebase_version": "v3.0",
        "fps": FPS,
        "features": features,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    for folder in ("meta/episodes/chunk-000", "data/chunk-000"):
        (root / folder).mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    rng = np.random.default_rng(0)
    rows, episodes = [], []
    films: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for number, length in enumerate(LENGTHS):
        episode = {"episode_index": number, "length": length}
        episode |= {"data/chunk_index": 0, "data/file_index": 0}
        for which, name in enumerate(names):
            begin = {"from_timestamp": len(films[name]) / FPS}
            where = {"chunk_index": 0, "file_index": which, **begin}
            episode |= {f"videos/{name}/{key}": value for key, value in where.items()}
        episodes.append(episode)
        for step in range(length):
            row = {
                "observation.state": rng.normal(size=3).astype(np.float32).tolist(),
                "action": [float(number), float(step)],
                "wish": [7.0, 8.0, 9.0],
                "timestamp": step / FPS,
                "frame_index": step,
                "episode_index": number,
            }
            for which, name in enumerate(names):
                picture = np.full(SHAPE, colour(which, number, step), np.uint8)
                films[name].append(picture)
                if kind == "image":
                    coded = cv2.imencode(".png", picture[..., ::-1])[1].tobytes()
                    row[name] = {"bytes": coded, "path": None}
            rows.append(row)
    if kind != "image":
        for which, name in enumerate(names):
            path = root / f"videos/{name}/chunk-000/file-{which:03d}.mp4"
            path.parent.mkdir(parents=True)
            write_film(path, films[name], *CODECS[kind])
    parquet.write_table(pa.Table.from_pylist(rows[::-1]), root / "data/chunk-000/file-000.parquet")
    parquet.write_table(
        pa.Table.from_pylist(episodes[::-1]), root / "meta/episodes/chunk-000/file-000.parquet"
    )
    return root


def write_film(path: Path, pictures: list[np.ndarray], codec: str, options: dict[str, str]) -> None:
    with av.open(str(path), "w") as film:
        stream = film.add_stream(codec, rate=FPS, options=options)
        stream.height, stream.width, _ = SHAPE
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            film.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        film.mux(stream.encode())


@pytest.fixture(scope="module", params=CODECS)
def robot(tmp_path_factory, request) -> Path:
    return lerobot(tmp_path_factory.mktemp("robot") / "set", kind=request.param)


def test_every_row_has_its_own_picture_action_and_state(robot, tmp_path):
    with Episodes.open(convert(robot, tmp_path / "set", size=16)) as data:
        assert data.lengths.tolist() == list(LENGTHS)
        assert data.env == "unknown"
        assert data.column("action")[:6].tolist() == [[0, step] for step in range(6)]
        assert data.column("action")[7:11].tolist() == [[1, step] for step in range(4)]
        assert data.column("observation_state").shape == (12, 3)
        assert np.abs(colours_of(data) - wanted(0)).max() < 8
    with h5py.File(tmp_path / "set" / "episodes.h5") as file:
        assert np.flatnonzero(np.isnan(file["action"][:]).any(1)).tolist() == [6, 11]


def colours_of(data: Episodes) -> np.ndarray:
    return data.frames(range(12)).astype(float).mean((1, 2))


def wanted(camera: int) -> np.ndarray:
    places = [(number, step) for number, length in enumerate(LENGTHS) for step in range(length)]
    return np.array([colour(camera, *place) for place in places])


@pytest.mark.parametrize("kind", ["image", "h264"])
@pytest.mark.parametrize("which", [0, 1])
def test_of_two_cameras_the_one_asked_for_is_read(tmp_path, kind, which):
    cameras = ("front", "wrist")
    folder = lerobot(tmp_path / "robot", kind=kind, cameras=cameras)
    with pytest.raises(UserError, match=r"front, .*wrist; choose one by --camera"):
        convert(folder, tmp_path / "set", size=16)
    with Episodes.open(convert(folder, tmp_path / "set", size=16, camera=cameras[which])) as data:
        assert np.abs(colours_of(data) - wanted(which)).max() < 8


def test_an_action_asked_for_takes_the_place_of_the_other(tmp_path):
    folder = lerobot(tmp_path / "robot", kind="image")
    with Episodes.open(convert(folder, tmp_path / "set", size=16, action="wish")) as data:
        assert data.column("action")[0].tolist() == [7, 8, 9]
        assert data.column("action_unused")[8].tolist() == [1, 1]


def test_a_folder_asks_for_what_it_needs(robot, tmp_path):
    with pytest.raises(UserError, match="sdjepa data convert"):
        Episodes.open(robot)
    with pytest.raises(UserError, match=r"64 x 96.*--size"):
        convert(robot, tmp_path / "set")
    with pytest.raises(UserError, match=r"no camera 'wrist'; it has observation.images.front$"):
        convert(robot, tmp_path / "set", size=16, camera="wrist")
    with pytest.raises(UserError, match=r"choose --action from observation\.state, action"):
        convert(robot, tmp_path / "set", size=16, action="torque")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda robot: next(robot.rglob("*.mp4")).unlink(),
            "has no video videos/.*/chunk-000/file-000.mp4; fetch it again",
        ),
        (lambda robot: shutil.rmtree(robot / "meta" / "episodes"), "no episode table"),
        (lambda robot: next(robot.rglob("*.mp4")).write_bytes(b""), "file-000.mp4 is damaged"),
        (lambda robot: cut(next(robot.rglob("*.mp4"))), "file-000.mp4 is damaged"),
        (lambda robot: next(robot.glob("data/*/*")).unlink(), "has no data/chunk-000/file-000"),
        (lambda robot: cut(next(robot.glob("data/*/*"))), "a parquet file is damaged"),
        (lambda robot: describe(robot, features=None), "lacks 'features'"),
        (lambda robot: describe(robot, data_path=None), "lacks 'data_path'"),
        (lambda robot: describe(robot, data_path=3), "not read as LeRobot writes it"),
        (lambda robot: describe(robot, features=[]), "not read as LeRobot writes it"),
        (lambda robot: describe(robot, fps=0), "not read as LeRobot writes it"),
        (lambda robot: describe(robot, fps=5), "does not have 5 a second"),
        (lambda robot: describe(robot, fps="fast"), "not read as LeRobot writes it"),
        (lambda robot: (robot / "meta/info.json").write_text("[]"), "not read as LeRobot"),
        (lambda robot: change(robot, "episodes", from_timestamp=5.0), "ends after 0 of 7"),
        (lambda robot: change(robot, "episodes", from_timestamp=None), "not read as LeRobot"),
        (lambda robot: change(robot, "episodes", length=0), "one without a row"),
        (lambda robot: change(robot, "data", action=None), "not read as LeRobot"),
        (lambda robot: change(robot, "data", episode_index=0), "holds 12 rows of episode 0"),
    ],
)
def test_what_is_not_as_lerobot_writes_it_is_one_line(robot, tmp_path, spoil, message):
    copy = tmp_path / "robot"
    shutil.copytree(robot, copy)
    spoil(copy)
    with pytest.raises(UserError, match=message) as error:
        convert(copy, tmp_path / "set", size=16)
    assert "\n" not in str(error.value)
    assert str(error.value).count("fetch it again") <= 1
    assert not (tmp_path / "set").exists()


def describe(robot: Path, **said: Any) -> None:
    """Change what info.json says; None takes it away."""
    path = robot / "meta" / "info.json"
    info = {**json.loads(path.read_text()), **said}
    path.write_text(json.dumps({key: value for key, value in info.items() if value is not None}))


def change(robot: Path, table: str, **values: Any) -> None:
    """Put these values into every row of a table."""
    import pyarrow as pa
    from pyarrow import parquet

    (path,) = robot.rglob(f"{table}/*/*.parquet")
    rows = parquet.read_table(path).to_pylist()
    for row in rows:
        for end, value in values.items():
            row[next(key for key in row if key.endswith(end))] = value
    parquet.write_table(pa.Table.from_pylist(rows), path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def features_of(path: Path, **more: dict[str, Any]) -> None:
    """Have info.json say that there are more features."""
    file = path / "meta" / "info.json"
    info = json.loads(file.read_text())
    info["features"] |= more
    file.write_text(json.dumps(info))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("observation_state", "two features that would be called 'observation_state'"),
        ("ep_len", "a feature 'ep_len', as a column of every dataset is called; rename it"),
        ("pixels", "a feature 'pixels'"),
        ("step_idx", "a feature 'step_idx'"),
    ],
)
def test_features_whose_names_meet_ours_or_each_other_are_refused(tmp_path, name, told):
    path = lerobot(tmp_path / "set", kind="image")
    features_of(path, **{name: {"dtype": "float32", "shape": [2], "names": None}})
    with pytest.raises(UserError, match=told):
        convert(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_numbers_of_every_kind_are_kept(tmp_path):
    path = lerobot(tmp_path / "set", kind="image")
    file = path / "data/chunk-000/file-000.parquet"
    table, kinds = parquet.read_table(file), ("bool", "uint8", "uint16", "int8", "float64")
    for kind in kinds:
        values = pa.array([row["frame_index"] % 2 for row in table.to_pylist()])
        table = table.append_column(kind, values.cast(kind))
        features_of(path, **{kind: {"dtype": kind, "shape": [1], "names": None}})
    parquet.write_table(table, file)
    with Episodes.open(convert(path, tmp_path / "out", size=16)) as data:
        for kind in kinds:
            assert data.column(kind).dtype == kind
            assert data.column(kind)[:7].ravel().tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_a_camera_that_several_names_end_in_is_said_to_be_several(tmp_path):
    path = lerobot(tmp_path / "set", kind="image", cameras=("front", "side.front"))
    with pytest.raises(UserError, match=r"several cameras 'front': .*images\.front, .*side\.front"):
        convert(path, tmp_path / "out", camera="front")
