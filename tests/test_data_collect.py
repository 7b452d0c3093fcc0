"""Collection: the seed decides every byte; a kill costs time, not data; errors leave nothing."""

import json
import os
import shutil
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
from sdjepa.data import writer as writing
from sdjepa.data.collect import collect
from sdjepa.data.convert import convert
from sdjepa.data.episodes import Episodes
from sdjepa.data.tally import Tally
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


def test_the_same_seed_gives_the_same_file(tmp_path):
    few = SETTINGS.model_copy(update={"episodes": 3})
    first = collect(few, tmp_path / "first") / "episodes.h5"
    time.sleep(1.1)  # HDF5 notes seconds
    second = collect(few, tmp_path / "second") / "episodes.h5"
    assert first.read_bytes() == second.read_bytes()


def test_so_many_frames_are_made_where_no_episode_ends_early(tmp_path):
    asked = SETTINGS.model_copy(update={"frames": 300})
    with Episodes.open(collect(asked, tmp_path / "set")) as data:
        assert data.num_rows == 8 * 41  # the first that is enough


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 300}, "--size 300 exceeds"),
        ({"shadow": 512}, "draws no shadows"),
        ({"policy": "pusher"}, "no policy 'pusher'; it has expert"),
        ({"demos": "some.npz"}, "replays no demonstrations"),
        ({"env": "pusht", "policy": "pusher", "demos": __file__}, "or say --policy demos"),
        ({"env": "reacher", "noise": 0.5}, "random has no noise.*or say --policy expert"),
        ({"validation_share": 0.6, "test_share": 0.6}, "add up to 1.2 and must stay below 1"),
        ({"episodes": 12, "validation_share": 0.49, "test_share": 0.5}, "leave none for training"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_written(tmp_path, wrong, message):
    with pytest.raises(UserError, match=message):
        collect(SETTINGS.model_copy(update=wrong), tmp_path / "set")
    assert not (tmp_path / "set").exists()


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


def test_progress_counts_episodes_as_they_are_made_and_parts_that_were_there_from_the_start(
    tmp_path, monkeypatch
):
    """Two of three parts are there; one of them is spoilt and made again."""
    monkeypatch.setattr(base.env_class("tworoom"), "rows_between_saves", 4 * 41)
    few = SETTINGS.model_copy(update={"episodes": 12})
    for workers in (1, 2):
        out, seen = tmp_path / f"set-{workers}", []
        killed_at("_tidy", few, out)
        (out / "episodes.h5").unlink()
        (out / ".collect" / "part-000001").write_bytes(b"")
        (out / ".collect" / "part-000002").unlink()
        settings = few.model_copy(update={"workers": workers})
        collect(settings, out, progress=lambda *told, seen=seen: seen.append(told))
        made = [told for told in seen if told[1] == 12]
        assert made[0] == (8, 12, "episodes, starting the simulator")
        assert [done for done, *_ in made] == sorted(done for done, *_ in made)
        assert made[-1][0] == 12
        if workers == 1:
            assert {done for done, *_ in made} == {8, 9, 10, 11, 12}


def test_frames_a_second_are_of_what_was_made_now(monkeypatch):
    now = 50.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    counts, told = np.zeros((3, 2), np.int64), []
    tally = Tally([5, 5, 2], [True, False, False], counts)
    tally.tell(lambda *said: told.append(said))
    now, counts[1] = 52.0, (3, 30)
    tally.tell(lambda *said: told.append(said))
    now = 60.0
    tally.tell(lambda *said: told.append(said))
    assert told == [
        (5, 12, "episodes, starting the simulator"),
        (8, 12, "episodes, 15 frames/s"),
        (8, 12, "episodes, 15 frames/s"),
    ]


def begin(settings: Collect, out: Path) -> subprocess.Popen:
    """A collection in a process group of its own, killed by the caller; some of it is made."""
    rows = base.env_class(settings.env).rows_between_saves
    script = (
        "from pathlib import Path\n"
        "from sdjepa.config import Collect\n"
        "from sdjepa.data.collect import collect\n"
        "from sdjepa.envs.base import env_class\n"
        f"settings = Collect.model_validate_json({settings.model_dump_json()!r})\n"
        f"env_class(settings.env).rows_between_saves = {rows}\n"
        f"collect(settings, Path({str(out)!r}))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    while not list(out.glob(".collect/part-*")):
        assert child.poll() is None
        time.sleep(0.01)
    return child


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_collection_continues_to_the_same_bytes(dataset, tmp_path, monkeypatch, workers):
    """And leaves no worker behind, though nobody could tell them."""
    monkeypatch.setattr(base.env_class("tworoom"), "rows_between_saves", 41)
    out, settings = tmp_path / "set", SETTINGS.model_copy(update={"workers": workers})
    child = begin(settings, out)
    os.kill(child.pid, signal.SIGKILL)  # not its workers
    child.wait()
    assert all_end(child.pid)
    assert not (out / "episodes.h5").exists()
    with pytest.raises(UserError, match="unfinished"):
        Episodes.open(out)
    with pytest.raises(UserError, match="unfinished collection with seed = 3"):
        collect(SETTINGS.model_copy(update={"seed": 5}), out)
    collect(SETTINGS, out)
    assert checksums(out) == checksums(dataset)
    assert not [path for path in out.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
def test_ctrl_c_as_a_terminal_sends_it_is_one_line_and_ends_all(dataset, tmp_path, monkeypatch):
    """To the whole group, whatever its processes are at: none may go on and leave a mixture."""
    monkeypatch.setattr(base.env_class("tworoom"), "rows_between_saves", 41)
    out, words = tmp_path / "set", ["collect", "tworoom", "--out", str(tmp_path / "set")]
    for key in ("episodes", "steps", "size", "seed"):
        words += [f"--{key}", str(getattr(SETTINGS, key))]
    script = (
        "import sys; from sdjepa.cli import main; from sdjepa.envs.base import env_class\n"
        f"env_class('tworoom').rows_between_saves = 41; sys.argv = ['sdjepa', *{words}]\n"
        "if __name__ == '__main__': main()"
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    begun = out / ".collect" / "settings.json"
    for wait in (0.0, 0.3, 1.0, None, None):
        stamp = begun.stat().st_mtime_ns if begun.exists() else None
        parts = len(list(out.glob(".collect/part-*")))
        child = subprocess.Popen(
            [sys.executable, str(path), "--workers", "2"],
            start_new_session=True,
            stderr=subprocess.PIPE,
            text=True,
        )
        while child.poll() is None and not (
            begun.exists() and begun.stat().st_mtime_ns != stamp  # workers start now
        ):
            time.sleep(0.01)
        if wait is None:  # until there is something to lose
            while child.poll() is None and len(list(out.glob(".collect/part-*"))) <= parts:
                time.sleep(0.01)
        else:
            time.sleep(wait)
        if child.poll() is None:
            if wait == 1.0:  # a scheduler, which asks the first process alone
                os.kill(child.pid, signal.SIGTERM)
            else:
                os.killpg(child.pid, signal.SIGINT)
        _, said = child.communicate(timeout=300)
        assert "Traceback" not in said
        assert child.returncode == 130 or (wait and child.returncode == 0), said
        assert all_end(child.pid)
        if child.returncode == 0:
            break
        assert said == "stopped; the same command continues where it stopped\n"
    if not (out / "card.md").exists():
        collect(SETTINGS, out)
    assert checksums(out) == checksums(dataset)


def test_an_episode_that_was_broken_off_leaves_no_frame_to_the_next(monkeypatch):
    env, few = base.make("tworoom"), SETTINGS.model_copy(update={"steps": 5, "policy": "expert"})
    with monkeypatch.context() as patch:
        patch.setattr(env, "finished", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            collecting.record(env, few, 0)
    packed, _ = collecting.record(env, few, 1)
    assert len(packed.frames) == 6
    assert packed.frames == collecting.record(env, few, 1)[0].frames


def all_end(group: int) -> bool:
    """Whether soon no process of the group runs: the last to leave need some time for it."""
    patience = time.monotonic() + 60
    while (some := alive(group)) and time.monotonic() < patience:
        time.sleep(0.1)
    return not some


def alive(group: int) -> bool:
    """Whether any process of the group runs; one that has ended and waits to be seen does not."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state != "Z":
            return True
    return False


def killed_at(name: str, settings: Collect, out: Path) -> None:
    """Collect, and be stopped where a function of the module would be called."""

    def die(*given, **named):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collecting, name, die)
        with pytest.raises(KeyboardInterrupt):
            collect(settings, out)


def test_a_collection_killed_when_only_its_card_was_missing_is_finished(tmp_path):
    few, out = SETTINGS.model_copy(update={"episodes": 3}), tmp_path / "set"
    killed_at("_tidy", few, out)
    assert (out / "episodes.h5").exists()
    assert not (out / "card.md").exists()
    for part in out.glob(".collect/part-*"):  # as they are, one by one, when it is killed again
        part.unlink()
    with pytest.raises(UserError, match="unfinished collection with seed"):
        collect(few.model_copy(update={"seed": 8}), out)
    collect(few, out)
    assert (out / "card.md").exists()
    assert not (out / ".collect").exists()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda whole: b"",
        lambda whole: whole[:40],
        lambda whole: whole[:-1],
        lambda whole: whole[:-50] + bytes(50),
        lambda whole: b"3\n" + whole,
    ],
)
def test_a_part_that_was_spoilt_is_made_again(tmp_path, spoil):
    """As a machine that went down may leave it."""
    few, out = SETTINGS.model_copy(update={"episodes": 3}), tmp_path / "set"
    killed_at("read_part", few, out)
    (part,) = out.glob(".collect/part-*")
    part.write_bytes(spoil(part.read_bytes()))
    collect(few, out)
    assert checksums(out) == checksums(collect(few, tmp_path / "other"))


@pytest.mark.parametrize("name", ["dataset.json", "card.md", "audit.json", "notes.txt"])
def test_a_folder_that_holds_other_files_gets_no_dataset(dataset, tmp_path, name):
    out = tmp_path / "set"
    out.mkdir()
    (out / name).write_text("mine")
    for make in (lambda: collect(SETTINGS, out), lambda: convert(dataset, out)):
        with pytest.raises(UserError, match=rf"holds other files \({name}\); name a folder of its"):
            make()
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [(name, "mine")]


def test_of_many_other_files_three_are_named(tmp_path):
    for name in "dbca":
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"\(a, b, c, \.\.\.\)"):
        writing.refuse_taken(tmp_path)


def test_what_a_killed_writer_left_is_no_obstacle(tmp_path):
    few, out = SETTINGS.model_copy(update={"episodes": 3}), tmp_path / "set"
    out.mkdir()
    (out / ".episodes.h5.partial").write_bytes(b"half of a file")
    assert checksums(collect(few, out)) == checksums(collect(few, tmp_path / "other"))
    assert not (out / ".episodes.h5.partial").exists()


def test_no_dataset_is_made_inside_another(dataset, tmp_path):
    few = SETTINGS.model_copy(update={"episodes": 3})
    before = sorted(dataset.rglob("*"))
    for out in (dataset / "sub", dataset / "deep" / "sub"):
        for make in (lambda out=out: collect(few, out), lambda out=out: convert(dataset, out)):
            with pytest.raises(UserError, match="lies inside the dataset"):
                make()
    assert sorted(dataset.rglob("*")) == before


def test_other_demonstrations_do_not_continue_a_collection(tmp_path, monkeypatch):
    """Named by the environment variable, they are no setting."""
    rng, names = np.random.default_rng(0), [tmp_path / "a.npz", tmp_path / "b.npz"]
    for path in names:
        state = rng.uniform(150, 350, (2, 5)) + np.linspace(0, 30, 40)[:, None, None]
        state, ends = state.swapaxes(0, 1).reshape(80, 5), np.array([40, 80])
        np.savez(path, state=state, action=state[:, :2], episode_ends=ends)
    settings, out = Collect(env="pusht", episodes=3, steps=8, size=16, workers=1), tmp_path / "set"
    monkeypatch.setenv("SDJEPA_PUSHT_DEMOS", str(names[0]))
    killed_at("read_part", settings, out)
    monkeypatch.setenv("SDJEPA_PUSHT_DEMOS", str(names[1]))
    with pytest.raises(UserError, match="unfinished collection with demos_sha256"):
        collect(settings, out)
    monkeypatch.setenv("SDJEPA_PUSHT_DEMOS", str(names[0]))
    collect(settings, out)
    assert json.loads((out / "card.json").read_text())["policy"]["name"] == "demos"


def test_a_finished_dataset_is_left_as_it_is_and_one_of_other_settings_refused(dataset):
    before = {path: path.stat().st_mtime_ns for path in dataset.rglob("*")}
    assert collect(SETTINGS.model_copy(update={"workers": 1}), dataset) == dataset
    with pytest.raises(UserError, match="already holds a dataset, with seed = 3, not 8; remove"):
        collect(SETTINGS.model_copy(update={"seed": 8}), dataset)
    assert {path: path.stat().st_mtime_ns for path in dataset.rglob("*")} == before


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


def test_data_have_their_name_only_when_they_are_described(tmp_path, monkeypatch):
    def full(path, value):
        raise UserError(f"could not write {path}")

    settings = Collect(env="tworoom", episodes=3, steps=4, size=16, workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_json", full)
        with pytest.raises(UserError, match="could not write"):
            collect(settings, tmp_path / "set")
    assert not (tmp_path / "set" / "episodes.h5").exists()
    collect(settings, tmp_path / "set")


def test_an_episode_that_reached_its_goal_twice_counts_once(tmp_path, monkeypatch):
    whole = collecting.read_part

    def counted(path):
        for (packed, _), goals in zip(whole(path), (2, 0, 1, 1), strict=True):
            yield packed, goals

    monkeypatch.setattr(collecting, "read_part", counted)
    settings = Collect(env="tworoom", episodes=4, steps=5, size=16, workers=1)
    about = json.loads((collect(settings, tmp_path / "set") / "dataset.json").read_text())
    policy = about["policy"]
    assert (policy["success_share"], policy["successes_per_episode"]) == (0.75, 1.0)


def test_a_policy_that_stays_at_its_goal_has_reached_it_once(tmp_path, monkeypatch):
    monkeypatch.setattr(base.env_class("tworoom"), "succeeded", lambda env: True)
    settings = Collect(env="tworoom", episodes=3, steps=5, size=16, workers=1)
    about = json.loads((collect(settings, tmp_path / "set") / "dataset.json").read_text())
    policy = about["policy"]
    assert policy["successes_per_episode"] == 1  # resting


def test_another_seed_splits_otherwise(tmp_path):
    splits = [writing.make_split(40, seed=seed, validation=0.1, test=0.1) for seed in (0, 1)]
    assert splits[0]["test"] != splits[1]["test"]


def test_statistics_of_a_column_are_those_of_its_finite_rows(dataset):
    said = json.loads((dataset / "dataset.json").read_text())["columns"]["action"]["statistics"]
    with Episodes.open(dataset) as data:
        action = data.column("action").astype(float)
    whole = action[np.isfinite(action).all(1)]
    for name, value in (("mean", whole.mean(0)), ("std", whole.std(0)), ("max", whole.max(0))):
        assert said[name] == pytest.approx(value)


def test_a_simulators_other_version_does_not_continue_a_collection(tmp_path, monkeypatch):
    settings, out = (
        Collect(env="tworoom", episodes=3, steps=4, size=16, workers=1),
        tmp_path / "set",
    )

    def die(*given, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(collecting, "read_part", die)
        with pytest.raises(KeyboardInterrupt):
            collect(settings, out)
    said = collecting.provenance()
    other = {**said, "versions": {**said["versions"], "mujoco": "0"}}
    with monkeypatch.context() as patch:
        patch.setattr(collecting, "provenance", lambda: other)
        with pytest.raises(UserError, match="unfinished collection with mujoco"):
            collect(settings, out)
    collect(settings, out)


def spoil_length(out: Path) -> str:
    os.truncate(out / "episodes.h5", 5000)
    return "truncated"


def spoil_all(out: Path) -> str:
    os.truncate(out / "episodes.h5", 0)
    return "truncated or no HDF5 file"


def take_rows(out: Path) -> str:
    (out / "episodes.h5").unlink()
    return "has dataset.json but no episodes.h5"


def take_description(out: Path) -> str:
    (out / "dataset.json").unlink()
    return "sdjepa data convert"


@pytest.mark.parametrize("spoil", [spoil_length, spoil_all, take_rows, take_description])
def test_what_was_finished_and_is_damaged_is_not_called_finished(dataset, tmp_path, spoil):
    out = Path(shutil.copytree(dataset, tmp_path / "set"))
    told = spoil(out)
    before = sorted(out.iterdir())
    with pytest.raises(UserError, match=told):
        collect(SETTINGS, out)
    assert sorted(out.iterdir()) == before


def test_a_card_that_is_gone_is_written_again(dataset, tmp_path):
    out = Path(shutil.copytree(dataset, tmp_path / "set"))
    for name in ("card.md", "card.json", "card.png"):
        (out / name).unlink()
    collect(SETTINGS, out)
    assert (out / "card.md").read_text() == (dataset / "card.md").read_text().replace(
        str(dataset), str(out)
    )
