"""Score files of several runs in, one table out: rates with intervals, paired differences, floors.

Differences are counted task by task and only where both runs faced the same tasks of the same data,
which their task hashes tell.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sdjepa.errors import UserError
from sdjepa.runs import read_json
from sdjepa.statistics import Paired, paired, tasks_needed, wilson95

LEAST_TASKS = (
    6  # on fewer the exact test finds nothing, even if one run solves all the other misses
)
NEEDED = ("env", "protocol", "cost", "solver", "success_rate", "tasks")


@dataclass(frozen=True)
class Entry:
    """One score to be compared."""

    label: str
    path: Path
    record: Mapping[str, Any]

    @property
    def outcomes(self) -> dict[tuple[int, int, int], bool]:
        offset = self.record.get("config", {}).get("score", {}).get("offset", 0)
        return {
            (int(t["episode"]), int(t["start"]), int(t.get("offset", offset))): bool(t["outcome"])
            for t in self.record["tasks"]
        }


@dataclass(frozen=True)
class Row:
    """A run beside the first one."""

    label: str
    env: str
    planned: str  # protocol, cost and solver
    num_tasks: int
    success_rate: float
    wilson95: tuple[float, float]
    floors: Mapping[str, float]
    against_first: Paired | None  # None for the first itself


def compare(paths: Sequence[Path], *, select: str | None = None) -> list[Row]:
    """Rows of a table, the first run being what the others are compared with.

    A path is a run or one of its score files. A run with several scores needs `select`, a part of
    the file's name such as `strict-content`.
    """
    if len(paths) < 2:
        raise UserError("a comparison needs at least two runs: sdjepa compare RUN RUN")
    entries = [_entry(path, select) for path in paths]
    names = [entry.label for entry in entries]
    entries = [
        replace(entry, label=f"{entry.label}/{entry.path.stem}")
        if names.count(entry.label) > 1
        else entry
        for entry in entries
    ]
    first = entries[0]
    for other in entries[1:]:
        _check(first, other)
    return [_row(entry, None if entry is first else first) for entry in entries]


def _entry(path: Path, select: str | None) -> Entry:
    file = path
    if path.is_dir():
        found = sorted((path / "scores").glob("*.json"))
        found = [f for f in found if select is None or select in f.stem]
        if not found:
            which = f" matching {select!r}" if select else ""
            raise UserError(f"{path} has no score{which}. Make one with: sdjepa score {path}")
        if len(found) > 1:
            names = ", ".join(f.stem for f in found)
            raise UserError(f"{path} has several scores ({names}); choose one with --select NAME")
        file = found[0]
    record = read_json(file)
    missing = [name for name in NEEDED if name not in record]
    if missing:
        raise UserError(f"{file} is no score: it lacks {', '.join(missing)}")
    return Entry(label=_name(file), path=file, record=record)


def _name(file: Path) -> str:
    """A score file's run."""
    return file.parent.parent.resolve().name if file.parent.name == "scores" else file.stem


def _check(first: Entry, other: Entry) -> None:
    """Refuse to compare what was not the same test."""
    sides = [_test(first), _test(other)]
    for name, a in sides[0].items():
        b = sides[1][name]
        if a != b:
            raise UserError(
                f"{first.path} has {name} {a}, {other.path} has {b}: these are different tests; "
                "score both on one list: sdjepa score RUN --manifest RUN/tasks/FILE"
            )


def _test(entry: Entry) -> dict[str, Any]:
    """What makes two scores the same test; the rule that chose the tasks is no part of it."""
    settings = entry.record.get("config", {}).get("score", {})
    listed = hashlib.sha256(repr(sorted(entry.outcomes)).encode()).hexdigest()[:12]
    return {
        "environment": entry.record["env"],
        "budget": settings.get("budget"),
        "data": entry.record.get("data", {}).get("split_hash"),
        "task list": listed,
    }


def _row(entry: Entry, first: Entry | None) -> Row:
    record, own = entry.record, entry.outcomes
    test = None
    if first is not None:
        theirs = first.outcomes
        keys = sorted(theirs)
        test = paired([theirs[key] for key in keys], [own[key] for key in keys])
    return Row(
        label=entry.label,
        env=record["env"],
        planned=f"{record['protocol']}, {record['cost']}, {record['solver']}",
        num_tasks=len(own),
        success_rate=100 * sum(own.values()) / len(own),
        wilson95=wilson95(sum(own.values()), len(own)),
        floors=record.get("floors", {}),
        against_first=test,
    )


HEAD = ("run", "planned with", "success %", "95 % interval", "difference", "p")


def cells(row: Row) -> tuple[str, ...]:
    """A row as text, in the order of `HEAD`."""
    low, high = row.wilson95
    test = row.against_first
    difference, p = "-", "-"
    if test is not None:
        down, up = test.interval95
        difference = f"{test.difference:+.1f} [{down:+.1f}, {up:+.1f}]"
        p = f"{test.p_value:.3g}"
    return (
        row.label,
        row.planned,
        f"{row.success_rate:.1f}",
        f"{low:.1f} to {high:.1f}",
        difference,
        p,
    )


def shared(rows: Sequence[Row]) -> str:
    """What all have in common: the tasks, and what can be had on them without a model."""
    floors = ", ".join(f"{name} {rate:.0f}" for name, rate in rows[0].floors.items())
    said = f"{rows[0].env}, {rows[0].num_tasks} tasks"
    return f"{said}; without a model: {floors}" if floors else said


def markdown(rows: Sequence[Row]) -> str:
    """The table for a README or an issue."""
    lines = [HEAD, ("---",) * len(HEAD), *(cells(row) for row in rows)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{table}\n\n{shared(rows)}"


def verdict(row: Row) -> str:
    """What may be said about a run beside the first, and what it would take to say more."""
    test = row.against_first
    assert test is not None
    if test.p_value < 0.05:
        word = "better" if test.difference > 0 else "worse"
        return f"{row.label} is {word} (p = {test.p_value:.3g}, {test.num_tasks} shared tasks)"
    said = f"{row.label}: no difference shown (p = {test.p_value:.3g})"
    if test.difference == 0:
        return said
    differing = (test.only_first + test.only_second) / test.num_tasks
    gap = min(abs(test.difference) / 100, 0.99)  # where every task differs nothing is left to vary
    needed = tasks_needed(0.5 - gap / 2, 0.5 + gap / 2, differing=max(differing, gap))
    needed = max(needed, LEAST_TASKS)
    return f"{said}; telling {abs(test.difference):.1f} points apart takes about {needed} tasks"
