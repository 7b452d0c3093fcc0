"""Sweeps: runs that share their frames are the runs they would have been alone."""

from pathlib import Path

import pytest
import tomli_w

from sdjepa.config import Config
from sdjepa.data.feed import open_feed
from sdjepa.errors import UserError
from sdjepa.runs import Run
from sdjepa.train.loop import train
from sdjepa.train.sweep import members, sweep
from small import Crash


@pytest.fixture
def small_recipe(tiny_config: Config, tmp_path: Path) -> Path:
    """The tiny configuration as a recipe that leaves the rung open."""
    tree = tiny_config.model_dump()
    del tree["rung"], tree["model"]["k"], tree["plan"]["cost"]
    for name in ("triplet_weight", "triplet_on"):
        del tree["objectives"][name]
    path = tmp_path / "small.toml"
    path.write_text(tomli_w.dumps(tree))
    return path


def test_a_swept_run_is_the_run_made_alone_and_frames_are_read_once(
    small_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read = []

    def counted(*args, **kwargs):
        read.append(kwargs)
        return open_feed(*args, **kwargs)

    monkeypatch.setattr("sdjepa.data.loader.open_feed", counted)
    wanted = members(small_recipe, rungs=["A0", "A2"], widths=[2, 4], seeds=[1, 2])
    names = [member.name for member in wanted]
    assert names == ["A0-s1", "A2-k2-s1", "A2-k4-s1", "A0-s2", "A2-k2-s2", "A2-k4-s2"]
    chosen = [wanted[0], wanted[5]]
    found = sweep(chosen, tmp_path / "swept")
    assert len(read) == 2  # training and validation episodes, for both runs
    for member, path in zip(chosen, found, strict=True):
        alone = train(Run.create(tmp_path / "alone" / member.name, member.config))
        mine, other = (p.joinpath("model.safetensors").read_bytes() for p in (path, alone))
        assert mine == other


def test_settings_may_vary_too(small_recipe: Path):
    wanted = members(
        small_recipe,
        rungs=["A2"],
        widths=[2],
        seeds=[1],
        vary=["objectives.sigreg_weight=0.09,0.01", "train.batch=4,6"],
    )
    found = {m.name: (m.config.objectives.sigreg_weight, m.config.train.batch) for m in wanted}
    assert found == {
        "A2-k2-s1-sigreg_weight0.09-batch4": (0.09, 4),
        "A2-k2-s1-sigreg_weight0.09-batch6": (0.09, 6),
        "A2-k2-s1-sigreg_weight0.01-batch4": (0.01, 4),
        "A2-k2-s1-sigreg_weight0.01-batch6": (0.01, 6),
    }
    with pytest.raises(UserError, match="is not like objectives"):
        members(small_recipe, rungs=["A2"], widths=[2], seeds=[1], vary=["train.batch"])


def test_a_sweep_that_was_killed_goes_on_and_leaves_finished_runs_alone(
    small_recipe: Path, tmp_path: Path
):
    wanted = members(small_recipe, rungs=["A0", "A2"], widths=[2], seeds=[1])
    out = tmp_path / "swept"
    seen = []

    def second_dies(done: int, total: int, note: str = "") -> None:
        seen.append((done, total))
        if seen.count((6, 12)) == 2:
            raise Crash

    with pytest.raises(Crash):
        sweep(wanted, out, progress=second_dies)
    first = out / "A0-s1" / "checkpoints" / "latest" / "model.safetensors"
    before = first.stat().st_mtime_ns
    assert len(sweep(wanted, out)) == 2
    assert first.stat().st_mtime_ns == before
    steps = [record["step"] for record in Run.open(out / "A2-k2-s1").metrics()]
    assert steps == list(range(1, 13))
    other = members(small_recipe, rungs=["A0"], widths=[], seeds=[1], settings=["train.batch=4"])
    with pytest.raises(UserError, match="other settings"):
        sweep(other, out)
