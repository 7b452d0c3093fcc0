"""Verbs that look into a run: compass, report."""

from pathlib import Path
from typing import Annotated

import typer

from sdjepa.cli.app import STAGES, DataPath, RunPath, Split, app, bar, console, said


@app.command(rich_help_panel=STAGES)
def compass(
    run: RunPath,
    only: Annotated[list[str], typer.Option(help="One diagnostic; repeatable.")] = [],  # noqa: B006
    episodes: Annotated[int | None, typer.Option(help="How many episodes to read.")] = None,
    split: Annotated[Split | None, typer.Option(help="test, validation or train.")] = None,
    seed: Annotated[int | None, typer.Option(help="Chooses episodes and nulls.")] = None,
    against: Annotated[Path | None, typer.Option(metavar="RUN", help="A baseline run.")] = None,
    data: DataPath = None,
) -> None:
    """Read what the latent knows about held-out episodes: angle, radius, correlations, probes.

    sdjepa compass runs/a2 --episodes 40
    """
    from sdjepa.compass.suite import compass as work
    from sdjepa.runs import Run, read_json

    with bar("reading") as progress:
        paths = work(
            Run.open(run),
            data=data,
            only=only,
            episodes=episodes,
            split=split,
            seed=seed,
            against=against,
            progress=progress,
        )
    for path in paths:
        result = read_json(path)
        console.print(f"[bold]{result['title']}[/]: {result['verdict']}")
        said(path)


@app.command(rich_help_panel=STAGES)
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="One run or several.")],
    out: Annotated[Path | None, typer.Option(help="The page; RUN/report.html unless said.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Also write figures as PNG and PDF.")] = None,
) -> None:
    """One self-contained page: does it plan, what does it know, how was it made.

    sdjepa report runs/a2 runs/lewm --out report.html
    """
    from sdjepa.report.page import report as work

    said(work(runs, out=out or runs[0] / "report.html", figures=figures))
