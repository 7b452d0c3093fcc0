"""The command `sdjepa`: parse, load the configuration, call one function, say where the result is.

Nothing heavy is imported until a verb needs it, so `--help` answers at once.
"""

import errno
import os
import signal
import sys
from typing import Any

import typer

from sdjepa.cli import begin, bench, build, judge, kept, look, others  # noqa: F401 (each adds its verbs)
from sdjepa.cli.app import app, refuse, remark
from sdjepa.errors import Stopped, UserError

# Typer carries a copy of click or uses the one that is installed; this is of whichever it is.
USAGE: Any = typer.BadParameter.__base__
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
        sys.exit(app(standalone_mode=False) or 0)
    except USAGE as error:
        misused(error)
    except Stopped as stop:
        remark(str(stop))
        sys.exit(128 + signal.SIGINT)
    except UserError as error:
        refuse(str(error))
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if error.errno == errno.ENOSPC and error.filename is None:
            refuse("what was to be said could not be written; free some space")
        if error.errno not in OF_PATHS or error.filename is None:
            raise
        refuse(f"{error.filename}: {error.strerror}; correct the path, or choose another place")


def misused(error: Any) -> None:
    """Words that make no command; without any, the help itself."""
    verb = error.ctx.command_path if error.ctx else "sdjepa"
    if not error.format_message() or "NoArgs" in type(error).__name__:
        error.show()
        sys.exit(2)
    refuse(f"{error.format_message().rstrip('.')}; see: {verb} --help")
