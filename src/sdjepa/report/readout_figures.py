"""What the angle runs with: the effect in front, what chance gives behind it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdjepa.report.style import (
    BLUE,
    FAINT,
    INK,
    MUTED,
    PAPER,
    RHO,
    RULE,
    SERIES,
    THETA,
    VERMILION,
    panel,
    quiet,
    styled,
)

NULL_NAMES = {
    "random_planes": "random planes of the latent",
    "phase_randomised": "curves as smooth as \u03b8",
    "swapped_episodes": "\u03b8 of another episode",
}


def readable(name: str) -> str:
    """A column or feature name as words."""
    return name.replace("_", " ")


@styled
def strength(record: Mapping[str, Any]) -> Figure:
    """Mean |rho| per measure with its interval, against the nulls' bulk and 95th percentile."""
    measures, order = record["results"]["measures"], record["results"]["order"]
    nulls = record["nulls"]
    figure = Figure(figsize=(3.5, 0.62 * len(order) + 0.75))
    height = figure.get_figheight()
    axes = figure.add_axes((0.03, 0.42 / height, 0.94, 1 - 0.52 / height))
    for y, name in enumerate(order):
        own = measures[name]
        for offset, null in enumerate(NULL_NAMES):
            found = nulls.get(null, {}).get(name)
            if found and found.get("p95") is not None:
                row = y + 0.02 + 0.13 * offset
                axes.plot([0, found["p95"]], [row, row], color=RULE, lw=2.6, solid_capstyle="butt")
                axes.plot(found["p95"], row, "|", color=FAINT, ms=6, mew=1.4)
        if own.get("mean_abs_rho_ci95") and None not in own["mean_abs_rho_ci95"]:
            axes.plot(own["mean_abs_rho_ci95"], [y + 0.15] * 2, color=INK, lw=1.2)
        if own["mean_abs_rho"] is not None:
            axes.plot(own["mean_abs_rho"], y + 0.15, "o", ms=7, color=BLUE, mec=PAPER, zorder=5)
        axes.text(0, y - 0.2, readable(name), ha="left", va="center", color=INK)
    axes.set(xlim=(0, 1), ylim=(len(order) - 0.35, -0.5), yticks=[], xlabel=f"mean |{RHO}|")
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".5", ".75", "1"])
    quiet(axes, grid="x")
    return figure


@styled
def per_episode(record: Mapping[str, Any]) -> Figure:
    """The signed correlation of every single episode, one row of dots per measure."""
    measures, order = record["results"]["measures"], record["results"]["order"]
    figure = Figure(figsize=(3.5, 0.62 * len(order) + 0.75))
    height = figure.get_figheight()
    axes = figure.add_axes((0.03, 0.42 / height, 0.94, 1 - 0.52 / height))
    for y, name in enumerate(order):
        rho = np.array([value for value in measures[name]["rho"] if value is not None], float)
        _swarm(axes, rho, y + 0.15, colours=np.where(rho < 0, VERMILION, BLUE))
        axes.text(-1, y - 0.22, readable(name), ha="left", va="center", color=INK)
    axes.axvline(0, color=MUTED, lw=0.7)
    axes.set(xlim=(-1.02, 1.02), ylim=(len(order) - 0.35, -0.5), yticks=[])
    axes.set_xticks([-1, -0.5, 0, 0.5, 1], ["\u22121", "\u2212.5", "0", "+.5", "+1"])
    axes.set_xlabel(f"{RHO} of single episodes")
    quiet(axes, grid="x")
    return figure


def _swarm(axes: Axes, x: np.ndarray, y: float, *, colours: Sequence[str] | np.ndarray) -> None:
    """Dots at x, pushed apart upwards where they would hide each other."""
    level = np.zeros(len(x), int)
    bins = [round(float(value) / 0.035) for value in x]
    seen: dict[int, int] = {}
    for i in np.argsort(x).tolist():
        height = seen.get(bins[i], 0)
        level[i] = height
        seen[bins[i]] = height + 1
    spread = np.where(level % 2, 1, -1) * ((level + 1) // 2)
    limit = 0.2 / max(1, int(np.abs(spread).max(initial=1)))
    axes.scatter(
        x, y + spread * min(0.08, limit), s=11, c=list(colours), alpha=0.85, linewidths=0, zorder=3
    )


FEATURES = {  # in the order a page shows them: the claim, its parts, then what it must beat
    "progress": "progress part",
    "sin_cos_theta": "\u03b8 as sine and cosine",
    "theta_from_start": "\u03b8 since the start",
    "clock": "clock",
    "clock_polynomial_k": "clock, equally wide",
    "random_2": "random pair",
    "random_k": "random, equally wide",
    "content_random_k": "random content, equally wide",
    "first_pcs_k": "main directions, equally wide",
    "against_first_k": "baseline run, first numbers",
}


@styled
def probe_means(record: Mapping[str, Any]) -> Figure:
    """Mean R2 per feature, one step held out (ring) and whole blocks held out (dot)."""
    per = record["results"]["per_episode"]
    names = [name for name in FEATURES if per.get(name)]
    figure = Figure(figsize=(3.5, 0.27 * len(names) + 0.75))
    height = figure.get_figheight()
    axes = figure.add_axes((0.48, 0.42 / height, 0.49, 1 - 0.5 / height))
    for y, name in enumerate(names):
        own = name == "progress"
        colour = BLUE if own else MUTED
        lenient, strict = per[name].get("leave_one_out"), per[name].get("blocked")
        if lenient and strict:
            ends = np.clip([lenient["mean"], strict["mean"]], -0.5, 1)
            axes.plot(ends, [y, y], color=RULE, lw=1.6, zorder=1)
        if lenient:
            _mean_mark(axes, lenient, y, colour=colour, hollow=True)
        if strict:
            _mean_mark(axes, strict, y, colour=colour, hollow=False)
        weight = "bold" if own else "normal"
        axes.text(
            -0.03, y, FEATURES[name], ha="right", va="center", fontweight=weight,
            color=colour if own else INK, transform=axes.get_yaxis_transform(),
        )  # fmt: skip
    axes.axvline(0, color=MUTED, lw=0.7)
    axes.set(xlim=(-0.55, 1.03), ylim=(len(names) - 0.4, -0.6), yticks=[], xlabel="R\u00b2")
    axes.set_xticks([-0.5, 0, 0.5, 1], ["\u2264 \u2212.5", "0", ".5", "1"])
    quiet(axes, grid="x")
    return figure


def _mean_mark(
    axes: Axes, found: Mapping[str, Any], y: float, *, colour: str, hollow: bool
) -> None:
    x = float(np.clip(found["mean"], -0.5, 1))
    axes.plot(
        x, y, "o", ms=5.5, mec=colour, mew=1.2, mfc=PAPER if hollow else colour, zorder=4 - hollow
    )


@styled
def probe_episodes(record: Mapping[str, Any]) -> Figure:
    """Blocked R2 of every episode for the progress part and its two equally wide controls."""
    per = record["results"]["per_episode"]
    shown = ("progress", "clock_polynomial_k", "random_k")
    names = [name for name in shown if per.get(name, {}).get("blocked")]
    figure = Figure(figsize=(3.5, 0.55 * len(names) + 0.75))
    height = figure.get_figheight()
    axes = figure.add_axes((0.03, 0.42 / height, 0.94, 1 - 0.5 / height))
    for y, name in enumerate(names):
        values = np.array([v for v in per[name]["blocked"]["values"] if v is not None], float)
        colour = BLUE if name == "progress" else MUTED
        _swarm(axes, np.clip(values, -1, 1), y + 0.15, colours=[colour] * len(values))
        axes.plot([np.clip(np.median(values), -1, 1)] * 2, [y - 0.08, y + 0.38], color=INK, lw=1.4)
        axes.text(-1, y - 0.24, FEATURES[name], ha="left", va="center", color=INK)
    axes.axvline(0, color=MUTED, lw=0.7)
    axes.set(xlim=(-1.03, 1.03), ylim=(len(names) - 0.4, -0.5), yticks=[])
    axes.set_xticks([-1, -0.5, 0, 0.5, 1], ["\u2264 \u22121", "\u2212.5", "0", ".5", "1"])
    axes.set_xlabel("R\u00b2 of single episodes, blocks held out")
    quiet(axes, grid="x")
    return figure


@styled
def order_by_gap(gaps: Sequence[Mapping[str, Any]], *, what: str) -> Figure:
    """Share of pairs put in the right order against the gap between them, beside its null."""
    signal, null = {
        "theta": ("theta_best_sense", "against_random_planes"),
        "linear": ("linear", "against_random_directions"),
    }[what]
    figure, axes = panel(2.9, 2.0)
    quiet(axes)
    at = [record["gap"] for record in gaps]
    low, high = np.asarray([record[f"{signal}_ci95"] for record in gaps], float).T
    axes.fill_between(at, low, high, color=SERIES[0], alpha=0.2, lw=0)
    axes.plot(at, [record[signal] for record in gaps], "o-", ms=3.5, color=SERIES[0], lw=1.4)
    middle = [record[null]["mean"] for record in gaps]
    axes.fill_between(at, middle, [record[null]["p95"] for record in gaps], color=FAINT, alpha=0.35)
    axes.plot(at, middle, color=MUTED, lw=1.0)
    axes.axhline(0.5, color=MUTED, lw=0.7, ls=":")
    title = (
        f"{THETA}, read in its better sense" if what == "theta" else "best line through progress"
    )
    axes.set(ylim=(0.4, 1.02), xlabel="model steps between the frames", title=title)
    axes.set_xticks(at)
    return figure
