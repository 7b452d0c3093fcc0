"""Compass files of kept runs in, findings out: a number, its controls, and what both allow."""

from collections.abc import Sequence
from dataclasses import dataclass

from sdjepa.claims.estimate import Estimate, over_episodes, over_seeds
from sdjepa.claims.evidence import Kept
from sdjepa.claims.finding import (
    ABSENT,
    APPEARS,
    MISSING,
    ONE_SEED,
    UNCLEAR,
    WITH_CONTROL,
    Finding,
    missing,
    who,
)
from sdjepa.claims.paper import Claim, Reading, Row, at
from sdjepa.compass.result import ALPHA

OFTEN = 0.05  # a control that gives as much this often is said to give it


def compass_finding(claim: Claim, row: Row, reading: Reading, *, runs: Sequence[Kept]) -> Finding:
    """The finding on a number of the compass, from the recipe with most runs."""
    mine = [kept for kept in runs if kept.rung == "A2" and kept.k == reading.k]
    if not mine:
        return missing(claim, row, f"no run of A2 k={reading.k}")
    alike: dict[str, list[tuple[Kept, Estimate]]] = {}
    for kept in mine:
        record = kept.compass.get(reading.diagnostic)
        value = None if record is None else _value(record, reading)
        if record is not None and value is not None:
            facts = ("split_hash", "episodes", "checkpoint_step")
            seen = repr((kept.recipe, [record.get(fact) for fact in facts]))
            known = alike.setdefault(seen, [])
            if kept.seed not in {other.seed for other, _ in known}:  # a run kept twice is one run
                known.append((kept, value))
    if not alike:
        return missing(claim, row, f"no {reading.diagnostic} of such a run")
    chosen = max(
        alike.values(),
        key=lambda some: (len(some), some[0][0].config.train.steps, some[0][0].recipe),
    )
    ours = over_seeds([value for _, value in chosen])
    records = [kept.compass[reading.diagnostic] for kept, _ in chosen]
    found = {path: _control(records, path) for path in reading.controls}
    nulls = [null for null in found.values() if null is not None]
    status = {record.get("status", "") for record in records}
    if len(nulls) < len(found):
        absent = next(path for path, null in found.items() if null is None)
        verdict, why = MISSING, f"a number, but no control {absent} to set beside it"
    else:
        verdict, why = compass_verdict(
            ours, row.published, nulls=nulls, status=status, above_zero=reading.less is not None
        )
    if ours.seeds == 1:
        why += ONE_SEED
    split = records[0].get("split", "unknown")
    return Finding(
        claim=claim.id,
        env=row.env,
        k=row.k,
        who=who(row),
        published=row.published,
        ours=ours,
        control=", ".join([*(null.said for null in nulls), *_baseline(records, reading)]),
        verdict=verdict,
        why=why,
        setting=f"{split} episodes, recipe {chosen[0][0].recipe}",
        runs=tuple(kept.name for kept, _ in chosen),
    )


@dataclass(frozen=True)
class Null:
    """A control of the compass: what it gives, and how often it gives as much as theta."""

    name: str
    observed: float | None  # what theta has, in the control's own unit
    mean: float | None
    p95: float | None
    p: float

    def leaves_doubt(self, ours: Estimate, published: float) -> bool:
        """Whether our interval holds both the published number and the control, which differ."""
        if self.observed is None or self.mean is None or self.p95 is None:
            return False
        same_unit = abs(self.observed - ours.value) <= 1e-3 * max(1.0, abs(ours.value))
        return same_unit and self.p95 < published and ours.low <= self.mean

    @property
    def said(self) -> str:
        what = "" if self.mean is None else f" {self.mean:.2f}"
        return f"{self.name}{what} (p = {self.p:.3f})"


def compass_verdict(
    ours: Estimate,
    published: float | None,
    *,
    nulls: Sequence[Null],
    status: set[str],
    above_zero: bool = False,
) -> tuple[str, str]:
    """The verdict on a number of the compass, published or not.

    A difference (`above_zero`) must first be told from 0 before a control can be said to share it.
    """
    failed = [null for null in nulls if null.p > ALPHA]
    if status == {"not tested"}:
        return MISSING, "the compass could not test it"
    if published is None:
        if not failed:
            return APPEARS, "every control stays below it"
        if len(failed) < len(nulls):
            return WITH_CONTROL, f"{failed[0].name} gives as much"
        return ABSENT, "no control stays below it"
    reaches = ours.high >= published
    if not failed:
        note = "" if reaches else "; smaller than published"
        return APPEARS, f"every control stays below it{note}"
    worst = max(failed, key=lambda null: null.p)
    if not reaches:
        return ABSENT, f"under {published:g}, and {worst.name} gives as much"
    if above_zero and ours.low <= 0:
        return UNCLEAR, f"{ours.count} episodes do not tell it from 0"
    if worst.p <= OFTEN or worst.leaves_doubt(ours, published):
        return UNCLEAR, f"{ours.count} episodes do not tell it from {worst.name}"
    return WITH_CONTROL, f"{worst.name} gives as much"


def _value(record: dict, reading: Reading) -> Estimate | None:
    value = at(record, reading.value)
    if isinstance(value, list):
        less = at(record, reading.less) if reading.less else [0.0] * len(value)
        if not isinstance(less, list) or len(less) != len(value):
            return None
        return over_episodes(
            [None if a is None or b is None else a - b for a, b in zip(value, less, strict=True)]
        )
    if value is None:
        return None
    interval = at(record, reading.interval) if reading.interval else None
    count = len(record.get("episodes", at(record, "results.episodes") or ()))
    if not interval or None in interval:
        return Estimate(value, None, count, 1)
    return Estimate(value, (interval[0], interval[1]), count, 1)


def _control(records: Sequence[dict], path: str) -> Null | None:
    """A null over seeds: its mean, and the worst of its p-values."""
    found = [one for record in records if isinstance(one := at(record, path), dict)]
    if len(found) < len(records) or any(one.get("p") is None for one in found):
        return None

    def over(key: str) -> float | None:
        known = [one[key] for one in found if one.get(key) is not None]
        return sum(known) / len(known) if known else None

    return Null(
        name=" ".join(path.split(".")[1:]).replace("_", " "),
        observed=over("observed"),
        mean=over("mean"),
        p95=over("p95"),
        p=max(one["p"] for one in found),
    )


def _baseline(records: Sequence[dict], reading: Reading) -> list[str]:
    """The same number of the run the compass was read against."""
    found = [_value(record["against"], reading) for record in records if "against" in record]
    known = [one for one in found if one is not None]
    return [f"against {over_seeds(known).value:.2f}"] if known else []
