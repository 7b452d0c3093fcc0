"""Verbs to begin with: demo, doctor, bench."""

from pathlib import Path
from typing import Annotated

import typer

from sdjepa.cli.app import BEGIN, Sets, app, bar, console, said
from sdjepa.errors import UserError


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

    said(work(out, recipe=recipe, settings=sets, bar=bar, say=console.print))


@app.command(rich_help_panel=BEGIN)
def doctor() -> None:
    """Say what this machine has, draw a frame of each environment, name the fix for what lacks."""
    from sdjepa.doctor import examine

    healthy = True
    for finding in examine():
        mark = "[green]ok[/]  " if finding.ok else "[red]no[/]  "
        console.print(f"{mark}{finding.what:<22} {finding.found}")
        if not finding.ok:
            healthy = False
            console.print(f"      fix: {finding.fix}")
    raise typer.Exit(0 if healthy else 1)


@app.command(rich_help_panel=BEGIN)
def bench(
    what: Annotated[
        str, typer.Argument(help="`train`, `plan`, `collect`, `agree` or `scale`.")
    ] = "train",
    out: Annotated[Path | None, typer.Option(help="Write the figures as JSON here.")] = None,
    repeats: Annotated[int, typer.Option(help="Timed rounds.")] = 5,
    small: Annotated[
        bool, typer.Option("--small", help="Demo widths instead of the paper's.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(help="Plan: timed at most so long a way (5). Collect: one measurement (1)."),
    ] = None,
    only: Annotated[
        str, typer.Option(help="Plan: ways to time, e.g. `compile,theirs fp32`; all, unless named.")
    ] = "",
    workers: Annotated[str, typer.Option(help="Collect: numbers of processes.")] = "1,4,16",
    envs: Annotated[str, typer.Option(help="Collect: environments; all, unless named.")] = "",
    data: Annotated[Path | None, typer.Option(help="Agree: the dataset to train on.")] = None,
    steps: Annotated[int, typer.Option(help="Agree: training steps of every way.")] = 200,
    frames: Annotated[str, typer.Option(help="Scale: numbers of frames.")] = "50000,200000,600000",
    streamed: Annotated[str, typer.Option(help="Scale: and in host memory.")] = "50000,100000",
    sets: Sets = [],  # noqa: B006
) -> None:
    """Time a training step, or a plan, against stable-worldmodel's LeWM in the same run.

    `collect` says where a collector's time goes and how many frames a second workers make together.
    `agree` trains eagerly and recorded, in float32 and bf16, and compares losses step by step.
    `scale` times steps whose frames come from ever more data, on the device or from the host.

    sdjepa bench plan --out results/bench-plan.json
    """
    if what == "collect":
        _bench_collect(out, seconds=seconds or 1.0, workers=workers, envs=envs)
        return
    if what == "plan":
        words = only.split(",") if only else []
        _bench_plan(out, repeats=repeats, seconds=seconds or 5.0, small=small, only=words)
        return
    if what in ("agree", "scale"):
        counts = (frames, streamed)
        _bench_runs(what, out, data=data, steps=steps, counts=counts, small=small, sets=sets)
        return
    if what != "train":
        raise UserError(
            f"unknown benchmark {what!r}; there are train, plan, collect, agree and scale"
        )
    from sdjepa.bench.train import bench_train

    with bar("benchmark") as progress:
        result = bench_train(repeats=repeats, small=small, progress=progress)
    for line in result.lines():
        typer.echo(line)
    if out is not None:
        from sdjepa.runs import write_json

        said(write_json(out, result.as_json()))


def _bench_plan(
    out: Path | None, *, repeats: int, seconds: float, small: bool, only: list[str]
) -> None:
    from sdjepa.bench.plan import SMALL_SEARCH, bench_plan
    from sdjepa.runs import write_json

    search = SMALL_SEARCH if small else {}
    result = None
    for result in bench_plan(repeats=repeats, seconds=seconds, small=small, only=only, **search):
        if len(result.timings) == 1:
            typer.echo(result.head())
        typer.echo(result.line(result.timings[-1]))
        if out is not None:  # what is known survives whatever happens to the rest
            write_json(out, result.as_json())
    if result is None:
        raise UserError(
            f"no way of planning is called {' or '.join(only)}; try ours, theirs, graph"
        )
    typer.echo("\n".join(["", *result.lines()]))
    if out is not None:
        said(out)


def _bench_runs(
    what: str,
    out: Path | None,
    *,
    data: Path | None,
    steps: int,
    counts: tuple[str, str],
    small: bool,
    sets: list[str],
) -> None:
    from sdjepa.bench.runs import agree, scale
    from sdjepa.runs import provenance, write_json

    if what == "scale":
        resident, streamed = ([int(n) for n in part.split(",") if n] for part in counts)
        found = scale(resident=resident, streamed=streamed, small=small, tell=typer.echo)
    elif data is None:
        raise UserError("say which data to train on: sdjepa bench agree --data DIR")
    else:
        found = agree(data, steps=steps, settings=tuple(sets), tell=typer.echo)
    if out is not None:
        said(write_json(out, found | provenance()))


def _bench_collect(out: Path | None, *, seconds: float, workers: str, envs: str) -> None:
    from sdjepa.bench.collect import bench_collect
    from sdjepa.envs.base import NAMES

    bench_collect(
        envs.split(",") if envs else NAMES,
        workers=[int(count) for count in workers.split(",")],
        seconds=seconds,
        out=out,
        tell=typer.echo,
    )
    if out is not None:
        said(out)
