"""Signals against truth: cuts in the film, true events, corrupted actions, change points."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sdjepa.report.style import (
    BLUE,
    FAINT,
    INK,
    MUTED,
    PAPER,
    RULE,
    THETA,
    VERMILION,
    panel,
    quiet,
    styled,
)

SIGNALS = {
    "angle_error": f"{THETA}, prediction error",
    "latent_error": "latent, prediction error",
    "progress_error": "progress, prediction error",
    "content_error": "content, prediction error",
    "angular_velocity": f"{THETA}, speed",
    "latent_speed": "latent, speed",
    "theta": f"{THETA}, jump",
    "progress": "progress, jump",
    "content": "content, jump",
    "latent": "latent, jump",
    "clock": "clock",
    "rank_sum": "both errors, summed ranks",
}
COLOURS = {"angle": VERMILION, "latent": BLUE}  # the two that the paper sets against each other


def colour_of(signal: str) -> str:
    """Vermilion for what reads the angle, blue for the whole latent, grey for the rest."""
    if signal in ("angle_error", "angular_velocity", "theta"):
        return COLOURS["angle"]
    return COLOURS["latent"] if signal in ("latent_error", "latent") else MUTED


def _rows(count: int, *, width: float = 3.5, left: float = 0.46) -> tuple[Figure, Axes]:
    """An empty plot with `count` labelled rows."""
    figure = Figure(figsize=(width, 0.27 * count + 0.72))
    height = figure.get_figheight()
    axes = figure.add_axes((left, 0.42 / height, 0.97 - left, 1 - 0.5 / height))
    axes.set(ylim=(count - 0.4, -0.6), yticks=[])
    quiet(axes, grid="x")
    return figure, axes


def _label(axes: Axes, y: float, text: str, *, colour: str = INK) -> None:
    axes.text(
        -0.03, y, text, ha="right", va="center", color=colour, transform=axes.get_yaxis_transform()
    )


@styled
def auroc_rows(
    signals: Mapping[str, Mapping[str, Any]], *, null: Mapping[str, Any] | None = None
) -> Figure:
    """AUROC of every signal with its interval; the grey band is what random planes give."""
    names = [name for name in SIGNALS if name in signals]
    figure, axes = _rows(len(names))
    if null and null.get("mean") is not None and 0.3 < null["mean"] < 1:
        axes.axvspan(null["mean"] - (null["p95"] - null["mean"]), null["p95"], color=RULE, lw=0)
    for y, name in enumerate(names):
        found, colour = signals[name], colour_of(name)
        if found.get("ci95") and None not in found["ci95"]:
            axes.plot(found["ci95"], [y, y], color=colour, lw=1.4)
        if found.get("auroc") is not None:
            axes.plot(found["auroc"], y, "o", ms=6, color=colour, mec=PAPER, zorder=4)
        _label(axes, y, SIGNALS[name], colour=INK if colour == MUTED else colour)
    axes.axvline(0.5, color=MUTED, lw=0.8)
    axes.set(xlim=(0, 1), xlabel="AUROC (0.5 is guessing)")
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"])
    return figure


@styled
def auroc_tolerances(at: Mapping[str, Any], *, signals: Iterable[str]) -> Figure:
    """AUROC around events as the tolerance widens, for the two signals the paper compares."""
    figure, axes = panel(3.3, 2.1)
    quiet(axes)
    tolerances = [int(tolerance) for tolerance in at]
    for name in signals:
        found = [at[str(t)]["signals"][name] for t in tolerances]
        axes.plot(tolerances, [f["auroc"] for f in found], "o-", color=colour_of(name), ms=5)
        for t, one in zip(tolerances, found, strict=True):
            if one.get("ci95") and None not in one["ci95"]:
                axes.plot([t, t], one["ci95"], color=colour_of(name), lw=0.9, alpha=0.7)
    axes.axhline(0.5, color=MUTED, lw=0.8)
    axes.set(ylim=(0, 1), xlabel="steps around an event that count", title="AUROC")
    axes.set_xticks(tolerances, [f"\u00b1{t}" for t in tolerances])
    axes.margins(x=0.15)
    return figure


@styled
def around_events(around: Mapping[str, Any], *, signals: Iterable[str]) -> Figure:
    """Mean standardised signal before and after an event, with the band chance stays in."""
    figure, axes = panel(3.3, 2.1)
    quiet(axes)
    lags = around["lags"]
    for name in signals:
        if name not in around:
            continue
        low, high = around[name]["chance95"]
        if low is not None and high is not None:
            axes.axhspan(low, high, color=colour_of(name), alpha=0.08, lw=0)
        values = [np.nan if v is None else v for v in around[name]["mean"]]
        axes.plot(lags, values, color=colour_of(name), lw=1.5)
    axes.axvline(0, color=INK, lw=0.9, linestyle=(0, (2, 2)))
    axes.axhline(0, color=MUTED, lw=0.6)
    axes.set(xlabel="steps from the event", title="signal around events, standardised")
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    return figure


@styled
def example(found: Mapping[str, Any]) -> Figure:
    """One episode's signals, each scaled to its own range, with its true events."""
    figure, axes = panel(2.6, 1.5, left=0.1)
    for name, values in found["signals"].items():
        if name == "angle_error" and "angular_velocity" in found["signals"]:
            continue  # two vermilion lines could not be told apart
        if isinstance(values, Mapping):  # change points: each signal starts at its own step
            first, series = values["first_step"], values["values"]
        else:
            first, series = found["first_step"], values
        scaled = np.asarray(series, float)
        scaled = (scaled - scaled.min()) / (float(np.ptp(scaled)) or 1.0)
        axes.plot(first + np.arange(len(scaled)), scaled, color=colour_of(name), lw=1.2)
    events = found["events"]
    kinds = events.values() if isinstance(events, Mapping) else [events]
    for step in itertools.chain(*kinds):
        axes.axvline(step, color=INK, lw=0.9, linestyle=(0, (2, 2)))
    for step in found.get("untold", []):
        axes.plot(step, -0.08, "^", color=INK, ms=4, clip_on=False)
    axes.set(yticks=[], ylim=(-0.12, 1.05))
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


@styled
def cut_trace(mode: Mapping[str, Any]) -> Figure:
    """Theta along an edited episode above its jump from frame to frame; the cut is dashed."""
    figure = Figure(figsize=(2.75, 2.3))
    upper, lower = figure.subplots(
        2, 1, sharex=True, height_ratios=(3, 2),
        gridspec_kw={"left": 0.17, "right": 0.97, "bottom": 0.19, "top": 0.9, "hspace": 0.38},
    )  # fmt: skip
    theta = np.unwrap(np.asarray(mode["theta"], float))
    source = np.asarray(mode["source"])
    for which, colour in ((0, BLUE), (1, VERMILION)):
        shown = np.where(source == which, theta, np.nan)
        single = which == 1 and (source == 1).sum() == 1  # one frame makes no line
        upper.plot(shown, color=colour, lw=1.4, marker="o" if single else None, ms=4)
    lower.bar(np.arange(1, len(theta)), mode["jump"], width=1.0, color=FAINT)
    for cut in mode["cuts"]:
        lower.bar(cut, mode["jump"][cut - 1], width=1.6, color=VERMILION)
        upper.axvline(cut, color=INK, lw=0.8, linestyle=(0, (2, 2)))
    quiet(upper).set_title(f"{THETA}, radians")
    quiet(lower).set_title("jump")
    for axes in (upper, lower):
        axes.yaxis.set_major_locator(MaxNLocator(3))
    lower.set_xlabel("frame")
    return figure


@styled
def change_scores(kind: Mapping[str, Any], nulls: Mapping[str, Any], *, tolerance: str) -> Figure:
    """F1 of change points, told the number of events (ring) or told nothing (dot), over chance."""
    names = [name for name in SIGNALS if name in kind["untold"] or name in kind["told"]]
    figure, axes = _rows(len(names))
    for y, name in enumerate(names):
        colour = colour_of(name)
        for told, offset in (("told", -0.14), ("untold", 0.14)):
            found = kind[told].get(name)
            if not found:
                continue
            chance = nulls.get(told, {}).get(name, {}).get(tolerance)
            if chance and chance["p95"] is not None:
                axes.plot([0, chance["p95"]], [y + offset] * 2, color=RULE, lw=3.4,
                          solid_capstyle="butt")  # fmt: skip
            axes.plot(
                found["f1"][tolerance], y + offset, "o", ms=5.5, mec=colour, mew=1.2,
                mfc=PAPER if told == "told" else colour, zorder=4,
            )  # fmt: skip
        _label(axes, y, SIGNALS[name], colour=INK if colour == MUTED else colour)
    axes.set(xlim=(-0.02, 1.02), xlabel=f"F1 within \u00b1{tolerance} steps")
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"])
    return figure
