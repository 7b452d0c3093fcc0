"""What is said of actions: whose row they are in, whose unit they have, where they lead."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from sdjepa.config import Collect
from sdjepa.data.audit import audit
from sdjepa.data.check import Check
from sdjepa.data.check_actions import action_range, lag
from sdjepa.data.collect import collect
from sdjepa.data.episodes import Episodes
from sdjepa.data.replaying import candidate_starts, first_step
from sdjepa.envs.base import NAMES, Env, env_class, make
from small import foreign

ROWS = 500


@pytest.fixture(scope="module")
def pusht() -> Env:
    return make("pusht")


@pytest.fixture(scope="module")
def pushed(tmp_path_factory) -> Path:
    settings = Collect(env="pusht", episodes=4, steps=40, size=16, workers=1)
    return collect(settings, tmp_path_factory.mktemp("data") / "set")


def walk(path: Path, action: np.ndarray, *, moved: int = 0) -> Path:
    """A walk whose steps are its actions, which were then moved by some rows."""
    place = np.cumsum(action, 0) - action
    kept = np.roll(action, moved, axis=0).astype(np.float32)
    return foreign(path, lengths=(len(action),), action=kept, proprio=place)


def noise(scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(0).uniform(-scale, scale, (ROWS, 2))


def of_lag(path: Path) -> Check:
    with Episodes.open(path) as data:
        (check,) = lag(data)
    return check


def of_range(path: Path, env: Env) -> Check:
    with Episodes.open(path) as data:
        (check,) = action_range(data, env)
    return check


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        (1, "actions are one row late: row t holds the action of step t-1; move them up by one"),
        (-1, "actions are one row early: row t holds the action of step t+1; move them down by"),
    ],
)
def test_actions_of_another_row_are_said_to_be_late_or_early(tmp_path, moved, said):
    """As said they are put right: moved back by as much, they pass."""
    check = of_lag(walk(tmp_path / "a.h5", noise(), moved=moved))
    assert check.verdict == "fail"
    assert check.found.startswith(said)
    assert "share of the step explained: lag -1: " in check.found
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["action"][:] = np.roll(file["action"][:], -moved, axis=0)
    assert of_lag(tmp_path / "a.h5").verdict == "pass"


def test_actions_that_move_nothing_are_said_to_explain_nothing(tmp_path):
    place = np.random.default_rng(1).normal(size=(ROWS, 2))
    path = foreign(tmp_path / "a.h5", lengths=(ROWS,), action=noise(), proprio=place)
    check = of_lag(path)
    assert check.verdict == "warn"
    assert check.found.startswith("actions explain almost nothing of the step at any lag; share")


def test_targets_instead_of_steps_are_a_fail_that_says_what_an_action_is(tmp_path, pusht):
    path = walk(tmp_path / "a.h5", 256 + noise(144))
    check = of_range(path, pusht)
    assert check.verdict == "fail"
    assert "pusht takes -1 to 1; other units?" in check.found
    assert "(target - agent) / 100 px" in check.found
    reached = float(check.found.split("reaches ")[1].split(",")[0])
    assert reached == pytest.approx(256 + np.abs(noise(144)).max(), abs=1)


@pytest.mark.parametrize(
    ("scale", "few", "verdict", "doubts"),
    [
        (1.0, 1.0, "pass", False),
        (1.0, 1.76, "warn", False),  # as the published demonstrations: now and then, and a little
        (1.0, 400.0, "warn", False),  # one slip is no other unit
        (1.5, 1.0, "warn", True),
        (2.5, 1.0, "fail", True),
    ],
)
def test_how_far_and_how_often_actions_lie_outside_decides(
    tmp_path, pusht, scale, few, verdict, doubts
):
    action = noise(scale)
    action[7, 1] = few
    check = of_range(walk(tmp_path / "a.h5", action), pusht)
    assert check.verdict == verdict
    assert ("other units?" in check.found) == doubts
    if few > scale:
        assert f"0.1 % of numbers lie outside: action[1] reaches {few:g}" in check.found


def test_rounding_is_not_outside(tmp_path, pusht):
    action = np.sign(noise()) * np.float32(1.0001)
    assert of_range(walk(tmp_path / "a.h5", action), pusht).verdict == "pass"


@pytest.mark.parametrize("name", NAMES)
def test_every_environment_says_what_its_actions_are(name):
    assert env_class(name).action_is


def test_replays_of_goals_that_are_reached_already_show_nothing(tiny_data, tmp_path):
    """A step of 5 px is within the 16 px that count as reached, whatever the actions."""
    path = Path(shutil.copytree(tiny_data, tmp_path / "set"))
    found = {check.name: check for check in audit(path, replays=30, offset=1)}["replay"]
    assert found.verdict == "warn"
    assert found.found == (
        "30 of 30 goals are reached before the first action, so it shows nothing"
    )


def test_a_replay_that_shows_something_says_how_many_show_nothing(tiny_data, tmp_path):
    path = Path(shutil.copytree(tiny_data, tmp_path / "set"))
    found = {check.name: check for check in audit(path, replays=40, offset=8)}["replay"]
    assert found.verdict == "pass"
    count = int(found.found.split("; ")[1].split(" of ")[0])
    assert 0 < count < 40


def test_an_angle_in_degrees_fails_the_replay_by_name(pushed, tmp_path):
    copy = Path(shutil.copytree(pushed, tmp_path / "set"))
    with h5py.File(copy / "episodes.h5", "r+") as file:
        state = file["state"][:]
        state[:, 4] = np.degrees(state[:, 4])
        file["state"][:] = state
    found = {check.name: check for check in audit(copy, replays=20)}["replay"]
    assert found.verdict == "fail"
    assert "after one action state[4] is furthest from what was recorded" in found.found


def test_single_steps_of_what_was_collected_go_as_recorded(pushed, pusht):
    with Episodes.open(pushed) as data:
        assert first_step(data, pusht, candidate_starts(data, 1)) == "single steps go as recorded"
