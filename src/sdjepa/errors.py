"""The one exception that is a person's to solve rather than ours."""


class UserError(ValueError):
    """Bad input: one line saying what was found, what was needed and the next command.

    The command line prints the message and exits with 2; any other exception is a bug and keeps
    its traceback.
    """


class Stopped(UserError):
    """Somebody wished it: not an error, and the command line exits with 130 as after any Ctrl-C."""
