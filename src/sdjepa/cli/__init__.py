"""The command `sdjepa`: parse, load the configuration, call one function, say where the result is.

Nothing heavy is imported until a verb needs it, so `--help` answers at once.
"""

import errno
import sys

from rich.markup import escape

from sdjepa.cli import begin, bench, build, judge, look, others  # noqa: F401 (each adds its verbs)
from sdjepa.cli.app import app, console
from sdjepa.errors import UserError

# What a path that was given can be at fault for; anything else is a bug and keeps its traceback.
OF_PATHS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ENOSPC,
    errno.EDQUOT,
}


def main() -> None:
    """Run the command line; bad input is one line on stderr and exit code 2."""
    try:
        app()
    except UserError as error:
        refuse(str(error))
    except OSError as error:
        if error.errno not in OF_PATHS or error.filename is None:
            raise
        refuse(f"{error.filename}: {error.strerror}; correct the path, or choose another place")


def refuse(message: str) -> None:
    """Say what is wrong and stop."""
    console.print(f"[red]error:[/] {escape(message)}", soft_wrap=True)
    sys.exit(2)
