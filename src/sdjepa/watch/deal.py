"""Tasks and states to try, from episodes the model never saw, or from an evaluation pack."""

import itertools
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from sdjepa.data.episodes import Episodes
from sdjepa.envs.base import Columns, env_class
from sdjepa.errors import UserError
from sdjepa.tasks import Task

DEALT = 24  # tasks to choose from
FAR_OF = 8  # a teleport goes to the farthest of so many recorded states


def deal(
    data: Episodes,
    *,
    offset: int,
    rng: np.random.Generator,
    trivial: Callable[[Task], bool],
) -> list[Task]:
    """Held-out tasks, one per episode in turn; trivial ones are left out where others exist."""
    if "pack" in data.info:
        starts = data.info["pack"]["starts"][:DEALT]
        return [Task(int(e), int(s), data.info["pack"]["offset"]) for e, s in starts]
    able = [int(e) for e in data.episode_ids("test") if data.lengths[e] > offset]
    if not able:
        raise UserError(
            f"{data.path} has no held-out episode of more than {offset} steps to take tasks from; "
            "collect longer ones, or give other data with --data"
        )
    order = itertools.cycle(rng.permutation(able).tolist())
    drawn = [
        Task(episode, int(rng.integers(data.lengths[episode] - offset)), offset)
        for episode in itertools.islice(order, 4 * DEALT)
    ]
    drawn = list(dict.fromkeys(drawn))
    hard = itertools.islice((task for task in drawn if not trivial(task)), DEALT)
    return list(hard) or drawn[:DEALT]


def far_state(data: Episodes, here: Float[np.ndarray, "2"], *, rng: np.random.Generator) -> Columns:
    """A recorded state of a held-out episode, the farthest of a few from `here`."""
    path = env_class(data.env).path
    rows = [data.rows(int(e)) for e in rng.choice(data.episode_ids("test"), FAR_OF)]
    drawn = [data.row(int(rng.integers(own.start, own.stop))) for own in rows]
    places = [path({name: np.asarray(row[name])[None] for name in row})[0] for row in drawn]
    return drawn[int(np.argmax([np.linalg.norm(place - here) for place in places]))]
