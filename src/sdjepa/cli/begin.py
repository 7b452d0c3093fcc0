"""Verbs to begin with: demo, doctor."""

from pathlib import Path
from typing import Annotated

import typer

from sdjepa.cli.app import BEGIN, Sets, app, bar, remark, said, tell


@app.command(rich_help_panel=BEGIN)
def demo(
    out: Annotated[Path, typer.Option(help="The run directory to make.")] = Path("runs/demo"),
    recipe: Annotated[Path | None, typer.Option(help="Another recipe than the demo's.")] = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """The whole path at small size: collect, train on the CPU, plan, read the compass, report.

    Under ten minutes on two cores. Run it again after a stop and it goes on where it was.
    """
    from sdjepa.demo import demo as work

    said(work(out, recipe=recipe, settings=sets, bar=bar, say=remark))


@app.command(rich_help_panel=BEGIN)
def doctor() -> None:
    """Say what this machine has, draw a frame of each environment, name the fix for what lacks."""
    from sdjepa.doctor import examine

    healthy = True
    for finding in examine():
        mark = "ok" if finding.ok else "no"
        tell(f"{mark:<6}{finding.what:<22} {finding.found}", indent=29)
        if not finding.ok:
            healthy = False
            tell(f"      fix: {finding.fix}", indent=11)
    raise typer.Exit(0 if healthy else 1)
