"""The command `sdjepa`: parse, load the configuration, call one function, say where the result is.

Nothing heavy is imported until a verb needs it, so `--help` answers at once.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from sdjepa.errors import UserError

if TYPE_CHECKING:
    from sdjepa.config import Config
    from sdjepa.runs import Progress

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Train, plan with and read latent world models from pixels.

The path, one verb per stage:

`collect` episodes → `train` a model → `score` its planner → read its `compass` → `report`

Begin with **sdjepa demo**: the whole path at small size, in minutes, on any machine.
A verb that works on a run takes the run's directory and writes its result there.
""",
)
import_app = typer.Typer(no_args_is_help=True, help="Bring another system's weights in as a run.")
export_app = typer.Typer(no_args_is_help=True, help="Hand a run's weights to another system.")
app.add_typer(import_app, name="import", rich_help_panel="Other systems")
app.add_typer(export_app, name="export", rich_help_panel="Other systems")

console = Console(stderr=True, highlight=False)

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
Sets = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting, e.g. train.batch=64."),
]
DataPath = Annotated[
    Path | None, typer.Option("--data", help="The dataset, when it is no longer where it was.")
]
Split = Literal["train", "validation", "test"]
STAGES = "The path"


@contextmanager
def bar(title: str) -> Iterator["Progress"]:
    """A progress bar with rate and time left; silent where nobody watches."""
    from rich import progress as rp

    columns = (
        rp.TextColumn("{task.description:<18}"),
        rp.BarColumn(bar_width=28),
        rp.MofNCompleteColumn(),
        rp.TextColumn("{task.fields[rate]}"),
        rp.TimeElapsedColumn(),
        rp.TextColumn("left"),
        rp.TimeRemainingColumn(),
        rp.TextColumn("{task.fields[note]}"),
    )
    with rp.Progress(*columns, console=console) as display:
        task = display.add_task(title, total=None, rate="", note="")

        def tell(done: int, total: int, note: str = "") -> None:
            # A smaller count than before means that the next part of the work has begun.
            if done < display.tasks[0].completed:
                display.reset(task, total=total)
            speed = display.tasks[0].finished_speed or display.tasks[0].speed
            rate = f"{speed:,.1f}/s" if speed else ""
            display.update(task, completed=done, total=total, rate=rate)
            if note:
                display.update(task, note=note)

        yield tell


def _said(path: Path) -> None:
    typer.echo(path)


@app.command(rich_help_panel=STAGES)
def collect(
    env: Annotated[str, typer.Argument(help="The environment; `sdjepa doctor` lists them.")],
    out: Annotated[Path, typer.Option(help="Where to write the dataset.")],
    episodes: Annotated[int | None, typer.Option(help="How many episodes.")] = None,
    steps: Annotated[int | None, typer.Option(help="Environment steps of an episode.")] = None,
    policy: Annotated[str | None, typer.Option(help="Who acts.")] = None,
    noise: Annotated[float | None, typer.Option(help="Noise added to the policy.")] = None,
    size: Annotated[int | None, typer.Option(help="Frame size in pixels.")] = None,
    seed: Annotated[int | None, typer.Option(help="One seed, one dataset.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; 0 = one per core.")] = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """Make episodes of an environment: frames, states and actions in one HDF5 file.

    The same seed gives the same file whatever the number of workers. Example:

    sdjepa collect tworoom --episodes 300 --steps 60 --size 64 --out data/small
    """
    from sdjepa.config import resolve
    from sdjepa.data.collect import collect as work

    said = {"env": env, "episodes": episodes, "steps": steps, "policy": policy, "noise": noise}
    said |= {"size": size, "seed": seed, "workers": workers}
    flags = [f"collect.{key}={value}" for key, value in said.items() if value is not None]
    settings = resolve(settings=[*flags, *sets]).collect
    with bar("collecting") as progress:
        _said(work(settings, out, progress=progress))


@app.command(rich_help_panel=STAGES)
def train(
    recipe: Annotated[
        Path | None, typer.Argument(help="A TOML recipe, e.g. recipes/demo.toml.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory to make.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Continue this run.")] = None,
    rung: Annotated[
        str | None,
        typer.Option(help="A0 (LeWM), A2 (SD-JEPA), A2_full, A2_split_full, A4, A5, A6, ..."),
    ] = None,
    k: Annotated[int | None, typer.Option(help="Width of the progress part: 2, 4 or 8.")] = None,
    seed: Annotated[int | None, typer.Option(help="One seed for every random stream.")] = None,
    data: DataPath = None,
    sets: Sets = [],  # noqa: B006
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say how the recipe departs from the paper; no training."),
    ] = False,
) -> None:
    """Train a world model from a recipe, or continue a run that was stopped.

    Ctrl-C, SIGTERM and even kill -9 leave a run that `--resume` continues to the same weights.

    sdjepa train recipes/demo.toml --out runs/a2
    sdjepa train recipes/demo.toml --rung A0 --out runs/lewm
    sdjepa train --resume runs/a2
    """
    from sdjepa.config import resolve

    if (resume is None) == (recipe is None):
        raise UserError("say either a RECIPE (with --out) or --resume RUN")
    if resume is not None:
        _train(resume, None)
        return
    flags = [f"train.seed={seed}"] if seed is not None else []
    flags += [f"data.path={data}"] if data is not None else []
    config = resolve(recipe, rung=rung, k=k, settings=[*flags, *sets])
    if explain:
        from sdjepa.explain import explain as departures

        for departure in departures(config):
            typer.echo(departure.sentence)
        return
    if out is None:
        raise UserError("say where the run should go: --out runs/NAME")
    _train(out, config)


def _train(path: Path, config: "Config | None") -> None:
    from sdjepa.runs import Run
    from sdjepa.train.loop import complete
    from sdjepa.train.loop import train as work

    with Run(path).lock() if config or path.exists() else Run.open(path).lock():
        if config is not None:
            run = Run.create(path, complete(config))
        else:
            run = Run.open(path)
        with bar("training") as progress:
            _said(work(run, resume=config is None, progress=progress))


@app.command(rich_help_panel=STAGES)
def score(
    run: RunPath,
    protocol: Annotated[str | None, typer.Option(help="`lewm` or `strict` (held out).")] = None,
    cost: Annotated[str | None, typer.Option(help="content, full, angular or progress.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Weight of the angle.")] = None,
    delta: Annotated[float | None, typer.Option(help="Weight of the radius.")] = None,
    solver: Annotated[str | None, typer.Option(help="cem, icem, mppi or gradient.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Rounds of the search.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Search this long a task instead.")] = None,
    offset: Annotated[int | None, typer.Option(help="Steps from start to goal.")] = None,
    budget: Annotated[int | None, typer.Option(help="Steps a task may take.")] = None,
    tasks: Annotated[int | None, typer.Option(help="How many tasks.")] = None,
    replan: Annotated[int | None, typer.Option(help="Action blocks between plans.")] = None,
    history: Annotated[int | None, typer.Option(help="Past frames the model is given.")] = None,
    batch: Annotated[int | None, typer.Option(help="Tasks planned together on a GPU.")] = None,
    workers: Annotated[int | None, typer.Option(help="Simulating processes.")] = None,
    seed: Annotated[int | None, typer.Option(help="Chooses tasks and candidates.")] = None,
    manifest: Annotated[Path | None, typer.Option(help="Exactly the tasks of this file.")] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Offsets 25, 50, 75 and 100.")] = False,
    checkpoint: Annotated[str, typer.Option(help="Which checkpoint.")] = "latest",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    data: DataPath = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """Let the run's model plan on recorded tasks and count successes, with floors and intervals.

    Planning settings need no retraining: the same run can be scored under any cost. Naming a
    protocol means its own number of tasks, offset and budget unless you say others.

    sdjepa score runs/a2 --protocol strict --tasks 100 --cost full
    """
    from sdjepa.config import BUDGET_PER_OFFSET, PROTOCOL_TASKS, change
    from sdjepa.score import SWEEP_OFFSETS
    from sdjepa.score import score as work
    from sdjepa.train.checkpoint import load_config
    from sdjepa.train.loop import pick_device

    said = {"score.protocol": protocol, "score.offset": offset, "score.tasks": tasks}
    said |= {"score.budget": budget, "score.seed": seed, "score.workers": workers}
    said |= {"plan.cost": cost, "plan.gamma": gamma, "plan.delta": delta, "plan.replan": replan}
    said |= {"plan.solver": solver, "plan.iterations": iterations, "plan.seconds": seconds}
    said |= {"plan.history": history, "plan.batch": batch, "plan.seed": seed}
    if protocol is not None:
        offset = offset or 25
        said |= {"score.offset": offset, "score.tasks": tasks or PROTOCOL_TASKS.get(protocol)}
    if offset is not None:
        said["score.budget"] = budget or BUDGET_PER_OFFSET * offset
    flags = [f"{key}={value}" for key, value in said.items() if value is not None]
    config = change(load_config(run, checkpoint), [*flags, *sets])
    paths = []
    for apart in SWEEP_OFFSETS if sweep else (config.score.offset,):
        span = budget or (BUDGET_PER_OFFSET * apart if sweep else config.score.budget)
        settings = config.score.model_copy(update={"offset": apart, "budget": span})
        with bar(f"planning, {apart} ahead") as progress:
            path = work(
                run,
                settings=settings,
                plan=config.plan,
                data_path=data,
                manifest=manifest,
                checkpoint=checkpoint,
                device=str(pick_device(device)),
                progress=progress,
            )
        _show_score(path)
        paths.append(path)
    for path in paths:
        _said(path)


def _show_score(path: Path) -> None:
    from rich.table import Table

    from sdjepa.runs import read_json

    result = read_json(path)
    title = f"{result['env']}, {result['num_tasks']} tasks {result['tasks_hash']}, "
    title += f"{result['protocol']} {result['protocol_hash']}"
    table = Table(title=title)
    for head in ("who acts", "success %", "95 % interval"):
        table.add_column(head, justify="left" if head == "who acts" else "right")
    rows = {}
    if "success_rate" in result:
        who = f"planner ({result['cost']} cost)"
        rows[who] = (result["success_rate"], result["wilson95"])
    for name, rate in result["floors"].items():
        rows[name] = (rate, result["floors_wilson95"][name])
    for name, (rate, (low, high)) in rows.items():
        table.add_row(name, f"{rate:.1f}", f"{low:.1f} to {high:.1f}")
    console.print(table)
    if result["protocol_departures"]:
        console.print(f"not the frozen protocol: {', '.join(result['protocol_departures'])}")


@app.command(rich_help_panel=STAGES)
def floors(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A dataset.")],
    out: Annotated[Path, typer.Option(help="Where to write the result, a JSON file.")],
    protocol: Annotated[str, typer.Option(help="`lewm` or `strict`.")] = "lewm",
    offset: Annotated[int, typer.Option(help="Steps from start to goal.")] = 25,
    tasks: Annotated[int | None, typer.Option(help="How many tasks.")] = None,
    workers: Annotated[int, typer.Option(help="Simulating processes.")] = 1,
    seed: Annotated[int, typer.Option(help="Chooses tasks and random actions.")] = 42,
) -> None:
    """What doing nothing, acting at random and replaying achieve on a dataset's tasks; no model.

    sdjepa floors data/small --protocol strict --tasks 50 --out floors.json
    """
    from sdjepa.config import resolve
    from sdjepa.runs import write_json
    from sdjepa.scoring.floors import measure_floors

    said = {"offset": offset, "seed": seed, "workers": workers, "tasks": tasks}
    flags = [f"score.{key}={value}" for key, value in said.items() if value is not None]
    settings = resolve(settings=[f"score.protocol={protocol}", *flags]).score
    _show_score(write_json(out, measure_floors(data, settings)))
    _said(out)


@app.command(rich_help_panel=STAGES)
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs or score files.")],
    select: Annotated[
        str | None, typer.Option(help="Which score of each run, e.g. strict-content.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="A table to paste.")] = False,
) -> None:
    """Runs scored on one task list: rates with intervals, and paired differences from the first.

    sdjepa compare runs/a2 runs/lewm --select strict
    """
    from sdjepa import compare as work

    rows = work.compare(runs, select=select)
    if markdown:
        typer.echo(work.markdown(rows))
    else:
        from rich.table import Table

        table = Table(*work.HEAD)
        for row in rows:
            table.add_row(*work.cells(row))
        console.print(table)
    for row in rows[1:]:
        typer.echo(work.verdict(row))


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
        _said(path)


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

    _said(work(runs, out=out or runs[0] / "report.html", figures=figures))


@app.command(rich_help_panel="Begin here")
def demo(
    out: Annotated[Path, typer.Option(help="The run directory to make.")] = Path("runs/demo"),
    recipe: Annotated[Path | None, typer.Option(help="Another recipe than the demo's.")] = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """The whole path at small size: collect, train on the CPU, plan, read the compass, report.

    Under ten minutes on two cores. Run it again after a stop and it goes on where it was.
    """
    from sdjepa.demo import demo as work

    _said(work(out, recipe=recipe, settings=sets, bar=bar, say=console.print))


@app.command(rich_help_panel="Begin here")
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


@import_app.command("lewm")
def import_lewm(
    source: Annotated[Path, typer.Argument(help="A saved folder or a state dict of LeWM.")],
    out: Annotated[Path, typer.Option(help="The run directory to make.")],
    data: Annotated[
        Path | None, typer.Option(help="The dataset it was trained on: how actions were scaled.")
    ] = None,
) -> None:
    """Weights of stable-worldmodel's LeWM become a run of rung A0; every tensor is accounted for.

    Planning needs to know how actions were normalised: give --data, or a folder that says it.
    """
    from sdjepa.data.episodes import Episodes
    from sdjepa.interop.lewm import import_lewm as work

    stats = Episodes.open(data).action_stats() if data is not None else None
    _said(work(source, out, stats=stats))


@export_app.command("lewm")
def export_lewm(
    run: RunPath,
    out: Annotated[Path, typer.Option(help="The folder to make.")],
) -> None:
    """A run's weights as a folder that stable-worldmodel loads."""
    from sdjepa.interop.lewm import export_lewm as work

    _said(work(run, out))


@app.command(rich_help_panel="Begin here")
def bench(
    what: Annotated[str, typer.Argument(help="`train` or `plan`.")] = "train",
    out: Annotated[Path | None, typer.Option(help="Write the figures as JSON here.")] = None,
    repeats: Annotated[int, typer.Option(help="Timed rounds.")] = 5,
    small: Annotated[
        bool, typer.Option("--small", help="Demo widths instead of the paper's.")
    ] = False,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Plan with compiled rollouts too, on a GPU.")
    ] = False,
) -> None:
    """Time a training step, or a plan, against stable-worldmodel's LeWM in the same run.

    sdjepa bench plan --out results/bench-plan.json
    """
    with bar("benchmark") as progress:
        if what == "train":
            from sdjepa.bench import bench_train

            result = bench_train(repeats=repeats, small=small, progress=progress)
        elif what == "plan":
            from sdjepa.bench_plan import SMALL_SEARCH, bench_plan

            search = SMALL_SEARCH if small else {}
            result = bench_plan(
                repeats=repeats, small=small, compiled=compiled, progress=progress, **search
            )
        else:
            raise UserError(f"unknown benchmark {what!r}; there are train and plan")
    for line in result.lines():
        typer.echo(line)
    if out is not None:
        from sdjepa.runs import write_json

        _said(write_json(out, result.as_json()))


def main() -> None:
    """Run the command line; bad input is one line on stderr and exit code 2."""
    try:
        app()
    except UserError as error:
        console.print(f"[red]error:[/] {error}", soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
