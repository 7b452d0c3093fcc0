"""A dataset in, a verdict per check out: do its rows mean what the format says they mean?

Which environment it is of comes first, since all that is simulated rests on that. Structure, splits
and checksums need the files alone, of which every frame is read. Where the environment is known,
recorded actions are replayed from recorded states and must reach the recorded goal, and states
drawn again must give the recorded frames.
"""

from dataclasses import asdict
from pathlib import Path

from sdjepa.data import check_actions, check_env, check_frames, check_rows
from sdjepa.data.check import Check
from sdjepa.data.episodes import Episodes
from sdjepa.data.replaying import misfit
from sdjepa.envs.base import NAMES, Env, make
from sdjepa.errors import UserError
from sdjepa.runs import Progress, provenance, silent, write_json

WINDOW_ROWS = 20  # the paper trains on four frames, five steps apart


def audit(
    path: Path,
    *,
    replays: int = 100,
    frames: int = 12,
    offset: int = 25,
    window_rows: int = WINDOW_ROWS,
    named: str | None = None,
    env: Env | None = None,
    progress: Progress = silent,
) -> list[Check]:
    """Every check in turn; the answers are also written to audit.json beside the data.

    The tasks of a pack are its own, whatever the `offset`. `named` is the environment's name where
    the data do not say it or say it wrongly.
    """
    checks: list[Check] = []
    with Episodes.open(path, env=named) as data:
        check_env.refuse_misnamed(data)
        fitting = misfit(data) is None
        sim, without = (env, "") if env and fitting else _simulator(data, fitting)
        offset = (data.info.get("pack") or {}).get("offset", offset)
        steps = [
            lambda: check_env.environment(data),
            lambda: check_rows.structure(data),
            lambda: check_rows.lengths(data, window_rows, offset),
            lambda: check_rows.missing(data),
            lambda: check_rows.acting(data),
            lambda: check_rows.split(data),
            lambda: check_rows.duplicates(data),
            lambda: check_rows.checksums(data),
            lambda: check_frames.pixels(data, sim, progress),
        ]
        if sim is not None:
            steps += [
                lambda: check_actions.action_range(data, sim),
                lambda: check_actions.lag(data),
                lambda: check_actions.replays(data, sim, count=replays, offset=offset),
                lambda: check_frames.frames(data, sim, count=frames, progress=progress),
            ]
        else:
            unasked = [Check(n, "skipped", without) for n in ("action range", "replay", "frames")]
            steps += [lambda: check_actions.lag(data)] if fitting else []
            steps += [lambda: iter(unasked)]
        for done, step in enumerate(steps, start=1):
            checks += step()
            progress(done, len(steps), f"checks, {checks[-1].name}")
        record = {"checks": [asdict(check) for check in checks], **provenance()}
        try:
            write_json(data.beside("audit.json"), record)
        except UserError as error:  # what was found is worth telling all the same
            checks.append(Check("record", "warn", str(error)))
    return checks


def _simulator(data: Episodes, fitting: bool) -> tuple[Env | None, str]:
    """What the data are of, or why it cannot be had; much can be asked of them without."""
    if not fitting or data.env not in NAMES:
        return None, "no simulator that it fits"
    try:
        return make(data.env, shadow=(data.info.get("collect") or {}).get("shadow", 0)), ""
    except UserError as error:
        return None, str(error)
