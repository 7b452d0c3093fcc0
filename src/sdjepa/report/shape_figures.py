"""The shape of the latent: alikeness between episodes, flattened clouds, error by horizon."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sdjepa.report.style import (
    BLUE,
    FAINT,
    MUTED,
    PAPER,
    RULE,
    SERIES,
    THETA,
    VERMILION,
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
