"""Check of a name: of which environment is a dataset, who says so, and can that be?"""

from collections.abc import Iterator

from sdjepa.data.check import Check
from sdjepa.data.episodes import Episodes
from sdjepa.data.replaying import misfit
from sdjepa.envs.base import NAMES, NONE, env_class
from sdjepa.errors import UserError


def environment(data: Episodes) -> Iterator[Check]:
    """What all that is simulated rests upon."""
    if amiss := misfit(data):
        yield Check("environment", "fail", f"it has {amiss}; {remedy(data)}")
    elif data.env in NAMES:
        yield Check("environment", "pass", f"{data.env}, {said_by(data)}")
    elif data.env_origin == "guessed":
        said = f"none of {', '.join(NAMES)} fits these columns; name it with --env"
        yield Check("environment", "warn", f"{said}, or --env {NONE} if it has no simulator here")
    else:
        said = "--env" if data.env_origin == "asked" else "dataset.json"
        yield Check("environment", "skipped", f"it has no simulator here, as {said} says")


def refuse_misnamed(data: Episodes) -> None:
    """Refuse an environment that a person named and the columns of a dataset of ours contradict."""
    amiss = misfit(data)
    if amiss and data.ours and data.env_origin == "asked" and data.info["env"] in NAMES:
        raise UserError(f"{data.path} has {amiss}; leave --env out, or correct it")


def said_by(data: Episodes) -> str:
    """Where the environment's name is from, in words."""
    if data.env_origin == "asked":
        return "as --env says"
    if data.env_origin == "stated":
        return "as dataset.json says"
    column, width = env_class(data.env).signature
    columns = f"{column} ({width}) and action ({data.action_dim})"
    return f"guessed from {columns}; if it is not: --env {NONE}"


def remedy(data: Episodes) -> str:
    """What to do about a name that the columns contradict."""
    if data.env_origin == "stated":
        return "convert it with the right --env"
    return f"say another --env, or --env {NONE}"
