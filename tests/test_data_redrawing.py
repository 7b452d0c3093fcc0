"""Frames that are late, ruined or of another scene are found, however they were reduced."""

import json
import shutil
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from sdjepa.config import Collect
from sdjepa.data.audit import Check, audit
from sdjepa.data.collect import collect
from sdjepa.data.convert import convert
from sdjepa.data.episodes import Episodes
from sdjepa.data.pack import write_pack
from sdjepa.data.pictures import frozen, is_plain
from sdjepa.data.redrawing import nearest_lag


@pytest.fixture(scope="module", params=["tworoom", "pusht"])
def large(request, tmp_path_factory) -> Path:
    settings = Collect(env=request.param, episodes=6, steps=40, size=96, workers=1)
    return collect(settings, tmp_path_factory.mktemp("data") / "set")


def coarse(frames: np.ndarray) -> np.ndarray:
    """Another program's reduction: every pixel of the small frame is one of the large."""
    return np.stack([cv2.resize(f, (64, 64), interpolation=cv2.INTER_NEAREST) for f in frames])


def foreign(large: Path, path: Path, change, *, reduce=coarse) -> Path:
    """The same rows as another program might leave them, `change` made to the frames."""
    with Episodes.open(large) as data, h5py.File(path, "w") as file:
        file["pixels"] = change(reduce(data.frames(range(data.num_rows))))
        for name in set(data.columns) - {"episode_idx", "step_idx"}:
            file[name] = data.column(name)
        file["ep_len"], file["ep_offset"] = data.lengths, data.offsets
    return path


def checks(path: Path) -> dict[str, Check]:
    return {check.name: check for check in audit(path, replays=3)}


def as_they_are(frames: np.ndarray) -> np.ndarray:
    return frames


def test_good_frames_reduced_in_another_way_do_not_fail_before_or_after_converting(large, tmp_path):
    path = foreign(large, tmp_path / "theirs.h5", as_they_are)
    first = checks(path)["frames"]
    assert first.verdict in ("warn", "pass")
    assert "late" not in first.found
    copy = convert(path, tmp_path / "copy")
    info = json.loads((copy / "dataset.json").read_text())
    info["converted"]["ours"] = False  # as the conversion of another program's file says
    (copy / "dataset.json").write_text(json.dumps(info))
    again = checks(copy)["frames"]
    assert (again.verdict, again.found) == (first.verdict, first.found)


def test_a_pack_of_good_frames_reduced_in_another_way_does_not_fail(large, tmp_path):
    with Episodes.open(foreign(large, tmp_path / "theirs.h5", as_they_are)) as data:
        pack = write_pack(
            data, [(0, 1), (2, 5), (3, 4)], tmp_path / "p", offset=9, protocol="lewm", seed=42
        )
    found = checks(pack)["frames"]
    assert found.verdict in ("warn", "pass")
    assert "before and after" not in found.found  # a start and a goal have no such rows


@pytest.mark.parametrize("reduce", [as_they_are, coarse])
@pytest.mark.parametrize(("by", "said"), [(1, "late"), (-1, "early")])
def test_frames_a_row_off_are_named_whatever_their_size(large, tmp_path, by, said, reduce):
    path = foreign(large, tmp_path / "off.h5", lambda f: np.roll(f, by, axis=0), reduce=reduce)
    found = checks(path)["frames"]
    assert found.verdict == "fail"
    assert f"frames are one row {said}" in found.found


def test_exchanged_colours_are_named(large, tmp_path):
    found = checks(foreign(large, tmp_path / "bgr.h5", lambda f: f[..., ::-1]))["frames"]
    assert found.verdict == "fail"
    assert "red and blue" in found.found


def test_frames_of_other_rows_fail(large, tmp_path):
    def shuffle(frames):
        return frames[np.random.default_rng(0).permutation(len(frames))]

    found = checks(foreign(large, tmp_path / "mixed.h5", shuffle))["frames"]
    assert found.verdict == "fail"
    assert "states of other rows" in found.found


def test_frames_that_stay_while_the_state_changes_fail(large, tmp_path):
    path = foreign(large, tmp_path / "still.h5", lambda f: np.repeat(f[:1], len(f), axis=0))
    found = checks(path)["pixels"]
    assert found.verdict == "fail"
    assert "stay as they are" in found.found


def test_black_frames_fail_and_are_named(large, tmp_path):
    def blacken(frames):
        frames[[50, 51, 120]] = 0
        return frames

    found = checks(foreign(large, tmp_path / "black.h5", blacken))["pixels"]
    assert found.verdict == "fail"
    assert "3 rows (50, 51, 120)" in found.found


def test_late_frames_of_our_own_fail_though_their_mean_is_near(large, tmp_path):
    shutil.copytree(large, copy := tmp_path / "set")
    with h5py.File(copy / "episodes.h5", "r+") as file:
        chunks = [file["pixels"].id.read_direct_chunk((r, 0, 0, 0))[1] for r in range(100)]
        for row, chunk in enumerate(chunks, start=1):
            file["pixels"].id.write_direct_chunk((row, 0, 0, 0), chunk)
    found = checks(copy)["frames"]
    assert found.verdict == "fail"


def test_our_own_frames_made_smaller_pass(large, tmp_path):
    assert checks(convert(large, tmp_path / "small", size=40))["frames"].verdict == "pass"


def test_larger_frames_than_are_drawn_here_are_not_compared(large, tmp_path):
    def enlarge(frames):
        return np.stack([cv2.resize(f, (256, 256)) for f in frames])

    path = foreign(large, tmp_path / "large.h5", as_they_are, reduce=enlarge)
    assert checks(path)["frames"].verdict == "skipped"


def test_the_nearest_row_is_not_named_where_two_are_as_near():
    assert nearest_lag(np.array([3.0, 2.0, 1.0])) == 1
    assert nearest_lag(np.array([1.0, 0.0, 1.0])) == 0
    assert nearest_lag(np.array([0.0, 0.0, 1.0])) is None


def test_frames_may_stay_where_the_state_does():
    still = np.ones(100, dtype=bool)
    assert frozen(still, still)
    assert not frozen(still, np.zeros(100, dtype=bool))
    assert not frozen(~still, still)


def test_one_pixel_makes_a_frame_more_than_one_colour():
    frame = np.full((64, 64, 3), 7, dtype=np.uint8)
    assert is_plain(frame)
    frame[5, 5, 2] = 8
    assert not is_plain(frame)


def test_pictures_of_something_else_fail_however_still_they_hold(large, tmp_path):
    """Whatever they show, a score would have the simulator's in their place."""

    def painted(frames):
        return (frames // 4 + 10).astype(np.uint8)

    found = checks(foreign(large, tmp_path / "theirs.h5", painted))["frames"]
    assert found.verdict == "fail"
    assert "not the simulator's pictures" in found.found
