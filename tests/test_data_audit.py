"""The audit passes what is right and fails what is wrong, each check for its own fault."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from sdjepa.config import Collect, Data
from sdjepa.data import audit as auditing
from sdjepa.data import check_actions
from sdjepa.data.audit import audit
from sdjepa.data.card import card
from sdjepa.data.collect import collect
from sdjepa.data.episodes import Episodes
from sdjepa.data.lag import lag_gains
from sdjepa.data.loader import find_windows
from sdjepa.data.pack import write_pack
from sdjepa.envs.base import env_class
from sdjepa.errors import UserError
from small import foreign


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
        "environment",
        "structure",
        "lengths",
        "missing values",
        "actions",
        "split",
        "duplicates",
        "checksums",
        "pixels",
        "action range",
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
    with Episodes.open(dataset) as data:
        row = data.rows(int(data.episode_ids("train")[0])).start + 3

    def change(file):
        file["action"][row, 0] = np.inf

    copy = spoil(dataset, tmp_path, change)
    assert verdicts(copy, replays=5)["missing values"] == "fail"
    assert card(copy, tasks=2).exists()
    with (
        Episodes.open(copy) as data,
        pytest.raises(UserError, match=rf"infinite in 1 row \({row}\)"),
    ):
        find_windows(data, Data(), split="train", batch=1)


def test_a_pack_passes_the_audit_though_its_frames_between_are_black(dataset, tmp_path):
    with Episodes.open(dataset) as data:
        pack = write_pack(
            data, [(0, 1), (2, 5)], tmp_path / "pack", offset=25, protocol="lewm", seed=42
        )
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


def test_short_episodes_are_named(tmp_path):
    settings = Collect(env="tworoom", episodes=7, steps=10, size=16, workers=1)
    path = collect(settings, tmp_path / "set")
    (found,) = (check.found for check in audit(path, replays=2) if check.name == "lengths")
    assert "7 of 7 episodes (0, 1, 2, 3, 4, ...)" in found


def test_a_column_that_is_described_and_gone_is_found(dataset, tmp_path):
    def change(file):
        del file["pos_agent" if "pos_agent" in file else "block_pose"]

    copy = spoil(dataset, tmp_path, change)
    (check,) = (check for check in audit(copy, replays=2) if check.name == "checksums")
    assert check.verdict == "fail"
    assert "pos_agent" in check.found or "block_pose" in check.found


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_states_that_cannot_be_are_a_fail_that_says_so(dataset, tmp_path, value):
    """Neither a traceback nor a verdict on what was left."""

    def change(file):
        for name in ("proprio", "state"):
            file[name][:] = value

    found = {check.name: check for check in audit(spoil(dataset, tmp_path, change), replays=2)}
    for name in ("action lag", "replay", "frames"):
        assert found[name].verdict == "fail"
        assert "is missing, infinite or beyond" in found[name].found


def test_one_state_that_cannot_be_does_not_hide_the_others(dataset, tmp_path):
    def change(file):
        file["state"][30] = file["proprio"][30] = np.nan

    found = {check.name: check for check in audit(spoil(dataset, tmp_path, change), replays=5)}
    assert found["replay"].verdict == "fail"
    assert "100 % of 5 replays" in found["replay"].found
    assert "1 row (30)" in found["replay"].found


def test_a_state_its_simulator_cannot_draw_is_a_fail_with_the_simulators_words(
    dataset, monkeypatch
):
    with Episodes.open(dataset) as data:
        kind = env_class(data.env)

    def cannot(env):
        raise ValueError("an empty picture")

    monkeypatch.setattr(kind, "plain", cannot)
    found = {check.name: check for check in audit(dataset, replays=2)}
    assert found["frames"].verdict == "fail"
    assert f"is no state of {kind.name} (an empty picture)" in found["frames"].found


def test_what_needs_no_simulator_is_asked_where_there_is_none(dataset, monkeypatch):
    def cannot(name, **more):
        raise UserError("the simulators need the package 'one'; run: pip install it")

    monkeypatch.setattr(auditing, "make", cannot)
    checks = {check.name: check for check in audit(dataset, replays=2)}
    assert {"structure", "split", "checksums", "pixels", "action lag"} < set(checks)
    assert checks["replay"].verdict == "skipped"
    assert "need the package 'one'" in checks["replay"].found
    assert {check.verdict for check in checks.values()} == {"pass", "skipped"}


def test_frames_that_are_not_square_hide_no_other_check(tmp_path):
    oblong = np.random.default_rng(0).integers(0, 255, (60, 8, 12, 3), dtype=np.uint8)
    path = foreign(tmp_path / "a.h5", lengths=(30, 30), pixels=oblong)
    checks = {check.name: check for check in audit(path, replays=2)}
    assert checks["frames"].verdict == "skipped"
    assert "8 x 12" in checks["frames"].found
    assert checks["structure"].verdict == "pass"


def test_as_many_frames_are_drawn_again_as_asked_for(dataset):
    for count in (1, 30):
        (check,) = (
            each for each in audit(dataset, replays=2, frames=count) if each.name == "frames"
        )
        assert check.verdict == "pass"
        assert f" of {count} frames" in check.found


def test_a_faster_way_of_drawing_that_is_wrong_does_not_vouch_for_itself(dataset, monkeypatch):
    with Episodes.open(dataset) as data:
        kind, right = env_class(data.env), data.frames([3])[0]
    monkeypatch.setattr(kind, "frame", lambda env: np.roll(right, 5, axis=1))
    found = {check.name: check for check in audit(dataset, replays=2)}
    assert found["frames"].verdict == "pass"


def test_a_dataset_of_another_environment_is_a_fail_that_says_what_it_lacks(dataset, tmp_path):
    shutil.copytree(dataset, copy := tmp_path / "set")
    info = json.loads((copy / "dataset.json").read_text())
    (copy / "dataset.json").write_text(json.dumps({**info, "env": "reacher"}))
    (check,) = (check for check in audit(copy) if check.name == "environment")
    assert check.verdict == "fail"
    assert "no column 'qpos', which reacher needs; convert it with the right --env" in check.found


def test_actions_of_another_width_are_a_fail(dataset, tmp_path):
    def change(file):
        action = file["action"][:]
        del file["action"]
        file["action"] = np.concatenate([action, action], axis=1)

    copy = spoil(dataset, tmp_path, change)
    info = json.loads((copy / "dataset.json").read_text())
    info["action"] = {"mean": [0.0] * 4, "std": [1.0] * 4}
    (copy / "dataset.json").write_text(json.dumps(info))
    assert verdicts(copy)["environment"] == "fail"


def test_the_tasks_of_a_pack_are_its_own(dataset, tmp_path):
    with Episodes.open(dataset) as data:
        pack = write_pack(
            data, [(0, 1), (2, 5)], tmp_path / "pack", offset=9, protocol="lewm", seed=42
        )
    found = {check.name: check for check in audit(pack)}
    assert found["lengths"].verdict == "pass"
    assert "2 replays reach the goal 9 steps ahead" in found["replay"].found


def test_an_episode_that_no_side_of_the_split_has_is_found(dataset, tmp_path):
    changes = {"lost": lambda train: train[1:], "twice": lambda train: [*train, train[0]]}
    for name, change in changes.items():
        copy = Path(shutil.copytree(dataset, tmp_path / name))
        info = json.loads((copy / "dataset.json").read_text())
        info["split"]["train"] = change(info["split"]["train"])
        (copy / "dataset.json").write_text(json.dumps(info))
        assert verdicts(copy)["split"] == "fail"


def test_a_repeated_episode_on_one_side_is_a_warning(dataset, tmp_path):
    copy = Path(shutil.copytree(dataset, tmp_path / "set"))
    with Episodes.open(copy) as data:
        first, second = (data.rows(int(i)) for i in data.episode_ids("train")[:2])
    with h5py.File(copy / "episodes.h5", "r+") as file:
        for name in set(file) - {"pixels", "ep_len", "ep_offset", "episode_idx", "step_idx"}:
            file[name][second] = file[name][first]
    assert verdicts(copy)["duplicates"] == "warn"


def test_a_missing_state_is_a_warning(tmp_path):
    proprio = np.random.default_rng(0).normal(size=(12, 2))
    path = foreign(tmp_path / "a.h5", velocity=np.full((12, 2), np.nan), proprio=proprio)
    assert verdicts(path, offset=2)["missing values"] == "warn"


@pytest.mark.parametrize("late", [-1, 1])
def test_the_lag_that_is_told_is_that_of_the_row_an_action_was_moved_to(tmp_path, late):
    rng = np.random.default_rng(0)
    action = rng.normal(size=(500, 2)).astype(np.float32)
    place = np.cumsum(action, 0) - action
    moved = np.roll(action, late, axis=0)
    path = foreign(tmp_path / "a.h5", lengths=(500,), action=moved, proprio=place)
    with Episodes.open(path) as data:
        gains = lag_gains(data, ["proprio"])
    assert max(gains, key=gains.get) == late


@pytest.mark.parametrize(("reached", "verdict"), [(98, "pass"), (97, "fail")])
def test_98_of_100_replays_must_reach_their_goal(dataset, monkeypatch, reached, verdict):
    left = iter([1] * reached + [None] * (100 - reached))
    monkeypatch.setattr(check_actions, "replay", lambda *given: next(left))
    found = {check.name: check.verdict for check in audit(dataset, replays=100, frames=1)}
    assert found["replay"] == verdict


def test_a_shadow_map_asked_for_is_drawn_recorded_and_audited(tmp_path):
    paths = []
    for shadow in (0, 512):
        settings = Collect(env="reacher", episodes=3, steps=3, size=64, workers=1, shadow=shadow)
        paths.append(collect(settings, tmp_path / str(shadow)))
    usual, small = (Episodes.open(path) for path in paths)
    assert [each.info["collect"]["shadow"] for each in (usual, small)] == [0, 512]
    frames = [each.frames(range(each.num_rows)).astype(int) for each in (usual, small)]
    assert 0 < np.abs(frames[0] - frames[1]).mean() < 1
    for path in paths:
        found = {c.name: c.found for c in audit(path, offset=2, window_rows=2)}["frames"]
        assert found == "12 of 12 frames drawn again are identical"


def test_where_values_are_missing_is_said(dataset, tmp_path):
    def change(file):
        file["action"][3, 0] = np.nan
        file["action"][7:9] = np.nan

    copy = spoil(dataset, tmp_path, change)
    found = {check.name: check.found for check in audit(copy, replays=2, frames=2)}
    assert found["missing values"] == "action in 3 rows (3, 7, 8)"


@pytest.mark.parametrize(("numbers", "verdict"), [([1], "warn"), ([0, 1], "fail")])
def test_actions_that_never_change_are_found(dataset, tmp_path, numbers, verdict):
    def change(file):
        action = file["action"][:]
        action[:, numbers] = 0.25
        file["action"][:] = action

    found = {check.name: check for check in audit(spoil(dataset, tmp_path, change), replays=2)}
    assert found["actions"].verdict == verdict
    assert (
        f"unchanged in every action: number {', '.join(map(str, numbers))} of 2"
        in found["actions"].found
    )
