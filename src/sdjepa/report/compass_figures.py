"""A diagnostic as HTML: its figures, what papers printed, or its plain numbers."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from matplotlib.colors import to_hex

from sdjepa.report import published
from sdjepa.report.blocks import escape, figure, grid, number, spoken, table
from sdjepa.report.compass_panels import PANELS, TERMS, diagnostic_panels
from sdjepa.report.read import Diagnostic
from sdjepa.report.style import THETA, angle_colours, to_svg


def ordered(names: Iterable[str]) -> list[str]:
    """Diagnostics in reading order; those without figures last, by name."""
    known = ["course", "film", *list(PANELS)[1:]]
    return sorted(names, key=lambda name: (known.index(name) if name in known else 99, name))


def terms(found: Diagnostic) -> tuple[str, ...]:
    """The words a reader of this diagnostic needs."""
    return TERMS.get(found.name, ("null",))


def panels(found: Diagnostic, *, unique: str) -> str:
    """The figures as HTML rows, or the plain numbers; `unique` keeps ids of two runs apart."""
    if found.name == "film":
        return _strips(found)
    drawn = diagnostic_panels(found)
    if not drawn:
        return _numbers(found)
    rows: dict[int, list[str]] = {}
    sizes: dict[int, str] = {}
    for panel in drawn:
        svg = to_svg(
            panel.draw(),
            alt=panel.alt,
            name=f"{unique}-{panel.name}",
            zoom=2.0 if panel.size == "small" else 1.6,
        )
        rows.setdefault(panel.row, []).append(figure(svg, panel.caption))
        sizes[panel.row] = panel.size
    return "".join(grid(items, size=sizes[row]) for row, items in rows.items())


def _strips(found: Diagnostic) -> str:
    """Eight frames of each of three episodes, underlined in the colour of their angle."""
    strips = ""
    for episode in found.record["results"]["episodes"][:3]:
        moments = np.unique(np.linspace(0, len(episode["rows"]) - 1, 8).round().astype(int))
        colours = [to_hex(tuple(c)) for c in angle_colours(np.asarray(episode["theta"], float))]
        cells = "".join(
            f'<li style="--c:{colours[i]}"><img alt="Frame {episode["rows"][i]}" '
            f'src="data:image/png;base64,{episode["frames"][i]}">'
            f"<span>{episode['rows'][i]}<b>{number(float(episode['theta'][i]))}</b></span></li>"
            for i in moments
        )
        strips += (
            f'<p class="question">Episode {episode["episode"]}</p><ol class="strip">{cells}</ol>'
        )
    return strips + figure(
        "", f"Below each frame its number and {THETA} in radians, on a bar of its colour."
    )


def _numbers(found: Diagnostic) -> str:
    rows = [
        [escape(name), number(value)]
        for part in ("results", "nulls", "published")
        for name, value in leaves(found.record.get(part), part)
    ]
    return table(["Quantity", "Value"], rows[:60], numeric=[1])


def leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every single number of a nested record with a readable name; long lists are left out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{name}, {str(key).replace('_', ' ')}")
    elif isinstance(value, bool | int | float | str):
        yield name, value


def in_print(found: Diagnostic) -> str:
    """What papers printed for this question, in the same environment where they did."""
    entries = list(found.record.get("published") or ())
    here = [entry for entry in entries if entry["setting"].get("env") == found.record.get("env")]
    rows = []
    for entry in (here or entries)[:2]:
        setting = dict(entry["setting"])
        where = published.title(str(setting.pop("env", "")))
        said = ", ".join(f"{key} {value}" for key, value in setting.items() if value)
        values = "; ".join(
            f"{name} {_short(value)}" for name, value in list(_grouped(entry["values"]))[:10]
        )
        cells = (f"{where} ({said})", values, "; ".join(entry["differs"]))
        rows.append([escape(spoken(cell)) for cell in cells])
    if not rows:
        return ""
    body = table(["Setting", "Printed", "Differs from here"], rows, wide=True)
    return f"<details><summary>What the paper printed</summary>{body}</details>"


def _grouped(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        label = f"{prefix}{str(name).replace('_', ' ')}"
        if name == "episode_ids":
            continue
        if isinstance(value, Mapping):
            yield from _grouped(value, f"{label}, ")
        else:
            yield label, value


def _short(value: Any) -> str:
    if isinstance(value, list):
        return " / ".join(number(item) for item in value[:6])
    return number(value)
