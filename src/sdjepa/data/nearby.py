"""A path that is no dataset in, which datasets near it may have been meant out.

Only names are looked at, so that this is done before anything is opened or imported.
"""

import contextlib
import difflib
from collections.abc import Sequence
from pathlib import Path

from sdjepa.data.writer import CARD, FILE
from sdjepa.errors import UserError

HDF5_SUFFIXES = (".h5", ".hdf5")
MOST = 5  # of those named


def datasets_in(folder: Path) -> list[Path]:
    """The datasets right under `folder`, ours and HDF5 files."""
    with contextlib.suppress(OSError):  # no folder, or one that may not be read
        return sorted(child for child in folder.iterdir() if _is_dataset(child))
    return []


def _is_dataset(path: Path) -> bool:
    with contextlib.suppress(OSError):  # a folder that may not be entered
        ours = (path / CARD).exists() and (path / FILE).exists()
        return ours or (path.suffix in HDF5_SUFFIXES and path.is_file())
    return False


def refuse_parent(path: Path) -> None:
    """Refuse a folder that is no dataset but holds some."""
    if (path / "meta" / "info.json").exists():  # of LeRobot
        return
    held = [child for child in datasets_in(path) if child.is_dir()]
    if held:
        raise UserError(f"{path} holds datasets: {_listed(held)}; name one")


def only_file(path: Path) -> Path:
    """The HDF5 file in a folder of another program's that has one; any other path as it is."""
    if any(path.glob("*.lance")):  # which is what stable-worldmodel takes then
        return path
    files = [child for child in datasets_in(path) if child.is_file()]
    if len(files) > 1:
        raise UserError(f"{path} holds several HDF5 files: {_listed(files)}; name one")
    return files[0] if files else path


def nearest(path: Path) -> str:
    """The dataset beside `path`, where nothing is, that its name resembles: a question, or ""."""
    # An ending says nothing.
    beside = {folder_for(child).name: child for child in datasets_in(path.parent)}
    close = difflib.get_close_matches(folder_for(path).name, beside, n=1)
    return f"did you mean {beside[close[0]]}? If not, " if close else ""


def folder_for(path: Path) -> Path:
    """Where a dataset of ours could go, of a name that was to be a file's."""
    return path.with_suffix("") if path.suffix in HDF5_SUFFIXES else path


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths[:MOST])) + (", ..." if len(paths) > MOST else "")
