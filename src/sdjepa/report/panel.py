"""One drawing of a diagnostic, with the sentence that reads it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

Record = Mapping[str, Any]  # one result file


@dataclass(frozen=True)
class Panel:
    """One drawing of a diagnostic; equal `row` means side by side, `size` is that of the row."""

    name: str
    alt: str
    caption: str  # HTML
    draw: Callable[[], Figure]
    row: int = 0
    size: str = "medium"
