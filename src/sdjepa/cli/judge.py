"""Verbs that judge a run by its plans: score, floors, ceiling."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sdjepa.cli.app import STAGES, DataPath, PlanSets, RunPath, app, bar, console, said, stopping

if TYPE_CHECKING:
    from rich.console import Console

    from sdjepa.config import Config, Plan, Score

SeedOfData = Annotated[
    int | None,
    typer.Option(
        help="Chooses tasks and whatever is random.", show_default="42; a pack's is its own"
    ),
]
ProtocolOfData = Annotated[
    str | None,
    typer.Option(
        help="`lewm`, `strict` (held out) or `choose` (validation).",
        show_default="lewm; a pack's is its own",
    ),
]


@app.command(rich_help_panel=STAGES)
@stopping("scores that were finished are kept")
def score(
    run: RunPath,
    protocol: Annotated[
        str | None, typer.Option(help="lewm, strict (held out) or choose (validation).")
    ] = None,
    cost: Annotated[str | None, typer.Option(help="content, full, angular or progress.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Weight of the angle.")] = None,
    delta: Annotated[float | None, typer.Option(help="Weight of the radius.")] = None,
    solver: Annotated[str | None, typer.Option(help="cem, icem, mppi or gradient.")] = None,
    iterations: Annotated[str | None, typer.Option(help="Rounds of the search.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Search this long a task instead.")] = None,
    offset: Annotated[str | None, typer.Option(help="Steps from start to goal.")] = None,
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
    sets: PlanSets = [],  # noqa: B006
) -> None:
    """Let the run's model plan on recorded tasks and count successes, with floors and intervals.

    Planning settings need no retraining: the same run can be scored under any cost. Naming a
    protocol means its own number of tasks, offset and budget unless you say others. Protocols,
    costs, iterations and offsets may be several, with commas: every combination is scored.

    sdjepa score runs/a2 --protocol strict --tasks 100 --cost content,full
    """
    from sdjepa.data.episodes import Episodes
    from sdjepa.runs import read_json
    from sdjepa.score import SWEEP_OFFSETS, check_room
    from sdjepa.scoring.trained import score as work
    from sdjepa.tasks import check_pack
    from sdjepa.train.checkpoint import load_config
    from sdjepa.train.loop import pick_device
    from sdjepa.train.source import tasks_for

    own = load_config(run, checkpoint)
    always = {"score.budget": budget, "score.seed": seed, "score.workers": workers}
    always |= {"plan.gamma": gamma, "plan.delta": delta, "plan.replan": replan, "plan.seed": seed}
    always |= {"plan.solver": solver, "plan.seconds": seconds, "plan.history": history}
    always |= {"plan.batch": batch, "score.tasks": tasks}
    offsets = [str(apart) for apart in SWEEP_OFFSETS] if sweep else _each(offset)
    configs = _combinations(
        own,
        (_each(protocol), _each(cost), _each(iterations), offsets),
        always={key: value for key, value in always.items() if value is not None},
        sets=sets,
    )
    if manifest is None:
        where = tasks_for(run, own, given=data)
        check_pack(where, protocols=_said(protocol), seed=seed)
        if len(configs) > 1:
            with Episodes.open(where) as episodes:
                for config in configs:
                    check_room(episodes, config.score)
    paths = []
    for settings, plans in _by_tasks(configs):
        with bar(f"planning, {settings.offset} ahead") as progress:
            found = work(
                run,
                plans=plans,
                settings=settings,
                data_path=data,
                manifest=manifest,
                checkpoint=checkpoint,
                device=str(pick_device(device)),
                progress=progress,
            )
        for path in found:
            _show_score(read_json(path))
        paths += found
    for path in paths:
        said(path)


def _combinations(
    own: "Config",
    lists: Sequence[Sequence[str | None]],  # of protocols, costs, iterations and offsets
    *,
    always: dict[str, object],
    sets: Sequence[str],
) -> "list[Config]":
    """One for every combination: what was said, else the protocol's, else the run's own."""
    from itertools import product

    from sdjepa.config import BUDGET_PER_OFFSET, PROTOCOL_TASKS
    from sdjepa.resolve import change

    configs = []
    for rule, measure, rounds, apart in product(*lists):
        asked: dict[str, object] = {"score.protocol": rule, "score.offset": apart}
        asked |= {"plan.cost": measure, "plan.iterations": rounds}
        if rule is not None:
            apart = apart or "25"
            asked |= {"score.offset": apart, "score.tasks": PROTOCOL_TASKS.get(rule)}
        if apart is not None and apart.isdigit():
            asked["score.budget"] = BUDGET_PER_OFFSET * int(apart)
        flags = [f"{key}={value}" for key, value in (asked | always).items() if value is not None]
        configs.append(change(own, [*flags, *sets]))
    return configs


def _by_tasks(configs: "Sequence[Config]") -> "list[tuple[Score, list[Plan]]]":
    """The searches of each list of tasks, in the order they were asked for."""
    groups: list[tuple[Score, list[Plan]]] = []
    for config in configs:
        for settings, plans in groups:
            if settings == config.score:
                plans.append(config.plan)
                break
        else:
            groups.append((config.score, [config.plan]))
    return groups


def _said(protocol: str | None) -> list[str]:
    """The protocols that were asked for by name."""
    return [name for name in _each(protocol) if name is not None]


def _each(text: str | None) -> list[str | None]:
    """What stands between commas; nothing said is one thing, the run's own."""
    return [None] if text is None else [part.strip() for part in text.split(",")]


def _show_score(result: dict[str, Any], *, to: "Console" = console) -> None:
    """A table of who solved how much; which tasks these were, as a hash, is in the file."""
    from rich.table import Table

    table = Table(
        title=f"{result['env']}, {result['num_tasks']} tasks, protocol {result['protocol']}"
    )
    for head in ("who acts", "success %", "95 % interval"):
        table.add_column(head, justify="left" if head == "who acts" else "right")
    rows = {}
    if "success_rate" in result:
        perfect = result["checkpoint"] is None
        who = f"planner ({result['cost']})" if perfect else f"planner ({result['cost']} cost)"
        rows[who] = (result["success_rate"], result["wilson95"])
    for name, rate in result["floors"].items():
        rows[name] = (rate, result["floors_wilson95"][name])
    for name, (rate, (low, high)) in rows.items():
        table.add_row(name, f"{rate:.1f}", f"{low:.1f} to {high:.1f}")
    to.print(table)
    if result["protocol_departures"]:
        to.print(f"not the frozen protocol: {', '.join(result['protocol_departures'])}")


@app.command(rich_help_panel=STAGES)
@stopping()
def floors(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A dataset.")],
    out: Annotated[
        Path | None, typer.Option(help="Also write it, with every task, to this JSON file.")
    ] = None,
    protocol: ProtocolOfData = None,
    offset: Annotated[int, typer.Option(help="Steps from start to goal.")] = 25,
    tasks: Annotated[int | None, typer.Option(help="How many tasks.")] = None,
    workers: Annotated[int, typer.Option(help="Simulating processes.")] = 1,
    seed: SeedOfData = None,
) -> None:
    """What doing nothing, acting at random and replaying achieve on a dataset's tasks; no model.

    - **noop** does nothing
    - **random** draws every action uniformly from the action space
    - **gaussian** draws it with the mean and the standard deviation of recorded training actions
    - **replay** takes the recorded actions from start to goal

    sdjepa floors data/small --protocol strict --tasks 50

    sdjepa floors data/small --protocol strict --tasks 50 --out floors.json
    """
    from rich.console import Console

    from sdjepa.resolve import resolve
    from sdjepa.runs import write_json
    from sdjepa.scoring.floors import measure_floors
    from sdjepa.tasks import check_pack

    asked = {"protocol": protocol, "offset": offset, "seed": seed}
    asked |= {"workers": workers, "tasks": tasks}
    flags = [f"score.{key}={value}" for key, value in asked.items() if value is not None]
    settings = resolve(settings=flags).score
    check_pack(data, protocols=_said(protocol), seed=seed)
    found = measure_floors(data, settings)
    if out is None:
        _show_score(found, to=Console())
        return
    write_json(out, found)
    _show_score(found)
    said(out)


@app.command(rich_help_panel=STAGES)
@stopping()
def ceiling(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A dataset.")],
    out: Annotated[Path, typer.Option(help="Where to write the score, a JSON file.")],
    protocol: ProtocolOfData = None,
    cost: Annotated[
        Literal["distance", "success"],
        typer.Option(help="All that success asks for, or the distance alone."),
    ] = "success",
    solver: Annotated[str | None, typer.Option(help="cem, icem or mppi.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Rounds of the search.")] = None,
    offset: Annotated[int, typer.Option(help="Steps from start to goal.")] = 25,
    budget: Annotated[int | None, typer.Option(help="Steps a task may take.")] = None,
    tasks: Annotated[int | None, typer.Option(help="How many tasks.")] = None,
    replan: Annotated[int | None, typer.Option(help="Action blocks between plans.")] = None,
    workers: Annotated[int, typer.Option(help="Planning processes; 0 is one per core.")] = 0,
    seed: SeedOfData = None,
    manifest: Annotated[Path | None, typer.Option(help="Exactly the tasks of this file.")] = None,
    sets: PlanSets = [],  # noqa: B006
) -> None:
    """What the planner reaches when its model is the simulator itself; no training, no pixels.

    The search and the tasks are those of `score`, so that `compare` pairs the two: what a model
    misses and the simulator solves is the model's fault. A plan takes a core half a minute or more.

    sdjepa ceiling data/small --protocol strict --tasks 50 --out ceiling.json
    """
    from sdjepa.resolve import resolve
    from sdjepa.runs import write_json
    from sdjepa.scoring.ceiling import measure_ceiling
    from sdjepa.tasks import check_pack

    asked = {"score.protocol": protocol, "score.offset": offset, "score.budget": budget}
    asked |= {"score.tasks": tasks, "score.seed": seed, "score.workers": workers, "plan.seed": seed}
    asked |= {"plan.solver": solver, "plan.iterations": iterations, "plan.replan": replan}
    flags = [f"{key}={value}" for key, value in asked.items() if value is not None]
    config = resolve(settings=[*flags, *sets])
    check_pack(data, protocols=_said(protocol), seed=seed)
    with bar(f"planning, {config.score.offset} ahead") as progress:
        result = measure_ceiling(
            data,
            config.score,
            plan=config.plan,
            frame_skip=config.data.frame_skip,
            measure=cost,
            manifest=manifest,
            progress=progress,
        )
    write_json(out, result)
    _show_score(result)
    said(out)
