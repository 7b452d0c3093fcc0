"""Benchmarks: `bench train`, `plan`, `collect`, `agree`, `scale`; figures told as they are known.

A file is written whenever there is something new to say, with `"finished": false` until the end, so
a benchmark that is cut off leaves what it has measured.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sdjepa.cli.app import BEGIN, Sets, app, said
from sdjepa.errors import UserError


class TrainUnlessNamed(TyperGroup):
    """`sdjepa bench` alone, or with options only, is `sdjepa bench train`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["train", *args]
        return super().parse_args(ctx, args)


bench_app = typer.Typer(
    cls=TrainUnlessNamed,
    help="""Time training steps and plans against stable-worldmodel's, and whatever else is slow.

Alone it is `bench train`. Figures are printed as they come; a file given with `--out` holds what
is known so far and says `"finished": false` until the end.
""",
)
app.add_typer(bench_app, name="bench", rich_help_panel=BEGIN)

Out = Annotated[
    Path | None, typer.Option(help="Keep the figures here as JSON, from the first one on.")
]
Small = Annotated[bool, typer.Option("--small", help="Demo widths instead of the paper's.")]


@bench_app.command()
def train(
    out: Out = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 5,
    small: Small = False,
    only: Annotated[
        str,
        typer.Option(help="Ways to time, by name or part of it, with commas; all, unless named."),
    ] = "",
) -> None:
    """A training step of ours, eager and recorded, and one of stable-worldmodel's LeWM, in turn.

    Prints every way's first step (compilation included), the rates after every round, then a table:
    steps and frames a second, times stable-worldmodel's rate, share of the product rate.

    On a GPU each recorded way first compiles, for up to a minute; rounds take seconds. A CPU times
    `eager` and `stable-worldmodel`: two cores with `--small` in half a minute, with the paper's
    model in minutes a step.

    `recorded` is one way, a part of a name is every way that has it: `library`, `31 patches`. The
    ratio stays empty unless `stable-worldmodel` is among them.

    sdjepa bench train --only recorded,stable-worldmodel --repeats 3 --out bench-train.json
    """
    from sdjepa.bench.train import bench_train

    result = None
    for result in bench_train(repeats=repeats, small=small, only=_words(only)):
        typer.echo(result.brief())
        _keep(out, result.as_json())
    assert result is not None  # there is a way, or `only` would have been refused
    typer.echo("\n".join(["", *result.lines()]))
    _keep(out, result.as_json(), finished=True)


@bench_app.command()
def plan(
    out: Out = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed plans of a way, at most.")] = 5,
    seconds: Annotated[float, typer.Option(help="Timed at most so long a way.")] = 5.0,
    small: Small = False,
    only: Annotated[
        str, typer.Option(help="Ways to time, by a part of their names; all, unless named.")
    ] = "",
) -> None:
    """A plan of ours and one of stable-worldmodel's CEMSolver, for one task and for fifty.

    Prints a line a way as it is known, then all in order: milliseconds a plan and a task, times
    stable-worldmodel's speed, what plans cost, how far latents are from the plain rollout's.

    A minute or two on a GPU, half of it compilation. On a CPU try `--small --repeats 1`: half a
    minute on two cores.

    sdjepa bench plan --only "compile,theirs fp32" --seconds 1 --out bench-plan.json
    """
    from sdjepa.bench.plan import SMALL_SEARCH, bench_plan

    search = SMALL_SEARCH if small else {}
    words = _words(only)
    result = None
    for result in bench_plan(repeats=repeats, seconds=seconds, small=small, only=words, **search):
        if len(result.timings) == 1:
            typer.echo(result.head())
        typer.echo(result.line(result.timings[-1]))
        _keep(out, result.as_json())
    if result is None:
        raise UserError(
            f"no way of planning is called {' or '.join(words)}; try ours, theirs, graph"
        )
    typer.echo("\n".join(["", *result.lines()]))
    _keep(out, result.as_json(), finished=True)


@bench_app.command()
def collect(
    out: Out = None,
    workers: Annotated[str, typer.Option(help="Numbers of processes.")] = "1,16",
    seconds: Annotated[float, typer.Option(help="Least time a rate is taken over.")] = 8.0,
    envs: Annotated[str, typer.Option(help="Environments; all, unless named.")] = "",
) -> None:
    """Where a collector's time goes, and how many frames a second workers make together.

    Prints microseconds of every stage of a frame in one process and, where a GPU draws, of what it
    does for a frame; then frames a second of collections by so many processes.

    Ten seconds to a minute an environment, longest where MuJoCo draws.

    sdjepa bench collect --workers 1,16 --envs tworoom --out bench-collect.json
    """
    from sdjepa.bench.collect import bench_collect
    from sdjepa.envs.base import NAMES

    counts = _counts(workers, option="--workers")
    if not counts or min(counts) < 1:
        raise UserError(f"--workers is {workers!r}; name at least one process: --workers 1,4")
    bench_collect(_words(envs) or NAMES, workers=counts, seconds=seconds, out=out, tell=typer.echo)
    if out is not None:
        said(out)


@bench_app.command()
def agree(
    data: Annotated[Path, typer.Option(help="The dataset to train on.")],
    out: Out = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of every way.")] = 200,
    sets: Sets = [],  # noqa: B006
) -> None:
    """Is fast the same as slow? Trains eagerly and recorded, in float32 and bf16, and compares.

    Prints the last loss and the validation loss of every way, and how far losses are apart step by
    step: bf16 from float32, which is the spread to compare with, and recorded from eager.

    Three ways take so many steps each, two of them eagerly (some 15 steps a second on an H200), the
    last after compiling for up to a minute. Made for a GPU: on two cores a step of the paper's
    model takes minutes, and the recorded way is the eager one.

    sdjepa bench agree --data data/rooms --steps 200 --out bench-agree.json
    """
    from sdjepa.bench.runs import agree as work
    from sdjepa.runs import provenance

    origin, found = provenance(), {}
    for found in work(data, steps=steps, settings=tuple(sets), tell=typer.echo):
        _keep(out, found | origin)
    _keep(out, found | origin, finished=True)


@bench_app.command()
def scale(
    out: Out = None,
    frames: Annotated[
        str, typer.Option(help="Numbers of frames held on the device.")
    ] = "50000,200000,600000",
    streamed: Annotated[
        str, typer.Option(help="Numbers of frames held in host memory.")
    ] = "50000,100000",
    small: Small = False,
    only: Annotated[
        str,
        typer.Option(help="`all patches`, `31 patches`, `device`, `host`; all, unless named."),
    ] = "",
) -> None:
    """Does the speed of a step last as the data grow? Frames come from ever more of them.

    Prints milliseconds a step and microseconds a frame for every number of frames, on the device
    and streamed from the host, with a model that reads all patches and one that reads 31.

    On a GPU two models compile, for up to a minute each, then a row takes seconds. A frame takes
    150 kB: 600,000 of them 90 GB on the device, 100,000 of them 15 GB on the host. On a CPU try
    `--small --frames 2000 --streamed 2000`: half a minute.

    sdjepa bench scale --frames 50000,600000 --only "31 patches on the device" --out scale.json
    """
    from sdjepa.bench.runs import scale as work
    from sdjepa.runs import provenance

    resident, host = _counts(frames, option="--frames"), _counts(streamed, option="--streamed")
    origin, found = provenance(), None
    for found in work(
        resident=resident, streamed=host, small=small, only=_words(only), tell=typer.echo
    ):
        _keep(out, found | origin)
    if found is None:
        raise UserError("no number of frames is left to time; give --frames 50000")
    _keep(out, found | origin, finished=True)


def _keep(out: Path | None, found: Mapping[str, Any], *, finished: bool = False) -> None:
    """All that is known so far, in place of what was; at the end, say where."""
    from sdjepa.runs import write_json

    if out is not None:
        write_json(out, {"finished": finished, **found})
        if finished:
            said(out)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _counts(text: str, *, option: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise UserError(f"{option} is {text!r}; give whole numbers: {option} 1000,2000") from None
