"""What dataset.json says of a dataset of ours in, the same out if it can be true."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from sdjepa.data.layout import Store
from sdjepa.data.writer import FILE, FORMAT
from sdjepa.errors import UserError


class _Split(BaseModel):
    train: list[int]
    validation: list[int]
    test: list[int]


class _Moments(BaseModel):
    mean: list[float | None]  # null where no action was finite
    std: list[float | None]


class _Column(BaseModel):
    dtype: str
    shape: list[int]
    sha256: str


class _Pack(BaseModel):
    offset: int
    starts: list[tuple[int, int]]
    of: dict[str, Any]


class _Described(BaseModel):
    """What `dataset.json` says and is relied on."""

    env: str
    split: _Split
    action: _Moments
    columns: dict[str, _Column] = {}
    collect: dict[str, Any] | None = None
    policy: dict[str, Any] | None = None
    converted: dict[str, Any] | None = None
    pack: _Pack | None = None


def read_described(path: Path, store: Store) -> dict[str, Any]:
    """What is said of a dataset of ours, if it can be true."""
    anew = f"restore it, or have it made anew: sdjepa data convert {path.with_name(FILE)} OUT"
    if not path.exists():
        raise UserError(f"{path} does not exist; {anew}")
    try:
        info = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); {anew}") from error
    found = info.get("format") if isinstance(info, dict) else None
    if found != FORMAT:
        raise UserError(f"{path} has format {found!r}, this program reads {FORMAT}; {anew}")
    try:
        described = _Described.model_validate(info)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {key}: {first['msg']}; {anew}") from None
    split, count = described.split, len(store.lengths)
    episodes = [*split.train, *split.validation, *split.test]
    if any(not 0 <= episode < count for episode in episodes):
        raise UserError(f"{path}: the split is not one of {count} episodes; {anew}")
    width = store.shapes["action"][0]
    if any(len(moments) != width for moments in (described.action.mean, described.action.std)):
        raise UserError(f"{path}: action statistics are not of {width} numbers; {anew}")
    return info
