"""What every verb shares: the application, the console, the progress bar, common arguments."""

import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from sdjepa.cli.pace import Stage

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
PlanSets = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting, e.g. plan.horizon=3."),
]
DataPath = Annotated[
    Path | None, typer.Option("--data", help="The dataset, when it is no longer where it was.")
]
Split = Literal["train", "validation", "test"]
BEGIN, STAGES, OTHERS = "Begin here", "The path", "Other systems"
BETWEEN_LINES_S = 30.0  # of work that goes on, where nobody sees a bar
WORTH_SAYING_S = 1.0  # a stage that took less ends without a line


@contextmanager
def stopping(leaves: str = "nothing was written") -> Iterator[None]:
    """Says at Ctrl-C what that leaves; most work writes at its end, or cleans up.

    Whoever asks this process to end, as a scheduler does, is answered alike.
    """
    # What ignores Ctrl-C, as a shell has it do in the background, ends without a word.
    heard = callable(signal.getsignal(signal.SIGINT))
    heard = heard and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if heard:
        signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"stopped; {leaves}")
        raise
    finally:
        if heard:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def bar(title: str) -> Iterator["Progress"]:
    """A progress bar with time left; in a file, a line now and then and one for each stage."""
    with (_drawn if console.is_terminal else _written)(title) as progress:
        yield progress


@contextmanager
def _written(title: str) -> Iterator["Progress"]:
    stage, said_at = Stage(0, 0), time.monotonic()

    def line(*, left: str) -> None:
        left = f", {left} left" if left else ""
        text = f"{title}: {stage.done:,} of {stage.total:,} {stage.note}{left}"
        console.print(text.strip(), markup=False, soft_wrap=True)

    def end() -> None:
        # What is over at once, was broken off or has not begun is not worth a line.
        if 0 < stage.total == stage.done and time.monotonic() - stage.began >= WORTH_SAYING_S:
            line(left="")

    def tell(done: int, total: int, note: str = "") -> None:
        nonlocal stage, said_at
        if not stage.takes(done, total, note):
            end()
            stage = Stage(done, total)
            stage.takes(done, total, note)
        if time.monotonic() - said_at >= BETWEEN_LINES_S and done < total:
            line(left=stage.left())
            said_at = time.monotonic()

    yield tell
    end()


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
        Note(),  # begins with the unit of the count
        *(() if narrow else (rp.TimeElapsedColumn(table_column=whole.copy()),)),
        rp.TextColumn("{task.fields[left]}", table_column=whole.copy()),
    )
    with rp.Progress(*columns, console=console) as display:
        task = display.add_task(title, total=None, note="", left="")
        stage = Stage(0, 0)

        def tell(done: int, total: int, note: str = "") -> None:
            nonlocal stage
            if not stage.takes(done, total, note):
                stage = Stage(done, total)
                stage.takes(done, total, note)
                display.reset(task, total=total)
            # A rate that the note gives in another unit would only confuse.
            pace = f"{stage.rate():,.1f}/s" if stage.rate() and "/s" not in stage.note else ""
            left = f" {stage.left()} left" if stage.left() else ""
            display.update(
                task,
                completed=done,
                total=total,
                note=", ".join(filter(None, (stage.note, pace))),
                left=left,
            )

        display.live.transient = True  # no bar is left standing above an error
        yield tell
        display.live.transient = False


def tell(text: str, *, indent: int = 0) -> None:
    """A line of a result, on standard output: whole words a row in a terminal, one line elsewhere.

    Further rows begin `indent` columns in.
    """
    wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    typer.echo(laid(text, width=wide, indent=indent))


def remark(text: str, *, indent: int = 0) -> None:
    """As `tell`, for what is no result, on standard error."""
    console.print(_fitting(text, indent=indent), markup=False, soft_wrap=True)


def laid(text: str, *, width: int | None, indent: int = 0) -> str:
    """`text` in rows of whole words; only a word that is wider than a row is left to stand out."""
    if width is None:
        return text
    return textwrap.fill(
        text,
        max(width, indent + 20),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _fitting(text: str, *, indent: int = 0) -> str:
    return laid(text, width=console.width if console.is_terminal else None, indent=indent)


def refuse(message: str) -> NoReturn:
    """Say on standard error what is wrong, and stop."""
    head = "error:"
    rest = _fitting(f"{head} {message}", indent=len(head) + 1)[len(head) :]
    console.print(f"[red]{head}[/]{escape(rest)}", soft_wrap=True)
    sys.exit(2)


def said(path: Path) -> None:
    """Where the result is, on standard output, for the next command."""
    typer.echo(path)
