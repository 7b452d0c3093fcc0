"""Verbs that put runs side by side: compare, ledger, claims."""

from pathlib import Path
from typing import Annotated

import typer

from sdjepa.cli.app import STAGES, app, console, said

LONGEST_NAME = 28  # that is given a line of a narrow terminal


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

        table = Table(*work.HEAD, caption=work.shared(rows))
        table.columns[0].no_wrap = max(len(row.label) for row in rows) <= LONGEST_NAME
        table.columns[0].overflow = "fold"
        for row in rows:
            table.add_row(*work.cells(row))
        console.print(table)
    for row in rows[1:]:
        typer.echo(work.verdict(row))


@app.command(rich_help_panel=STAGES)
def ledger(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where results are kept.")],
    add: Annotated[
        list[Path], typer.Option("--add", metavar="RUN", help="Keep this run there.")
    ] = [],  # noqa: B006
    weights: Annotated[
        bool, typer.Option("--weights", help="With its latest weights, in bf16, and tasks to try.")
    ] = False,
) -> None:
    """Keep runs in a folder small enough to commit, and write one table of them all.

    Films and latents stay behind; scores, compass, metrics and the data card are copied.

    sdjepa ledger results --add runs/a2 --add runs/lewm
    """
    from sdjepa.ledger import keep, table
    from sdjepa.runs import Run

    for run in add:
        said(keep(Run.open(run), folder, weights=weights))
    said(table(folder))


@app.command(rich_help_panel=STAGES)
def claims(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of kept runs.")] = Path(
        "results"
    ),
    write: Annotated[
        Path | None, typer.Option(help="Put the tables between the marks of this page.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the whole account, a JSON file.")] = None,
) -> None:
    """What the paper claims and what kept runs show, claim by claim, with a verdict by fixed rule.

    Without --write or --out the tables are printed.

    sdjepa claims results --write docs/reproduction.md
    """
    from sdjepa.claims.account import account, markdown, write_between
    from sdjepa.runs import write_json

    found = account(folder)
    if write is not None:
        said(write_between(write, markdown(found), folder=folder))
    if out is not None:
        said(write_json(out, found.as_json()))
    if write is None and out is None:
        typer.echo(markdown(found), nl=False)
