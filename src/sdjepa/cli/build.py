"""Verbs that make runs: collect, train, sweep."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sdjepa.cli.app import STAGES, Sets, app, bar, remark, said, stopping
from sdjepa.errors import UserError

if TYPE_CHECKING:
    from sdjepa.config import Config

CollectSets = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one setting, e.g. collect.test_share=0.2."
    ),
]
TrainOn = Annotated[
    Path | None, typer.Option("--data", help="The dataset to train on, instead of the recipe's.")
]


@app.command(rich_help_panel=STAGES)
def collect(
    env: Annotated[str, typer.Argument(help="One of those above.")],
    out: Annotated[Path, typer.Option(help="The directory to write the dataset to.")],
    episodes: Annotated[
        int | None, typer.Option(min=1, help="How many episodes.", show_default="10000")
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option(
            min=1, help="Instead of --episodes: as many full-length ones as give so many frames."
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Actions in an episode, at most; frames are one more.", show_default="100"
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Who acts.", show_default="the first in the list above")
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            min=0, help="How strongly the policy is disturbed; 0 = not at all.", show_default="1"
        ),
    ] = None,
    demos: Annotated[
        Path | None,
        typer.Option(help="Human demonstrations to replay: an .npz, or Diffusion Policy's .zarr."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=8, help="Pixels a side of the square frames.", show_default="224"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Decides every byte of the dataset.", show_default="0")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes; 0 = one per core.", show_default="0"),
    ] = None,
    sets: CollectSets = [],  # noqa: B006
) -> None:
    """Make a dataset: frames, states and actions of an environment in one HDF5 file.

    Environments and who can act in them; the first is the default:

    - **tworoom**: expert, random
    - **pusht**: demos, pusher, random (without demonstrations, given by `--demos` or
      `$SDJEPA_PUSHT_DEMOS`: pusher)
    - **reacher**: random, expert
    - **cube**: expert, plan, idle, random

    The number of workers changes no byte. Stop it with Ctrl-C, or kill it: the same command goes
    on where it stopped. Of the episodes 5 % are kept for validation and 5 % for tests
    (`--set collect.test_share=0.2` keeps more).

    sdjepa collect tworoom --episodes 300 --steps 60 --size 64 --out data/small

    sdjepa collect pusht --frames 1000000 --demos demos.npz --out data/pusht

    Cube on a machine without a GPU, a third faster, pixels slightly changed:

    sdjepa collect cube --episodes 20 --set collect.shadow=1024 --out data/cube
    """
    with stopping("the same command continues where it stopped"):
        from sdjepa.data.collect import collect as work
        from sdjepa.data.writer import CARD, FILE
        from sdjepa.resolve import only, resolve, together
        from sdjepa.runs import read_json

        numbers = {"episodes": episodes, "frames": frames, "steps": steps, "noise": noise}
        numbers |= {"size": size, "seed": seed, "workers": workers}
        words = {"env": env, "policy": policy, "demos": demos}
        asked = {key: value for key, value in numbers.items() if value is not None}
        asked |= {key: json.dumps(str(value)) for key, value in words.items() if value is not None}
        only("collect", sets)
        flags = [f"collect.{key}={value}" for key, value in asked.items()]
        settings = resolve(settings=together(flags, sets)).collect
        if settings.frames and "episodes" in settings.model_fields_set:
            raise UserError("--episodes and --frames both say how much; give one of them")
        with bar("collecting") as progress:
            made = work(settings, out, progress=progress)
    about = read_json(made / CARD)
    size_mb = (made / FILE).stat().st_size / 1e6
    none = [side for side in ("validation", "test") if not about["split"][side]]
    lacks = f" (none for {' or '.join(none)})" if none else ""
    remark(
        f"{about['num_episodes']:,} episodes{lacks} by {about['policy']['name']}, "
        f"{about['num_rows']:,} frames of "
        f"{about['image_size']} px, {size_mb:,.1f} MB; look at {made / 'card.md'}"
    )
    said(made)


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
    data: TrainOn = None,
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

    Where its dataset was moved, say where to, once: `--resume RUN --data DIR`.
    """
    from sdjepa.resolve import resolve, together

    if (resume is None) == (recipe is None):
        raise UserError("say either a RECIPE (with --out) or --resume RUN")
    if resume is not None:
        if sets or rung or k is not None or seed is not None:
            raise UserError(
                f"--resume goes on as {resume / 'config.toml'} says; leave the rest out"
            )
        _train(resume, None, moved=data)
        return
    flags = [f"train.seed={seed}"] if seed is not None else []
    flags += _at(data)
    config = resolve(recipe, rung=rung, k=k, settings=together(flags, sets))
    if explain:
        from sdjepa.explain import explain as departures

        for departure in departures(config):
            typer.echo(departure.sentence)
        return
    if out is None:
        raise UserError("say where the run should go: --out runs/NAME")
    _train(out, config)


def _train(path: Path, config: "Config | None", *, moved: Path | None = None) -> None:
    from contextlib import nullcontext

    from sdjepa import ranks
    from sdjepa.data.writer import refuse_dataset
    from sdjepa.runs import Run, silent
    from sdjepa.train.loop import complete, pick_device
    from sdjepa.train.loop import train as work
    from sdjepa.train.source import find_again

    said_device = config.train.device if config else Run.open(path).config.train.device
    ranks.start(pick_device(said_device))
    leader = ranks.rank() == 0
    # Of several processes the first owns the directory; the others read what it has written.
    if leader and config is not None:
        refuse_dataset(path)
        config = complete(config)  # refuses before anything is written
    with Run(path).lock() if leader else nullcontext():
        if leader and config is not None:
            Run.create(path, config)
        elif leader:
            find_again(Run.open(path), given=moved)
        ranks.wait()
        try:
            with bar("training") if leader else nullcontext(silent) as progress:
                found = work(Run.open(path), resume=config is None, progress=progress)
        except UserError:
            if leader and config is not None:
                Run(path).abandon()
            raise
        if leader:
            said(found)
    ranks.stop()


@app.command(rich_help_panel=STAGES)
def sweep(
    recipe: Annotated[Path, typer.Argument(help="A TOML recipe, e.g. recipes/demo.toml.")],
    out: Annotated[Path, typer.Option(help="The folder of the runs.")],
    rungs: Annotated[str, typer.Option(help="Rungs, with commas between.")] = "A0,A2",
    k: Annotated[str, typer.Option(help="Widths of the progress part.")] = "2,8",
    seeds: Annotated[str, typer.Option(help="Seeds.")] = "3072",
    vary: Annotated[
        list[str], typer.Option(metavar="KEY=A,B", help="One run for each value of a setting.")
    ] = [],  # noqa: B006
    data: TrainOn = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """Train every combination of rungs, widths and seeds of a recipe, reading the frames once.

    Stopped or killed, the same command goes on where it was. Examples, six runs and two:

    sdjepa sweep recipes/pusht-fast.toml --rungs A0,A2 --k 2,8 --seeds 3072,42 --out runs/pusht

    sdjepa sweep R.toml --rungs A2 --k 2 --vary objectives.sigreg_weight=0.09,0.03 --out runs/x
    """
    from sdjepa.resolve import together
    from sdjepa.train.sweep import members
    from sdjepa.train.sweep import sweep as work

    flags = _at(data)
    wanted = members(
        recipe,
        rungs=rungs.split(","),
        widths=_numbers(k, "--k"),
        seeds=_numbers(seeds, "--seeds"),
        settings=together(flags, sets),
        vary=vary,
    )
    with bar("training") as progress:
        made = work(wanted, out, progress=progress)
    for path in made:
        said(path)


def _at(data: Path | None) -> list[str]:
    """The setting of a place, whose name may look like a number or a date."""
    return [] if data is None else [f"data.path={json.dumps(str(data))}"]


def _numbers(text: str, flag: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{flag} {text!r} is not a list of numbers like 2,8") from None
