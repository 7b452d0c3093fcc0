"""Other people's datasets in, ours out, theirs again: the same rows every time."""

import errno
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest

from conftest import TINY
from sdjepa.config import Collect
from sdjepa.data import convert as convert_module
from sdjepa.data import frames as frames_module
from sdjepa.data.collect import collect
from sdjepa.data.convert import convert
from sdjepa.data.episodes import Episodes
from sdjepa.data.frames import frame_store
from sdjepa.data.pack import write_pack
from sdjepa.data.packing import pack
from sdjepa.data.writer import Writer, make_split
from sdjepa.envs import base
from sdjepa.errors import UserError
from sdjepa.resolve import resolve
from sdjepa.runs import Run
from sdjepa.train.loop import complete, train
from small import foreign


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    settings = Collect(env="tworoom", episodes=6, steps=30, size=32, workers=1)
    return collect(settings, tmp_path_factory.mktemp("data") / "set")


def test_a_copy_holds_the_same_columns_split_and_description(dataset, tmp_path):
    copy = convert(dataset, tmp_path / "copy")
    ours, theirs = (json.loads((p / "dataset.json").read_text()) for p in (dataset, copy))
    for key in ("columns", "split", "action", "env", "policy", "collect"):
        assert theirs[key] == ours[key], key


def test_uncompressed_frames_are_the_same_frames(dataset, tmp_path):
    import h5py

    copy = convert(dataset, tmp_path / "plain", compress=False)
    with Episodes.open(dataset) as ours, h5py.File(copy / "episodes.h5") as file:
        assert np.array_equal(file["pixels"][:], ours.frames(range(ours.num_rows)))


def test_a_smaller_copy_averages_areas(dataset, tmp_path):
    copy = convert(dataset, tmp_path / "small", size=16)
    with Episodes.open(dataset) as ours, Episodes.open(copy) as theirs:
        large = ours.frames([0, 40]).astype(float).reshape(2, 16, 2, 16, 2, 3).mean((2, 4))
        assert np.abs(theirs.frames([0, 40]) - large).max() <= 0.5


def test_two_that_write_to_one_place_do_not_mix(dataset, tmp_path):
    """The second is refused and takes nothing from the first, which finishes."""
    out = tmp_path / "out"
    with Episodes.open(dataset) as data:
        rows = data.rows(0)
        columns = {name: values for name, values in data.episode(0).items() if name[-4:] != "_idx"}
        packed = pack(columns, list(data.frames(range(rows.start, rows.stop))))
        with Writer(out, image_size=32) as first:
            first.add(packed)
            with pytest.raises(UserError, match="being written by another process; wait"):
                Writer(out, image_size=32).__enter__()
            first.add(packed)
            first.finish({"env": "tworoom"}, split=make_split(2, seed=0, validation=0, test=0))
        with pytest.raises(UserError, match="holds a dataset that another process"):
            Writer(out, image_size=32).__enter__()
        assert {each.name for each in out.iterdir()} == {"episodes.h5", "dataset.json"}
        with Episodes.open(out) as made:
            frames = data.frames(range(rows.start, rows.stop))
            assert np.array_equal(made.frames(range(made.num_rows)), np.concatenate([frames] * 2))


def test_without_locks_the_second_of_two_writers_has_the_place_and_the_first_is_told(
    dataset, tmp_path, monkeypatch
):
    """Which of them finishes is chance; that a file holds rows of both must not be."""
    monkeypatch.setattr("fcntl.flock", no_locks)
    out = tmp_path / "out"
    with Episodes.open(dataset) as data:
        one, other = (
            pack({"action": data.episode(i)["action"]}, list(data.frames(range(*ends(data, i)))))
            for i in (0, 1)
        )
        split = make_split(2, seed=0, validation=0, test=0)
        first = Writer(out, image_size=32).__enter__()
        first.add(one)
        with Writer(out, image_size=32) as second:
            second.add(other)
            first.add(one)
            with pytest.raises(UserError, match="being written by another process"):
                first.finish({"env": "tworoom"}, split=split)
            first.__exit__(None, None, None)
            second.add(other)
            second.finish({"env": "tworoom"}, split=split)
        with Episodes.open(out) as made:
            frames = data.frames(range(*ends(data, 1)))
            assert np.array_equal(made.frames(range(made.num_rows)), np.concatenate([frames] * 2))
            assert made.info["num_rows"] == made.num_rows


def ends(data, episode):
    rows = data.rows(episode)
    return rows.start, rows.stop


def no_locks(*given):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_a_failed_conversion_leaves_nothing(dataset, tmp_path):
    with pytest.raises(UserError, match="unknown environment"):
        convert(dataset, tmp_path / "out", env="threeroom")
    with pytest.raises(UserError, match="LeRobot folder only"):
        convert(dataset, tmp_path / "out", camera="front")
    assert not (tmp_path / "out").exists()


# --- the frame store ---


def test_the_frame_store_maps_the_frames_and_is_built_once(dataset, tmp_path):
    copy = convert(dataset, tmp_path / "copy")
    with Episodes.open(copy) as data:
        frames = data.frames(range(data.num_rows))
        assert np.array_equal(frame_store(data), frames)
        stamp = (copy / "frames-32.u8").stat().st_mtime_ns
        assert np.array_equal(frame_store(data, check=True), frames)
        assert (copy / "frames-32.u8").stat().st_mtime_ns == stamp


def test_a_frame_store_that_changed_is_not_used(dataset, tmp_path):
    copy = convert(dataset, tmp_path / "copy")
    with Episodes.open(copy) as data:
        frame_store(data)
        path = copy / "frames-32.u8"
        raw = bytearray(path.read_bytes())
        raw[1234] ^= 1
        path.write_bytes(raw)
        with pytest.raises(UserError, match="damaged"):
            frame_store(data, check=True)
        path.write_bytes(raw[:-1])
        with pytest.raises(UserError, match="cut off"):
            frame_store(data)


def test_of_several_that_need_a_store_one_builds_it(dataset, tmp_path, monkeypatch):
    copy = convert(dataset, tmp_path / "copy")
    (copy / ".frames-32.u8.partial").write_bytes(b"left behind by one that was killed")
    built, build = [], frames_module._build

    def slowly(*given, **named):
        built.append(time.monotonic())
        time.sleep(0.3)
        return build(*given, **named)

    monkeypatch.setattr(frames_module, "_build", slowly)

    def need() -> np.ndarray:
        with Episodes.open(copy) as data:
            return frame_store(data, check=True)

    with ThreadPoolExecutor(3) as pool:
        stores = [pool.submit(need) for _ in range(3)]
    assert len(built) == 1
    with Episodes.open(copy) as data:
        frames = data.frames(range(data.num_rows))
    assert all(np.array_equal(store.result(), frames) for store in stores)
    assert not list(copy.glob(".*partial"))


def test_without_locks_each_builds_a_store_and_all_are_whole(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", no_locks)
    monkeypatch.setattr(socket, "gethostname", lambda: f"host{next(hosts)}")  # one of a cluster's
    hosts, copy = itertools.count(), convert(dataset, tmp_path / "copy")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (copy / f".frames-32.u8.host0.{dead.pid}.partial").write_bytes(b"of one that was killed")

    def meanwhile(done: int, total: int, note: str = "") -> None:
        with Episodes.open(copy) as data:
            frame_store(data)

    with Episodes.open(copy) as data:
        made = frame_store(data, progress=meanwhile)
        assert np.array_equal(made, data.frames(range(data.num_rows)))
        assert next(hosts) == 2
        frame_store(data, check=True)
    assert not list(copy.glob(".*partial"))


def test_a_conversion_that_is_stopped_while_it_reads_reads_no_further(tmp_path, monkeypatch):
    source, read, frames = foreign(tmp_path / "a.h5", lengths=(3,) * 20), [], Episodes.frames

    def reading(data, rows, **named):
        read.append(rows)
        if len(read) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return frames(data, rows, **named)

    monkeypatch.setattr(Episodes, "frames", reading)
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out")
    assert len(read) == 2
    assert not (tmp_path / "out").exists()


def test_frames_are_reduced_as_they_are_read(dataset, tmp_path, monkeypatch):
    """Whole episodes of a camera's pictures would wait in memory, several of them."""
    shapes, packed = [], convert_module._packed

    def spied(first, rest, *given):
        def seen():
            for episode in rest:
                shapes.append(episode[1].shape[1:])
                yield episode

        return packed(first, seen(), *given)

    monkeypatch.setattr(convert_module, "_packed", spied)
    convert(dataset, tmp_path / "out", size=16)
    assert set(shapes) == {(16, 16, 3)}


def test_a_store_is_found_however_its_file_is_named(tmp_path, monkeypatch):
    foreign(tmp_path / "a.h5", lengths=(12, 8))
    monkeypatch.chdir(tmp_path)
    for path in (Path("a.h5"), tmp_path / "a.h5", Path("../") / tmp_path.name / "a.h5"):
        with Episodes.open(path) as data:
            frame_store(data, check=True)  # made once, and then of this very dataset
    assert len(list(tmp_path.glob("*.u8"))) == 1


def test_two_files_in_one_folder_have_a_store_each_and_a_changed_file_is_noticed(tmp_path):
    for name, grey in (("a.h5", 10), ("b.h5", 200)):
        foreign(tmp_path / name, lengths=(12, 8), pixels=np.full((20, 8, 8, 3), grey, np.uint8))
    for name, grey in (("a.h5", 10), ("b.h5", 200)):
        with Episodes.open(tmp_path / name) as data:
            assert (frame_store(data, check=True) == grey).all()
    foreign(tmp_path / "b.h5", lengths=(12, 8))
    with Episodes.open(tmp_path / "b.h5") as data, pytest.raises(UserError, match="not of this"):
        frame_store(data)


def test_frames_opened_smaller_are_those_of_a_smaller_copy(dataset, tmp_path):
    copy = convert(dataset, tmp_path / "small", size=16)
    large = convert(dataset, tmp_path / "large")
    with Episodes.open(copy) as small, Episodes.open(large, size=16) as data:
        assert data.image_size == 16
        rows = [5, 90, 5, 0]
        assert np.array_equal(data.frames(rows), small.frames(rows))
        assert np.array_equal(frame_store(data), small.frames(range(small.num_rows)))
        assert (large / "frames-16.u8").exists()
    with Episodes.open(copy, size=64) as data:
        assert data.image_size == 16  # nothing is invented


def test_a_model_of_a_smaller_picture_trains_wherever_frames_wait(dataset, tmp_path):
    """Larger recorded frames are reduced on the way, and every way gives the same losses."""
    found = []
    for where in ("device", "host", "disk"):
        copy = convert(dataset, tmp_path / f"data-{where}")
        sets = [f"data.path={copy}", f"data.frames_on={where}", *TINY]
        sets += ["model.image_size=16", "model.patch=8", "train.steps=2", "train.batch=2"]
        run = Run.create(tmp_path / where, complete(resolve(settings=sets)))
        train(run)
        found.append([record["loss"] for record in run.metrics() if "loss" in record])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 2


# --- evaluation packs ---


def test_a_pack_stands_in_for_its_dataset_when_tasks_are_placed(dataset, tmp_path):
    starts, offset = [(0, 3), (4, 0), (4, 5)], 25
    env = base.make("tworoom")
    with Episodes.open(dataset) as data:
        pack = Episodes.open(
            write_pack(data, starts, tmp_path / "pack", offset=offset, protocol="strict", seed=42)
        )
        for number, (episode, step) in enumerate(starts):
            first = data.rows(episode).start + step
            small = pack.rows(number)
            assert small.stop - small.start == offset + 1
            assert np.array_equal(
                pack.frames([small.start, small.stop - 1]), data.frames([first, first + offset])
            )
            env.set_state(pack.row(small.start))
            env.set_goal(pack.row(small.stop - 1))
            for action in pack.column("action")[small.start : small.stop - 1]:
                env.step(action)
            assert env.distance() < 1e-4
        assert np.array_equal(pack.action_stats().mean, data.action_stats().mean)
        assert np.array_equal(pack.action_stats().std, data.action_stats().std)
        assert pack.episode_ids("test").tolist() == [0, 1, 2]
        with pytest.raises(UserError, match="no goal lies 25"):
            write_pack(data, [(0, 7)], tmp_path / "other", offset=offset, protocol="lewm", seed=42)
        assert not (tmp_path / "other").exists()
        with pytest.raises(UserError, match="a pack already"):
            write_pack(pack, [(0, 0)], tmp_path / "other", offset=2, protocol="lewm", seed=42)
        with pytest.raises(UserError, match="is a pack; convert the dataset it was made from"):
            convert(pack.path, tmp_path / "other")  # its black frames would be taken for frames


# --- stable-worldmodel ---


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("stable_worldmodel")


@pytest.mark.slow
def test_stable_worldmodel_reads_our_file_as_it_is(dataset, library):
    from stable_worldmodel.data.utils import load_dataset

    with Episodes.open(dataset) as ours:  # closed first: HDF5 refuses one file in two modes
        rows = slice(ours.rows(2).start + 5, ours.rows(2).start + 15)
        frames, action = ours.frames(range(rows.start, rows.stop)), ours.column("action")
        lengths = ours.lengths
    theirs = load_dataset(str((dataset / "episodes.h5").resolve()))
    assert np.array_equal(theirs.lengths, lengths)
    (chunk,) = theirs.load_chunk(np.array([2]), np.array([5]), np.array([15]))
    assert np.array_equal(chunk["pixels"].numpy().transpose(0, 2, 3, 1), frames)
    assert np.array_equal(chunk["action"].numpy(), action[rows])
    assert np.array_equal(theirs.get_col_data("action"), action, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hdf5", "lance", "folder", "video"])
def test_a_file_made_by_stable_worldmodel_is_read_unchanged(kind, library, tmp_path, monkeypatch):
    import multiprocessing

    from stable_worldmodel.envs.two_room import ExpertPolicy

    path = tmp_path / {"hdf5": "set.h5", "lance": "set.lance"}.get(kind, "set")
    world = library.World("swm/TwoRoom-v1", num_envs=2, image_shape=(64, 64), max_episode_steps=40)
    policy = ExpertPolicy(action_noise=1.0, seed=0)
    policy.action_repeat_prob = 0.0
    world.set_policy(policy)
    world.collect(str(path), episodes=3, seed=0, format=kind, progress=False)
    method = multiprocessing.get_start_method(allow_none=True)
    env = base.make("tworoom")
    with Episodes.open(path) as data:
        assert multiprocessing.get_start_method(allow_none=True) == method
        assert data.env == "tworoom"
        assert data.image_size == 64
        with monkeypatch.context() as patch:
            patch.chdir(path if path.is_dir() else path.parent)
            here = Episodes.open(Path() if path.is_dir() else Path(path.name))
            assert here.beside("card.md").resolve() == tmp_path / f"{path.name}.card.md"
        whole = data.frames(range(data.num_rows))
        some = np.array([3, data.num_rows - 1, 24, 3])
        assert np.array_equal(data.frames(some), whole[some])
        # Its actions belong to their rows, but the last of an episode is the first once more.
        for row in range(0, data.num_rows - 1, 5):
            action = data.column("action")[row]
            if not np.isnan(action).any():
                env.set_state(data.row(row))
                env.step(action)
                after = data.column("proprio")[row + 1]
                assert np.allclose(env.observe()["proprio"], after, atol=1e-3)
        assert np.isnan(data.column("action")[data.offsets + data.lengths - 1]).all()
        assert data.column("step_idx")[0] == 0
    copy = convert(path, tmp_path / "copy")
    with Episodes.open(copy) as data:
        assert np.array_equal(data.frames(range(data.num_rows)), whole)
    assert_trains(path, tmp_path / "run")


@pytest.mark.slow
def test_a_cut_lance_table_is_one_line_that_says_why(library, tmp_path):
    import lance
    import pyarrow

    path = tmp_path / "set.lance"
    lance.write_dataset(pyarrow.table({"episode_idx": [0, 0]}), str(path))
    for part in ("_versions/*.manifest", "data/*.lance"):
        (file,) = path.glob(part)
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(UserError, match=r"no dataset that can be read \(.+\);") as error:
            Episodes.open(path)
        assert "\n" not in str(error.value)
        assert ".rs:" not in str(error.value)
        file.write_bytes(whole)


def assert_trains(path: Path, out: Path) -> None:
    """Two steps of a tiny model, straight from somebody else's file."""
    settings = [f"data.path={path}", *TINY, "model.image_size=64", "model.patch=16"]
    run = Run.create(out, complete(resolve(settings=[*settings, "train.steps=2", "train.batch=2"])))
    train(run)
    assert [record["step"] for record in run.metrics() if "loss" in record] == [1, 2]
    assert all(np.isfinite(record["loss"]) for record in run.metrics() if "loss" in record)


@pytest.mark.slow
def test_a_folder_that_is_nothing_is_refused_in_one_line(library, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match="no dataset that can be read;") as error:
        Episodes.open(tmp_path)
    assert "\n" not in str(error.value)


def test_a_copy_keeps_the_split_it_comes_with_whatever_the_seed(dataset, tmp_path):
    copy = convert(dataset, tmp_path / "copy", seed=5)
    assert Episodes.open(copy).split_hash == Episodes.open(dataset).split_hash


def test_a_converted_files_last_actions_are_missing_in_the_file_itself(tmp_path):
    copy = convert(foreign(tmp_path / "a.h5"), tmp_path / "copy")
    with h5py.File(copy / "episodes.h5") as file:
        missing = np.isnan(file["action"][:]).any(1)
    assert np.flatnonzero(missing).tolist() == [4, 7, 11]


def test_a_packs_tasks_end_within_their_episode_and_their_files_say_so(dataset, tmp_path):
    with Episodes.open(dataset) as data:
        with pytest.raises(UserError, match="no goal lies 15"):
            write_pack(data, [(0, 16)], tmp_path / "other", offset=15, protocol="lewm", seed=42)
        pack = write_pack(
            data, [(0, 15), (1, 2)], tmp_path / "pack", offset=15, protocol="lewm", seed=42
        )
    with h5py.File(pack / "episodes.h5") as file:
        missing = np.isnan(file["action"][:]).any(1)
    assert np.flatnonzero(missing).tolist() == [15, 31]


def test_a_dataset_made_anew_in_one_place_does_not_use_the_old_frames(tmp_path):
    old = tmp_path
    for seed in (0, 1):
        settings = Collect(env="tworoom", episodes=3, steps=4, size=16, workers=1, seed=seed)
        with Episodes.open(collect(settings, tmp_path / "set")) as data:
            if seed:
                for path in old.glob("frames-*"):
                    shutil.copy(path, data.path)
                with pytest.raises(UserError, match="not of this dataset"):
                    frame_store(data)
            else:
                frame_store(data)
        old = (tmp_path / "set").rename(tmp_path / f"old-{seed}")


def test_columns_of_the_library_that_would_be_one_are_refused(tmp_path, monkeypatch):
    """One of them was lost."""
    utils = pytest.importorskip("stable_worldmodel.data.utils")

    class Reader:
        lengths, offsets = np.array([4]), np.array([0])

        def load_chunk(self, episodes, starts, stops):
            columns = {"agent/pos": 2, "agent_pos": 3, "action": 2}
            chunk = {name: np.zeros((1, width), np.float32) for name, width in columns.items()}
            return [chunk | {"pixels": np.zeros((1, 3, 8, 8), np.uint8)}]

    monkeypatch.setattr(utils, "load_dataset", lambda path: Reader())
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "rows").touch()
    with pytest.raises(UserError, match="'agent/pos' and 'agent_pos' would be one; rename one"):
        Episodes.open(tmp_path / "set")
