"""A path that is no dataset in, which datasets near it may have been meant out.

Only names are looked at, so that this is done before anything is opened or imported.
"""

import difflib
from pathlib import Path

from sdjepa.data.writer import CARD, FILE
from sdjepa.errors import UserError

MOST = 5  # of those named


def datasets_in(folder: Path) -> list[Path]:
    """The datasets right under `folder`, ours and HDF5 files."""
    if not folder.is_dir():
        return []
    return sorted(child for child in folder.iterdir() if _is_dataset(child))


def _is_dataset(path: Path) -> bool:
    ours = (path / CARD).exists() and (path / FILE).exists()
    return ours or (path.suffix in (".h5", ".hdf5") and path.is_file())


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
    beside = {child.name: child for child in datasets_in(path.parent)}
    close = difflib.get_close_matches(path.name, beside, n=1)
    return f"did you mean {beside[close[0]]}? If not, " if close else ""
