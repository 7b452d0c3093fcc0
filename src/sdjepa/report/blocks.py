"""The few shapes a page is made of: figure, table, margin column, a line for what is missing."""

import html
import re
from collections.abc import Iterable, Sequence

from sdjepa.report.style import MINUS, PALETTE, RHO, SERIES, THETA

escape = html.escape

_NAMES = {light: name for name, (light, _) in PALETTE.items()}


def series_variable(index: int) -> str:
    """The CSS variable of the `index`-th run's colour."""
    return f"var(--{_NAMES[SERIES[index % len(SERIES)]]})"


def figure(body: str, caption: str = "", *, extra: str = "") -> str:
    """A drawing with the sentence that reads it; `caption` is HTML."""
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure class="{extra}">{body}{below}</figure>'


def grid(items: Iterable[str], *, size: str = "") -> str:
    """Small multiples."""
    return f'<div class="grid {size}">{"".join(items)}</div>'


def split(main: str, margin: str) -> str:
    """Main column and margin note."""
    return f'<div class="split"><div>{main}</div>{margin}</div>'


def columns(items: Sequence[str]) -> str:
    """One column per run; a single run takes the whole width."""
    one = " one" if len(items) == 1 else ""
    return f'<div class="runs{one}">{"".join(f"<div>{item}</div>" for item in items)}</div>'


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    numeric: Iterable[int] = (),
    marked: Iterable[int] = (),
    wide: bool = False,
) -> str:
    """A table of ready HTML cells; `numeric` columns align right, `marked` rows stand out."""
    right, strong = set(numeric), set(marked)

    def cell(tag: str, column: int, text: str) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        return f"<{tag}{scope}{' class=n' if column in right else ''}>{text}</{tag}>"

    header = "".join(cell("th", i, escape(text)) for i, text in enumerate(head))
    body = ""
    for number, row in enumerate(rows):
        first = f'<th scope="row">{row[0]}</th>'
        rest = "".join(cell("td", i, text) for i, text in enumerate(row[1:], start=1))
        body += f"<tr{' class=differs' if number in strong else ''}>{first}{rest}</tr>"
    kind = ' class="wide"' if wide else ""
    return (
        f'<div class="scroll" tabindex="0"><table{kind}><thead><tr>{header}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def missing(what: str, command: str) -> str:
    """One line for a section without files: what is not there and which command makes it."""
    return f'<p class="missing">{escape(what)} Make it with <code>{escape(command)}</code>.</p>'


def key(items: Iterable[tuple[str, str, str]]) -> str:
    """A legend: (kind of mark, CSS colour, words)."""
    entries = "".join(
        f'<li><i class="{kind}" style="--c:{colour}">{"&#9733;" if kind == "star" else ""}</i>'
        f"{escape(text)}</li>"
        for kind, colour, text in items
    )
    return f'<ul class="key">{entries}</ul>'


def number(value: object) -> str:
    """A value as a reader wants it: short, no trailing zeros, words for switches and gaps."""
    if value is None:
        return "\u2013"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:.3g}".replace("-", "\u2212") if abs(value) < 1e4 else f"{value:,.0f}"
    return escape(str(value))


def spoken(text: str) -> str:
    """A result file's ASCII sentence as a page writes it: Greek letters, words for column names."""
    text = re.sub(r"\b[Tt]heta\b", THETA, text)
    text = re.sub(r"\brho\b", RHO, text).replace("R2", "R\u00b2")
    text = re.sub(r"(?<=[a-z0-9])_(?=[a-z0-9])", " ", text)
    text = re.sub(r"(?<![\w.])-(?=\d)", MINUS, text)
    # A p-value is one word: it must not break over two lines.
    return re.sub(r"\bp = (?=\d)", "p\u00a0=\u00a0", text)
