"""A dataset in, a verdict per check out: do its rows mean what the format says they mean?

Structure, splits and checksums need the files alone, of which every frame is read. Whether an
action belongs to its own row is read off a regression. Where the environment is known, recorded
actions are replayed from recorded states and must reach the recorded goal, and states drawn again
must give the recorded frames.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool

from sdjepa.data import redrawing
from sdjepa.data.episodes import Episodes
from sdjepa.data.lag import lag_gains
from sdjepa.data.layout import PIXELS
from sdjepa.data.pictures import frozen, is_plain, moved, pictured, read_pictures
from sdjepa.data.replaying import (
    Impossible,
    candidate_starts,
    few,
    misfit,
    replay,
    restoring,
    sound,
    sound_starts,
    sound_states,
    state_columns,
    unsound,
    which,
)
from sdjepa.data.writer import describe
from sdjepa.envs.base import NAMES, NATIVE_SIZE, Env, env_class, make
from sdjepa.errors import UserError
from sdjepa.runs import Progress, provenance, silent, write_json
from sdjepa.seeds import numpy_stream

REPLAY_SHARE = 0.98
FEW_ROWS = 200  # of so few a regression says little
WINDOW_ROWS = 20  # the paper trains on four frames, five steps apart


@dataclass(frozen=True)
class Check:
    """One question to a dataset and its answer."""

    name: str
    verdict: Literal["pass", "warn", "fail", "skipped"]
    found: str


def audit(
    path: Path,
    *,
    replays: int = 100,
    frames: int = 12,
    offset: int = 25,
    window_rows: int = WINDOW_ROWS,
    env: Env | None = None,
    progress: Progress = silent,
) -> list[Check]:
    """Every check in turn; the answers are also written to audit.json beside the data.

    The tasks of a pack are its own, whatever the `offset`.
    """
    checks: list[Check] = []
    with Episodes.open(path) as data:
        amiss = misfit(data)
        known = data.env in NAMES and amiss is None
        shadow = (data.info.get("collect") or {}).get("shadow", 0)
        sim = (env or make(data.env, shadow=shadow)) if known else None
        offset = (data.info.get("pack") or {}).get("offset", offset)
        steps = [
            lambda: _structure(data),
            lambda: _lengths(data, window_rows, offset),
            lambda: _missing(data),
            lambda: _split(data),
            lambda: _duplicates(data),
            lambda: _checksums(data),
            lambda: _pixels(data, sim, progress),
        ]
        if sim is not None:
            steps += [
                lambda: _lag(data),
                lambda: _replay(data, sim, count=replays, offset=offset),
                lambda: _frames(data, sim, count=frames),
            ]
        elif amiss is None:
            reason = f"environment {data.env!r} has no simulator here"
            steps += [lambda: _lag(data), lambda: iter([Check("replay", "skipped", reason)])]
        else:
            said = f"it has {amiss}; convert it with the right --env"
            steps.append(lambda: iter([Check("environment", "fail", said)]))
        for done, step in enumerate(steps, start=1):
            checks += step()
            progress(done, len(steps), checks[-1].name)
        record = {"checks": [asdict(check) for check in checks], **provenance()}
        try:
            write_json(data.beside("audit.json"), record)
        except UserError as error:  # what was found is worth telling all the same
            checks.append(Check("record", "warn", str(error)))
    return checks


def _structure(data: Episodes) -> Iterator[Check]:
    packed = np.concatenate([[0], np.cumsum(data.lengths)[:-1]])
    if np.array_equal(packed, data.offsets):
        yield Check("structure", "pass", f"{len(data)} episodes cover {data.num_rows} rows")
    else:
        yield Check("structure", "fail", "episodes overlap or leave rows out")


def _lengths(data: Episodes, window_rows: int, offset: int) -> Iterator[Check]:
    short, no_task = data.lengths < window_rows, data.lengths <= offset
    if data.info.get("pack"):  # on which nothing is trained
        short = np.zeros(len(data), dtype=bool)
    found = (
        f"{short.sum()} of {len(data)} episodes{which(short)} are shorter than a window of "
        f"{window_rows} rows, as the paper trains on, {no_task.sum()}{which(no_task)} too short "
        f"for a goal {offset} steps ahead"
    )
    bad = "fail" if short.all() else "warn" if short.any() or no_task.any() else "pass"
    yield Check("lengths", bad, found)


def _missing(data: Episodes) -> Iterator[Check]:
    """NaN is allowed in the last action of an episode, and nowhere else."""
    missing = np.asarray((~np.isfinite(data.column("action"))).any(axis=1))
    missing[data.offsets + data.lengths - 1] = False
    bad = [f"{int(missing.sum())} actions"] if missing.any() else []
    for name in data.columns:
        values = data.column(name)
        if name != "action" and values.dtype.kind == "f":
            rows = int((~np.isfinite(values.reshape(len(values), -1))).any(axis=1).sum())
            bad += [f"{rows} rows of {name}"] if rows else []
    if missing.any():
        yield Check("missing values", "fail", ", ".join(bad))
    else:
        yield Check("missing values", "warn" if bad else "pass", ", ".join(bad) or "none")


def _split(data: Episodes) -> Iterator[Check]:
    sides = [data.episode_ids(name) for name in ("train", "validation", "test")]
    everything = np.sort(np.concatenate(sides))
    counts = ", ".join(str(len(side)) for side in sides)
    if np.array_equal(everything, np.arange(len(data))):
        yield Check("split", "pass", f"train, validation, test: {counts} episodes, none twice")
    else:
        yield Check("split", "fail", f"{counts} episodes do not make up all {len(data)} once")


def _duplicates(data: Episodes) -> Iterator[Check]:
    """Episodes with equal actions and equal states, above all on two sides of the split."""
    side = np.empty(len(data), dtype=object)
    for name in ("train", "validation", "test"):
        side[data.episode_ids(name)] = name
    seen: dict[bytes, int] = {}
    across, within = 0, 0
    for index in range(len(data)):
        columns = data.episode(index)
        key = b"".join(columns[name].tobytes() for name in sorted(columns) if name[-4:] != "_idx")
        first = seen.setdefault(key, index)
        if first != index:
            across += side[first] != side[index]
            within += side[first] == side[index]
    found = f"{across} across splits, {within} within one"
    yield Check("duplicates", "fail" if across else "warn" if within else "pass", found)


def _checksums(data: Episodes) -> Iterator[Check]:
    stored = data.info.get("columns")
    if not stored:
        yield Check("checksums", "skipped", "the data came without a description")
        return
    names = [name for name in data.columns if name in stored]
    with np.errstate(all="ignore"):  # statistics of anything
        bad = [n for n in names if describe(data.column(n))["sha256"] != stored[n]["sha256"]]
    gone = [name for name in stored if name not in (*data.columns, PIXELS)]
    said = [f"{', '.join(bad)} differ from dataset.json"] if bad else []
    said += [f"{', '.join(gone)} of dataset.json are not in the file"] if gone else []
    if said:
        yield Check("checksums", "fail", "; ".join(said))
    else:
        yield Check("checksums", "pass", f"{len(names)} columns are those described")


def _pixels(data: Episodes, env: Env | None, progress: Progress) -> Iterator[Check]:
    """Every frame is read, and is the one described where there is a description."""
    pictures = read_pictures(data, progress)
    unlike = 100 * float((~pictures.repeats).mean())
    said = [f"{data.num_rows} read, {unlike:.0f} % unlike the one before"]
    stored = data.info.get("columns", {}).get(PIXELS, {}).get("sha256")
    bad = stored is not None and stored != pictures.sha256
    if stored is None:
        said.append("nothing to compare them with")
    else:
        said.append("they differ from dataset.json" if bad else "they are those described")
    if not data.info.get("pack") and frozen(pictures.repeats, moved(data)):
        bad = True
        said.append("they stay as they are where the state changes")
    plain = pictures.plain & pictured(data)
    if plain.any():
        said.append(f"of a single colour: {few(plain)}")
        if env is not None and (seen := _seen(data, env, plain)):
            bad = True
            said.append(seen)
    verdict = "fail" if bad else "warn" if plain.any() else "pass"
    yield Check("pixels", verdict, "; ".join(said))


def _seen(data: Episodes, env: Env, plain: Bool[np.ndarray, "rows"]) -> str:
    """What the simulator draws instead of a single colour; empty if it draws that, or cannot."""
    for row in np.flatnonzero(plain & sound_states(data))[:1]:
        with contextlib.suppress(Impossible), restoring(data, int(row)):
            env.set_state(data.row(int(row)))
            if not is_plain(env.frame()):
                return f"in row {row} the simulator draws a scene"
    return ""


def _lag(data: Episodes) -> Iterator[Check]:
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
    found = ", ".join(f"lag {lag:+d}: {gain:.3f}" for lag, gain in gains.items())
    best = max(gains, key=lambda lag: gains[lag])
    sure = gains[0] > 0.02
    verdict = (
        "pass" if best == 0 and sure else "fail" if best != 0 and gains[best] > 0.02 else "warn"
    )
    if data.num_rows < FEW_ROWS and verdict == "fail":
        verdict, found = "warn", f"{found}; few rows to tell by"
    yield Check("action lag", verdict, f"share of the step explained: {found}")


def _replay(data: Episodes, env: Env, *, count: int, offset: int) -> Iterator[Check]:
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
    reached = 0
    for row in chosen:
        try:
            with restoring(data, int(row)):
                reached += replay(data, env, int(row), offset)
        except Impossible as error:
            yield Check("replay", "fail", str(error))
            return
    share = reached / len(chosen)
    found = f"{100 * share:.0f} % of {len(chosen)} replays reach the goal {offset} steps ahead"
    if left_out:
        found += f"; {left_out} more cannot be tried: {unsound(data)}"
    good = share >= REPLAY_SHARE and not left_out
    yield Check("replay", "pass" if good else "fail", found)


def _frames(data: Episodes, env: Env, *, count: int) -> Iterator[Check]:
    if data.image_size > NATIVE_SIZE:
        said = f"frames of {data.image_size} px are larger than the {NATIVE_SIZE} drawn here"
        yield Check("frames", "skipped", said)
        return
    rows = np.linspace(0, data.num_rows - 1, count).astype(np.int64)
    if data.info.get("pack"):  # which holds frames of starts and goals only
        ends = np.flatnonzero(pictured(data))
        rows = np.sort(numpy_stream(0, "frames").choice(ends, min(count, len(ends)), replace=False))
    rows = np.unique(rows[sound_states(data)[rows]])
    if not len(rows):
        yield Check("frames", "fail", f"nothing to draw: {unsound(data)}")
        return
    try:
        drawn = redrawing.redraw(data, env, rows)
    except Impossible as error:
        yield Check("frames", "fail", str(error))
        return
    exact = redrawing.as_drawn(data)
    faults = redrawing.faults(drawn)
    good = redrawing.within(drawn, size=data.image_size, exact=exact)
    said = [*faults, redrawing.described(drawn)]
    if not (good or exact or faults):  # other programs reduce frames in other ways
        said.append(redrawing.excused(drawn))
    verdict = "fail" if faults else "pass" if good else "fail" if exact else "warn"
    yield Check("frames", verdict, "; ".join(said))
