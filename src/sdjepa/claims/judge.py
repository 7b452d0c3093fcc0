"""Claims and kept runs in, one finding per claim and environment out, by rules fixed beforehand.

Which score bears on a row (protocol, rounds, recipe) is decided by the claim's table and by how
many runs there are, never by how a run scored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sdjepa.claims.estimate import (
    MARGIN,
    Estimate,
    difference,
    success,
    tasks_for_difference,
    tasks_for_level,
)
from sdjepa.claims.evidence import (
    Kept,
    Pool,
    belongs,
    comparable,
    facing,
    meets,
    pooled,
    trained_for,
)
from sdjepa.claims.finding import (
    ABSENT,
    APPEARS,
    ONE_SEED,
    UNCLEAR,
    WITH_CONTROL,
    Finding,
    missing,
    who,
)
from sdjepa.claims.paper import Arm, Claim, Paper, Row
from sdjepa.claims.reading import compass_finding
from sdjepa.compare import Entry
from sdjepa.ledger import said_search


def judged(paper: Paper, runs: Sequence[Kept]) -> list[Finding]:
    """A finding for every row of every claim."""
    rules = {"level": _level, "difference": _difference}
    found = []
    for claim in paper.claims:
        for row in claim.rows:
            mine = [kept for kept in runs if kept.env == row.env and comparable(kept, paper)]
            if row.reading is not None:
                found.append(compass_finding(claim, row, row.reading, runs=mine))
            else:
                found.append(rules[claim.kind](claim, row, paper=paper, runs=mine))
    return found


# --- planning


def _conditions(claim: Claim, row: Row, paper: Paper) -> Iterator[tuple[str, int]]:
    for protocol in claim.protocols:
        for iterations in paper.iterations[row.env]:
            yield protocol, iterations


def _scores(
    arm: Arm, runs: Sequence[Kept], *, condition: tuple[str, int], paper: Paper
) -> dict[tuple[str, int], list[tuple[Kept, Entry]]]:
    """The arm's scores under a condition, by recipe and steps of training."""
    protocol, iterations = condition
    found: dict[tuple[str, int], list[tuple[Kept, Entry]]] = {}
    for kept in runs:
        for entry in kept.scores:
            if belongs(kept, entry, arm) and meets(
                entry, protocol=protocol, iterations=iterations, known=paper
            ):
                found.setdefault((kept.recipe, trained_for(entry)), []).append((kept, entry))
    return found


def _largest(pools: Sequence[tuple[Pool, ...]]) -> tuple[Pool, ...]:
    """The recipe with most runs, then most tasks, then the longest training; never the best."""
    return max(
        pools,
        key=lambda sides: (
            min(len(side.entries) for side in sides),
            len(sides[0].entries[0].outcomes),
            trained_for(sides[0].entries[0]),
            sides[0].kept[0].recipe,
        ),
    )


def _level(claim: Claim, row: Row, *, paper: Paper, runs: Sequence[Kept]) -> Finding:
    assert row.of is not None
    assert row.published is not None
    for condition in _conditions(claim, row, paper):
        scores = _scores(row.of, runs, condition=condition, paper=paper)
        if scores:
            sides = _largest([(pooled(row.of, found),) for found in scores.values()])
            ours = success(sides[0].outcomes)
            floors = sides[0].entries[0].record.get("floors", {})
            verdict, why = level_verdict(ours, row.published, floors=floors)
            found = _found(claim, row, ours, sides, verdict=verdict, why=why)
            also = [kept for kept in runs if kept.recipe == sides[0].kept[0].recipe]
            for protocol in claim.beside:
                other = _scores(row.of, also, condition=(protocol, condition[1]), paper=paper)
                for scored in other.values():
                    rate = said_rate(success(pooled(row.of, scored).outcomes))
                    found = replace(found, control=f"{protocol} {rate}, {found.control}")
            return found
    return missing(claim, row, _nearest([row.of], runs))


def said_rate(rate: Estimate) -> str:
    """A success rate with its interval, short enough for a list."""
    return f"{rate.value:.1f} ({rate.low:.1f} to {rate.high:.1f})"


def level_verdict(ours: Estimate, published: float, *, floors: dict[str, float]) -> tuple[str, str]:
    """The verdict on a published success rate, and why."""
    idle = {name: rate for name, rate in floors.items() if name != "replay"}
    if ours.high < published:
        return ABSENT, f"the interval ends under {published:g}"
    if idle and max(idle.values()) >= published:
        name = max(idle, key=lambda one: idle[one])
        return WITH_CONTROL, f"{name}, without a model, reaches {idle[name]:.1f}"
    if ours.low >= published - MARGIN:
        return APPEARS, "the interval reaches the published value"
    return UNCLEAR, f"about {tasks_for_level(published)} tasks would do"


def _difference(claim: Claim, row: Row, *, paper: Paper, runs: Sequence[Kept]) -> Finding:
    assert row.of is not None
    assert row.to is not None
    unpaired = False
    for condition in _conditions(claim, row, paper):
        sides = paired_pools(row.of, row.to, runs, condition=condition, paper=paper)
        if isinstance(sides, tuple):
            ours = measured(sides)
            verdict, why = difference_verdict(ours, row)
            return _found(claim, row, ours, sides, verdict=verdict, why=why)
        unpaired = unpaired or sides
    if unpaired:
        why = "scored on different task lists, so not paired: sdjepa score RUN --manifest FILE"
        return missing(claim, row, why)
    return missing(claim, row, _nearest([row.of, row.to], runs))


def paired_pools(
    of: Arm, to: Arm, runs: Sequence[Kept], *, condition: tuple[str, int], paper: Paper
) -> tuple[Pool, Pool] | bool:
    """Both sides (`to` first) on one list and recipe; else whether both were scored at all."""
    over = _scores(of, runs, condition=condition, paper=paper)
    under = _scores(to, runs, condition=condition, paper=paper)
    shared = over.keys() & under.keys()
    both = [facing(of, over[key], to=to, under=under[key]) for key in sorted(shared)]
    found = [sides for sides in both if sides is not None]
    if not found:
        return bool(shared)
    first, second = _largest(found)
    return first, second


def measured(sides: tuple[Pool, Pool]) -> Estimate:
    """Second side less first; runs set against themselves (two costs) are paired seed by seed."""
    first, second = sides
    matched = [kept.name for kept in first.kept] == [kept.name for kept in second.kept]
    return difference(first.outcomes, second.outcomes, matched=matched)


def difference_verdict(ours: Estimate, row: Row) -> tuple[str, str]:
    """The verdict on a published difference, or on a published absence of one, and why."""
    if row.within is not None:
        low, high = ours.low, ours.high
        if low >= -row.within and high <= row.within:
            return APPEARS, f"the interval stays within {row.within:g} points"
        if low > row.within or high < -row.within:
            return ABSENT, f"the interval lies beyond {row.within:g} points"
        return UNCLEAR, _enough(ours, row.within)
    assert row.published is not None
    sign = 1 if row.published > 0 else -1
    low, high = sorted((sign * ours.low, sign * ours.high))
    size = abs(row.published)
    if low > 0:
        note = "; smaller than published" if high < size else ""
        return APPEARS, f"the interval excludes 0 on the claimed side{note}"
    if high < size:
        return ABSENT, f"the interval excludes {row.published:+g}"
    return UNCLEAR, _enough(ours, size)


def _enough(ours: Estimate, size: float) -> str:
    return f"telling {size:g} points apart takes about {tasks_for_difference(ours, size):,} tasks"


def _found(
    claim: Claim, row: Row, ours: Estimate, sides: tuple[Pool, ...], *, verdict: str, why: str
) -> Finding:
    last = sides[-1]
    entry, kept = last.entries[0], last.kept[0]
    rates = [f"{side.arm.said} {said_rate(success(side.outcomes))}" for side in sides[:-1]]
    floors = entry.record.get("floors", {})
    rates += [f"{name} {rate:.1f}" for name, rate in floors.items()]
    if ours.seeds == 1:
        why += ONE_SEED
    return Finding(
        claim=claim.id,
        env=row.env,
        k=row.k,
        who=who(row),
        published=row.published,
        ours=ours,
        control=", ".join(rates),
        verdict=verdict,
        why=why,
        setting=f"{entry.record['protocol']}, {said_search(entry.record['config']['plan'])}, "
        f"recipe {kept.recipe}, {trained_for(entry):,} steps",
        runs=tuple(dict.fromkeys(one.name for side in sides for one in side.kept)),
    )


def _nearest(arms: Sequence[Arm], runs: Sequence[Kept]) -> str:
    """Why nothing bears on a row: no run, no score, or scores under another search or protocol."""
    for arm in arms:
        mine = [kept for kept in runs if (kept.rung, kept.k) == (arm.rung, arm.k)]
        if not mine:
            return f"no run of {arm.rung}" + (f" k={arm.k}" if arm.k else "")
        entries = [e for kept in mine for e in kept.scores if belongs(kept, e, arm)]
        if not entries:
            return f"{arm.said} is not scored"
    return (
        "scored, but not under the published search and protocol by runs of one recipe and length"
    )
