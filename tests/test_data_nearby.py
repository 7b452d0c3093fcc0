"""A path that is no dataset: which were meant is said at once, before anything is opened."""

from pathlib import Path

import pytest

from sdjepa.data import episodes
from sdjepa.data.convert import convert
from sdjepa.data.episodes import Episodes
from sdjepa.errors import UserError
from small import foreign


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Two datasets, a file of another program and a folder of neither; the library is not asked."""

    def ask(path):
        raise AssertionError(f"the library was asked for {path}")

    monkeypatch.setattr(episodes, "open_store", ask)
    for name in ("rooms", "pusht"):
        for file in ("episodes.h5", "dataset.json"):
            (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "data" / name / file).touch()
    (tmp_path / "data" / "notes").mkdir()
    foreign(tmp_path / "data" / "robot.h5")
    return tmp_path / "data"


def refused(path: Path) -> str:
    with pytest.raises(UserError) as error:
        Episodes.open(path)
    return str(error.value)


def test_a_folder_of_datasets_names_them(folder):
    assert refused(folder) == f"{folder} holds datasets: {folder}/pusht, {folder}/rooms; name one"
    with pytest.raises(UserError, match="holds datasets"):
        convert(folder, folder / "out")


def test_of_many_datasets_the_first_are_named(folder):
    for number in range(9):
        (folder / f"a{number}").mkdir()
        for file in ("episodes.h5", "dataset.json"):
            (folder / f"a{number}" / file).touch()
    assert f"{folder}/a4, ...; name one" in refused(folder)


@pytest.mark.parametrize(("typed", "meant"), [("room", "rooms"), ("robt.h5", "robot.h5")])
def test_a_slip_of_the_keyboard_is_answered_by_what_was_meant(folder, typed, meant):
    said = f"no dataset at {folder / typed}; did you mean {folder / meant}? If not, make one"
    assert refused(folder / typed).startswith(said)
    with pytest.raises(UserError, match="did you mean"):
        convert(folder / typed, folder / "out")


def test_a_dot_in_a_folders_name_is_no_ending(folder):
    for name in ("v1.2-rooms", "v1.3-arm"):
        (folder / name).mkdir()
        for file in ("episodes.h5", "dataset.json"):
            (folder / name / file).touch()
    assert f"did you mean {folder}/v1.2-rooms?" in refused(folder / "v1.2-room")


@pytest.mark.parametrize("typed", ["quite-another", "note", "gone/rooms"])
def test_what_resembles_no_dataset_is_answered_as_before(folder, typed):
    path = folder / typed
    assert refused(path) == f"no dataset at {path}; make one with: sdjepa collect ENV --out {path}"


def test_a_neighbour_that_may_not_be_entered_hides_no_other(folder, monkeypatch):
    exists = Path.exists

    def closed(path):
        if path.parent.name == "notes":
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path)

    monkeypatch.setattr(Path, "exists", closed)
    assert "did you mean" in refused(folder / "room")
    assert "holds datasets" in refused(folder)


def test_the_hint_to_fetch_does_not_take_a_path_for_a_name_on_a_hub(tmp_path):
    with pytest.raises(UserError, match="hf download --repo-type dataset OWNER/NAME --local-dir"):
        convert(tmp_path / "nothing", tmp_path / "out")


def test_the_one_file_in_a_folder_is_what_is_opened_and_several_are_named(tmp_path):
    """What is said and written of it then has its name, and lies beside it, in the folder."""
    file, folder = tmp_path / "one" / "robot.h5", tmp_path / "one"
    folder.mkdir()
    foreign(file)
    with Episodes.open(folder) as data:
        assert data.path == file
        assert data.beside("card.md") == folder / "robot.h5.card.md"
    foreign(folder / "other.hdf5")
    both = f"{folder / 'other.hdf5'}, {file}"
    assert refused(folder) == f"{folder} holds several HDF5 files: {both}; name one"
