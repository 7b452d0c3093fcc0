"""Collection: the seed decides every byte; a kill costs time, not data; errors leave nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from sdjepa.config import Collect
from sdjepa.data import collect as collecting
from sdjepa.data.collect import collect
from sdjepa.data.episodes import Episodes
from sdjepa.envs import base
from sdjepa.errors import UserError

SETTINGS = Collect(env="tworoom", episodes=24, steps=40, size=32, seed=3, workers=1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return collect(SETTINGS, tmp_path_factory.mktemp("data") / "set")


def checksums(path: Path) -> dict[str, str]:
    columns = json.loads((path / "dataset.json").read_text())["columns"]
    return {name: column["sha256"] for name, column in columns.items()}


def test_the_number_of_workers_changes_no_byte(dataset, tmp_path, monkeypatch):
    # Twelve parts instead of two, so that each of four workers has some.
    monkeypatch.setattr(base.env_class("tworoom"), "rows_between_saves", 2 * 41)
    other = collect(SETTINGS.model_copy(update={"workers": 4}), tmp_path / "set")
    assert checksums(other) == checksums(dataset)
    with h5py.File(other / "episodes.h5") as ours, h5py.File(dataset / "episodes.h5") as theirs:
        for row in (0, 500, 983):
            chunks = (
                file["pixels"].id.read_direct_chunk((row, 0, 0, 0)) for file in (ours, theirs)
            )
            assert next(chunks) == next(chunks)
    assert Episodes.open(other).split_hash == Episodes.open(dataset).split_hash


def test_another_seed_gives_other_episodes(dataset, tmp_path):
    other = collect(SETTINGS.model_copy(update={"seed": 4, "episodes": 3}), tmp_path / "set")
    assert checksums(other)["proprio"] != checksums(dataset)["proprio"]


def test_episodes_are_distinct_and_an_episode_does_not_depend_on_its_neighbours(dataset, tmp_path):
    few = Episodes.open(collect(SETTINGS.model_copy(update={"episodes": 5}), tmp_path / "set"))
    many = Episodes.open(dataset)
    rows = slice(0, few.num_rows)
    assert np.array_equal(few.column("proprio"), many.column("proprio")[rows])
    firsts = many.column("proprio")[many.offsets]
    assert len(np.unique(firsts, axis=0)) == len(many)


def test_recorded_actions_lead_from_row_to_row(dataset):
    """Replaying row t's action from row t's state must give row t + 1, at every row."""
    env = base.make("tworoom")
    with Episodes.open(dataset) as episodes:
        rows = np.flatnonzero(~np.isnan(episodes.column("action")).any(1))[::17]
        for row in rows:
            env.set_state(episodes.row(row))
            env.step(episodes.column("action")[row])
            assert np.array_equal(env.observe()["proprio"], episodes.column("proprio")[row + 1])
        frame = episodes.frames([rows[0]])[0]
        env.set_state(episodes.row(rows[0]))
        assert np.array_equal(env.render(32), frame)


def test_only_the_last_action_of_an_episode_is_missing(dataset):
    with Episodes.open(dataset) as episodes:
        missing = np.isnan(episodes.column("action")).any(1)
        assert np.array_equal(np.flatnonzero(missing), episodes.offsets + episodes.lengths - 1)
        assert (episodes.lengths == 41).all()


def test_no_episode_is_on_two_sides_and_none_is_lost(dataset):
    with Episodes.open(dataset) as episodes:
        sides = [episodes.episode_ids(s) for s in ("train", "validation", "test")]
        assert sorted(np.concatenate(sides)) == list(range(24))
        assert all(len(side) for side in sides)


def test_action_statistics_come_from_training_episodes_only(dataset):
    with Episodes.open(dataset) as episodes:
        rows = np.isin(episodes.column("episode_idx"), episodes.episode_ids("train"))
        action = episodes.column("action")[rows].astype(np.float64)
        action = action[~np.isnan(action).any(1)]
        stats = episodes.action_stats()
        assert np.allclose(stats.mean, action.mean(0), atol=1e-12)
        assert np.allclose(stats.std, action.std(0), atol=1e-12)


@pytest.mark.slow
def test_a_killed_collection_continues_to_the_same_bytes(dataset, tmp_path):
    out = tmp_path / "set"
    script = (
        "from pathlib import Path\n"
        "from sdjepa.config import Collect\n"
        "from sdjepa.data.collect import collect\n"
        f"settings = Collect.model_validate_json({SETTINGS.model_dump_json()!r})\n"
        f"collect(settings, Path({str(out)!r}))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script])
    while not list(out.glob(".collect/part-*")):
        assert child.poll() is None
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert not (out / "episodes.h5").exists()
    with pytest.raises(UserError, match="unfinished"):
        Episodes.open(out)
    with pytest.raises(UserError, match="unfinished collection with seed = 3"):
        collect(SETTINGS.model_copy(update={"seed": 5}), out)
    collect(SETTINGS, out)
    assert checksums(out) == checksums(dataset)
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


def test_a_finished_dataset_is_not_overwritten(dataset):
    with pytest.raises(UserError, match="already holds a dataset"):
        collect(SETTINGS, dataset)


def test_frames_come_in_the_order_asked_for_repeats_included(dataset):
    with Episodes.open(dataset) as episodes:
        whole = episodes.frames(np.arange(episodes.num_rows))
        asked = np.array([7, 900, 7, 0, 411])
        assert np.array_equal(episodes.frames(asked), whole[asked])
        assert len(np.unique(whole.reshape(len(whole), -1), axis=0)) > 500


def test_a_plain_hdf5_program_with_the_plug_in_reads_the_same_frames(dataset):
    pytest.importorskip("hdf5plugin")
    with Episodes.open(dataset) as episodes:
        ours = episodes.frames(np.arange(50))
    with h5py.File(dataset / "episodes.h5") as file:
        assert np.array_equal(file["pixels"][:50], ours)
