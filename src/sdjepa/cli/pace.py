"""Counts of work in as they come; how fast it goes and how long it still takes, out."""

import time

SETTLED_S = 5.0  # after the first of a stage is done; workers finish theirs about together
SETTLED = 10  # and so much more must be done by then


class Stage:
    """A count on its way to a total; another total, or a smaller count, is the next stage."""

    def __init__(self, done: int, total: int) -> None:
        self.done, self.total, self.note = done, total, ""
        self.began = self._grew = time.monotonic()
        self._base = (self.began, done)
        self._first: tuple[float, int] | None = None  # when some of it was done, and how much

    def takes(self, done: int, total: int, note: str) -> bool:
        """Go on to `done`, if that is of this stage."""
        if done < self.done or total != self.total:
            return False
        if done > self.done:
            self._grew = time.monotonic()
            self._first = self._first or (self._grew, done)
        self.done, self.note = done, note or self.note
        return True

    def rate(self) -> float:
        """A second, till the count last grew; a start is left out once much was done after it.

        Programs start, and compile: that is no measure of the rest.
        """
        since, had = self._base
        if self._first:
            at, first = self._first
            if self._grew - at >= SETTLED_S and self.done - first >= SETTLED:
                since, had = at, first
        return (self.done - had) / max(self._grew - since, 1e-9)

    def left(self) -> str:
        """The time that is left, by the rate; nothing where that is not known."""
        rate, rest = self.rate(), self.total - self.done
        if not rate or not rest:
            return ""
        waited = time.monotonic() - self._grew
        # The next may be late, but it is still to come.
        return clock(max(rest / rate - waited, 1 / rate))


def clock(seconds: float) -> str:
    """As a clock shows it: 0:07, 12:30, 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
