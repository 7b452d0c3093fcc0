"""A path that is no dataset in, which datasets near it may have been meant out.

Only names are looked at, so that this is done before anything is opened or imported.
"""

import contextlib
import difflib
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
        more = ", ..." if len(held) > MOST else ""
        names = ", ".join(str(child) for child in held[:MOST])
        raise UserError(f"{path} holds datasets: {names}{more}; name one")


def nearest(path: Path) -> str:
    """The dataset beside `path`, where nothing is, that its name resembles: a question, or ""."""
    # An ending says nothing.
    beside = {folder_for(child).name: child for child in datasets_in(path.parent)}
    close = difflib.get_close_matches(folder_for(path).name, beside, n=1)
    return f"did you mean {beside[close[0]]}? If not, " if close else ""


def folder_for(path: Path) -> Path:
    """Where a dataset of ours could go, of a name that was to be a file's."""
    return path.with_suffix("") if path.suffix in HDF5_SUFFIXES else path
