"""Latent world models from pixels, along one path; a stage imports only from stages to its left:

    envs -> data -> model -> objectives -> train -> plan -> score -> compass -> report -> cli

`errors`, `seeds`, `config`, `resolve` and `runs` lie below all stages.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdjepa.plan.load import Loaded

__version__ = "0.1.0"


def load(
    run: str | Path,
    *,
    checkpoint: str = "latest",
    device: str = "cpu",
    settings: Sequence[str] = (),
    bounds: tuple[Sequence[float], Sequence[float]] | None = None,
) -> "Loaded":
    """A trained model that plans: `sdjepa.load("runs/a2").plan(frame, goal_frame)`.

    `settings` changes how it plans, e.g. `["plan.solver=icem", "plan.replan=1"]`; `bounds` is the
    lowest and highest raw action, used with `plan.bounds=clip`.
    """
    from sdjepa.plan.load import load as work  # importing sdjepa alone must stay instant

    return work(Path(run), checkpoint=checkpoint, device=device, settings=settings, bounds=bounds)
