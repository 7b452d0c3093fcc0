"""What a viewer may say: small JSON messages, each checked before anything acts on it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sdjepa.errors import UserError

Coordinate = Annotated[float, Field(ge=-1e4, le=1e4, allow_inf_nan=False)]


class Message(BaseModel):
    """One thing to do."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Seen(Message):
    """The viewer has drawn a state and can take another."""

    do: Literal["seen"]


class Move(Message):
    """Whether time passes: on and on, by one step, or not."""

    do: Literal["run", "pause", "step"]


class Interfere(Message):
    """Make the next frame not follow from the last."""

    do: Literal["swap", "reverse", "restart"]


class Teleport(Message):
    """Put the agent elsewhere; without a place, somewhere far."""

    do: Literal["teleport"]
    x: Coordinate | None = None
    y: Coordinate | None = None


class Aim(Message):
    """Put the goal at a place."""

    do: Literal["aim"]
    x: Coordinate
    y: Coordinate


class Begin(Message):
    """Take up a task of those dealt; without a number, the next."""

    do: Literal["task"]
    number: Annotated[int, Field(ge=0, lt=1000)] | None = None


class Change(Message):
    """Plan or run differently from now on; what is not named stays."""

    do: Literal["change"]
    solver: Literal["cem", "icem", "mppi", "gradient"] | None = None
    cost: Literal["content", "full", "angular", "progress"] | None = None
    scale: Literal["ref", "normalised"] | None = None
    gamma: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] | None = None
    replan: Annotated[int, Field(ge=1, le=20)] | None = None
    pace: Annotated[int, Field(ge=1, le=60)] | None = None  # environment steps a second, at most
    endless: bool | None = None  # after a task, the next


class Save(Message):
    """Write the film as a page."""

    do: Literal["save"]


Command = Move | Interfere | Teleport | Aim | Begin | Change | Save
_ADAPTER: TypeAdapter[Command | Seen] = TypeAdapter(
    Annotated[Command | Seen, Field(discriminator="do")]
)


def parse(text: str) -> Command | Seen:
    """The message in `text`; anything else is refused in one line."""
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"not understood: {where + ': ' if where else ''}{first['msg']}") from None
