"""Checks of rows: are they whole, finite, divided once, and those described?

None of them needs to know the environment.
"""

from collections.abc import Iterator

import numpy as np

from sdjepa.data.check import Check
from sdjepa.data.episodes import Episodes
from sdjepa.data.layout import PIXELS
from sdjepa.data.replaying import few, gaps, which
from sdjepa.data.writer import describe


def structure(data: Episodes) -> Iterator[Check]:
    """What was opened covers its rows: anything else is refused there."""
    yield Check("structure", "pass", f"{len(data)} episodes cover {data.num_rows} rows")


def lengths(data: Episodes, window_rows: int, offset: int) -> Iterator[Check]:
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


def missing(data: Episodes) -> Iterator[Check]:
    """NaN is allowed in the last action of an episode, and nowhere else."""
    missing = gaps(data)
    bad = [f"action in {few(missing)}"] if missing.any() else []
    for name in data.columns:
        values = data.column(name)
        if name != "action" and values.dtype.kind == "f":
            lost = ~np.all(np.isfinite(values.reshape(len(values), -1)), axis=1)
            bad += [f"{name} in {few(lost)}"] if lost.any() else []
    if missing.any():
        yield Check("missing values", "fail", ", ".join(bad))
    else:
        yield Check("missing values", "warn" if bad else "pass", ", ".join(bad) or "none")


def acting(data: Episodes) -> Iterator[Check]:
    """Recorders that lose actions write the same one everywhere."""
    action = data.column("action")
    action = action[np.isfinite(action).all(axis=1)]
    if len(action) < 2:
        yield Check("actions", "skipped", f"{len(action)} rows have one")
        return
    still = np.flatnonzero(action.min(axis=0) == action.max(axis=0))
    if not len(still):
        several = f"all {data.action_dim} numbers of an action change"
        said = several if data.action_dim > 1 else "the one number of an action changes"
        yield Check("actions", "pass", said)
        return
    said = f"unchanged in every action: number {', '.join(map(str, still))} of {data.action_dim}"
    yield Check("actions", "fail" if len(still) == data.action_dim else "warn", said)


def split(data: Episodes) -> Iterator[Check]:
    sides = [data.episode_ids(name) for name in ("train", "validation", "test")]
    everything = np.sort(np.concatenate(sides))
    counts = ", ".join(str(len(side)) for side in sides)
    if np.array_equal(everything, np.arange(len(data))):
        yield Check("split", "pass", f"train, validation, test: {counts} episodes, none twice")
    else:
        yield Check("split", "fail", f"{counts} episodes do not make up all {len(data)} once")


def duplicates(data: Episodes) -> Iterator[Check]:
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


def checksums(data: Episodes) -> Iterator[Check]:
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
