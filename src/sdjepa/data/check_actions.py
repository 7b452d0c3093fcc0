"""Checks of actions: are they the environment's, of their own rows, and do they lead on?

Whether an action belongs to its own row is read off a regression. Where the environment is known,
actions must lie where it takes them, and must lead from recorded states to the recorded goal.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from sdjepa.data.check import Check
from sdjepa.data.episodes import Episodes
from sdjepa.data.lag import lag_gains
from sdjepa.data.replaying import (
    Impossible,
    candidate_starts,
    first_step,
    replay,
    restoring,
    sound,
    sound_starts,
    state_columns,
    unsound,
)
from sdjepa.envs.base import NAMES, Env, env_class
from sdjepa.seeds import numpy_stream

REPLAY_SHARE = 0.98
FEW_ROWS = 200  # of so few a regression says little
LITTLE_GAIN = 0.02  # of the step; less is what chance explains
TOLERANCE = 1e-3  # beyond the bounds, in half their distance; rounding leaves less
# Demonstrators reach 1.8, in 0.06 % of numbers; other units reach much further, and often.
FAR, FAR_QUANTILE = 2.0, 0.95
FEW_OUTSIDE = 0.01  # of numbers; fewer are no reason to doubt their unit
# By the lag of the action that explains a step best.
MOVED = {
    1: "actions are one row late: row t holds the action of step t-1; move them up by one",
    -1: "actions are one row early: row t holds the action of step t+1; move them down by one",
}


def action_range(data: Episodes, env: Env) -> Iterator[Check]:
    """Are actions in the environment's units? Its bounds say how large they are."""
    action = data.column("action").astype(np.float64)
    action = action[np.isfinite(action).all(axis=1)]
    if not len(action):
        yield Check("action range", "skipped", "no row has an action")
        return
    beyond = _beyond(action, env)
    worst = np.unravel_index(beyond.argmax(), beyond.shape)
    taken = f"{env.action_low[worst[1]]:g} to {env.action_high[worst[1]]:g}"
    reach = f"action[{worst[1]}] reaches {action[worst]:.4g}, {env.name} takes {taken}"
    outside = float((beyond > 1 + TOLERANCE).mean())
    if not outside:
        yield Check("action range", "pass", f"within what {env.name} takes, {_bounds(env)}")
        return
    share = f"{100 * outside:.0f}" if outside > FEW_OUTSIDE else f"{100 * outside:.1g}"
    said = f"{share} % of numbers lie outside: {reach}"
    if outside > FEW_OUTSIDE:
        said += f"; other units? {env.name}'s action is {env.action_is}"
    far = (np.quantile(beyond, FAR_QUANTILE, axis=0) > FAR).any()
    yield Check("action range", "fail" if far else "warn", said)


def _beyond(action: Float[np.ndarray, "rows n"], env: Env) -> Float[np.ndarray, "rows n"]:
    """How far from the middle of what is taken, in half its width: beyond 1 is outside."""
    low, high = env.action_low.astype(np.float64), env.action_high.astype(np.float64)
    return np.abs(action - (low + high) / 2) / ((high - low) / 2)


def _bounds(env: Env) -> str:
    each = [
        f"{low:g} to {high:g}" for low, high in zip(env.action_low, env.action_high, strict=True)
    ]
    return each[0] if len(set(each)) == 1 else ", ".join(each)


def lag(data: Episodes) -> Iterator[Check]:
    """Which action explains the step from a row to the next: its own, the one before or after?"""
    wanted = env_class(data.env).controlled if data.env in NAMES else ()
    names = [name for name in wanted if name in data.columns] or state_columns(data)
    if not names:
        yield Check("action lag", "skipped", "no state column to compare actions with")
        return
    if not any(sound(data.column("action"))) or not all(any(sound(data.column(n))) for n in names):
        said = unsound(data, names) or "no row has an action"
        yield Check("action lag", "fail", f"nothing to tell by: {said}")
        return
    gains = lag_gains(data, names)
    shares = ", ".join(f"lag {lag:+d}: {gain:.3f}" for lag, gain in gains.items())
    shares = f"share of the step explained: {shares}"
    best = max(gains, key=lambda lag: gains[lag])
    if best == 0 and gains[0] > LITTLE_GAIN:
        yield Check("action lag", "pass", shares)
    elif gains[best] <= LITTLE_GAIN:
        said = "actions explain almost nothing of the step at any lag"
        yield Check("action lag", "warn", f"{said}; {shares}")
    elif data.num_rows < FEW_ROWS:
        yield Check("action lag", "warn", f"{MOVED[best]}; few rows to tell by; {shares}")
    else:
        yield Check("action lag", "fail", f"{MOVED[best]}; {shares}")


def replays(data: Episodes, env: Env, *, count: int, offset: int) -> Iterator[Check]:
    """Do recorded actions lead from recorded states to what was recorded `offset` rows on?"""
    starts = sound_starts(data, offset)
    left_out = len(candidate_starts(data, offset)) - len(starts)
    if not len(starts) and not left_out:
        yield Check("replay", "skipped", f"no episode goes on for {offset} steps")
        return
    if not len(starts):
        yield Check("replay", "fail", f"nothing to replay: {unsound(data)}")
        return
    rng = numpy_stream(0, "audit", offset)
    chosen = rng.choice(starts, size=min(count, len(starts)), replace=False)
    needed = []  # actions until the goal is reached
    for row in chosen:
        try:
            with restoring(data, int(row)):
                needed.append(replay(data, env, int(row), offset))
        except Impossible as error:
            yield Check("replay", "fail", str(error))
            return
    share = 1 - needed.count(None) / len(chosen)
    said = [f"{100 * share:.0f} % of {len(chosen)} replays reach the goal {offset} steps ahead"]
    idle = needed.count(0)
    if idle:
        said.append(f"{idle} of {len(chosen)} goals are reached before the first action")
    if left_out:
        said.append(f"{left_out} more cannot be tried: {unsound(data)}")
    if share < REPLAY_SHARE and (astray := first_step(data, env, chosen)):
        said.append(astray)
    if share < REPLAY_SHARE or left_out:
        verdict = "fail"
    elif idle == len(chosen):
        verdict, said = "warn", [f"{said[1]}, so it shows nothing"]
    else:
        verdict = "pass"
    yield Check("replay", verdict, "; ".join(said))
