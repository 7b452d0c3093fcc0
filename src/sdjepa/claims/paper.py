"""The paper's claims, read from the tables beside the environments: numbers in, claims out.

A claim is judged row by row. A row is one environment, with the published number resolved from the
table that holds it, and says which of our runs could bear on it.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from sdjepa.resolve import RUNGS

Kind = Literal["level", "difference", "compass"]


@dataclass(frozen=True)
class Arm:
    """Runs trained as `rung` with a progress part of `k`, planning by `cost`."""

    rung: str
    k: int
    cost: str

    @property
    def said(self) -> str:
        return f"{self.rung} {self.cost}" if self.k == 0 else f"{self.rung} k={self.k} {self.cost}"


@dataclass(frozen=True)
class Reading:
    """Where a compass file has the number, its interval and its controls."""

    diagnostic: str
    k: int
    value: str
    interval: str | None
    less: str | None  # subtracted episode by episode
    controls: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A claim about one environment."""

    env: str
    published: float | None  # success in percent, a difference in points, or the compass's unit
    within: float | None = None  # the claim is that nothing changes by more than this
    of: Arm | None = None
    to: Arm | None = None
    reading: Reading | None = None

    @property
    def k(self) -> int:
        part = self.reading or self.of
        assert part is not None
        return part.k


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper in our words."""

    id: str
    says: str
    where: str
    known: str
    kind: Kind
    protocols: tuple[str, ...]  # the first for which there are scores is used
    beside: tuple[str, ...]  # further protocols whose rates are shown, without a verdict
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Paper:
    """Everything the paper claims, and the setting a run must have to speak about it."""

    claims: tuple[Claim, ...]
    planner: dict[str, Any]
    model: dict[str, Any]
    task: dict[str, Any]
    iterations: dict[str, tuple[int, ...]]
    titles: dict[str, str]


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((files("sdjepa.envs") / f"{name}.toml").read_text())


@cache
def paper() -> Paper:
    """The claims, their numbers taken from the one table that has each."""
    table = _table("published_claims")
    return Paper(
        claims=tuple(_claim(entry) for entry in table["claim"]),
        planner=table["planner"],
        model=table["model"],
        task=table["task"],
        iterations={env: tuple(counts) for env, counts in table["iterations"].items()},
        titles=_table("published")["titles"],
    )


def _claim(entry: dict[str, Any]) -> Claim:
    make = _compass_row if entry["kind"] == "compass" else _planning_row
    return Claim(
        id=entry["id"],
        says=entry["says"],
        where=entry["where"],
        known=entry["known"],
        kind=entry["kind"],
        protocols=tuple(entry.get("protocol", ())),
        beside=tuple(entry.get("beside", ())),
        rows=tuple(make(entry, row) for row in entry["row"]),
    )


def _planning_row(entry: dict[str, Any], row: dict[str, Any]) -> Row:
    published = row.get("published")
    if published is None:
        published = _success(row["method"], row["env"])
        if "minus" in row:
            published = round(published - _success(row["minus"], row["env"]), 3)
    return Row(
        env=row["env"],
        published=published,
        within=row.get("within"),
        of=_arm(entry["of"], row),
        to=_arm(entry["to"], row) if "to" in entry else None,
    )


def _arm(said: dict[str, Any], row: dict[str, Any]) -> Arm:
    whole = RUNGS[said["rung"]]["model.k"] == 0
    k = 0 if whole else said.get("k", row.get("k"))
    assert k is not None, f"{said} needs a width"
    return Arm(rung=said["rung"], k=k, cost=said["cost"])


def _success(method: str, env: str) -> float:
    found = [row for row in _table("published")["method"] if row["name"] == method]
    assert len(found) == 1, f"published.toml has no {method}"
    return found[0]["success"][env]


def _compass_row(entry: dict[str, Any], row: dict[str, Any]) -> Row:
    name = row.get("name", "")

    def filled(key: str) -> str | None:
        return entry[key].replace("{name}", name) if key in entry else None

    published, path = None, filled("printed")
    if path is not None:
        published = _printed(entry["diagnostic"], row, path)
        less = filled("printed_less")
        if less is not None:
            published = round(published - _printed(entry["diagnostic"], row, less), 5)
    return Row(
        env=row["env"],
        published=published,
        reading=Reading(
            diagnostic=entry["diagnostic"],
            k=row["k"],
            value=filled("value") or "",
            interval=filled("interval"),
            less=filled("less"),
            controls=tuple(path.replace("{name}", name) for path in entry["controls"]),
        ),
    )


def _printed(diagnostic: str, row: dict[str, Any], path: str) -> float:
    where = {"diagnostic": diagnostic, "env": row["env"], "k": row["k"]}
    for entry in _table("published_compass")["entry"]:
        if all(entry[key] == value for key, value in where.items()):
            found = at(entry, path)
            assert found is not None, f"published_compass.toml: {where} has no {path}"
            return found
    raise AssertionError(f"published_compass.toml has no {where}")


def at(tree: Any, path: str) -> Any:
    """The value at a dotted path of names and list positions, None where there is none."""
    for part in path.split("."):
        if isinstance(tree, dict) and part in tree:
            tree = tree[part]
        elif isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return None
    return tree
