"""The shape of the latent: alikeness between episodes, clouds, error by horizon, its sight."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sdjepa.report.style import (
    BLUE,
    FAINT,
    MUTED,
    PANEL,
    PAPER,
    RHO,
    RULE,
    SERIES,
    THETA,
    VERMILION,
    angle_colours,
    panel,
    quiet,
    styled,
)


@styled
def error_by_horizon(results: Mapping[str, Any], *, part: str) -> Figure:
    """Error of imagined latents as the model looks further ahead, beside standing still."""
    figure, axes = panel(2.9, 2.0)
    quiet(axes)
    rows = results["rows"]
    for name, colour in (("standing_still", FAINT), ("rollout", SERIES[0])):
        found = results[part][name]
        low, high = np.asarray(found["ci95"], float).T
        axes.fill_between(rows, low, high, color=colour, alpha=0.2, lw=0)
        axes.plot(rows, found["mean"], color=colour, lw=1.6)
    axes.set(xlabel="environment steps ahead", title=_PARTS[part])
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    return figure


_PARTS = {
    "latent": "whole latent, share of variance",
    "progress": "progress part, share of variance",
    "content": "content part, share of variance",
    "angle": f"{THETA}, radians",
}


@styled
def cosines(found: Mapping[str, Any], *, rows: Sequence[int], title: str) -> Figure:
    """Mean cosine between episodes at the same moment, per part of the latent."""
    figure, axes = panel(2.9, 2.0)
    quiet(axes)
    for name, colour in (("content", BLUE), ("progress", VERMILION)):
        low, high = np.asarray(found[name]["ci95"], float).T
        axes.fill_between(rows, low, high, color=colour, alpha=0.15, lw=0)
        axes.plot(rows, found[name]["mean"], "o-", ms=4, color=colour)
    axes.axhline(0, color=MUTED, lw=0.7)
    axes.set(ylim=(-0.5, 1.05), title=title, xlabel="frame of the episode")
    axes.set_xticks(rows)
    return figure


@styled
def sight(results: Mapping[str, Any], *, beside: Mapping[str, Any] | None) -> Figure:
    """Latent distance against true distance, a dot where each curve has stopped growing."""
    figure, axes = panel(3.5, 2.3)
    quiet(axes)
    x = np.asarray(results["distance"], float)
    for name, colour in (("content", BLUE), ("progress", VERMILION)):
        low, high = np.asarray(results[name]["band"], float).T
        axes.fill_between(x, low, high, color=colour, alpha=0.13, lw=0)
    axes.plot(x, np.asarray(results["truth"]["mean"], float), ":", color=MUTED, lw=1.1)
    if beside:
        theirs = np.asarray([beside["distance"], beside["content"]["mean"]], float)
        axes.plot(*theirs, "--", color=BLUE, lw=1.1)
    last = float(np.nanmax(x))
    for name, colour, low in (("content", BLUE, 0.03), ("progress", VERMILION, 0.19)):
        axes.plot(x, np.asarray(results[name]["mean"], float), color=colour, lw=1.6)
        at = results[name]["reach"]
        if at is not None:
            axes.plot([at, at], [0, 0.9], color=colour, lw=0.8)
            axes.plot(at, 0.9, "o", ms=6, color=colour, mec=PAPER, zorder=4)
            side = "right" if at > 0.7 * last else "left"
            axes.text(at, low, f" {name} {at:.3g} ", color=colour, va="bottom", ha=side)
    axes.set(ylim=(0, 1.65), xlim=(0, last), title="squared latent distance, share of plateau")
    axes.set_xlabel("true distance of two frames; dotted: its own square")
    axes.yaxis.set_major_locator(MaxNLocator(4))
    return figure


@styled
def noticed(results: Mapping[str, Any]) -> Figure:
    """How far each thing moves the picture and the parts of the latent, beside moving all."""
    rows = [(thing, what) for thing in results["things"] for what in _MOVED]
    figure = Figure(figsize=(3.5, 0.26 * len(rows) + 0.75))
    height = figure.get_figheight()
    axes = figure.add_axes((0.36, 0.45 / height, 0.6, 1 - 0.5 / height))
    for y, (thing, what) in enumerate(rows):
        found, colour = results[what][thing], _MOVED[what]
        axes.plot([0, found["share"]], [y, y], color=colour, lw=5, solid_capstyle="butt")
        if None not in found["ci95"]:
            axes.plot(found["ci95"], [y, y], color=colour, lw=1.2, alpha=0.6)
        words = f"{thing}: {'picture' if what == 'pixels' else what}"
        place = {"ha": "right", "va": "center", "transform": axes.get_yaxis_transform()}
        axes.text(-0.03, y, words, color=colour, **place)
        said = f"{100 * found['share']:.1f} %"
        end = max(found["share"], *(edge or 0 for edge in found["ci95"]))
        axes.text(end + 0.04, y, said, va="center", color=colour)
    last = max(max(results[what][thing]["share"] for thing, what in rows), 1.0)
    axes.axvline(1, color=MUTED, lw=0.7)
    axes.set(xlim=(0, 1.5 * last), ylim=(len(rows) - 0.4, -0.6), yticks=[])
    axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    axes.set_xlabel("of exchanging everything")
    quiet(axes, grid="x")
    return figure


_MOVED = {"pixels": MUTED, "content": BLUE, "progress": VERMILION}


@styled
def cloud(points: np.ndarray, lengths: Sequence[int]) -> Figure:
    """A flattened latent: one colour per episode, square at its start, star at its end."""
    figure = Figure(figsize=(2.3, 2.3))
    axes = figure.add_axes((0.02, 0.02, 0.96, 0.96))
    first = 0
    for i, length in enumerate(lengths):
        own = points[first : first + length]
        colour = SERIES[i % len(SERIES)]
        size = np.linspace(2, 9, length)
        axes.scatter(*own.T, s=size, color=colour, lw=0, alpha=0.8)
        axes.plot(*own[0], "s", ms=4.5, mfc=PAPER, mec=colour, mew=1.2)
        axes.plot(*own[-1], "*", ms=8, mfc=colour, mec=PAPER, mew=0.6)
        first += length
    axes.set(xticks=[], yticks=[])
    axes.margins(0.06)
    for spine in axes.spines.values():
        spine.set(visible=True, color=RULE)
    return figure


def seen_from(points: np.ndarray, *, elevation: float = 22.0, azimuth: float = -58.0) -> np.ndarray:
    """Points in space as a viewer in this direction (degrees) sees them, without perspective."""
    e, a = np.radians(elevation), np.radians(azimuth)
    right = np.array([-np.sin(a), np.cos(a), 0.0])
    up = np.array([-np.sin(e) * np.cos(a), -np.sin(e) * np.sin(a), np.cos(e)])
    return points @ np.stack([right, up], axis=1)


@styled
def angle_map(
    theta: np.ndarray,
    *,
    strength: np.ndarray,
    edges: Sequence[float],
    down: bool,
) -> Figure:
    """Theta over the ground: colour is the angle, faintness says how little it can be trusted.

    The first index runs along x, the second along y. `edges` are the lowest and highest x, then y;
    `down` says that y grows downwards.
    """
    figure = Figure(figsize=(2.3, 2.3))
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    known = np.isfinite(theta)
    colours = angle_colours(np.where(known, theta, 0.0).ravel()).reshape(*theta.shape, 4)
    colours[..., 3] = np.where(known, np.clip(strength, 0.08, 1.0), 0.0)
    left, right, low, high = edges
    upright = colours.swapaxes(0, 1)  # an image has y first
    axes.imshow(upright, extent=(left, right, low, high), origin="lower", interpolation="nearest")
    axes.set(xticks=[], yticks=[], facecolor=PANEL)
    if down:
        axes.invert_yaxis()
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


@styled
def rank_agreement(found: Mapping[str, Any], nulls: Mapping[str, Any]) -> Figure:
    """Rank correlation of imagined cost, reached cost and true distance, over chance."""
    names = [name for name in _PAIRS if name in found]
    figure = Figure(figsize=(3.5, 0.6 * len(names) + 0.6))
    height = figure.get_figheight()
    axes = figure.add_axes((0.03, 0.42 / height, 0.94, 1 - 0.5 / height))
    for y, name in enumerate(names):
        own, chance = found[name], nulls.get(name)
        values = [v for v in own["per_task"] if v is not None]
        if chance and chance["p95"] is not None:
            axes.plot([0, chance["p95"]], [y + 0.15] * 2, color=RULE, lw=6, solid_capstyle="butt")
        axes.plot(values, [y + 0.15] * len(values), "o", ms=3, color=FAINT, alpha=0.8)
        if None not in own["ci95"]:
            axes.plot(own["ci95"], [y + 0.15] * 2, color=BLUE, lw=1.6)
        axes.plot(own["mean"], y + 0.15, "o", ms=7, color=BLUE, mec=PAPER, zorder=4)
        axes.text(-1, y - 0.22, _PAIRS[name], ha="left", va="center")
    axes.axvline(0, color=MUTED, lw=0.7)
    axes.set(xlim=(-1.02, 1.02), ylim=(len(names) - 0.4, -0.5), yticks=[])
    axes.set_xticks([-1, -0.5, 0, 0.5, 1], ["\u22121", "\u2212.5", "0", ".5", "1"])
    axes.set_xlabel(f"rank correlation {RHO} over candidates")
    quiet(axes, grid="x")
    return figure


_PAIRS = {
    "imagined_cost_and_distance": "imagined cost with true distance",
    "reached_cost_and_distance": "cost of the frame really reached with true distance",
    "imagined_and_reached_cost": "imagined cost with cost really reached",
}
