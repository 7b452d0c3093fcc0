"""Tasks as files: a list of (episode, start, offset) with a hash that names it, or why none is.

Two scores with one task hash were made on the same tasks of the same data, so they can be compared
task by task. A manifest can be handed on and scored again: `sdjepa score RUN --manifest FILE`.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sdjepa.data.episodes import Episodes
from sdjepa.data.replaying import playable, unsound
from sdjepa.errors import UserError
from sdjepa.runs import read_json, write_json

FORMAT = 1


@dataclass(frozen=True)
class Task:
    """A start, and a goal `offset` environment steps later in the same recorded episode."""

    episode: int
    start: int  # raw step in the episode
    offset: int

    def rows(self, data: Episodes) -> tuple[int, int]:
        """Row of the start and row of the goal; an evaluation pack keeps its tasks elsewhere."""
        if "pack" in data.info:
            first = data.rows(data.info["pack"]["starts"].index([self.episode, self.start])).start
        else:
            first = data.rows(self.episode).start + self.start
        return first, first + self.offset


@dataclass(frozen=True)
class Outcome:
    """How a task went."""

    success: bool
    steps_to_success: int | None
    start_distance: float
    final_distance: float
    solved_at_start: bool
    other_success: dict[str, bool]  # other readings than the benchmark's, met at any step


@dataclass(frozen=True)
class Manifest:
    """A task list and the data it belongs to."""

    env: str
    protocol: str
    protocol_hash: str
    data: dict[str, int | str]  # rows and split hash of the dataset
    tasks: tuple[Task, ...]

    @property
    def hash(self) -> str:
        """Names environment, data and tasks; not the protocol that chose them."""
        said = [self.env, sorted(self.data.items()), [_triple(task) for task in self.tasks]]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]

    def write(self, path: Path) -> Path:
        said = {
            "format": FORMAT,
            "hash": self.hash,
            "env": self.env,
            "protocol": self.protocol,
            "protocol_hash": self.protocol_hash,
            "data": self.data,
            "tasks": [_triple(task) for task in self.tasks],
        }
        return write_json(path, said)

    @staticmethod
    def read(path: Path) -> "Manifest":
        """A manifest whose content still has the hash it was written with."""
        said = read_json(path)
        try:
            found = Manifest(
                env=said["env"],
                protocol=said["protocol"],
                protocol_hash=said["protocol_hash"],
                data=said["data"],
                tasks=tuple(Task(*map(int, triple)) for triple in said["tasks"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is no task manifest: it lacks or misspells {error}") from error
        if said.get("format") != FORMAT or said.get("hash") != found.hash:
            raise UserError(
                f"{path} says its hash is {said.get('hash')}, its content gives {found.hash}: it "
                "was changed by hand; get the original, or choose tasks anew without --manifest"
            )
        return found

    def check(self, data: Episodes, path: Path) -> None:
        """Refuse data of which these are not tasks."""
        if (self.env, self.data) != (data.env, identity(data)):
            raise UserError(
                f"{path} lists tasks of {self.env} data {self.data}, {data.path} is {data.env} "
                f"data {identity(data)}; give the dataset it was made from with --data"
            )


def _triple(task: Task) -> list[int]:
    return [task.episode, task.start, task.offset]


def identity(data: Episodes) -> dict[str, int | str]:
    """What tells datasets apart; a pack is taken for the dataset it was made from."""
    of = data.info["pack"]["of"] if "pack" in data.info else {}
    return {
        "rows": of.get("rows", data.num_rows),
        "split_hash": of.get("split_hash", data.split_hash),
    }


def packed_tasks(data: Episodes, *, offset: int, count: int) -> Sequence[Task]:
    """The first tasks an evaluation pack holds."""
    held = data.info["pack"]
    if held["offset"] != offset or len(held["starts"]) < count:
        size, apart = len(held["starts"]), held["offset"]
        raise UserError(
            f"{data.path} holds {size} tasks of offset {apart}, asked for {count} of offset "
            f"{offset}; say --tasks {size} --offset {apart}"
        )
    starts = held["starts"][:count]
    return [Task(int(episode), int(start), offset) for episode, start in starts]


def check_playable(data: Episodes, tasks: Sequence[Task]) -> None:
    """Refuse a list that somebody made with tasks that no simulator can be put at."""
    for offset in {task.offset for task in tasks}:
        fit = playable(data, offset)
        for task in tasks:
            if task.offset == offset and not fit[task.rows(data)[0]]:
                raise UserError(
                    f"{data.path}: the task of episode {task.episode}, step {task.start} cannot be "
                    f"played ({unsound(data)}); choose tasks anew from the dataset, which leaves "
                    "such ones out"
                )


def check_pack(path: Path, *, protocols: Sequence[str] = (), seed: int | None = None) -> None:
    """Refuse what somebody asked for and a pack at `path` was not made by."""
    if not protocols and seed is None:
        return
    with Episodes.open(path) as data:
        pack = data.info.get("pack", {})
    for key, asked in (("protocol", protocols), ("seed", () if seed is None else (seed,))):
        held = pack.get(key)
        other = [each for each in asked if held not in (None, each)]
        if other:
            raise UserError(
                f"{path} holds tasks of {key} {held}, asked for {other[0]}; leave --{key} out, or "
                f"pack the dataset again: sdjepa data pack DATA OUT --{key} {other[0]}"
            )


def too_few(
    found: int,
    count: int,
    offset: int,
    lengths: np.ndarray,
    *,
    of: int | None = None,
    never: bool = False,
    bad: int = 0,
) -> str:
    """Why `found` tasks are all there are, of so many starts where some of them were refused, or
    where the last is never drawn; `bad` ones, at which nothing can be played, are not among them.
    """
    longest = int(lengths.max(initial=0))
    if longest <= offset:
        lower = f"say --offset {longest - 1} or less, or " if longest > 1 else ""
        return (
            f"no episode is long enough: a goal {offset} steps after its start needs {offset + 1} "
            f"rows, the longest has {longest}; {lower}collect longer episodes"
        )
    only = f"only {max(found, 0)} of {count} tasks fit"
    only += f" ({bad} starts are left out, whose numbers are no state or no action)" if bad else ""
    fewer = f"lower --tasks to {found}" if found > 0 else "collect longer episodes"
    if of is not None and of > found:
        return (
            f"{only}: {of - found} of {of} starts are solved at the start or by doing nothing; "
            f"{fewer if found > 0 else 'raise --offset'}, or collect more episodes"
        )
    last = " and lewm never draws the last start" if never else ""
    return (
        f"{only}: each needs {offset} steps after its start{last}, the median episode has "
        f"{int(np.median(lengths))} rows; {fewer}, lower --offset, or collect more episodes"
    )
