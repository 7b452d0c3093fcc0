"""A run directory comes in, a frozen picture of its result files goes out.

The report is made from these objects alone: no checkpoint is opened beyond its header, no model is
built, no environment is made. A file that lacks what a page needs is named in one line.
"""

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sdjepa.config import PLAN_MEANS, Config
from sdjepa.errors import UserError
from sdjepa.runs import Run, read_json

FLOORS = ("noop", "random", "gaussian", "replay")  # the order in which a page shows them


@dataclass(frozen=True)
class Rate:
    """A success rate in percent with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Task:
    """One scored task; `key` is shared by every run that was scored on it."""

    key: tuple[int, int]  # episode, start
    outcome: bool
    steps_to_success: int | None
    start_distance: float | None
    final_distance: float | None


@dataclass(frozen=True)
class Score:
    """One file of RUN/scores."""

    name: str
    env: str
    protocol: str
    cost: str
    solver: str
    rate: Rate
    floors: Mapping[str, Rate]
    tasks: tuple[Task, ...]
    rollouts: tuple[Mapping[str, Any], ...]
    record: Mapping[str, Any]

    @property
    def budget(self) -> int | None:
        """Environment steps a task might take, where the file says so."""
        return ((self.record.get("config") or {}).get("score") or {}).get("budget")

    @property
    def num_solved(self) -> int:
        return sum(task.outcome for task in self.tasks)


@dataclass(frozen=True)
class Diagnostic:
    """One file of RUN/compass; `record` keeps what only its own figure understands."""

    name: str
    title: str
    question: str
    verdict: str
    record: Mapping[str, Any]
    extent: tuple[float, float, float, float] | None = None  # of a frame, in units of a path


@dataclass(frozen=True)
class RunFiles:
    """Everything a page may say about one run."""

    label: str
    path: Path
    config: Config
    manifest: Mapping[str, Any]
    data: Mapping[str, Any]  # what was trained on; empty where nobody noted it
    metrics: tuple[Mapping[str, Any], ...]
    scores: tuple[Score, ...]
    compass: tuple[Diagnostic, ...]
    parameters: int | None  # trainable, from the newest checkpoint; None without one
    digests: Mapping[str, str]  # file -> first 12 hex digits of its sha256
    selected: str | None = None  # part of a score's name

    @property
    def headline(self) -> Score | None:
        """Of the scores selected, the one planned most like the run's own configuration says."""
        wanted = (self.config.score.protocol, self.config.plan.cost, self.config.plan.solver)
        search = self.config.plan.model_dump(exclude=PLAN_MEANS)

        def likeness(score: Score) -> tuple[bool, bool]:
            planned = (score.record.get("config") or {}).get("plan") or {}
            same = all(planned.get(key) == value for key, value in search.items())
            return (score.protocol, score.cost, score.solver) == wanted, same

        found = [s for s in self.scores if self.selected is None or self.selected in s.name]
        return max(found, key=likeness) if found else None


def read_runs(paths: Sequence[Path], *, select: str | None = None) -> tuple[RunFiles, ...]:
    """The runs at `paths`, labelled by the shortest path ends that tell them apart.

    Headlines come from scores whose name has `select` in it.
    """
    if not paths:
        raise UserError("no run to report on. Give at least one: sdjepa report RUN")
    resolved = [path.resolve() for path in paths]
    repeated = next((path for path in resolved if resolved.count(path) > 1), None)
    if repeated is not None:
        raise UserError(f"{repeated} is given twice; a comparison needs different runs")
    depth = 1
    while len({path.parts[-depth:] for path in resolved}) < len(resolved):
        depth += 1
    read = [_read_run(path, label="/".join(path.parts[-depth:])) for path in resolved]
    for run in read:
        if select is not None and not any(select in score.name for score in run.scores):
            names = ", ".join(score.name for score in run.scores) or "none"
            raise UserError(f"{run.path} has no score named like {select!r}; it has {names}")
    return tuple(replace(run, selected=select) for run in read)


def _read_run(path: Path, *, label: str) -> RunFiles:
    run = Run.open(path)
    manifest = path / "manifest.json"
    noted = read_json(manifest) if manifest.exists() else {}
    card = path / "data" / "dataset.json"  # of a run that was kept
    scores = sorted((path / "scores").glob("*.json"))
    compass = sorted((path / "compass").glob("*.json"))
    read = [path / "config.toml", manifest, run.metrics_path, *scores, *compass]
    return RunFiles(
        label=label,
        path=path,
        config=run.config,
        manifest=noted,
        data=read_json(card) if card.exists() else noted.get("data") or {},
        metrics=tuple(record for record in run.metrics() if "step" in record),
        scores=tuple(_read_score(file) for file in scores),
        compass=_with_extent([_read_diagnostic(file) for file in compass]),
        parameters=_count_parameters(path / "checkpoints"),
        digests={
            str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()[:12]
            for file in read
            if file.exists()
        },
    )


def _read_score(file: Path) -> Score:
    record = read_json(file)
    try:
        return Score(
            name=file.stem,
            env=record["env"],
            protocol=record["protocol"],
            cost=record["cost"],
            solver=record["solver"],
            rate=_rate(record),
            floors={name: _floor(record, name) for name in FLOORS if name in record["floors"]},
            tasks=tuple(_task(task) for task in record["tasks"]),
            rollouts=tuple(record.get("rollouts") or ()),
            record=record,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{file} lacks or misspells {error}; make it again with: sdjepa score {file.parents[1]}"
        ) from error


def _rate(record: Mapping[str, Any]) -> Rate:
    low, high = record["wilson95"]
    return Rate(float(record["success_rate"]), float(low), float(high))


def _floor(record: Mapping[str, Any], name: str) -> Rate:
    """A floor is a record of its own, or a plain rate with its interval beside it."""
    found = record["floors"][name]
    if isinstance(found, Mapping):
        return _rate(found)
    return _rate({"success_rate": found, "wilson95": record["floors_wilson95"][name]})


def _task(record: Mapping[str, Any]) -> Task:
    return Task(
        key=(int(record["episode"]), int(record["start"])),
        outcome=bool(record["outcome"]),
        steps_to_success=record.get("steps_to_success"),
        start_distance=record.get("start_distance"),
        final_distance=record.get("final_distance"),
    )


def _read_diagnostic(file: Path) -> Diagnostic:
    record = read_json(file)
    try:
        return Diagnostic(
            name=record["diagnostic"],
            title=record["title"],
            question=record["question"],
            verdict=record["verdict"],
            record=record,
        )
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{file} lacks {error}; make it again with: sdjepa compass {file.parents[1]}"
        ) from error


def _with_extent(found: list[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Every diagnostic of a run draws paths on the ground that its film shows."""
    film = next((item for item in found if item.name == "film"), None)
    extent = film.record["results"].get("extent") if film else None
    return tuple(replace(item, extent=tuple(extent) if extent else None) for item in found)


def _count_parameters(checkpoints: Path) -> int | None:
    """Trainable numbers by the shapes in the newest weight file's header; buffers are left out."""
    files = sorted(checkpoints.glob("*/model.safetensors"), key=lambda file: file.stat().st_mtime)
    if not files:
        return None
    with files[-1].open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    count = 0
    for name, tensor in header.items():
        buffer = name == "__metadata__" or "running_" in name or "num_batches" in name
        if not buffer and tensor["dtype"].startswith(("F", "BF")):
            size = 1
            for length in tensor["shape"]:
                size *= length
            count += size
    return count
