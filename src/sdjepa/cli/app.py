"""What every verb shares: the application, the console, the progress bar, common arguments."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

if TYPE_CHECKING:
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
BEGIN, STAGES, OTHERS = "Begin here", "The path", "Other systems"


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """Says at Ctrl-C that nothing was written, of work that writes at its end or cleans up."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("stopped; nothing was written")
        raise


@contextmanager
def bar(title: str) -> Iterator["Progress"]:
    """A progress bar with rate and time left; in a file, a line of where it ended."""
    with (_drawn if console.is_terminal else _written)(title) as progress:
        yield progress


@contextmanager
def _written(title: str) -> Iterator["Progress"]:
    last = ""

    def tell(done: int, total: int, note: str = "") -> None:
        nonlocal last
        last = f"{title}: {done:,} of {total:,} {note}".strip()

    yield tell
    if last:
        console.print(last, markup=False, soft_wrap=True)


@contextmanager
def _drawn(title: str) -> Iterator["Progress"]:
    from rich import progress as rp
    from rich.table import Column
    from rich.text import Text

    class Note(rp.ProgressColumn):
        """The one column that is cut off, and says so, where not all fit."""

        def render(self, task: rp.Task) -> Text:
            return Text(task.fields["note"], no_wrap=True, overflow="ellipsis")

    narrow = console.width < 120
    whole = Column(no_wrap=True)
    columns = (
        rp.TextColumn("{task.description}" if narrow else "{task.description:<18}"),
        rp.BarColumn(bar_width=10 if narrow else 28),
        rp.MofNCompleteColumn(table_column=whole.copy()),
        rp.TextColumn("{task.fields[rate]}"),
        *(() if narrow else (rp.TimeElapsedColumn(table_column=whole.copy()),)),
        rp.TextColumn("left"),
        rp.TimeRemainingColumn(table_column=whole.copy()),
        Note(),
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

        display.live.transient = True  # no bar is left standing above an error
        yield tell
        display.live.transient = False


def said(path: Path) -> None:
    """Where the result is, on standard output, for the next command."""
    typer.echo(path)
