"""Which action explains a recorded step: a regression on actions a row early, in place and late."""

import numpy as np
from jaxtyping import Float

from sdjepa.data.episodes import Episodes
from sdjepa.data.replaying import sound
from sdjepa.seeds import numpy_stream

LAGS = (-1, 0, 1)


def lag_gains(data: Episodes, names: list[str], *, rows: int = 20_000) -> dict[int, float]:
    """Share of the step that an action explains, of what the state alone leaves unexplained."""
    columns = [data.column(name).reshape(data.num_rows, -1) for name in names]
    state = np.concatenate(columns, axis=1).astype(np.float64)
    action = data.column("action").astype(np.float64)
    step = data.column("step_idx")
    inside = (step >= 1) & (step < np.repeat(data.lengths, data.lengths) - 2)
    whole = sound(state) & sound(action)
    # Row, the row before and the row after: each lag is judged on the same rows.
    chosen = np.flatnonzero(inside & whole & np.roll(whole, 1) & np.roll(whole, -1))
    if len(chosen) < 2 * (state.shape[1] + action.shape[1] + 1):
        return dict.fromkeys(LAGS, 0.0)
    if len(chosen) > rows:
        chosen = np.sort(numpy_stream(0, "lag").choice(chosen, size=rows, replace=False))
    target = state[chosen + 1] - state[chosen]
    target = target / np.maximum(target.std(0), 1e-9)
    alone = _residual(state[chosen], target)
    return {
        lag: float(1 - _residual(np.hstack([state[chosen], action[chosen + lag]]), target) / alone)
        for lag in LAGS
    }


def _residual(inputs: Float[np.ndarray, "rows n"], target: Float[np.ndarray, "rows m"]) -> float:
    scaled = (inputs - inputs.mean(0)) / np.maximum(inputs.std(0), 1e-9)
    design = np.hstack([scaled, np.ones((len(scaled), 1))])
    solution, *_ = np.linalg.lstsq(design, target, rcond=None)
    return float(np.square(target - design @ solution).sum()) + 1e-9
