"""What `bench train` finds: timings come in one by one, lines for people and JSON go out.

Whatever is known so far can be said and kept; what is not known, or not yet, is None.
"""

from dataclasses import asdict, dataclass
from typing import Any

THEIRS = "stable-worldmodel"


@dataclass(frozen=True)
class Timing:
    """Seconds per step of one way, over rounds; before the first round, its first step alone."""

    who: str
    first_seconds: float  # the first step: compilation and recording
    flops: float  # of the model that is trained
    seconds: float | None = None  # median
    spread: tuple[float, float] | None = None
    rounds: int = 0

    @property
    def steps_per_second(self) -> float | None:
        return None if self.seconds is None else 1 / self.seconds


@dataclass(frozen=True)
class TrainBench:
    """What is known so far; None where it is not, or not yet."""

    device: str
    batch: int
    origin: dict[str, Any]
    timings: tuple[Timing, ...] = ()
    matmul_flops_per_second: float | None = None

    def _of(self, who: str) -> Timing | None:
        return next((t for t in self.timings if t.who == who), None)

    @property
    def rounds(self) -> int:
        return min((t.rounds for t in self.timings), default=0)

    @property
    def ours(self) -> Timing | None:
        """The way a run takes on this device, with the paper's model."""
        return self._of("recorded") or self._of("eager")

    def ratio(self, timing: Timing) -> float | None:
        """How many times faster than theirs, where theirs was timed too."""
        theirs = self._of(THEIRS)
        if theirs is None or theirs.seconds is None or timing.seconds is None:
            return None
        return theirs.seconds / timing.seconds

    def share(self, timing: Timing) -> float | None:
        """Of the measured matrix-product rate."""
        if timing.seconds is None or self.matmul_flops_per_second is None:
            return None
        return timing.flops / timing.seconds / self.matmul_flops_per_second

    def brief(self) -> str:
        """What the last event told: a first step, or how all ways stand after a round."""
        if not self.rounds:
            last = self.timings[-1]
            return f"{last.who:<26}first step {last.first_seconds:.1f} s"
        rates = "; ".join(f"{t.who} {t.steps_per_second:.2f}" for t in self.timings)
        return f"round {self.rounds}, median steps/s: {rates}"

    def lines(self) -> list[str]:
        """For people."""
        rate = self.matmul_flops_per_second
        said = "" if rate is None else f", {rate / 1e12:.1f} TFLOP/s"
        return [
            f"{self.device}, batch {self.batch} windows of 4 frames{said}",
            *map(self._line, self.timings),
        ]

    def _line(self, t: Timing) -> str:
        line = f"{t.who:<26}"
        if t.seconds is not None and t.spread is not None:
            low, high = (1 / s for s in reversed(t.spread))
            line += f"{1 / t.seconds:8.2f} steps/s ({low:.2f} to {high:.2f})"
            line += f"{4 * self.batch / t.seconds:10,.0f} frames/s"
        ratio, share = self.ratio(t), self.share(t)
        line += "" if ratio is None else f"{ratio:8.2f} x"
        line += "" if share is None else f"{100 * share:7.1f} % of the product rate"
        return f"{line}   first step {t.first_seconds:.1f} s"

    def as_json(self) -> dict[str, object]:
        rows = [
            asdict(t)
            | {"steps_per_second": t.steps_per_second, "share_of_matmul_rate": self.share(t)}
            for t in self.timings
        ]
        found = {
            "device": self.device,
            "batch": self.batch,
            "way": None,
            "steps_per_second": None,
            "steps_per_second_spread": None,
            "frames_per_second": None,
            "ratio_to_stable_worldmodel": None,
            "share_of_matmul_rate": None,
            "matmul_flops_per_second": self.matmul_flops_per_second,
            "timings": rows,
            **self.origin,
        }
        ours = self.ours
        if ours is not None and ours.seconds is not None and ours.spread is not None:
            found |= {
                "way": ours.who,
                "steps_per_second": ours.steps_per_second,
                "steps_per_second_spread": [1 / s for s in reversed(ours.spread)],
                "frames_per_second": 4 * self.batch / ours.seconds,
                "ratio_to_stable_worldmodel": self.ratio(ours),
                "share_of_matmul_rate": self.share(ours),
            }
        return found
