"""One question to a dataset and its answer, as the audit tells and records it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Check:
    name: str
    verdict: Literal["pass", "warn", "fail", "skipped"]
    found: str
