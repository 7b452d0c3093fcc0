"""The command line: bad input is one line with the next command, and nothing half-written."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import TINY
from sdjepa.runs import Run, read_json

SETS = [word for setting in TINY for word in ("--set", setting)]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text('rung = "A2"\n')
    return path


def refused(call, *words: str | Path) -> str:
    """The error line of a call that must fail as bad input does."""
    code, out, err = call(*words)
    assert code == 2, (code, out, err)
    lines = [line for line in err.replace("\r", "\n").split("\n") if line.startswith("error:")]
    assert len(lines) == 1, err
    assert "Traceback" not in err
    return lines[0]


def test_an_unknown_key_names_its_neighbour_and_makes_no_run(sdjepa, recipe, tiny_data, tmp_path):
    out = tmp_path / "run"
    said = refused(
        sdjepa, "train", recipe, "--out", out, "--data", tiny_data, "--set", "train.bacth=3"
    )
    assert "did you mean 'train.batch'" in said
    assert not out.exists()


def test_missing_data_says_how_to_make_it_and_makes_no_run(sdjepa, recipe, tmp_path):
    out = tmp_path / "run"
    said = refused(sdjepa, "train", recipe, "--out", out, "--data", tmp_path / "nowhere", *SETS)
    assert "sdjepa collect" in said
    assert not (out / "config.toml").exists()


def test_truncated_data_is_named_and_makes_no_run(sdjepa, recipe, tiny_data, tmp_path):
    data, out = tmp_path / "data", tmp_path / "run"
    shutil.copytree(tiny_data, data)
    file = data / "episodes.h5"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    said = refused(sdjepa, "train", recipe, "--out", out, "--data", data, *SETS)
    assert "truncated" in said
    assert str(file) in said
    assert not (out / "config.toml").exists()


def test_frames_of_another_size_are_refused_with_the_setting_that_fits(
    sdjepa, recipe, tiny_data, tmp_path
):
    said = refused(sdjepa, "train", recipe, "--out", tmp_path / "run", "--data", tiny_data)
    assert "--set model.image_size=28" in said


def test_a_run_in_use_is_refused(sdjepa, a_run):
    with Run(a_run).lock():
        said = refused(sdjepa, "train", "--resume", a_run)
    assert "is in use by process" in said


def test_a_second_process_in_the_same_run_is_refused(a_run):
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from sdjepa.runs import Run\n"
            "with Run(Path(sys.argv[1])).lock():\n    print('held', flush=True); time.sleep(60)",
            str(a_run),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "held"
    from sdjepa.errors import UserError

    with pytest.raises(UserError, match=f"in use by process {holder.pid}"), Run(a_run).lock():
        pass
    holder.kill()
    holder.wait()
    with Run(a_run).lock():
        pass  # the kernel gave the lock back


def test_a_checkpoint_of_another_shape_is_refused(sdjepa, a_run):
    config = a_run / "config.toml"
    config.write_text(config.read_text().replace("latent = 16", "latent = 24"))
    assert "does not fit this model" in refused(sdjepa, "train", "--resume", a_run)


def test_what_is_not_a_run_is_refused_with_the_command_that_makes_one(sdjepa, tmp_path):
    for verb in ("score", "compass"):
        assert "sdjepa train" in refused(sdjepa, verb, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_resuming_what_is_not_a_run_makes_nothing(sdjepa, tmp_path):
    assert "is not a run" in refused(sdjepa, "train", "--resume", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("words", [["collect", "nowhere", "--out", "x"], ["train"]])
def test_other_bad_words_are_one_line(sdjepa, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(sdjepa, *words)
    assert not list(tmp_path.iterdir())


def test_the_path_by_hand_leaves_the_files_others_read(sdjepa, recipe, tiny_data, tmp_path):
    run = tmp_path / "run"
    code, out, err = sdjepa("train", recipe, "--out", run, "--data", tiny_data, *SETS)
    assert code == 0, err
    assert Path(out.strip()) == run / "checkpoints" / "step-00000012"
    for name in ("model.safetensors", "config.json", "stats.json", "provenance.json"):
        assert (Path(out.strip()) / name).exists()
    code, out, err = sdjepa("score", run)
    assert code == 0, err
    result = read_json(run / "scores" / "strict-content-cem-o25.json")
    for key in ("env", "protocol", "cost", "solver", "num_tasks", "success_rate", "wilson95"):
        assert key in result
    assert set(result["floors"]) >= {"noop", "random", "replay"}
    assert len(result["tasks"]) == result["num_tasks"] == 4
    assert result["floors"]["replay"] == 100
    assert result["solved_at_start"] == 0
    share = 100 * sum(task["outcome"] for task in result["tasks"]) / 4
    assert result["success_rate"] == share
    assert read_json(run / "manifest.json")["seed"] == 3072


def test_explain_lists_departures_and_trains_nothing(sdjepa, recipe, tmp_path):
    code, out, _ = sdjepa("train", recipe, "--explain", "--set", "train.learning_rate=1e-3")
    assert code == 0
    assert "train.learning_rate" in out
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]
