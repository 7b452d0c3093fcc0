"""Verbs that look into a run: compass, report, watch."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from sdjepa.cli.app import (
    STAGES,
    DataPath,
    PlanSets,
    RunPath,
    Split,
    app,
    bar,
    remark,
    said,
    stopping,
)
from sdjepa.errors import UserError


@app.command(rich_help_panel=STAGES)
@stopping("diagnostics that were finished are kept")
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
        remark(f"{result['title']}: {result['verdict']}", indent=4)
        said(path)


@app.command(rich_help_panel=STAGES)
@stopping()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="One run or several.")],
    out: Annotated[Path | None, typer.Option(help="The page; RUN/report.html unless said.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Also write figures as PNG and PDF.")] = None,
    select: Annotated[
        str | None, typer.Option(help="Which score of each run to show first, e.g. strict-content.")
    ] = None,
) -> None:
    """One self-contained page: does it plan, what does it know, how was it made.

    sdjepa report runs/a2 runs/lewm --out report.html
    """
    from sdjepa.report.page import report as work

    said(work(runs, out=out or runs[0] / "report.html", figures=figures, select=select))


@app.command(rich_help_panel=STAGES)
def watch(
    run: RunPath,
    host: Annotated[str, typer.Option(help="Where to listen; elsewhere needs the token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 8642,
    token: Annotated[
        str | None, typer.Option(help="Ask for this token, also on this machine.")
    ] = None,
    checkpoint: Annotated[str, typer.Option(help="Which checkpoint.")] = "latest",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Chooses the tasks.")] = 0,
    data: DataPath = None,
    sets: PlanSets = [],  # noqa: B006
) -> None:
    """Watch the planner act live in a browser, interfere, and see its compass jump.

    Serves this machine alone unless --host says otherwise; Ctrl-C ends it. Needs `sdjepa[watch]`.
    Without a GPU, a smaller search keeps a large model moving.

    sdjepa watch runs/a2 --set plan.candidates=60 --set plan.elites=10 --set plan.iterations=6
    """
    needed = ("starlette", "uvicorn", "websockets")
    absent = [name for name in needed if importlib.util.find_spec(name) is None]
    if absent:
        raise UserError(
            f"the live page needs {', '.join(absent)}; run: pip install 'sdjepa[watch]'"
        )
    from sdjepa.resolve import change
    from sdjepa.train.checkpoint import load_config
    from sdjepa.train.loop import pick_device
    from sdjepa.watch.server import watch as work

    work(
        run,
        plan=change(load_config(run, checkpoint), list(sets)).plan,
        data_path=data,
        checkpoint=checkpoint,
        device=str(pick_device(device)),
        host=host,
        port=port,
        token=token,
        seed=seed,
        ready=typer.echo,
    )
