"""Verbs that deal with other systems and with datasets: import, export, data."""

from pathlib import Path
from typing import Annotated

import typer

from sdjepa.cli.app import OTHERS, DataPath, RunPath, app, bar, said, stopping, tell
from sdjepa.errors import UserError

MANY = 10**8  # more is a slip of the keyboard
import_app = typer.Typer(no_args_is_help=True, help="Bring another system's weights in as a run.")
export_app = typer.Typer(no_args_is_help=True, help="Hand a run to another system.")
data_app = typer.Typer(no_args_is_help=True, help="Check, describe, convert and pack datasets.")
app.add_typer(import_app, name="import", rich_help_panel=OTHERS)
app.add_typer(export_app, name="export", rich_help_panel=OTHERS)
app.add_typer(data_app, name="data", rich_help_panel=OTHERS)

DataArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DATA", help="A dataset: a directory of ours, or another program's file."
    ),
]
EnvOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The environment, where neither dataset.json nor the columns tell; none = it has no "
        "simulator here.",
    ),
]
OutArgument = Annotated[Path, typer.Argument(metavar="OUT", help="The directory to make.")]


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
    said(work(source, out, stats=stats))


@export_app.command("lewm")
def export_lewm(
    run: RunPath,
    out: Annotated[Path, typer.Option(help="The folder to make.")],
) -> None:
    """A run's weights as a folder that stable-worldmodel loads."""
    from sdjepa.interop.lewm import export_lewm as work

    said(work(run, out))


@export_app.command("rerun")
def export_rerun(
    run: RunPath,
    out: Annotated[
        Path | None, typer.Option(help="The file; RUN/episodes.rrd unless said.")
    ] = None,
    episodes: Annotated[int, typer.Option(help="How many held-out episodes.")] = 3,
    seed: Annotated[int, typer.Option(help="Chooses the episodes.")] = 0,
    data: DataPath = None,
) -> None:
    """Held-out episodes for the viewer rerun: frames, theta, r, surprise, path.

    Needs `sdjepa[rerun]`. Look at the file with: rerun RUN/episodes.rrd
    """
    from sdjepa.interop.rerun import export_rerun as work

    with bar("reading") as progress:
        made = work(
            run,
            out or run / "episodes.rrd",
            data=data,
            episodes=episodes,
            seed=seed,
            progress=progress,
        )
    said(made)


@data_app.command("audit")
def data_audit(
    path: DataArgument,
    replays: Annotated[int, typer.Option(min=1, help="Tasks to replay.")] = 100,
    frames: Annotated[
        int, typer.Option(min=1, help="States that the simulator alone draws again.")
    ] = 12,
    env: EnvOption = None,
) -> None:
    """Check a dataset: replay its actions, redraw its states, look for gaps, repeats and damage.

    A verdict per check, pass, warn, fail or skipped, with what was found. They are also written to
    audit.json, in a dataset of ours or beside another program's. Every frame is read. The exit
    code is 1 when a check fails.

    sdjepa data audit data/small

    sdjepa data audit robot.h5 --env none
    """
    with stopping():
        from sdjepa.data.audit import audit

        with bar("auditing") as progress:
            checks = audit(path, replays=replays, frames=frames, named=env, progress=progress)
    for check in checks:
        tell(f"{check.verdict:<8}{check.name:<16}{check.found}", indent=24)
    if any(check.verdict == "fail" for check in checks):
        raise typer.Exit(1)


@data_app.command("card")
def data_card(
    path: DataArgument,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks to try.")] = 100,
    offset: Annotated[int, typer.Option(min=0, max=MANY, help="Steps from start to goal.")] = 25,
    budget: Annotated[int, typer.Option(min=0, help="Steps a task may take.")] = 50,
    env: EnvOption = None,
) -> None:
    """Describe a dataset: lengths, actions, how many tasks need nothing done, a contact sheet.

    Writes card.md, card.json and card.png into the dataset, or beside another program's file.
    `sdjepa collect` has written one already.

    sdjepa data card data/small --tasks 200
    """
    with stopping():
        from sdjepa.data.card import card

        with bar("card") as progress:
            made = card(
                path, tasks=tasks, offset=offset, budget=budget, named=env, progress=progress
            )
    said(made)


@data_app.command("convert")
def data_convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="LeWM's HDF5, what stable-worldmodel loads, a LeRobot v3 folder, or ours.",
        ),
    ],
    out: OutArgument,
    size: Annotated[
        int | None, typer.Option(min=8, help="Pixels a side to reduce frames to.")
    ] = None,
    env: EnvOption = None,
    camera: Annotated[
        str | None, typer.Option(help="LeRobot: which camera's frames to take.")
    ] = None,
    action: Annotated[
        str | None, typer.Option(help="LeRobot: which feature is the action.")
    ] = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="Leave frames uncompressed, for programs without HDF5 plug-ins."
        ),
    ] = False,
) -> None:
    """Copy any dataset we can read into a directory like those `sdjepa collect` makes.

    Needed for LeRobot, for frames that are not square, and where an environment must be named.
    Everything else can be trained on as it is.

    sdjepa data convert pusht_expert.h5 data/pusht

    sdjepa data convert robot data/robot --camera front --size 96
    """
    with stopping():
        from sdjepa.data.convert import convert

        with bar("converting") as progress:
            made = convert(
                source,
                out,
                size=size,
                env=env,
                camera=camera,
                action=action,
                compress=not plain,
                progress=progress,
            )
    said(made)


@data_app.command("pack")
def data_pack(
    source: DataArgument,
    out: OutArgument,
    tasks: Annotated[int, typer.Option(min=1, help="How many tasks.")] = 50,
    offset: Annotated[int, typer.Option(min=1, max=MANY, help="Steps from start to goal.")] = 25,
    protocol: Annotated[
        str, typer.Option(help="lewm, strict (held-out episodes) or choose (validation).")
    ] = "lewm",
    seed: Annotated[int, typer.Option(min=0, help="Chooses the tasks.")] = 42,
) -> None:
    """Take along the tasks of a score: a few megabytes to score on without the dataset.

    sdjepa data pack data/pusht data/pusht-pack --protocol strict --tasks 200

    sdjepa score runs/a2 --data data/pusht-pack --protocol strict --tasks 200
    """
    with stopping():
        from sdjepa.data.episodes import Episodes
        from sdjepa.data.pack import write_pack
        from sdjepa.resolve import resolve
        from sdjepa.score import task_list

        asked = {"protocol": protocol, "tasks": tasks, "offset": offset, "seed": seed}
        settings = resolve(settings=[f"score.{key}={value}" for key, value in asked.items()]).score
        data = Episodes.open(source)
        if "pack" in data.info:
            raise UserError(f"{source} is a pack already; pack the dataset it was made from")
        chosen = task_list(data, settings).tasks
        with bar("packing") as progress:
            starts = [(task.episode, task.start) for task in chosen]
            made = write_pack(
                data, starts, out, offset=offset, protocol=protocol, seed=seed, progress=progress
            )
    said(made)
