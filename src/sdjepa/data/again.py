"""What a dataset of ours says of itself in, the command that makes it once more out."""

import shlex
from pathlib import Path

from pydantic import ValidationError

from sdjepa.config import Collect
from sdjepa.data.writer import CARD
from sdjepa.errors import UserError
from sdjepa.runs import read_json

FLAGS = ("episodes", "steps", "policy", "noise", "demos", "size", "seed")  # others go by --set
SAID = ("episodes", "seed")  # even where they are as usual
# So many frames were asked for, which gave so many episodes; workers change nothing.
UNSAID = ("env", "frames", "workers")


def make_again(path: Path) -> str:
    """What to do about the damaged dataset at `path`; nothing where it does not say what made it.

    A copy or a pack names what it was made from, which may be anywhere.
    """
    try:
        info = read_json(path / CARD)
        made = info["collect"]
        if "converted" in info or "pack" in info:
            return ""
        words = command(Collect.model_validate(made), path)
    except (UserError, ValidationError, KeyError, TypeError):
        return ""
    return f"remove {path} and make it again with: {words}"


def command(settings: Collect, out: Path) -> str:
    """As one would type it: what is as it is anyway is left out."""
    usual, words = Collect(), ["sdjepa", "collect", settings.env]
    for key, value in settings:
        shown = str(int(value) if isinstance(value, float) and value.is_integer() else value)
        if key in UNSAID or (value == getattr(usual, key) and key not in SAID):
            continue
        words += [f"--{key}", shown] if key in FLAGS else ["--set", f"collect.{key}={shown}"]
    return shlex.join([*words, "--out", str(out)])
