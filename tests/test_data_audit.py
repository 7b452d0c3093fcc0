"""The audit passes what is right and fails what is wrong, each check for its own fault."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from sdjepa.config import Collect
from sdjepa.data import audit as auditing
from sdjepa.data.audit import audit
from sdjepa.data.card import card, task_floors
from sdjepa.data.collect import collect
from sdjepa.data.episodes import Episodes
from sdjepa.data.lag import lag_gains
from sdjepa.data.loader import normalise_actions
from sdjepa.data.pack import write_pack
from sdjepa.envs import base
from sdjepa.errors import UserError


@pytest.fixture(scope="module", params=["tworoom", "pusht"])
def dataset(request, tmp_path_factory) -> Path:
    settings = Collect(env=request.param, episodes=8, steps=40, size=32, workers=1)
    return collect(settings, tmp_path_factory.mktemp("data") / "set")


def verdicts(path: Path, **options) -> dict[str, str]:
    return {check.name: check.verdict for check in audit(path, **options)}


def spoil(dataset: Path, tmp_path: Path, change) -> Path:
    """A copy of the dataset after `change` has edited its HDF5 file."""
    copy = tmp_path / "set"
    shutil.copytree(dataset, copy)
    with h5py.File(copy / "episodes.h5", "r+") as file:
        change(file)
    return copy


def test_a_collected_dataset_passes_every_check(dataset):
    found = verdicts(dataset, replays=30)
    assert set(found.values()) == {"pass"}
    assert set(found) == {
        "structure",
        "lengths",
        "missing values",
        "split",
        "duplicates",
        "checksums",
        "pixels",
        "action lag",
        "replay",
        "frames",
    }
    assert (dataset / "audit.json").exists()


@pytest.mark.parametrize("shift", [-1, 1])
def test_actions_moved_by_a_row_fail_the_lag(dataset, tmp_path, shift):
    def change(file):
        action = np.nan_to_num(file["action"][:])
        file["action"][:] = np.roll(action, shift, axis=0)

    found = verdicts(spoil(dataset, tmp_path, change), replays=5)
    assert found["action lag"] == "fail"
    assert found["checksums"] == "fail"


def test_actions_of_another_episode_fail_the_replay(dataset, tmp_path):
    def change(file):
        action = np.nan_to_num(file["action"][:])
        file["action"][:] = np.roll(action, 41, axis=0)

    assert verdicts(spoil(dataset, tmp_path, change), replays=30)["replay"] == "fail"


def test_the_lag_is_found_where_the_step_is_the_action(tmp_path):
    """A walk whose steps are its actions: lag 0 explains all, the others what chance allows."""
    rng = np.random.default_rng(0)
    lengths = np.array([200, 300])
    action = rng.normal(size=(500, 2)).astype(np.float32)
    place = np.concatenate([np.cumsum(action[:200], 0) - action[:200], np.cumsum(action[200:], 0)])
    place[200:] -= action[200:]
    with h5py.File(tmp_path / "walk.h5", "w") as file:
        file["pixels"] = np.zeros((500, 4, 4, 3), np.uint8)
        file["action"] = action
        file["observation_state"] = place
        file["ep_len"] = lengths
        file["ep_offset"] = np.array([0, 200])
    with Episodes.open(tmp_path / "walk.h5") as data:
        gains = lag_gains(data, ["observation_state"])
    assert gains[0] > 0.999
    assert max(gains[-1], gains[1]) < 0.05


def test_a_moved_frame_fails_the_frames(dataset, tmp_path):
    def change(file):
        _, chunk = file["pixels"].id.read_direct_chunk((30, 0, 0, 0))
        file["pixels"].id.write_direct_chunk((0, 0, 0, 0), chunk)

    assert verdicts(spoil(dataset, tmp_path, change), replays=5)["frames"] == "fail"


def test_a_frame_that_no_redraw_looks_at_fails_the_pixels(dataset, tmp_path):
    def change(file):
        _, chunk = file["pixels"].id.read_direct_chunk((30, 0, 0, 0))
        file["pixels"].id.write_direct_chunk((37, 0, 0, 0), chunk)

    found = verdicts(spoil(dataset, tmp_path, change), replays=5, frames=2)
    assert (found["pixels"], found["frames"]) == ("fail", "pass")


def test_an_infinite_action_is_found(dataset, tmp_path):
    def change(file):
        file["action"][3, 0] = np.inf

    copy = spoil(dataset, tmp_path, change)
    assert verdicts(copy, replays=5)["missing values"] == "fail"
    assert card(copy, tasks=2).exists()
    with Episodes.open(copy) as data, pytest.raises(UserError, match="is infinite"):
        normalise_actions(data.column("action"), data.action_stats())


def test_a_pack_passes_the_audit_though_its_frames_between_are_black(dataset, tmp_path):
    with Episodes.open(dataset) as data:
        pack = write_pack(data, [(0, 1), (2, 5)], tmp_path / "pack", offset=25, protocol="lewm")
    found = verdicts(pack, replays=5)
    assert (found["frames"], found["pixels"]) == ("pass", "pass")


def test_what_is_found_is_told_where_nothing_can_be_written(dataset, tmp_path, monkeypatch):
    def full(path, value):
        raise UserError(f"could not write {path}")

    monkeypatch.setattr(auditing, "write_json", full)
    found = verdicts(dataset, replays=5)
    assert found.pop("record") == "warn"
    assert set(found.values()) == {"pass"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reacher", "cube"])
def test_what_mujoco_draws_passes_every_check_whoever_made_it(name, tmp_path):
    """Two workers, frames drawn in sheets, and a shadow map of another size, which is recorded."""
    settings = Collect(env=name, episodes=3, steps=45, size=32, workers=2, shadow=512)
    path = collect(settings, tmp_path / "set")
    assert set(verdicts(path, replays=20, frames=6, offset=20).values()) == {"pass"}
    assert "| Shadow map | 512" in (path / "card.md").read_text()
    alone = collect(settings.model_copy(update={"workers": 1}), tmp_path / "alone")
    ours, theirs = (json.loads((p / "dataset.json").read_text())["columns"] for p in (path, alone))
    assert ours == theirs


def test_an_episode_on_both_sides_of_the_split_is_found(dataset, tmp_path):
    with Episodes.open(dataset) as data:
        test, train = data.episode_ids("test")[0], data.episode_ids("train")[0]
        source, target = data.rows(int(test)), data.rows(int(train))

    def change(file):
        for name in file:
            if name not in ("pixels", "ep_len", "ep_offset", "episode_idx", "step_idx"):
                length = min(source.stop - source.start, target.stop - target.start)
                stretch = slice(source.start, source.start + length)
                file[name][target.start : target.start + length] = file[name][stretch]

    assert verdicts(spoil(dataset, tmp_path, change), replays=5)["duplicates"] == "fail"


def test_a_missing_action_within_an_episode_is_found(dataset, tmp_path):
    def change(file):
        file["action"][3] = np.nan

    assert verdicts(spoil(dataset, tmp_path, change), replays=5)["missing values"] == "fail"


def test_short_episodes_are_pointed_out(dataset):
    assert verdicts(dataset, replays=5, window_rows=100)["lengths"] == "fail"
    assert verdicts(dataset, replays=5, offset=40, window_rows=20)["lengths"] == "pass"
    assert verdicts(dataset, replays=5, offset=41, window_rows=20)["lengths"] == "warn"


def test_the_card_counts_tasks_that_need_nothing_done(dataset):
    env = base.make(Episodes.open(dataset).env)
    with Episodes.open(dataset) as data:
        here = task_floors(data, env, count=20, offset=0, budget=3)
        ahead = task_floors(data, env, count=20, offset=25, budget=3)
    assert here["solved_at_start_share"] == here["solved_by_doing_nothing_share"] == 1
    assert ahead["solved_at_start_share"] < 0.5
    assert ahead["solved_by_replaying_share"] == 1
    assert ahead["start_distance_quantiles"]["0.95"] > here["start_distance_quantiles"]["0.95"]


def test_collecting_leaves_a_card_with_a_picture(dataset):
    record = json.loads((dataset / "card.json").read_text())
    text = (dataset / "card.md").read_text()
    assert record["num_episodes"] == 8
    assert f"| Policy | {record['policy']['name']}" in text
    assert "solved by doing nothing" in text
    assert (dataset / "card.png").read_bytes().startswith(b"\x89PNG")
    assert card(dataset, tasks=5) == dataset / "card.md"
    # Wilson's interval of five of five.
    assert (
        "| ... solved by the recorded actions | 100 % (57 to 100) |"
        in (dataset / "card.md").read_text()
    )
