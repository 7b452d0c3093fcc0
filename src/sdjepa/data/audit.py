"""A dataset in, a verdict per check out: do its rows mean what the format says they mean?

Structure, splits and checksums need the files alone, of which every frame is read. Whether an
action belongs to its own row is read off a regression. Where the environment is known, recorded
actions are replayed from recorded states and must reach the recorded goal, and states drawn again
must give the recorded frames.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float

from sdjepa.data.card import candidate_starts, replay
from sdjepa.data.episodes import Episodes
from sdjepa.data.writer import describe, digest
from sdjepa.envs.base import NAMES, Env, env_class, make
from sdjepa.errors import UserError
from sdjepa.runs import Progress, provenance, silent, write_json
from sdjepa.seeds import numpy_stream

REPLAY_SHARE = 0.98
FRAME_GREY_LEVELS = 1.0  # mean absolute difference; another version of a simulator gives far more
LAGS = (-1, 0, 1)
FEW_ROWS = 200  # of so few a regression says little
STRETCH = 2048  # frames read at a time


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
    window_rows: int = 20,
    env: Env | None = None,
    progress: Progress = silent,
) -> list[Check]:
    """Every check in turn; the answers are also written to audit.json beside the data."""
    checks: list[Check] = []
    with Episodes.open(path) as data:
        steps = [
            lambda: _structure(data),
            lambda: _lengths(data, window_rows, offset),
            lambda: _missing(data),
            lambda: _split(data),
            lambda: _duplicates(data),
            lambda: _checksums(data),
            lambda: _pixels(data, progress),
            lambda: _lag(data),
        ]
        if data.env in NAMES:
            shadow = (data.info.get("collect") or {}).get("shadow", 0)
            sim = env or make(data.env, shadow=shadow)
            steps += [
                lambda: _replay(data, sim, count=replays, offset=offset),
                lambda: _frames(data, sim, count=frames),
            ]
        else:
            reason = f"environment {data.env!r} has no simulator here"
            steps.append(lambda: iter([Check("replay", "skipped", reason)]))
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
    short = int((data.lengths < window_rows).sum())
    no_task = int((data.lengths <= offset).sum())
    found = (
        f"{short} of {len(data)} episodes are shorter than a window of {window_rows} rows, "
        f"{no_task} too short for a goal {offset} steps ahead"
    )
    bad = "fail" if short == len(data) else "warn" if short or no_task else "pass"
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
    bad = [n for n in names if describe(data.column(n))["sha256"] != stored[n]["sha256"]]
    if bad:
        yield Check("checksums", "fail", f"{', '.join(bad)} differ from dataset.json")
    else:
        yield Check("checksums", "pass", f"{len(names)} columns are those described")


def _pixels(data: Episodes, progress: Progress) -> Iterator[Check]:
    """Every frame is read, and is the one described where there is a description."""
    whole, different = hashlib.sha256(), 0
    last = b""
    for first in range(0, data.num_rows, STRETCH):
        rows = range(first, min(first + STRETCH, data.num_rows))
        for frame in data.frames(rows):
            found = digest(frame)
            whole.update(found)
            different += found != last
            last = found
        progress(rows.stop, data.num_rows, "frames read")
    stored = data.info.get("columns", {}).get("pixels", {}).get("sha256")
    found = f"{data.num_rows} read, {100 * different / data.num_rows:.0f} % unlike the one before"
    if stored is None:
        yield Check("pixels", "pass", f"{found}; nothing to compare them with")
    elif stored == whole.hexdigest():
        yield Check("pixels", "pass", f"{found}; they are those described")
    else:
        yield Check("pixels", "fail", f"{found}; they differ from dataset.json")


def _lag(data: Episodes) -> Iterator[Check]:
    """Which action explains the step from a row to the next: its own, the one before or after?"""
    wanted = env_class(data.env).controlled if data.env in NAMES else ()
    names = [
        name for name in wanted or ("proprio", "state", "observation_state") if name in data.columns
    ]
    if not names:
        yield Check("action lag", "skipped", "no state column to compare actions with")
        return
    gains = lag_gains(data, names if wanted else names[:1])
    found = ", ".join(f"lag {lag:+d}: {gain:.3f}" for lag, gain in gains.items())
    best = max(gains, key=lambda lag: gains[lag])
    sure = gains[0] > 0.02
    verdict = (
        "pass" if best == 0 and sure else "fail" if best != 0 and gains[best] > 0.02 else "warn"
    )
    if data.num_rows < FEW_ROWS and verdict == "fail":
        verdict, found = "warn", f"{found}; few rows to tell by"
    yield Check("action lag", verdict, f"share of the step explained: {found}")


def lag_gains(data: Episodes, names: list[str], *, rows: int = 20_000) -> dict[int, float]:
    """Share of the step that an action explains, of what the state alone leaves unexplained."""
    columns = [data.column(name).reshape(data.num_rows, -1) for name in names]
    state = np.concatenate(columns, axis=1).astype(np.float64)
    action = data.column("action").astype(np.float64)
    step = data.column("step_idx")
    inside = (step >= 1) & (step < np.repeat(data.lengths, data.lengths) - 2)
    whole = np.isfinite(state).all(axis=1) & np.isfinite(action).all(axis=1)
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


def _replay(data: Episodes, env: Env, *, count: int, offset: int) -> Iterator[Check]:
    starts = candidate_starts(data, offset)
    if not len(starts):
        yield Check("replay", "skipped", f"no episode goes on for {offset} steps")
        return
    rng = numpy_stream(0, "audit", offset)
    chosen = rng.choice(starts, size=min(count, len(starts)), replace=False)
    reached = sum(replay(data, env, int(row), offset) for row in chosen)
    share = reached / len(chosen)
    found = f"{100 * share:.0f} % of {len(chosen)} replays reach the goal {offset} steps ahead"
    yield Check("replay", "pass" if share >= REPLAY_SHARE else "fail", found)


def _frames(data: Episodes, env: Env, *, count: int) -> Iterator[Check]:
    rows = np.linspace(0, data.num_rows - 1, count).astype(np.int64)
    if "pack" in data.info:  # which holds frames of starts and goals only
        ends = np.concatenate([data.offsets, data.offsets + data.lengths - 1])
        rows = np.sort(numpy_stream(0, "frames").choice(ends, min(count, len(ends)), replace=False))
    stored = data.frames(rows).astype(np.int16)
    gaps, pixels = [], []
    for row, frame in zip(rows, stored, strict=True):
        env.set_state(data.row(row))
        apart = np.abs(env.render(data.image_size) - frame)
        gaps.append(apart.mean())
        pixels.append(int(apart.any(-1).sum()))
    exact = int(np.sum(np.array(gaps) == 0))
    found = f"{exact} of {len(rows)} frames drawn again are identical"
    if exact < len(rows):
        found += (
            f"; at most {max(pixels)} pixels of a frame differ, its mean by {max(gaps):.2g} "
            "grey levels"
        )
    # Other programs reduce frames in other ways.
    worse = "fail" if data.ours else "warn"
    yield Check("frames", "pass" if max(gaps) <= FRAME_GREY_LEVELS else worse, found)
