"""Every figure of the page as PNG and PDF, edited films as GIF, every table as text."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from sdjepa.report import published, tables
from sdjepa.report.animation import film
from sdjepa.report.compass_panels import diagnostic_panels
from sdjepa.report.figures import (
    health_terms,
    loss_curve,
    loss_terms,
    planned_path,
    solved_by_step,
    success,
)
from sdjepa.report.read import RunFiles
from sdjepa.report.style import to_bytes
from sdjepa.runs import write_atomic


def export(runs: Sequence[RunFiles], folder: Path) -> list[Path]:
    """Write all of them into `folder`; names say what they show, runs are told apart by name."""
    written = []
    for name, figure in drawings(runs):
        stem = re.sub(r"[^\w.-]+", "-", name)
        for suffix in ("png", "pdf"):
            written.append(write_atomic(folder / f"{stem}.{suffix}", to_bytes(figure, suffix)))
    for run in runs:
        for found in run.compass:
            pair = found.record["results"].get("chosen_pair", {})
            for mode in pair.get("modes", {}) if "frames" in pair else ():
                stem = re.sub(r"[^\w.-]+", "-", f"{found.name}-{mode}-{run.label}")
                written.append(write_atomic(folder / f"{stem}.gif", film(pair, mode)))
    for table in (
        tables.score_table(runs),
        tables.paired_table(runs),
        tables.departure_table(runs),
    ):
        if table.rows:
            for suffix, render in (
                ("md", tables.markdown),
                ("csv", tables.comma_separated),
                ("tex", tables.latex),
            ):
                written.append(write_atomic(folder / f"{table.name}.{suffix}", render(table)))
    return written


def drawings(runs: Sequence[RunFiles]) -> Iterator[tuple[str, Figure]]:
    """Name and figure of everything the page draws, in its order."""
    scored = [(run.label, run.headline) for run in runs if run.headline is not None]
    for env in dict.fromkeys(score.env for _, score in scored if score):
        members = [(label, score) for label, score in scored if score and score.env == env]
        yield f"success-{env}", success(members, published=published.success(env))
        yield f"steps-{env}", solved_by_step(members)
        for label, score in members:
            for rollout in score.rollouts:
                yield f"path-{label}-{rollout['task']}", planned_path(rollout)
    for run in runs:
        for found in run.compass:
            for panel in diagnostic_panels(found):
                yield f"{found.name}-{panel.name}-{run.label}", panel.draw()
    logged = [(run.label, run.metrics) for run in runs if run.metrics]
    for term in dict.fromkeys(
        term for _, metrics in logged for term in (*loss_terms(metrics), *health_terms(metrics))
    ):
        yield f"loss-{term}", loss_curve(logged, term=term)
