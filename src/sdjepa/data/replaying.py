"""Recorded rows in a simulator: which can be restored there, and where their actions lead.

A simulator is asked only for rows whose numbers could be a state. What it still refuses is said to
be the data's fault, with its own words.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from jaxtyping import Bool, Int

from sdjepa.data.episodes import Episodes
from sdjepa.data.layout import first_line
from sdjepa.envs.base import NAMES, Env, env_class, fits
from sdjepa.errors import UserError

LARGEST = 1e5  # px, rad, m, their rates and actions; Push-T's disc may wander off some thousand px
FOLLOWED = 1e-3  # of a column's spread; a step that errs less goes as recorded
GENERIC = ("proprio", "state", "observation_state")  # what state is called where nothing is known


class Impossible(UserError):
    """A recorded row that is no state of its environment."""


def misfit(data: Episodes) -> str | None:
    """What the dataset lacks to be of the environment it names; None where nothing, or no name."""
    if data.env not in NAMES:
        return None
    return fits(data.env, data.shapes, data.action_dim)


def state_columns(data: Episodes) -> list[str]:
    """The columns that say where things are; of an unknown environment the likeliest one."""
    if data.env in NAMES:
        return [name for name in env_class(data.env).needed if name in data.columns]
    return [name for name in GENERIC if name in data.columns][:1]


def sound(values: np.ndarray) -> Bool[np.ndarray, "rows"]:
    """Rows of finite numbers that are not beyond all measure."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    return np.all(np.abs(flat) <= LARGEST, axis=1)  # which NaN is not


def sound_states(data: Episodes) -> Bool[np.ndarray, "rows"]:
    """Rows whose state can be restored."""
    whole = np.ones(data.num_rows, dtype=bool)
    for name in state_columns(data):
        whole &= sound(data.column(name))
    return whole


def gaps(data: Episodes) -> Bool[np.ndarray, "rows"]:
    """Rows whose action is missing or infinite though their episode goes on."""
    found = ~np.all(np.isfinite(data.column("action")), axis=1)
    found[data.offsets + data.lengths - 1] = False
    return found


def unsound(data: Episodes, names: Sequence[str] | None = None) -> str:
    """Of which columns some numbers can be no state or action, in words; empty if there are none.

    Asked is of states to be restored, or of `names`, and of actions, but for an episode's last.
    """
    said = []
    for name in (*(state_columns(data) if names is None else names), "action"):
        bad = ~sound(data.column(name))
        if name == "action":
            bad[data.offsets + data.lengths - 1] = False
        if bad.any():
            said.append(f"{name} is missing, infinite or beyond {LARGEST:,.0f} in {few(bad)}")
    return "; ".join(said)


def few(chosen: Bool[np.ndarray, "rows"]) -> str:
    """How many rows are chosen, and the first of them: "3 rows (0, 4, 7)"."""
    count = int(chosen.sum())
    return f"{count} row{'s' * (count != 1)}{which(chosen)}"


def which(chosen: Bool[np.ndarray, "n"], *, most: int = 5) -> str:
    """The first of those chosen, by number, in brackets; empty if there are none."""
    numbers = np.flatnonzero(chosen)
    more = ", ..." if len(numbers) > most else ""
    return f" ({', '.join(map(str, numbers[:most]))}{more})" if len(numbers) else ""


def candidate_starts(data: Episodes, offset: int) -> Int[np.ndarray, "starts"]:
    """Rows whose episode goes on for at least `offset` more."""
    left = np.repeat(data.lengths, data.lengths) - 1 - data.column("step_idx")
    rows = np.repeat(data.offsets, data.lengths) + data.column("step_idx")
    return rows[left >= offset]


def sound_starts(data: Episodes, offset: int) -> Int[np.ndarray, "starts"]:
    """Of the candidates those whose state, goal and actions between can be a simulator's."""
    starts, state = candidate_starts(data, offset), sound_states(data)
    bad = np.concatenate([[0], np.cumsum(~sound(data.column("action")))])
    acted = bad[starts + offset] == bad[starts]
    return starts[state[starts] & state[starts + offset] & acted]


def playable(data: Episodes, offset: int) -> Bool[np.ndarray, "rows"]:
    """Rows a task can start at, as far as its numbers go."""
    found = np.zeros(data.num_rows, dtype=bool)
    found[sound_starts(data, offset)] = True
    return found


@contextmanager
def restoring(data: Episodes, row: int) -> Iterator[None]:
    """Within, what a simulator raises at numbers it can make nothing of is the data's fault."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, RuntimeError) as error:  # an empty picture, MuJoCo's unstable state
        raise Impossible(
            f"row {row} of {data.path} is no state of {data.env} ({first_line(error)}); "
            "sdjepa data audit says which data are bad"
        ) from error


def replay(data: Episodes, env: Env, row: int, offset: int) -> int | None:
    """How many recorded actions lead from `row` to the goal `offset` rows on; None if none do."""
    env.set_state(data.row(row))
    env.set_goal(data.row(row + offset))
    for taken, action in enumerate(data.column("action")[row : row + offset]):
        if env.solved():
            return taken
        env.step(action)
    return offset if env.solved() else None


def first_step(data: Episodes, env: Env, rows: Int[np.ndarray, "n"], *, most: int = 20) -> str:
    """Which number of the state is furthest from what is recorded after one action, in words.

    Where replays miss their goal it is the first thing to look at: a wrong unit shows at once.
    """
    sure, names = sound_states(data), state_columns(data)
    rows = rows[sure[rows + 1]][:most]
    if not len(rows):
        return ""
    reached = []
    for row in rows:
        with restoring(data, int(row)):
            env.set_state(data.row(int(row)))
            env.step(data.column("action")[row])
            seen = env.observe()
            reached.append(np.concatenate([np.ravel(seen[name]) for name in names]))
    columns = [data.column(name).reshape(data.num_rows, -1).astype(np.float64) for name in names]
    recorded = np.concatenate(columns, axis=1)
    gap = np.abs(np.stack(reached) - recorded[rows + 1]).mean(axis=0)
    spread = recorded[sure].std(axis=0)
    share = gap / np.maximum(spread, 1e-9)
    if share.max() < FOLLOWED:
        return "single steps go as recorded"
    worst = int(share.argmax())
    labels = [f"{n}[{i}]" for n, c in zip(names, columns, strict=True) for i in range(c.shape[1])]
    return (
        f"after one action {labels[worst]} is furthest from what was recorded, by "
        f"{gap[worst]:.3g} on average where it spreads over {spread[worst]:.3g}"
    )
