"""One diagnostic's outcome: the numbers, and the sentence they allow.

A published claim meets two questions here. Is there an effect at all, as the paper measured it? And
does it survive the control that could have broken it? The answers give one word; the
sentence around them is generated from the numbers by each diagnostic.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

ALPHA = 0.01  # a verdict's error rate; the stated bound on false positives is 5 %

Status = Literal["holds", "only without the control", "does not hold", "not tested", "shown"]

SAID: dict[str, str] = {
    "holds": "The published claim holds here",
    "only without the control": "The published claim holds here only without the control",
    "does not hold": "The published claim does not hold here",
    "not tested": "The published claim could not be tested here",
    "shown": "No claim is tested here",
}


@dataclass(frozen=True)
class Diagnosis:
    """What a diagnostic found; `suite` adds provenance and writes it."""

    diagnostic: str
    title: str
    question: str  # one plain sentence
    status: Status
    reason: str  # generated from the numbers, continues the status
    results: dict[str, Any]
    nulls: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return f"{SAID[self.status]}: {self.reason}"


def judge(*, effect: bool | None, control: bool | None) -> Status:
    """The word for an effect as published and its survival; None = could not be measured."""
    if effect is None or control is None:
        return "not tested"
    if not effect:
        return "does not hold"
    return "holds" if control else "only without the control"


def below(p: float, alpha: float = ALPHA) -> bool:
    """Whether a p-value allows a claim; a missing one allows none."""
    return math.isfinite(p) and p <= alpha


def rounded(value: Any, digits: int = 5) -> Any:
    """`value` as plain JSON types with `digits` significant digits, so that files stay small."""
    if isinstance(value, dict):
        return {str(key): rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    if isinstance(value, np.ndarray):
        return rounded(value.tolist(), digits)
    if isinstance(value, np.generic):
        return rounded(value.item(), digits)
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{digits}g}")
    return value


def said(value: float) -> str:
    """A number inside a sentence."""
    return "undefined" if not math.isfinite(value) else f"{value:.2f}"


def said_p(p: float) -> str:
    """A p-value inside a sentence."""
    return "p undefined" if not math.isfinite(p) else f"p = {p:.3f}"
