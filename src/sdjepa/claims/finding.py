"""What our runs say about one row of a claim, and the five words for it."""

from dataclasses import dataclass

from sdjepa.claims.estimate import MARGIN, Estimate
from sdjepa.claims.paper import Claim, Row
from sdjepa.compass.result import ALPHA

APPEARS = "appears"
WITH_CONTROL = "appears, and so does the control"
ABSENT = "does not appear"
UNCLEAR = "cannot be told at this number of tasks"
MISSING = "not measured"
ONE_SEED = "; one seed a side: about these models, not how they are made"
RULES = {
    APPEARS: "a difference's 95 % interval excludes 0 on the claimed side (or stays within the "
    f"claimed bound); a success rate's interval reaches the published one and begins at most "
    f"{MARGIN:g} points under it; a number of the compass has p <= {ALPHA:g} against every control "
    "named beside it",
    WITH_CONTROL: "the published number is reached, and a control without the claimed meaning "
    "gives as much (a floor that needs no model; a null of the compass with p > 0.05)",
    ABSENT: "the interval excludes the claimed size, and what is left is not told from nothing: "
    "from 0 for a difference, from a control for a number of the compass",
    UNCLEAR: "none of these; the tasks it would take are said",
    MISSING: "no kept run of the published shape has such a score or compass file",
}


@dataclass(frozen=True)
class Finding:
    """The verdict on one row, with all it rests on."""

    claim: str
    env: str
    k: int
    who: str
    published: float | None
    ours: Estimate | None
    control: str
    verdict: str
    why: str
    setting: str = ""
    runs: tuple[str, ...] = ()


def missing(claim: Claim, row: Row, why: str) -> Finding:
    """The finding where nothing bears on a row."""
    return Finding(claim.id, row.env, row.k, who(row), row.published, None, "", MISSING, why)


def who(row: Row) -> str:
    """Whose number a row is."""
    if row.reading is not None:
        return f"A2 k={row.reading.k}"
    assert row.of is not None
    return row.of.said if row.to is None else f"{row.of.said} - {row.to.said}"
