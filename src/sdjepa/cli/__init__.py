"""The command `sdjepa`: parse, load the configuration, call one function, say where the result is.

Nothing heavy is imported until a verb needs it, so `--help` answers at once.
"""

import sys

from sdjepa.cli import begin, bench, build, judge, look, others  # noqa: F401 (each adds its verbs)
from sdjepa.cli.app import app, console
from sdjepa.errors import UserError


def main() -> None:
    """Run the command line; bad input is one line on stderr and exit code 2."""
    try:
        app()
    except UserError as error:
        console.print(f"[red]error:[/] {error}", soft_wrap=True)
        sys.exit(2)
