"""Metrics to other people's dashboards; `metrics.jsonl` is always written and needs none of this.

A tracker that is missing, refuses or breaks down is dropped with a line in `trackers.log`. It never
stops a run: hours of training are worth more than a chart.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sdjepa.errors import UserError
from sdjepa.runs import Run

Log = Callable[[dict[str, float], int], None]  # numbers of a step
Close = Callable[[], None]


def _tensorboard(run: Run) -> tuple[Log, Close]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(run.path / "tensorboard"))

    def log(numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def _hosted(module: Any, run: Run) -> tuple[Log, Close]:
    """wandb, and trackio, which speaks the same three words."""
    module.init(project="sdjepa", name=run.path.name, config=run.config.model_dump())
    return lambda numbers, step: module.log(numbers, step=step), module.finish


def _wandb(run: Run) -> tuple[Log, Close]:
    import wandb  # type: ignore[import-not-found]

    return _hosted(wandb, run)


def _trackio(run: Run) -> tuple[Log, Close]:
    import trackio  # type: ignore[import-not-found]

    return _hosted(trackio, run)


OPENERS: dict[str, Callable[[Run], tuple[Log, Close]]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
}


class Trackers:
    """Those of `names` that work."""

    def __init__(self, names: Sequence[str], run: Run) -> None:
        self._note = run.path / "trackers.log"
        self._open: dict[str, tuple[Log, Close]] = {}
        for name in names:
            if name not in OPENERS:
                raise UserError(f"unknown tracker {name!r}; there are {', '.join(OPENERS)}")
            self._guard(name, lambda name=name: self._open.update({name: OPENERS[name](run)}))

    def log(self, record: dict[str, float], *, step: int) -> None:
        numbers = {name: value for name, value in record.items() if name != "step"}
        for name, (log, _) in list(self._open.items()):
            self._guard(name, lambda log=log: log(numbers, step))

    def close(self) -> None:
        for name, (_, close) in list(self._open.items()):
            self._guard(name, close)
        self._open.clear()

    def _guard(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # whatever another package may raise, the run goes on
            self._open.pop(name, None)
            _append(self._note, f"{name} dropped: {type(error).__name__}: {error}")


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{time.strftime('%H:%M:%S')} {line}\n")
