"""The frame of every page: one HTML file with styles, both themes and scripts inside."""

from collections.abc import Sequence
from importlib.resources import files

from sdjepa.report.blocks import escape
from sdjepa.report.style import PALETTE


def document(title: str, body: str, *, styles: Sequence[str], scripts: Sequence[str]) -> str:
    """A self-contained page; `styles` and `scripts` are texts, in order."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        # The icon is empty on purpose: without it a browser asks the network for one.
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{themes()}{''.join(styles)}</style></head>"
        f"<body>{body}<script>{''.join(scripts)}</script></body></html>\n"
    )


def asset(name: str, package: str = "sdjepa.report") -> str:
    """A text file that lies beside the code."""
    return (files(package) / name).read_text()


def themes() -> str:
    """The palette as CSS variables: light, dark by the system's wish, dark by the button."""
    light = "".join(f"--{name}:{pair[0]};" for name, pair in PALETTE.items())
    dark = "".join(f"--{name}:{pair[1]};" for name, pair in PALETTE.items())
    return (
        f":root{{color-scheme:light;{light}}}"
        "@media screen and (prefers-color-scheme:dark)"
        f"{{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )
