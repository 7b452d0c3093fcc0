"""The command line: bad input is one line with the next command, and nothing half-written."""

import fcntl
import importlib
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from rich.console import Console

from conftest import TINY
from sdjepa.cli.app import bar, tell
from sdjepa.cli.pace import Stage
from sdjepa.data.episodes import Episodes
from sdjepa.errors import Stopped
from sdjepa.resolve import together
from sdjepa.runs import Run, read_json, write_json
from small import Crash, foreign

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


def test_frames_smaller_than_the_model_reads_are_refused_by_every_verb_that_looks(
    sdjepa, trained, tiny_data, tmp_path
):
    """One of 28 pixels would else be taken for a part of it, and scored."""
    small = tmp_path / "small"
    assert sdjepa("data", "convert", tiny_data, small, "--size", 14)[0] == 0
    for verb in (("score", "--tasks", 2), ("compass",), ("watch",)):
        code, _, said = sdjepa(verb[0], trained, "--data", small, *verb[1:])
        assert code == 2, verb
        assert "has frames of 14 pixels, the model reads 28" in said


def test_what_is_suggested_for_small_frames_is_what_trains(sdjepa, recipe, tiny_data, tmp_path):
    small, out = tmp_path / "small", tmp_path / "run"
    assert sdjepa("data", "convert", tiny_data, small, "--size", 9)[0] == 0
    words = ["train", recipe, "--data", small, "--out", out, *SETS, "--set", "model.patch=14"]
    code, _, said = sdjepa(*words)
    assert code == 2
    advice = said.partition(" or add ")[2].split()
    assert advice[::2] == ["--set", "--set"]
    assert sdjepa(*words, *advice)[0] == 0


def test_frames_of_another_size_are_refused_with_the_setting_that_fits(
    sdjepa, recipe, tiny_data, tmp_path
):
    said = refused(sdjepa, "train", recipe, "--out", tmp_path / "run", "--data", tiny_data)
    assert "--set model.image_size=28" in said


def test_a_refused_training_leaves_room_for_the_corrected_one(sdjepa, recipe, tiny_data, tmp_path):
    """The line says what would fit; the place is free, and few validation windows are no fault."""
    out = tmp_path / "run"
    asked = ("train", recipe, "--out", out, "--data", tiny_data, *SETS, "--set", "train.steps=1")
    said = refused(sdjepa, *asked, "--set", "train.batch=5000")
    assert not out.exists()
    fits = said.rpartition("add ")[2].split()
    assert fits[1].startswith("train.batch=")
    code, _, err = sdjepa(*asked, *fits)  # more than there are validation windows
    assert code == 0, err
    assert "leave the rest out" in refused(
        sdjepa, "train", "--resume", out, "--set", "train.batch=4"
    )


def test_a_place_that_cannot_be_written_is_one_line(sdjepa, recipe, tiny_data, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    long = tmp_path / ("x" * 300)
    small = ("--episodes", "3", "--steps", "4", "--size", "16", "--workers", "1")
    for place in (file, file / "under", long):
        for words in (
            ("collect", "tworoom", *small, "--out", place),
            ("train", recipe, "--data", tiny_data, *SETS, "--out", place),
            ("data", "convert", tiny_data, place),
        ):
            said = refused(sdjepa, *words)
            assert "choose another place" in said or f"{file} is a file; name a folder" in said
    assert file.read_text() == "mine"


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_bar_is_one_line_however_long_its_note(monkeypatch, width):
    paper = StringIO()
    shown = Console(file=paper, width=width, force_terminal=True)
    monkeypatch.setattr(sys.modules["sdjepa.cli.app"], "console", shown)
    with bar("planning, 25 ahead") as tell:
        for done in range(1, 4):
            tell(done * 300, 1000, "episodes, 22,345 frames/s, and much that nobody has room for")
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", paper.getvalue()).split("\n")
    assert len(lines) == 2
    assert lines[1] == ""
    assert "900/1000 e" in lines[0], "with its unit, or what there is room for"


class Clock:
    """A clock that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


def test_the_time_left_comes_from_the_time_it_took_and_what_was_done_in_it(clock):
    stage = Stage(4, 12)  # four were there
    clock.now += 20
    assert stage.left() == "", "nothing is known yet"
    assert stage.takes(6, 12, "")
    assert stage.left() == "1:00"
    clock.now += 10
    assert stage.left() == "0:50", "it goes on while nothing is reported"
    clock.now += 1000
    assert stage.left() == "0:10", "and ends no sooner than one more takes"
    assert stage.takes(12, 12, "")
    assert stage.left() == ""


def test_a_slow_start_is_left_out_of_the_rate_once_much_was_done_since(clock):
    stage = Stage(0, 1000)
    clock.now += 60
    stage.takes(1, 1000, "")
    clock.now += 1
    stage.takes(100, 1000, "")
    assert stage.rate() == pytest.approx(100 / 61), "a lump of many workers is no measure"
    clock.now += 9
    stage.takes(501, 1000, "")
    assert stage.rate() == pytest.approx(50)


def test_another_total_or_a_smaller_count_is_the_next_stage():
    assert not Stage(3, 9).takes(4, 8, "")
    assert not Stage(3, 9).takes(2, 9, "")
    assert Stage(3, 9).takes(3, 9, "")


def test_in_a_pipe_there_is_a_line_now_and_then_and_one_where_a_stage_ends(
    clock, monkeypatch, capsys
):
    with bar("collecting") as tell:
        clock.now += 2  # before anything is counted
        for done in range(0, 401, 2):
            tell(done, 400, "episodes, 1,900 frames/s")
            clock.now += 0.4
        for done in range(4):
            tell(done, 3, "tasks for the data card")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "collecting: 140 of 400 episodes, 1,900 frames/s, 0:52 left",
        "collecting: 290 of 400 episodes, 1,900 frames/s, 0:22 left",
        "collecting: 400 of 400 episodes, 1,900 frames/s",
    ]


def test_what_was_broken_off_has_no_line_that_says_it_ended(clock, capsys):
    with suppress(Crash), bar("training") as tell:
        for done in range(5):
            tell(done, 9, "steps")
            clock.now += 3
        raise Crash
    assert capsys.readouterr().err == ""


def test_the_result_is_a_line_of_its_own_below_the_bar(tmp_path):
    out = tmp_path / "set"
    small = ("--episodes", "3", "--steps", "4", "--size", "16", "--workers", "1", "--out", str(out))
    code, (bar, *rest) = in_terminal("-m", "sdjepa", "collect", "tworoom", *small)
    assert code == 0
    assert "3/3 episodes" in bar
    about, said = "".join(rest).split("/card.md")
    assert about.startswith("3 episodes by expert, 15 frames of 16 px")
    assert said == str(out)


def in_terminal(*words: str | Path) -> tuple[int, list[str]]:
    """The rows that a terminal of 80 columns shows, and the exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    started = subprocess.Popen(
        (sys.executable, *map(str, words)),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(theirs)
    seen = b""
    with suppress(OSError):  # the terminal ends with the process
        while piece := os.read(ours, 1 << 16):
            seen += piece
    os.close(ours)
    rows = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).split("\r\n")
    return started.wait(), rows


def test_an_error_is_rows_of_whole_words_in_a_terminal_and_one_line_elsewhere(sdjepa, tmp_path):
    seeds = ("--seed", "1234567", "--set", "collect.seed=7654321")
    asked = ("collect", "tworoom", *seeds, "--out", tmp_path / "x")
    whole = refused(sdjepa, *asked)
    assert len(whole) > 80
    code, rows = in_terminal("-m", "sdjepa", *asked)
    assert code == 2
    assert rows.pop() == ""
    assert len(rows) > 1
    assert all(len(row) <= 80 for row in rows)
    assert all(row.startswith("       ") for row in rows[1:])
    assert " ".join(row.strip() for row in rows) == whole


def test_tell_hangs_its_words_in_a_terminal_and_keeps_them_in_one_line_elsewhere(capsys):
    long = "pass    replay          " + "/a/path/that/is/wider" * 4 + " 0.96/6 of --tasks 4" * 5
    tell(long, indent=24)
    assert capsys.readouterr().out == long + "\n"
    code, rows = in_terminal("-c", f"from sdjepa.cli.app import tell; tell({long!r}, indent=24)")
    assert code == 0
    assert " ".join(row.strip() for row in rows[:-1]).split() == long.split(), "no word is cut"
    assert rows[0].startswith("pass    replay")
    assert all(row.startswith(" " * 24) for row in rows[1:-1])


def test_doctor_in_a_pipe_is_not_cut(sdjepa, monkeypatch):
    from sdjepa import doctor

    long = doctor.Finding("versions", "torch 2.9.0, " * 20, ok=False, fix="pip install " * 20)
    monkeypatch.setattr(doctor, "examine", lambda: iter([long]))
    code, out, _ = sdjepa("doctor")
    assert code == 1
    assert [len(line) > 150 for line in out.splitlines()] == [True, True]


def test_floors_without_a_file_are_a_table_on_standard_output(sdjepa, tiny_data, tmp_path):
    asked = ("floors", tiny_data, "--protocol", "strict", "--tasks", "2")
    code, out, _ = sdjepa(*asked)
    assert code == 0
    assert all(name in out for name in ("noop", "random", "gaussian", "replay"))
    code, said, err = sdjepa(*asked, "--out", tmp_path / "floors.json")
    assert (code, said.strip()) == (0, str(tmp_path / "floors.json"))
    found = read_json(tmp_path / "floors.json")
    for name in ("tasks_hash", "protocol_hash"):
        assert found[name]
        assert found[name] not in out + err


def test_options_that_change_nothing_or_disagree_are_refused(sdjepa, tmp_path):
    asked = ("collect", "reacher", "--out", tmp_path / "set")
    said = refused(sdjepa, *asked, "--noise", "0.5")
    assert "policy random has no noise; leave --noise out, or say --policy expert" in said
    said = refused(sdjepa, *asked, "--size", "32", "--set", "collect.size=16")
    assert "collect.size is 32 by its own option and 16 by --set" in said
    assert "train.batch has no effect" in refused(sdjepa, *asked, "--set", "train.batch=64")
    assert "did you mean 'collect." in refused(sdjepa, *asked, "--set", "colect.size=64")
    assert "both say how much" in refused(
        sdjepa, *asked, "--frames", "99", "--set", "collect.episodes=4"
    )
    assert not (tmp_path / "set").exists()
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('rung = "A2"\n')
    said = refused(
        sdjepa, "train", recipe, "--seed", "1", "--set", "train.seed=2", "--out", tmp_path / "run"
    )
    assert "train.seed is 1 by its own option and 2 by --set" in said


def test_what_is_said_twice_alike_is_no_quarrel():
    assert together(['collect.env="cube"'], ["collect.env = cube"])
    assert together(["collect.noise=1"], ["collect.noise=1.0"])
    assert together([], ["train.batch=8", "train.batch=9"]), "the later wins"


@pytest.mark.parametrize("episodes", [2, 3])
def test_a_split_without_held_out_episodes_is_said_at_the_end(sdjepa, tmp_path, episodes):
    small = ("--steps", "4", "--size", "16", "--workers", "1", "--out", tmp_path / "set")
    code, _, err = sdjepa("collect", "tworoom", "--episodes", episodes, *small)
    assert code == 0, err
    assert ("2 episodes (none for validation or test) by expert, " in err) == (episodes == 2)


def test_two_ways_to_say_how_much_are_one_too_many(sdjepa, tmp_path):
    asked = ("collect", "tworoom", "--out", tmp_path / "set", "--episodes", "3", "--frames", "9")
    assert "give one of them" in refused(sdjepa, *asked)
    assert "'--episodes'" in refused(sdjepa, *asked[:4], "--episodes", "0")
    said = refused(sdjepa, *asked[:4], "--set", "collect.episodes=0")
    assert "collect.episodes = 0" in said
    assert "(in this command)" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("collect tworoom --episodes some --out x", "'--episodes'"),
        ("collect tworoom", "'--out'"),
        ("collect tworoom --out x --frames 0", "'--frames'"),
        ("collect tworoom --out x --noise inf", "noise = inf"),
        ("collect tworoom --out x --steps 1000000000000", "steps = 1000000000000"),
        ("collect tworoom --out x --wrokers 2", "--wrokers"),
        ("collect tworoom --out .", "name a folder"),
        ("data pack a b --seed -1", "'--seed'"),
        ("data card a --tasks 0", "'--tasks'"),
        ("data pack a b --offset 100000000000000000000", "'--offset'"),
        ("train recipes/demo.toml --data 2024-01-01 --out x", "no dataset at 2024-01-01"),
        ("data convert lerobot/pusht out", "hf download"),
        ("train nowhere.toml --out x", "pusht-fast.toml"),
        ("train --set colect.size=3 --out x recipes/demo.toml", "'colect' in this command"),
        ("nonsense", "sdjepa --help"),
    ],
)
def test_words_that_make_no_command_are_one_line(sdjepa, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "demo.toml").write_text('rung = "A2"')
    assert told in refused(sdjepa, *words.split())
    assert [path.name for path in tmp_path.iterdir()] == ["recipes"]


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
    manifest, data = read_json(run / "manifest.json"), read_json(tiny_data / "dataset.json")
    assert manifest["seed"] == 3072
    for fact in ("num_episodes", "num_rows", "collect"):  # not what the recipe wishes for
        assert manifest["data"][fact] == data[fact]


def test_explain_lists_departures_and_trains_nothing(sdjepa, recipe, tmp_path):
    code, out, _ = sdjepa("train", recipe, "--explain", "--set", "train.learning_rate=1e-3")
    assert code == 0
    assert "train.learning_rate" in out
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]


# --- bench: five benchmarks, each of which may be cut off


@pytest.mark.parametrize(
    ("verb", "option"),
    [
        ("", "scale"),
        ("train", "--repeats"),
        ("plan", "--seconds"),
        ("collect", "--workers"),
        ("agree", "--data"),
        ("scale", "--streamed"),
    ],
)
def test_every_benchmark_teaches_itself(sdjepa, verb, option):
    code, out, _ = sdjepa("bench", *filter(None, [verb]), "--help")
    assert code == 0
    assert option in out
    assert not verb or f"sdjepa bench {verb} --" in out, "an example"


class Steps:
    """Training steps that take no time and stop the benchmark when so many were taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        from sdjepa.bench import train

        self.taken: list[str] = []
        self.last = -1
        ways = {name: (self._made(name), 1e6) for name in names}
        monkeypatch.setattr(train, "_ways", lambda *given, **more: ways)
        monkeypatch.setattr(train, "matmul_rate", lambda device: 1e9)
        monkeypatch.setattr(train.torch.cuda, "is_available", lambda: False)

    def _made(self, name: str):
        def step(number: int) -> None:
            if len(self.taken) == self.last:
                raise Crash
            self.taken.append(name)

        return lambda: step


WAYS = ("eager", "recorded", "recorded, 31 patches", "stable-worldmodel")


def test_bench_train_cut_off_leaves_whole_rounds(sdjepa, monkeypatch, tmp_path):
    steps, out = Steps(monkeypatch, *WAYS), tmp_path / "train.json"

    def cut_off_after(count: int) -> dict[str, Any]:
        steps.taken, steps.last = [], count
        with pytest.raises(Crash):
            sdjepa("bench", "train", "--out", out)
        known = read_json(out)
        assert known["finished"] is False
        return known

    # A first step and a warming one each, then rounds: this is while the third way compiles.
    known = cut_off_after(2 * 2)
    assert [(t["who"], t["rounds"]) for t in known["timings"]] == [("eager", 0), ("recorded", 0)]
    assert known["steps_per_second"] is None
    known = cut_off_after(2 * 4 + 4 + 3)  # in the second round
    assert [(t["who"], t["rounds"]) for t in known["timings"]] == [(name, 1) for name in WAYS]
    assert known["way"] == "recorded"
    seconds = {t["who"]: t["seconds"] for t in known["timings"]}
    ratio = seconds["stable-worldmodel"] / seconds["recorded"]
    assert known["ratio_to_stable_worldmodel"] == pytest.approx(ratio)


def test_bench_without_a_name_times_training(sdjepa, monkeypatch, tmp_path):
    steps, out = Steps(monkeypatch, *WAYS), tmp_path / "train.json"
    code, said, _ = sdjepa("bench")
    assert (code, len(steps.taken)) == (0, len(WAYS) * (2 + 5))
    assert said.count("first step") == 2 * len(WAYS), "as they come, and in the table"
    steps.taken = []
    code, said, _ = sdjepa("bench", "--repeats", "3", "--out", out)
    assert (code, len(steps.taken)) == (0, len(WAYS) * (2 + 3))
    assert said.splitlines()[-1] == str(out)
    assert read_json(out)["finished"] is True


@pytest.mark.parametrize(
    ("only", "ways"),
    [
        ("recorded", ["recorded"]),
        ("31 patches", ["recorded, 31 patches"]),
        ("record,", ["recorded", "recorded, 31 patches"]),
        ("recorded, stable", ["recorded", "stable-worldmodel"]),
    ],
)
def test_bench_train_of_some_ways_has_a_ratio_only_to_what_ran(
    sdjepa, monkeypatch, tmp_path, only, ways
):
    steps, out = Steps(monkeypatch, *WAYS), tmp_path / "train.json"
    assert sdjepa("bench", "train", "--only", only, "--repeats", "1", "--out", out)[0] == 0
    assert list(dict.fromkeys(steps.taken)) == ways
    known = read_json(out)
    assert (known["ratio_to_stable_worldmodel"] is None) == ("stable-worldmodel" not in ways)
    assert (known["way"] is None) == ("recorded" not in ways)


def test_a_benchmark_of_nothing_is_refused(sdjepa, monkeypatch, tmp_path):
    Steps(monkeypatch, *WAYS)
    out = tmp_path / "found.json"
    assert "31 patches" in refused(sdjepa, "bench", "train", "--only", "fast", "--out", out)
    assert "--frames" in refused(sdjepa, "bench", "scale", "--frames", "many", "--out", out)
    nothing = ("--frames", "", "--streamed", "")
    assert "--frames" in refused(sdjepa, "bench", "scale", *nothing, "--out", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (
            ["scale", "--frames", "50000,600000", "--streamed", "50000"],
            {"resident": [50000, 600000], "streamed": [50000], "small": False, "only": []},
        ),
        (["agree", "--data", "D"], {"steps": 200, "settings": ()}),
    ],
)
def test_bench_of_runs_cut_off_leaves_its_rows(sdjepa, monkeypatch, tmp_path, words, given):
    from sdjepa.bench import runs

    out, asked, stops = tmp_path / "found.json", {}, [True, False]

    def work(*data: Path, tell, **more: object) -> Iterator[dict[str, Any]]:
        asked.update(more)
        yield {"rows": [1]}
        if stops.pop(0):
            raise Crash
        yield {"rows": [1, 2]}

    monkeypatch.setattr(runs, words[0], work)
    with pytest.raises(Crash):
        sdjepa("bench", *words, "--out", out)
    assert asked == given
    known = read_json(out)
    assert (known["rows"], known["finished"]) == ([1], False)
    assert "versions" in known
    assert sdjepa("bench", *words, "--out", out)[1].splitlines()[-1] == str(out)
    known = read_json(out)
    assert (known["rows"], known["finished"]) == ([1, 2], True)


def test_bench_collect_cut_off_leaves_its_lines(sdjepa, monkeypatch, tmp_path):
    from sdjepa.bench import collect

    out, stops = tmp_path / "found.json", [True, False]

    def collection(name: str, count: int, *, seconds: float) -> Iterator[tuple]:
        yield "collected", 5.0, "frames/s", {"workers": count, "seconds": seconds}
        if stops.pop(0):
            raise Crash

    monkeypatch.setattr(collect, "_collection", collection)
    words = ("bench", "collect", "--workers", "16", "--seconds", "1", "--envs", "tworoom")
    with pytest.raises(Crash):
        sdjepa(*words, "--out", out)
    known = read_json(out)
    assert known["finished"] is False
    assert [(n["env"], n["workers"], n["seconds"]) for n in known["lines"]] == [("tworoom", 16, 1)]
    assert sdjepa(*words, "--out", out)[0] == 0
    assert read_json(out)["finished"] is True


def test_help_of_collect_tells_the_defaults_and_policies_there_are():
    import typer

    from sdjepa.cli import app
    from sdjepa.config import Collect
    from sdjepa.envs.base import NAMES, env_class

    command = typer.main.get_command(app).commands["collect"]  # type: ignore[attr-defined]
    told = {each.name: getattr(each, "show_default", None) for each in command.params}
    for name in ("episodes", "steps", "noise", "size", "seed", "workers"):
        assert float(told[name]) == Collect.model_fields[name].default, name
    for name in NAMES:
        (line,) = [each for each in command.help.splitlines() if f"**{name}**" in each]
        said = line.partition(":")[2].partition("(")[0].replace(" ", "").split(",")
        assert said == list(env_class(name).policies)


def test_a_run_is_not_scored_or_read_on_data_of_another_environment(
    sdjepa, a_run, tmp_path, monkeypatch
):
    """It would be by luck where actions are as wide, and write over the true score."""
    other, wide = tmp_path / "pusht", tmp_path / "cube"
    few = ("--episodes", 8, "--steps", 40, "--size", 28, "--workers", 1)
    monkeypatch.delenv("SDJEPA_PUSHT_DEMOS", raising=False)
    assert sdjepa("collect", "pusht", *few, "--out", other)[0] == 0
    foreign(wide := tmp_path / "wide.h5", size=28, lengths=(40,) * 8, action=np.zeros((320, 5)))
    assert sdjepa("score", a_run, "--tasks", 2)[0] == 0
    before = {path: path.read_bytes() for path in a_run.rglob("*") if path.is_file()}
    for data, found in ((other, "is pusht (2 actions)"), (wide, "(5 actions)")):
        for verb in (("score", "--tasks", 2), ("compass",), ("watch",)):
            said = refused(sdjepa, verb[0], a_run, "--data", data, *verb[1:])
            assert "was trained on" in said
            assert found in said
    assert {path: path.read_bytes() for path in a_run.rglob("*") if path.is_file()} == before


def test_a_pack_is_of_one_protocol(sdjepa, trained, tiny_data, tmp_path):
    pack, out = tmp_path / "pack", tmp_path / "out.json"
    made = ("--tasks", 2, "--offset", 5, "--protocol", "lewm")
    assert sdjepa("data", "pack", tiny_data, pack, *made)[0] == 0
    few = ("--tasks", 2, "--offset", 5, "--protocol", "strict")
    for words in (
        ("score", trained, "--data", pack, *few),
        ("floors", pack, *few),
        ("ceiling", pack, *few, "--out", out),
    ):
        assert "holds tasks of protocol lewm, asked for strict" in refused(sdjepa, *words)
    assert sdjepa("floors", pack, "--tasks", 2, "--offset", 5)[0] == 0


def test_without_a_simulator_there_are_no_tasks_and_one_line_says_so(sdjepa, tmp_path):
    path = foreign(tmp_path / "a.h5", size=28, lengths=(40,) * 8, proprio=np.zeros((320, 3)))
    assert sdjepa("data", "convert", path, tmp_path / "none", "--env", "none")[0] == 0
    for data in (path, tmp_path / "none"):
        for words in (("floors", data), ("data", "pack", data, tmp_path / "out")):
            said = refused(sdjepa, *words)
            assert "without a simulator there are no tasks" in said
            assert f"sdjepa data convert {data} OUT --env NAME" in said


def test_actions_that_are_missing_within_an_episode_are_not_trained_on(sdjepa, recipe, tmp_path):
    action = np.random.default_rng(0).normal(size=(320, 2)).astype(np.float32)
    action[39::40] = np.nan  # where episodes end
    path = foreign(tmp_path / "a.h5", size=28, lengths=(40,) * 8, action=action)
    with Episodes.open(path) as data:
        seen, unseen = (int(data.episode_ids(side)[0]) * 40 for side in ("train", "test"))
    words = ("train", recipe, "--data", path, "--out", tmp_path / "run", *SETS)
    words += ("--set", "train.steps=1")
    with h5py.File(path, "a") as file:
        file["action"][[seen + 2, seen + 5]] = action[[seen + 39] * 2]
    said = refused(sdjepa, *words)
    assert f"missing or infinite in 2 rows ({seen + 2}, {seen + 5})" in said
    assert not (tmp_path / "run").exists()
    with h5py.File(path, "a") as file:
        file["action"][:] = action
        file["action"][unseen + 2] = action[seen + 39]  # which training does not read
    assert sdjepa(*words)[0] == 0


def test_a_run_is_not_put_into_a_dataset_but_beside_its_own_log(
    sdjepa, recipe, tiny_data, tmp_path
):
    data = Path(shutil.copytree(tiny_data, tmp_path / "data"))
    before = sorted(data.rglob("*"))
    words = ("train", recipe, "--data", data, *SETS, "--set", "train.steps=1", "--out")
    assert "is a dataset; name a folder of the run's own" in refused(sdjepa, *words, data)
    assert sorted(data.rglob("*")) == before
    log = tmp_path / "run" / "train.log"
    log.parent.mkdir()
    log.write_text("as a shell opens it first")
    assert sdjepa(*words, log.parent)[0] == 0


@pytest.mark.parametrize(
    ("lengths", "advice"),
    [
        ((40, 40), "has no validation episode, of 2 in all; collect 3 episodes or more"),
        ((18,) * 40, "the longest validation episode of {path} has 18; collect longer episodes "),
    ],
)
def test_what_is_advised_for_too_little_data_helps(sdjepa, recipe, tmp_path, lengths, advice):
    path = foreign(tmp_path / "a.h5", size=28, lengths=lengths)
    said = refused(sdjepa, "train", recipe, "--data", path, "--out", tmp_path / "run", *SETS)
    assert advice.format(path=path) in said
    assert "or more of them" not in said


def test_a_training_that_is_stopped_ends_as_what_is_stopped_does(
    sdjepa, recipe, tiny_data, tmp_path, monkeypatch
):
    def stopped(*given, **named):
        raise Stopped("stopped after step 3 of 12; continue with: sdjepa train --resume x")

    monkeypatch.setattr("sdjepa.train.loop.train", stopped)
    code, out, err = sdjepa("train", recipe, "--data", tiny_data, "--out", tmp_path / "x", *SETS)
    assert (code, out) == (130, "")
    assert err.strip().splitlines()[-1].startswith("stopped after step 3")


def test_a_finished_collection_says_so_again(sdjepa, tmp_path):
    words = ("collect", "tworoom", "--episodes", 4, "--steps", 5, "--size", 16, "--workers", 1)
    assert sdjepa(*words, "--out", tmp_path / "set")[0] == 0
    code, out, err = sdjepa(*words, "--out", tmp_path / "set")
    assert (code, out.strip()) == (0, str(tmp_path / "set"))
    assert "4 episodes" in err


def test_what_was_only_guessed_is_no_reason_to_refuse(sdjepa, a_run, tiny_data, tmp_path):
    """An arm of two joints has Two-Room's columns; who says so later is believed."""
    manifest = a_run / "manifest.json"
    noted = read_json(manifest)
    assert noted["data"]["env_guessed"] is False
    for guessed, code in ((False, 2), (True, 0)):
        noted["data"] |= {"env": "reacher", "env_guessed": guessed}
        write_json(manifest, noted)
        assert sdjepa("score", a_run, "--tasks", 2)[0] == code


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (("tworoom", "--frames", 24), ("tworoom", "--episodes", 4)),
        (("pusht", "--demos", "d.npz"), ("pusht", "--demos", "{here}/d.npz")),
    ],
)
def test_the_same_dataset_asked_for_in_other_words_is_finished(
    sdjepa, tmp_path, monkeypatch, first, again
):
    monkeypatch.chdir(tmp_path)
    state = np.tile(np.array([100.0, 100, 300, 300, 0]), (40, 1))
    np.savez("d.npz", state=state, action=state[:, :2], episode_ends=np.array([40]))
    small = ("--steps", 5, "--size", 16, "--workers", 1, "--out", "set")
    if "--demos" in first:
        small += ("--episodes", 4)
    assert sdjepa("collect", *first, *small)[0] == 0
    words = [str(word).format(here=tmp_path) for word in again]
    code, out, err = sdjepa("collect", *words, *small)
    assert (code, out.strip()) == (0, "set"), err


def test_where_data_were_moved_to_is_said_once(sdjepa, a_run, tiny_data, tmp_path):
    """Every verb asks for --data; a run that goes on remembers it, if they are the data it had."""
    config, moved = a_run / "config.toml", tmp_path / "moved data"
    gone = f"no dataset at {tmp_path / 'gone'}, where {a_run} had its own; say by --data DIR"
    config.write_text(config.read_text().replace(str(tiny_data), str(tmp_path / "gone")))
    described = a_run / "checkpoints" / "latest" / "config.json"
    described.write_text(described.read_text().replace(str(tiny_data), str(tmp_path / "gone")))
    for words in (["train", "--resume", a_run], ["score", a_run], ["compass", a_run]):
        assert gone in refused(sdjepa, *words)
    code, _, err = sdjepa(
        "collect", "tworoom", "--episodes", "9", "--steps", "40", "--size", "28", "--out", moved
    )
    assert code == 0, err
    before = config.read_text()
    other = refused(sdjepa, "train", "--resume", a_run, "--data", moved)
    assert f"{moved} is not the data {a_run} was trained on (num_episodes is another)" in other
    shutil.rmtree(moved)
    shutil.copytree(tiny_data, moved)
    said = read_json(moved / "dataset.json")
    twin = said | {"action": {**said["action"], "mean": [0.5, 0.5]}}  # as many of another kind
    write_json(moved / "dataset.json", twin)
    other = refused(sdjepa, "train", "--resume", a_run, "--data", moved)
    assert "(action is another)" in other
    assert config.read_text() == before
    write_json(moved / "dataset.json", said)
    assert sdjepa("train", "--resume", a_run, "--data", moved)[0] == 0
    assert Run(a_run).config.data.path == str(moved)
    assert sdjepa("train", "--resume", a_run)[0] == 0


NOTHING = "nothing was written"


@pytest.mark.parametrize(
    ("module", "work", "words", "leaves"),
    [
        ("sdjepa.scoring.trained", "score", "score {run}", "scores that were finished are kept"),
        (
            "sdjepa.compass.suite",
            "compass",
            "compass {run}",
            "diagnostics that were finished are kept",
        ),
        ("sdjepa.report.page", "report", "report {run}", NOTHING),
        ("sdjepa.scoring.floors", "measure_floors", "floors {data}", NOTHING),
        ("sdjepa.scoring.ceiling", "measure_ceiling", "ceiling {data} --out=x", NOTHING),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_verb_that_is_stopped_says_what_is_left(
    sdjepa, trained, tiny_data, monkeypatch, module, work, words, leaves, number
):
    """By Ctrl-C or by a scheduler, which is heard only while a verb is at work."""

    def stopped(*given, **named):
        os.kill(os.getpid(), number)
        time.sleep(60)

    monkeypatch.setattr(importlib.import_module(module), work, stopped)
    code, out, err = sdjepa(*(w.format(run=trained, data=tiny_data) for w in words.split()))
    assert (code, out, err.strip()) == (130, "", f"stopped; {leaves}")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


AS_ANOTHER = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
AS_ANOTHER += ["--inh-caps=-dac_override,-dac_read_search"]  # root may read anything


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_what_may_not_be_read_is_neither_damaged_nor_missing(a_run, tiny_data, tmp_path):
    data = Path(shutil.copytree(tiny_data, tmp_path / "data"))
    rows, weights = data / "episodes.h5", a_run / "checkpoints" / "latest" / "model.safetensors"
    for file in (rows, weights):
        file.chmod(0)
    for words, told in (
        (["data", "audit", data], f"error: {rows} may not be read by you; make it readable"),
        (["score", a_run, "--tasks", "1"], f"error: {weights.resolve()}: Permission denied"),
    ):
        command = [sys.executable, "-m", "sdjepa", *map(str, words)]
        command = [*AS_ANOTHER, *command] if os.geteuid() == 0 else command
        ended = subprocess.run(command, capture_output=True, text=True)
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
        assert ended.stderr.startswith(told)


def test_everyone_may_read_a_checkpoint_who_may_read_the_run(a_run):
    assert len({path.stat().st_mode for path in a_run.rglob("*") if path.is_file()}) == 1
