"""A ledger's folder in, what its runs say about a claim's arms out.

Runs are sorted into recipes: what may differ inside one is the rung and the seed. Only runs of one
recipe are set against each other, and only on one task list of one dataset, by `compare`'s rule.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool
from numpy import ndarray

from sdjepa.claims.paper import Arm, Paper, paper
from sdjepa.compare import NEEDED, Entry, compare
from sdjepa.config import PLAN_MEANS, Config, Plan
from sdjepa.errors import UserError
from sdjepa.explain import explain, governed_keys
from sdjepa.ledger import lines
from sdjepa.quarrels import value_of
from sdjepa.resolve import RUNGS
from sdjepa.runs import read_json

OWN = Plan()
TRAINING = ("data", "model", "objectives", "train")
GOVERNED = {key for preset in RUNGS.values() for key in preset}
# All that may change which plan is found, so that a new setting is never overlooked.
SEARCH = [name for name in Plan.model_fields if name not in {*PLAN_MEANS, "cost"}]


@dataclass(frozen=True)
class Kept:
    """One run of the folder."""

    name: str
    env: str
    rung: str  # by how it was trained; the cost it plans with is no part of it
    k: int
    seed: int
    recipe: str
    config: Config
    scores: tuple[Entry, ...]
    compass: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Pool:
    """Scores of one arm, one per seed, on one task list."""

    arm: Arm
    kept: tuple[Kept, ...]
    entries: tuple[Entry, ...]

    @property
    def outcomes(self) -> Bool[ndarray, "seeds tasks"]:
        tables = [entry.outcomes for entry in self.entries]
        keys = sorted(tables[0])
        return np.array([[table[key] for key in keys] for table in tables])


def read(folder: Path) -> list[Kept]:
    """Every run kept in the folder; a folder that is not there is the user's mistake."""
    if not folder.is_dir():
        raise UserError(
            f"{folder} is no folder of kept runs; make one: sdjepa ledger {folder} --add RUN"
        )
    needed = {
        row.reading.diagnostic for claim in paper().claims for row in claim.rows if row.reading
    }
    return [
        _kept(folder / line.name, line.env, line.config, diagnostics=needed)
        for line in lines(folder)
    ]


def _kept(path: Path, env: str, config: Config, *, diagnostics: set[str]) -> Kept:
    scores = []
    for file in sorted((path / "scores").glob("*.json")):
        record = read_json(file)
        missing = [name for name in NEEDED if name not in record]
        if missing:
            raise UserError(
                f"{file} is no score: it lacks {', '.join(missing)}; make it again: "
                "sdjepa score RUN"
            )
        scores.append(Entry(label=path.name, path=file, record=record))
    return Kept(
        name=path.name,
        env=env,
        rung=trained_as(config),
        k=config.model.k,
        seed=config.train.seed,
        recipe=_recipe(config),
        config=config,
        scores=tuple(scores),
        compass={
            file.stem: read_json(file)
            for file in sorted((path / "compass").glob("*.json"))
            if file.stem in diagnostics
        },
    )


def trained_as(config: Config) -> str:
    """The rung whose training this is, whatever cost the configuration plans with."""
    for name, preset in RUNGS.items():
        wanted = {key: value for key, value in preset.items() if not key.startswith("plan.")}
        if all(
            config.model.k >= 2 if value == "k" else value_of(config, key) == value
            for key, value in wanted.items()
        ):
            return name
    return config.rung


def _recipe(config: Config) -> str:
    """A name for all that decides training but the rung and the seed."""
    said = [
        (key, value_of(config, key))
        for key in governed_keys()
        if key.partition(".")[0] in TRAINING and key not in GOVERNED and key != "train.seed"
    ]
    return hashlib.sha256(repr(said).encode()).hexdigest()[:6]


def departures(kept: Kept) -> tuple[str, ...]:
    """How the run's training departs from the paper's, the rung aside."""
    return tuple(
        f"{found.key} = {found.value}"
        for found in explain(kept.config)
        if found.kind == "departs"
        and found.key.partition(".")[0] in TRAINING
        and found.key not in (*GOVERNED, "train.seed")
    )


def comparable(kept: Kept, known: Paper) -> bool:
    """Whether the model has the published shape."""
    return all(getattr(kept.config.model, key) == value for key, value in known.model.items())


def trained_for(entry: Entry) -> int:
    """Training steps of the weights behind a score, which need not be the run's last."""
    return (entry.record.get("checkpoint") or {}).get("step", 0)


def search(entry: Entry) -> tuple[Any, ...]:
    """The search behind a score; two scores with one search differ by cost or model alone."""
    plan = entry.record["config"]["plan"]
    return tuple(plan.get(key, getattr(OWN, key)) for key in SEARCH)  # older files lack a key


def meets(entry: Entry, *, protocol: str, iterations: int, known: Paper) -> bool:
    """Whether a score was made under the published search and task, and under this protocol."""
    settings, plan = entry.record["config"]["score"], entry.record["config"]["plan"]
    return (
        entry.record["protocol"] == protocol
        and plan["iterations"] == iterations
        and all(plan.get(key, value) == value for key, value in known.planner.items())
        and all(settings.get(key, value) == value for key, value in known.task.items())
    )


def belongs(kept: Kept, entry: Entry, arm: Arm) -> bool:
    """Whether a score is one of the arm's; without a progress part content is the whole latent."""
    cost = entry.record["cost"]
    alike = {"full", "content"} if kept.k == 0 else {arm.cost}
    return kept.rung == arm.rung and kept.k == arm.k and cost in alike


def pooled(arm: Arm, found: Sequence[tuple[Kept, Entry]], *, on: Entry | None = None) -> Pool:
    """The arm's scores on one list (that of `on`, or the list most of them share).

    One per seed, the first by name: the same training kept twice is no second seed.
    """
    best: list[tuple[Kept, Entry]] = []
    for leader in [on] if on is not None else [entry for _, entry in found]:
        mine: dict[int, tuple[Kept, Entry]] = {}
        for kept, entry in found:
            if kept.seed not in mine and same_test(leader, entry):
                mine[kept.seed] = (kept, entry)
        if len(mine) > len(best):
            best = list(mine.values())
    return Pool(arm, tuple(kept for kept, _ in best), tuple(entry for _, entry in best))


def facing(
    of: Arm,
    over: Sequence[tuple[Kept, Entry]],
    *,
    to: Arm,
    under: Sequence[tuple[Kept, Entry]],
) -> tuple[Pool, Pool] | None:
    """Both arms (`to` first) on the list that most runs share; None where they share none."""
    found = []
    for _, leader in over:
        sides = (pooled(to, under, on=leader), pooled(of, over, on=leader))
        if all(side.entries for side in sides):
            found.append(sides)
    return max(found, key=lambda sides: min(len(side.entries) for side in sides), default=None)


def same_test(first: Entry, second: Entry) -> bool:
    """Whether `sdjepa compare` would pair the two."""
    if first.path == second.path:
        return True
    try:
        compare([first.path, second.path])
    except UserError:
        return False
    return True
