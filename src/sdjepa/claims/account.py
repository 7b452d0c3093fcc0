"""A ledger's folder in, the account of every claim out: Markdown between two marks, and JSON.

The same folder gives the same text to the letter, so that a test can hold a page to its folder.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sdjepa.claims.estimate import Estimate
from sdjepa.claims.evidence import Kept, departures, facing, read, search, trained_for
from sdjepa.claims.finding import MISSING, RULES, Finding
from sdjepa.claims.judge import judged, measured
from sdjepa.claims.paper import Arm, Claim, Paper, paper
from sdjepa.errors import UserError
from sdjepa.ledger import said_search
from sdjepa.runs import provenance, write_atomic

BEGIN, END = "<!-- claims: begin -->", "<!-- claims: end -->"


@dataclass(frozen=True)
class Pair:
    """A2 less A0 under one condition, whether a claim asks for it or not."""

    env: str
    k: int
    cost: str
    condition: str
    recipe: str
    ours: Estimate


@dataclass(frozen=True)
class Account:
    """All a folder says about the paper."""

    folder: str
    findings: tuple[Finding, ...]
    pairs: tuple[Pair, ...]
    recipes: dict[str, dict[str, Any]]  # the runs of each, and how its training departs

    def as_json(self) -> dict[str, Any]:
        """Everything, with the rules and where it was made."""
        claims = [
            {"id": claim.id, "says": claim.says, "where": claim.where, "known": claim.known}
            for claim in paper().claims
        ]
        return {"rules": RULES, "claims": claims, **asdict(self), **provenance()}


def account(folder: Path) -> Account:
    """Judge every claim by the runs kept in `folder`."""
    runs = read(folder)
    recipes: dict[str, dict[str, Any]] = {}
    for kept in runs:
        known = recipes.setdefault(kept.recipe, {"runs": [], "departures": list(departures(kept))})
        known["runs"].append(kept.name)
    return Account(folder.name, tuple(judged(paper(), runs)), tuple(_pairs(runs)), recipes)


def _pairs(runs: Sequence[Kept]) -> list[Pair]:
    """Every A2 less A0 that shares recipe, protocol, offset, search and task list."""
    over: dict[tuple, list] = {}
    under: dict[tuple, list] = {}
    for kept in runs:
        for entry in kept.scores:
            offset = entry.record["config"]["score"]["offset"]
            same = (kept.recipe, trained_for(entry))
            key = (kept.env, same, entry.record["protocol"], offset, search(entry))
            if kept.rung == "A2":
                over.setdefault((key, kept.k, entry.record["cost"]), []).append((kept, entry))
            elif kept.rung == "A0":
                under.setdefault(key, []).append((kept, entry))
    found = []
    for (key, k, cost), mine in over.items():
        if key not in under:
            continue
        sides = facing(Arm("A2", k, cost), mine, to=Arm("A0", 0, "full"), under=under[key])
        if sides is not None:
            env, (recipe, _), protocol, offset, _ = key
            condition = (
                f"{protocol}, offset {offset}, {said_search(mine[0][1].record['config']['plan'])}"
            )
            found.append(Pair(env, k, cost, condition, recipe, measured(sides)))
    return sorted(found, key=lambda pair: (pair.env, pair.k, pair.cost, pair.condition))


# --- Markdown


def markdown(found: Account) -> str:
    """The account as text for a page."""
    known = paper()
    parts = [
        f"*Written by `sdjepa claims {found.folder}`; do not edit between the marks.*",
        _rules(),
        _overview(known, found.findings),
        *(_details(known, claim, found.findings) for claim in known.claims),
        _every_pair(known, found.pairs),
        _recipes(found.recipes),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _rules() -> str:
    rows = [(f"**{word}**", rule) for word, rule in RULES.items()]
    return "### The rule\n\n" + _table(("verdict", "when"), rows)


def _overview(known: Paper, findings: Sequence[Finding]) -> str:
    envs = list(known.titles)
    rows = []
    for claim in known.claims:
        words = []
        for env in envs:
            mine = [f for f in findings if (f.claim, f.env) == (claim.id, env)]
            several = len(mine) > 1
            words.append(
                "; ".join(f"k={f.k}: {f.verdict}" if several else f.verdict for f in mine) or "-"
            )
        rows.append((f"`{claim.id}`", *words))
    measured_rows = sum(f.verdict != MISSING for f in findings)
    return (
        f"### All claims\n\n{measured_rows} of {len(findings)} rows are measured. A dash: the "
        "paper makes no such claim there.\n\n"
        + _table(("claim", *(known.titles[env] for env in envs)), rows)
    )


def _details(known: Paper, claim: Claim, findings: Sequence[Finding]) -> str:
    digits = 2 if claim.kind == "compass" else 1
    signed = claim.kind == "difference"
    rows = []
    for found in (f for f in findings if f.claim == claim.id):
        rows.append(
            (
                known.titles[found.env],
                found.who,
                _number(found.published, digits, signed=signed),
                _estimate(found.ours, digits, signed=signed),
                _count(found.ours, unit="episodes" if claim.kind == "compass" else "tasks"),
                found.control or "-",
                f"**{found.verdict}**: {found.why}",
                "; ".join(part for part in (found.setting, ", ".join(found.runs)) if part) or "-",
            )
        )
    head = ("environment", "of", "published", "ours (95 %)", "from", "beside", "verdict", "how")
    return (
        f"### `{claim.id}`\n\n{claim.says} ({claim.where}.) *Known before:* {claim.known}.\n\n"
        + _table(head, rows)
    )


def _every_pair(known: Paper, pairs: Sequence[Pair]) -> str:
    head = "### Every A2 less A0 on shared tasks\n\n"
    if not pairs:
        return head + "None is kept yet."
    rows = [
        (
            known.titles.get(pair.env, pair.env),
            f"k={pair.k} {pair.cost}",
            pair.condition,
            pair.recipe,
            _count(pair.ours, unit="tasks"),
            _estimate(pair.ours, 1, signed=True),
        )
        for pair in pairs
    ]
    note = (
        f"{len(pairs)} differences; of many, one in twenty excludes 0 by chance, so no verdict "
        "hangs on these.\n\n"
    )
    return (
        head
        + note
        + _table(("environment", "A2", "condition", "recipe", "from", "points (95 %)"), rows)
    )


def _recipes(recipes: dict[str, dict[str, Any]]) -> str:
    head = "### Recipes, and how each departs from the paper\n\n"
    if not recipes:
        return head + "No run is kept yet."
    rows = [
        (name, ", ".join(known["runs"]), ", ".join(known["departures"]) or "nothing")
        for name, known in sorted(recipes.items())
    ]
    return head + _table(("recipe", "runs", "departures"), rows)


def _number(value: float | None, digits: int, *, signed: bool) -> str:
    if value is None:
        return "-"
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def _estimate(found: Estimate | None, digits: int, *, signed: bool) -> str:
    if found is None:
        return "-"
    value = _number(found.value, digits, signed=signed)
    if found.interval95 is None:
        return f"{value} (no interval)"
    low, high = (_number(end, digits, signed=signed) for end in found.interval95)
    return f"{value} ({low} to {high})"


def _count(found: Estimate | None, *, unit: str) -> str:
    if found is None:
        return "-"
    return f"{found.count} {unit}, {found.seeds} seed{'s' if found.seeds > 1 else ''}"


def write_between(page: Path, text: str, *, folder: Path) -> Path:
    """Put `text` between the page's two marks; what stands around them is untouched."""
    again = f"sdjepa claims {folder} --write {page}"
    if not page.is_file():
        raise UserError(
            f"{page} is not there; make it with the lines {BEGIN} and {END}, then: {again}"
        )
    whole = page.read_text()
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(
            f"{page} lacks the line {BEGIN if not begin else END}; put {BEGIN} and {END} where the "
            f"tables belong, then: {again}"
        )
    return write_atomic(page, f"{before}{begin}\n{text}{end}{after}")
