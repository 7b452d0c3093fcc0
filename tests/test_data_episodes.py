"""The on-disk format: foreign files are read as they are, damaged ones are refused in one line."""

import json
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import zstandard

from sdjepa.config import Collect
from sdjepa.data import hdf5, pictures
from sdjepa.data.collect import collect
from sdjepa.data.convert import convert
from sdjepa.data.episodes import Episodes
from sdjepa.data.frames import background
from sdjepa.data.layout import unusable
from sdjepa.errors import UserError
from small import foreign


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    settings = Collect(env="tworoom", episodes=4, steps=12, size=16, workers=1)
    return collect(settings, tmp_path_factory.mktemp("data") / "set")


def test_a_foreign_file_is_read_without_a_description(tmp_path):
    path = foreign(tmp_path / "a.h5", **{"privileged/block_0_pos": np.zeros((12, 3))})
    with Episodes.open(path) as episodes, h5py.File(path) as file:
        assert episodes.env == "tworoom"
        assert np.array_equal(episodes.frames([11, 2]), file["pixels"][:][[11, 2]])
        assert np.array_equal(np.flatnonzero(np.isnan(episodes.column("action"))[:, 0]), [4, 7, 11])
        assert episodes.column("episode_idx").tolist() == [0] * 5 + [1] * 3 + [2] * 4
        assert episodes.column("privileged_block_0_pos").shape == (12, 3)
        assert episodes.rows(1) == slice(5, 8)


@pytest.mark.parametrize("chunks", [None, (4, 8, 8, 3), (1, 8, 8, 3)])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_other_storage_of_frames_gives_the_same_frames(tmp_path, chunks, compression):
    path = foreign(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        wanted = file["pixels"][:]
        del file["pixels"]
        if compression and chunks is None:
            chunks = True
        file.create_dataset("pixels", data=wanted, chunks=chunks, compression=compression)
    with Episodes.open(path) as episodes:
        assert np.array_equal(episodes.frames([3, 4, 5, 9, 0, 3]), wanted[[3, 4, 5, 9, 0, 3]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixels": None}, "no column 'pixels'.*write it: uint8 frames"),
        ({"action": np.array([b"left"] * 12)}, r"action is \|S4 \(12,\), needed numbers"),
        ({"action": None}, "no column 'action'.*write it: floats"),
        ({"ep_len": None}, "no column 'ep_len'.*write it: how many rows"),
        ({"ep_offset": None}, "no column 'ep_offset'.*write it: the running sum of ep_len, from 0"),
        ({"pixels": np.zeros((12, 8, 8, 3), np.float32)}, "float32.*store them as uint8, 0 to 255"),
        ({"pixels": np.zeros((12, 3, 8, 8), np.uint8)}, r"transpose to \(rows, height, width, 3\)"),
        ({"pixels": np.zeros((12, 3, 8, 8))}, "as uint8, 0 to 255, and transpose"),
        ({"pixels": np.zeros((12, 8, 8), np.uint8)}, "store three colours as the last axis"),
        ({"action": np.zeros((12, 2), np.int32)}, "int32.*needed float"),
        ({"proprio": np.zeros((11, 2))}, "proprio has 11 rows, pixels 12; write one row of"),
        ({"ep_len": np.array([5, 3, 9])}, "end at row 17 of 12; correct ep_len"),
        ({"ep_len": np.array([5, 3, 3])}, "end at row 11 of 12; correct ep_len"),
        (
            {"ep_offset": np.array([7, 4, 0]), "ep_len": np.array([5, 3, 4])},
            "episode 0 begins at row 7, and row 0 is next; write episodes one after another",
        ),
        ({"ep_offset": np.array([0, 5, 9])}, "episode 2 begins at row 9, and row 8 is next"),
        ({"ep_len": np.array([[5, 3, 4]])}, "write one number per episode"),
        ({"ep_len": np.array([5, 7])}, "ep_len has 2 entries, ep_offset 3"),
        ({"ep_len": np.array([5, 0, 7])}, "episode 1 has 0 rows; leave it out"),
        ({"ep_len": np.array([5, 3, 3.5])}, "ep_len are not whole numbers; store it as integers"),
        ({"ep_len": np.array([5, 3, np.nan])}, "ep_len are not whole numbers"),
        ({"ep_len": np.int64(12)}, r"ep_len has the shape \(\)"),
        ({"pixels": np.zeros((12, 0, 0, 3), np.uint8)}, "frames with pixels in them"),
        ({"action": np.zeros((12, 0), np.float32)}, "needed float"),
    ],
)
def test_a_file_that_is_no_dataset_is_refused_in_one_line(tmp_path, changes, message):
    with pytest.raises(UserError, match=message) as error:
        Episodes.open(foreign(tmp_path / "a.h5", **changes))
    assert "\n" not in str(error.value)
    assert "sdjepa collect" not in str(error.value), "nobody can collect his own data again"


def test_other_pictures_than_the_cameras_are_no_state(tmp_path):
    goal, scalar = np.zeros((12, 8, 8, 3), np.uint8), np.float64(3)
    with Episodes.open(foreign(tmp_path / "a.h5", goal=goal, version=scalar)) as data:
        assert set(data.columns) == {"action", "proprio", "episode_idx", "step_idx"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda info: [info], "has format None"),
        (lambda info: info | {"format": 0}, "has format 0"),
        (
            lambda info: {k: v for k, v in info.items() if k != "split"},
            "dataset.json: split: Field required",
        ),
        (
            lambda info: {k: v for k, v in info.items() if k != "env"},
            "dataset.json: env: Field required",
        ),
        (lambda info: info | {"split": info["split"] | {"test": [999]}}, "not one of 4 episodes"),
        (lambda info: info | {"action": {"mean": [0, 0], "std": [None, 1]}}, "are not finite"),
        (lambda info: info | {"action": {"mean": [0], "std": [1]}}, "not of 2 numbers"),
        (lambda info: info | {"action": None}, "action: "),
        (lambda info: info | {"split": [[0, 1, 2, 3]]}, "split: "),
        (lambda info: info | {"columns": []}, "columns: "),
        (lambda info: info | {"policy": "expert"}, "policy: "),
        (lambda info: info | {"collect": 3}, "collect: "),
        (lambda info: info | {"pack": {}}, "pack.offset: "),
    ],
)
def test_a_description_that_cannot_be_true_is_refused_in_one_line(
    dataset, tmp_path, change, message
):
    copy = tmp_path / "set"
    shutil.copytree(dataset, copy)
    info = json.loads((copy / "dataset.json").read_text())
    (copy / "dataset.json").write_text(json.dumps(change(info)))
    with pytest.raises(UserError, match=message) as error:
        Episodes.open(copy).action_stats()
    assert "\n" not in str(error.value)


def test_rows_without_their_description_can_be_had_again(dataset, tmp_path):
    """By the command that the error names."""
    copy, again = tmp_path / "set", tmp_path / "again"
    shutil.copytree(dataset, copy)
    (copy / "dataset.json").unlink()
    with pytest.raises(UserError, match="sdjepa data convert") as error:
        Episodes.open(copy)
    source = str(error.value).partition("sdjepa data convert ")[2].split()[0]
    with Episodes.open(convert(Path(source), again)) as data, Episodes.open(dataset) as whole:
        assert np.array_equal(data.column("state"), whole.column("state"))
        assert np.array_equal(data.frames(range(20)), whole.frames(range(20)))
    (copy / "episodes.h5").rename(copy / "elsewhere")
    (copy / "dataset.json").write_text("{}")
    with pytest.raises(UserError, match=r"dataset.json but no episodes.h5"):
        Episodes.open(copy)


def test_a_missing_dataset_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(UserError, match="sdjepa collect ENV --out"):
        Episodes.open(tmp_path / "nothing")
    with pytest.raises(UserError, match="sdjepa collect ENV --out"):
        Episodes.open(tmp_path)


@pytest.mark.parametrize("kept", [0.2, 0.6, 0.99])
def test_a_truncated_file_is_refused_in_one_line(dataset, tmp_path, kept):
    copy = tmp_path / "set"
    shutil.copytree(dataset, copy)
    data = (copy / "episodes.h5").read_bytes()
    (copy / "episodes.h5").write_bytes(data[: int(kept * len(data))])
    with pytest.raises(UserError, match="truncated") as error:
        Episodes.open(copy)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"copy or download it again$"):
        Episodes.open(copy / "episodes.h5")


def test_a_damaged_dataset_of_ours_names_the_command_that_makes_the_same_again(
    dataset, tmp_path, sdjepa
):
    copy = tmp_path / "a set"
    shutil.copytree(dataset, copy)
    (copy / "episodes.h5").write_bytes(b"")
    with pytest.raises(
        UserError, match=r"remove .* and make it again with: sdjepa collect"
    ) as error:
        Episodes.open(copy)
    shutil.rmtree(copy)
    words = shlex.split(str(error.value).partition("make it again with: sdjepa ")[2])
    assert sdjepa(*words)[0] == 0
    assert (copy / "episodes.h5").read_bytes() == (dataset / "episodes.h5").read_bytes()


def test_a_damaged_copy_is_not_said_to_be_made_by_what_made_its_source(dataset, tmp_path):
    copy = convert(dataset, tmp_path / "copy", size=8)
    (copy / "episodes.h5").write_bytes(b"")
    with pytest.raises(UserError, match=r"copy or download it again$"):
        Episodes.open(copy)


@pytest.fixture(params=["through HDF5", "past HDF5"])
def way(request, monkeypatch) -> None:
    """Few frames are read through HDF5, many past it: here all of them one way."""
    monkeypatch.setattr(hdf5, "_FEW", 10**9 if request.param == "through HDF5" else 0)


def rewritten(dataset: Path, copy: Path, chunks: dict[int, bytes]) -> Path:
    """A copy of a dataset in which other bytes are stored for some frames."""
    shutil.copytree(dataset, copy)
    with h5py.File(copy / "episodes.h5", "r+") as file:
        for row, chunk in chunks.items():
            file["pixels"].id.write_direct_chunk((row, 0, 0, 0), chunk)
    return copy


@pytest.mark.usefixtures("way")
def test_frames_are_those_of_a_decoder_that_takes_one_chunk_after_the_other(dataset, tmp_path):
    noise = np.random.default_rng(0).integers(0, 255, (2, 16, 16, 3), dtype=np.uint8)
    # Longer than what they replace, so they lie behind all others and in the opposite order.
    coded = {17: zstandard.compress(noise[0]), 5: zstandard.compress(noise[1])}
    copy = rewritten(dataset, tmp_path / "set", coded)
    with h5py.File(copy / "episodes.h5") as file:
        ids = [(row, 0, 0, 0) for row in range(len(file["pixels"]))]
        chunks = [file["pixels"].id.read_direct_chunk(place)[1] for place in ids]
    decoded = [np.frombuffer(zstandard.decompress(chunk), np.uint8) for chunk in chunks]
    wanted = np.stack(decoded).reshape(-1, 16, 16, 3)
    assert np.array_equal(wanted[[17, 5]], noise)
    with Episodes.open(copy) as episodes:
        for rows in (range(len(wanted)), [3, 4, 5, 6, 17, 30], [17, 2, 2, 40, 5]):
            assert np.array_equal(episodes.frames(rows), wanted[list(rows)])
            out = np.zeros((len(rows) + 2, 16, 16, 3), np.uint8)
            assert np.shares_memory(episodes.frames(rows, out=out[1:-1]), out)
            assert np.array_equal(out[1:-1], wanted[list(rows)])
            assert not out[[0, -1]].any()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    "chunk",
    [
        b"no zstd frame",
        zstandard.compress(bytes(16 * 16 * 3 - 1)),
        zstandard.compress(bytes(16 * 16 * 3 + 1)),
        zstandard.compress(bytes(2 * 16 * 16 * 3)),
        zstandard.compress(np.random.default_rng(0).bytes(16 * 16 * 3))[:-1],
    ],
    ids=["not zstd", "too short", "too long", "two frames", "cut off"],
)
def test_a_damaged_frame_is_the_users_to_know(dataset, tmp_path, chunk):
    with Episodes.open(rewritten(dataset, tmp_path / "set", {3: chunk})) as episodes:
        episodes.frames([2])
        for rows in ([2, 3], [3, 4], range(20)):
            with pytest.raises(UserError, match="damaged") as error:
                episodes.frames(rows)
            assert "\n" not in str(error.value)


@pytest.mark.usefixtures("way")
def test_whatever_byte_is_damaged_the_answer_is_frames_or_one_line(dataset, tmp_path):
    copy = tmp_path / "set"
    shutil.copytree(dataset, copy)
    data = (copy / "episodes.h5").read_bytes()
    rng = np.random.default_rng(0)
    refusals = []
    for _ in range(40):
        damaged = np.frombuffer(data, np.uint8).copy()
        damaged[rng.integers(0, len(data), 8)] ^= 0xFF
        (copy / "episodes.h5").write_bytes(damaged.tobytes())
        try:
            with Episodes.open(copy) as episodes:
                episodes.frames(range(episodes.num_rows))
        except UserError as error:
            refusals.append(str(error))
    assert len(refusals) > 20
    assert not any("\n" in refusal for refusal in refusals)


def test_an_unknown_column_is_answered_with_the_known_ones(dataset):
    with Episodes.open(dataset) as episodes, pytest.raises(UserError, match="pos_target"):
        episodes.column("qpos")


def test_the_description_says_what_the_file_holds(dataset):
    info = json.loads((dataset / "dataset.json").read_text())
    with h5py.File(dataset / "episodes.h5") as file:
        rows = set(file) - {"ep_len", "ep_offset"}
        assert set(info["columns"]) == rows
        for name in rows:
            assert list(file[name].shape[1:]) == info["columns"][name]["shape"]
            assert str(file[name].dtype) == info["columns"][name]["dtype"]


def test_frames_beyond_the_last_row_are_refused(dataset):
    with Episodes.open(dataset) as data:
        for rows in ([-1], [data.num_rows], [0, data.num_rows]):
            with pytest.raises(IndexError):
                data.frames(rows)


def test_the_background_is_that_of_training_episodes(tmp_path):
    pixels = np.zeros((12, 8, 8, 3), np.uint8)
    path = foreign(tmp_path / "a.h5", pixels=pixels)
    with Episodes.open(path) as data:
        held = [i for i in range(3) if i not in data.episode_ids("train")]
        for episode in held:
            pixels[data.rows(episode)] = 250
        for i in data.episode_ids("train"):
            pixels[data.rows(int(i))] = 7
    path = foreign(tmp_path / "b.h5", pixels=pixels)
    with Episodes.open(path) as data:
        assert (background(data) == 7).all()


def test_statistics_of_other_peoples_actions_are_of_their_training_episodes(tmp_path):
    with Episodes.open(foreign(tmp_path / "a.h5")) as data:
        rows = np.isin(data.column("episode_idx"), data.episode_ids("train"))
        action = data.column("action")[rows].astype(float)
        action = action[np.isfinite(action).all(1)]
        assert len(data.episode_ids("train")) < len(data)
        assert np.allclose(data.action_stats().mean, action.mean(0), atol=1e-12)


# --- files of others ---


def test_a_column_of_many_small_chunks_is_read_as_it_is(tmp_path):
    """As stable-worldmodel writes them: a row a chunk, of which HDF5 must not be asked at once."""
    path = foreign(tmp_path / "a.h5", lengths=(1500, 1200))
    values = np.random.default_rng(0).normal(size=(2700, 3)).astype(np.float32)
    with h5py.File(path, "r+") as file:
        file.create_dataset("state", data=values, chunks=(1, 3))
        file.create_dataset("empty", data=np.zeros((2700, 0)))
    with Episodes.open(path) as data:
        assert np.array_equal(data.column("state"), values)


def test_what_is_no_row_of_a_state_is_left_out(tmp_path):
    path = foreign(
        tmp_path / "a.h5", ep_seed=np.arange(3), depth=np.zeros((12, 64, 64), np.float32)
    )
    with Episodes.open(path) as data:
        assert set(data.columns) == {"action", "proprio", "episode_idx", "step_idx"}


def test_two_columns_of_one_name_are_refused(tmp_path):
    path = foreign(
        tmp_path / "a.h5", **{"arm/pose": np.zeros((12, 2)), "arm_pose": np.ones((12, 2))}
    )
    with pytest.raises(UserError, match="two columns are called 'arm_pose'; rename one"):
        Episodes.open(path)


@pytest.mark.parametrize("column", ["pixels", "action"])
def test_what_a_plug_in_decodes_is_read_whoever_has_imported_it(tmp_path, column):
    hdf5plugin = pytest.importorskip("hdf5plugin")
    path = foreign(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        values = file[column][:]
        del file[column]
        file.create_dataset(
            column, data=values, chunks=(4, *values.shape[1:]), **hdf5plugin.Blosc()
        )
    script = (
        "import sys, numpy as np; from pathlib import Path\n"
        "from sdjepa.data.episodes import Episodes\n"
        "assert 'hdf5plugin' not in sys.modules\n"
        f"with Episodes.open(Path({str(path)!r})) as data:\n"
        "    print(int(data.frames(range(12)).sum()), float(np.nansum(data.column('action'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    with Episodes.open(foreign(tmp_path / "b.h5")) as data:
        whole = int(data.frames(range(12)).sum()), float(np.nansum(data.column("action")))
    assert done.stdout.split() == [str(number) for number in whole]


def test_frames_and_actions_of_another_kind_are_refused_with_what_mends_them():
    frames, actions = np.zeros((5, 8, 8, 3), np.uint8), np.zeros((5, 2))
    assert unusable(frames, actions) is None
    for wrong, right, phrase in (
        (frames.transpose(0, 3, 1, 2), actions, "transpose to"),
        (frames[..., 0], actions, "three colours as the last axis"),
        (frames.astype(float), actions, "as uint8"),
        (frames, actions[:, 0], "one row for each frame"),
        (frames, actions.astype(int), "one row for each frame"),
    ):
        found = unusable(wrong, right)
        assert found is not None
        assert phrase in found[1]


def test_a_file_is_known_by_what_it_holds_not_by_its_name(tmp_path):
    path = foreign(tmp_path / "a.h5")
    with Episodes.open(path) as data, Episodes.open(path.rename(tmp_path / "bare")) as bare:
        assert np.array_equal(bare.frames(range(12)), data.frames(range(12)))


def test_a_missing_file_is_answered_by_names_like_it_and_by_a_folder_to_make(tmp_path):
    foreign(tmp_path / "fractions.h5")
    with pytest.raises(UserError) as error:
        Episodes.open(tmp_path / "absent.h5")  # whose ending alone is alike
    assert "did you mean" not in str(error.value)
    assert str(error.value).endswith(f"--out {tmp_path / 'absent'}")
    with pytest.raises(UserError, match=r"did you mean .*fractions\.h5"):
        Episodes.open(tmp_path / "fraction.hdf5")


def test_a_data_set_of_nothing_is_left_out(tmp_path):
    path = foreign(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        file["note"] = h5py.Empty("f4")
    with Episodes.open(path) as data:
        assert "note" not in data.columns


def test_of_chunks_of_many_rows_a_stretch_fits_the_cache(tmp_path):
    """Or each of them would be decoded once more for every few rows."""
    path = foreign(tmp_path / "a.h5", size=64, lengths=(600,), pixels=None)
    frames = np.random.default_rng(0).integers(0, 255, (600, 64, 64, 3), dtype=np.uint8)
    with h5py.File(path, "a") as file:
        file.create_dataset("pixels", data=frames, chunks=(600, 12, 12, 1), compression="lzf")
    with Episodes.open(path) as data:
        _, cache, _ = data._store._pixels.id.get_access_plist().get_chunk_cache()
        assert cache >= 600 * 72 * 72 * 3  # chunks reach over the edge; HDF5 takes 8 MB
        assert np.array_equal(data.frames(range(600)), frames)


def test_who_stops_a_reading_does_not_wait_for_the_rest(tmp_path, monkeypatch):
    path, decoded, decode = foreign(tmp_path / "a.h5", lengths=(6400,)), [], hdf5.Hdf5Store.decode

    def slowly(store, rows, out):
        time.sleep(0.005)
        decoded.append(rows)
        decode(store, rows, out)

    def stop(done, total, note=""):
        raise KeyboardInterrupt

    monkeypatch.setattr(hdf5.Hdf5Store, "decode", slowly)
    with Episodes.open(path) as data, pytest.raises(KeyboardInterrupt):
        data.frames(range(6400), progress=stop)
    assert len(decoded) < 100  # of 200


@pytest.mark.parametrize("several", [1, 3 * 8 * 8 * 3])
def test_what_is_read_of_pictures_is_the_same_in_stretches(tmp_path, monkeypatch, several):
    frames = np.random.default_rng(0).integers(0, 255, (12, 8, 8, 3), dtype=np.uint8)
    frames[[3, 4]], frames[7] = frames[2], 9
    with Episodes.open(foreign(tmp_path / "a.h5", pixels=frames)) as data:
        whole = pictures.read_pictures(data)
        monkeypatch.setattr(pictures, "STRETCH_BYTES", several)
        parts = pictures.read_pictures(data)
    assert whole.sha256 == parts.sha256
    assert parts.repeats.nonzero()[0].tolist() == whole.repeats.nonzero()[0].tolist() == [3, 4]
    assert parts.plain.nonzero()[0].tolist() == whole.plain.nonzero()[0].tolist() == [7]
