"""The audit says which environment a dataset is of and who says so; a person can correct it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sdjepa.data.audit import audit
from sdjepa.data.card import card
from sdjepa.data.check import Check
from sdjepa.data.convert import convert
from sdjepa.data.episodes import Episodes
from sdjepa.data.pack import write_pack
from sdjepa.envs.base import NAMES
from sdjepa.errors import UserError
from small import foreign

ROBOT = {"state": np.zeros((12, 2))}  # an arm of two joints has Two-Room's widths


def checks(path: Path, **options) -> dict[str, Check]:
    return {check.name: check for check in audit(path, offset=2, **options)}


def said(path: Path, **options) -> tuple[str, str]:
    """Verdict and words of the check of the environment, which is the first."""
    first = audit(path, offset=2, **options)[0]
    assert first.name == "environment"
    return first.verdict, first.found


def test_an_environment_that_was_guessed_says_from_which_columns(tmp_path):
    assert said(foreign(tmp_path / "a.h5", **ROBOT)) == (
        "pass",
        "tworoom, guessed from proprio (2) and action (2); if it is not: --env none",
    )


def test_an_environment_that_is_stated_says_where(tiny_data, tmp_path):
    path = Path(shutil.copytree(tiny_data, tmp_path / "set"))
    assert said(path) == ("pass", "tworoom, as dataset.json says")
    assert said(path, named="tworoom") == ("pass", "tworoom, as --env says")


def test_without_a_simulator_nothing_is_simulated_and_nothing_warned_of_the_name(tmp_path):
    found = checks(foreign(tmp_path / "a.h5", **ROBOT), named="none")
    assert found["environment"].verdict == found["replay"].verdict == "skipped"
    assert "no simulator here, as --env says" in found["environment"].found
    assert found["frames"].verdict == found["action range"].verdict == "skipped"


def test_where_no_environment_fits_it_is_asked_for(tmp_path):
    path = foreign(tmp_path / "a.h5", proprio=None, block_pose=np.zeros((12, 3)))
    verdict, found = said(path)
    assert verdict == "warn"
    assert found == (
        f"none of {', '.join(NAMES)} fits these columns; name it with --env, or --env none if it "
        "has no simulator here"
    )
    assert said(path, named="none")[0] == "skipped"


def test_a_name_that_does_not_fit_a_file_of_others_is_a_fail(tmp_path):
    path = foreign(tmp_path / "a.h5")
    verdict, found = said(path, named="pusht")
    assert verdict == "fail"
    assert found.startswith("it has no column 'state', which pusht needs; say another --env")
    with pytest.raises(UserError, match="no column 'state', which pusht needs"):
        card(path, named="pusht")


def test_a_name_against_what_a_dataset_of_ours_states_is_refused(tiny_data, tmp_path):
    path = Path(shutil.copytree(tiny_data, tmp_path / "set"))
    for work in (
        lambda: audit(path, named="pusht"),
        lambda: card(path, named="pusht"),
        lambda: convert(path, tmp_path / "out", env="pusht"),
    ):
        with pytest.raises(UserError, match="where pusht's is 7; leave --env out, or correct it"):
            work()


def test_a_name_nobody_knows_is_refused_with_those_there_are(tmp_path):
    path, out = foreign(tmp_path / "a.h5"), tmp_path / "out"
    for work in (lambda: audit(path, named="rooms"), lambda: convert(path, out, env="rooms")):
        with pytest.raises(UserError, match=r"unknown environment 'rooms'; there are .* and none"):
            work()


@pytest.mark.parametrize(
    ("env", "how"),
    [
        (None, ("pass", "tworoom, guessed from proprio (2) and action (2)")),
        ("tworoom", ("pass", "tworoom, as dataset.json says")),
        ("none", ("skipped", "it has no simulator here, as dataset.json says")),
    ],
)
def test_converting_keeps_what_was_said_and_makes_no_fact_of_a_guess(tmp_path, env, how):
    once = convert(foreign(tmp_path / "a.h5", **ROBOT), tmp_path / "once", env=env)
    twice = convert(once, tmp_path / "twice")
    with Episodes.open(twice) as data:
        packed = write_pack(data, [(0, 1)], tmp_path / "pack", offset=2, protocol="lewm", seed=42)
    for path in (once, twice, packed):
        verdict, found = said(path)
        assert (verdict, found[: len(how[1])]) == how


def test_a_dataset_converted_before_this_was_recorded_is_asked_for_its_name(tmp_path):
    path = foreign(tmp_path / "a.h5", proprio=None, block_pose=np.zeros((12, 3)))
    made = convert(path, tmp_path / "set")
    info = json.loads((made / "dataset.json").read_text())
    del info["env_guessed"]
    (made / "dataset.json").write_text(json.dumps(info))
    assert said(made)[0] == "warn"


def test_the_card_says_that_an_environment_was_guessed_and_can_be_told_otherwise(tmp_path):
    path = foreign(tmp_path / "a.h5", **ROBOT)
    assert "| Environment | tworoom, guessed from proprio (2)" in card(path, offset=2).read_text()
    text = card(path, offset=2, named="none").read_text()
    assert text.startswith("# Data card\n")
    assert "Tasks" not in text
    with Episodes.open(path, env="none") as data:
        assert data.env == "unknown"
