"""One visual language: colours for both themes, a cyclic map for angles, SVG that suits a page.

A figure is drawn once, with the light colours. Inside a page every named colour becomes a CSS
variable, so the same drawing is legible on paper and on a dark screen; PNG and PDF keep the light
colours.
"""

import functools
import html
import io
import re
from collections.abc import Callable
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from cycler import cycler
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

# name: (light, dark). Hues after Okabe and Ito: told apart without red-green vision.
PALETTE = {
    "paper": ("#fcfbf8", "#15171a"),
    "panel": ("#f4f1ea", "#1d2024"),
    "rule": ("#dcd7cc", "#34383e"),
    "faint": ("#b9b4a9", "#5c626b"),
    "muted": ("#67655f", "#a3a59f"),
    "ink": ("#1b1c1e", "#ecebe6"),
    "blue": ("#00659e", "#62b6ee"),
    "vermilion": ("#bd4b06", "#ff9356"),
    "green": ("#00805d", "#3fc79b"),
    "purple": ("#a8508a", "#e29ac6"),
    "amber": ("#b57a00", "#f0b73f"),
    "sky": ("#3a93c4", "#8fd0f5"),
}
LIGHT = {name: pair[0] for name, pair in PALETTE.items()}
PAPER, PANEL, RULE = LIGHT["paper"], LIGHT["panel"], LIGHT["rule"]
FAINT, MUTED, INK = LIGHT["faint"], LIGHT["muted"], LIGHT["ink"]
BLUE, VERMILION, GREEN = LIGHT["blue"], LIGHT["vermilion"], LIGHT["green"]
PURPLE, AMBER, SKY = LIGHT["purple"], LIGHT["amber"], LIGHT["sky"]
SERIES = (BLUE, VERMILION, GREEN, PURPLE, AMBER, SKY)  # runs, features: in this order everywhere

THETA, DELTA, RHO, MINUS = "\u03b8", "\u0394", "\u03c1", "\u2212"

_RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Liberation Sans", "Arial", "Helvetica", "DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 6,
    "axes.labelsize": 8.5,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.7,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=SERIES),
    "figure.facecolor": "none",
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "xtick.major.width": 0.7,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """`draw` under the shared style, leaving matplotlib's own settings as they were."""

    @functools.wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(_RC):
            return draw(*args, **kwargs)

    return wrapper


def cyclic(num_colours: int = 256) -> ListedColormap:
    """A colour per angle: a hue circle tilted in lightness along red-green.

    The tilt is why it can be read without red-green vision: hues that would be confused differ in
    lightness. Every colour stays mid-light, so it shows on white and on black.
    """
    turn = np.linspace(0, 2 * np.pi, num_colours, endpoint=False)
    lab = np.stack([0.66 - 0.12 * np.sin(turn), 0.12 * np.sin(turn), 0.12 * np.cos(turn)], axis=1)
    return ListedColormap(_oklab_to_srgb(lab), name="sdjepa-angle")


def _oklab_to_srgb(lab: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n 3"]:
    to_cone = np.array(
        [
            [1, 0.3963377774, 0.2158037573],
            [1, -0.1055613458, -0.0638541728],
            [1, -0.0894841775, -1.2914855480],
        ]
    )
    to_linear = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = np.clip((lab @ to_cone.T) ** 3 @ to_linear.T, 0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def angle_colours(theta_rad: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n 4"]:
    """The colour of each angle; theta and theta + 2 pi get the same one."""
    return cyclic()((np.asarray(theta_rad) / (2 * np.pi)) % 1.0)


def panel(width: float, height: float, *, left: float = 0.45) -> tuple[Figure, Axes]:
    """A figure with one plot and room for title and labels, all in inches.

    Fixed margins take a third of the time of a solved layout, and panels of a row align.
    """
    figure = Figure(figsize=(width, height))
    right, top, bottom = 0.1, 0.27, 0.43
    plot = (width - left - right) / width, (height - top - bottom) / height
    return figure, figure.add_axes((left / width, bottom / height, *plot))


def quiet(axes: Axes, *, grid: str | None = "y") -> Axes:
    """Take away what carries no information: the y spine, and grid lines on the other axis."""
    axes.spines["left"].set_visible(False)
    if grid is not None:
        axes.grid(visible=True, axis=grid)  # pyright: ignore[reportArgumentType]
        axes.set_axisbelow(True)
    return axes


def to_svg(figure: Figure, *, alt: str, name: str, zoom: float = 1.38) -> str:
    """Inline SVG whose colours and fonts are the page's; `name` keeps ids of two figures apart.

    `zoom` bounds its size on screen: at 1.38 a text of 8.5 pt stays under 12 pixels.
    """
    buffer = io.StringIO()
    settings: dict[Any, Any] = {**_RC, "svg.hashsalt": name}
    with matplotlib.rc_context(settings):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r'<text style="([^"]*)"', _font, text)
    # Places are rounded, numbers that are read are not.
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d+\.\d\d)\d+", r"\1", tag[0]), text)
    for colour_name, (light, _) in PALETTE.items():
        text = text.replace(light, f"var(--{colour_name})")
    referenced = set(re.findall(r"#([\w-]+)", text))
    text = re.sub(r' id="([\w.-]+)"', lambda m: m[0] if m[1] in referenced else "", text)
    text = re.sub(r"\s*\n\s*", " ", text)
    # Ids are hashes of shapes, so equal marks in two figures would collide without the name.
    text = re.sub(r'(id="|url\(#|href="#)', rf"\1{name}-", text)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    width = figure.get_figwidth() * 72 * zoom
    head = f'<svg role="img" aria-label="{html.escape(alt)}" style="max-width:{width:.0f}px"'
    return head + text[len("<svg") :].strip()


def _font(match: re.Match[str]) -> str:
    """The style of a text element without its font family, which the page chooses."""
    kept = []
    for declaration in match[1].split(";"):
        key, _, value = declaration.strip().partition(": ")
        if key in ("font-size", "text-anchor", "fill", "opacity"):
            kept.append(f"{key}: {value}")
        elif key == "font-weight" or (key == "font" and "bold" in value):
            kept.append("font-weight: 600")
        if key == "font":
            kept += [f"font-size: {size}" for size in re.findall(r"[\d.]+px", value)]
    return f'<text style="{"; ".join(kept)}"'


def to_bytes(figure: Figure, suffix: str, *, dpi: int = 300, facecolor: str = "white") -> bytes:
    """The figure as a PNG or PDF file; fonts are chosen now, so the style must hold here too."""
    buffer = io.BytesIO()
    metadata = {"CreationDate": None} if suffix == "pdf" else None
    with matplotlib.rc_context(_RC):
        figure.savefig(buffer, format=suffix, dpi=dpi, facecolor=facecolor, metadata=metadata)
    return buffer.getvalue()
