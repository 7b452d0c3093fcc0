"""Many runs of one recipe on frames that are read once: rungs, widths and seeds in, runs out.

Each run is the one `train` would make alone, to the last bit on a CPU. What is done is not done
again and what was stopped goes on, so a sweep that was killed is continued by the same command.
"""

import gc
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sdjepa.config import Config
from sdjepa.data.feed import Feed
from sdjepa.errors import UserError
from sdjepa.resolve import RUNGS, resolve
from sdjepa.runs import Progress, Run, silent
from sdjepa.train.loop import complete, train


@dataclass(frozen=True)
class Member:
    """One run of a sweep."""

    name: str
    config: Config


def members(
    recipe: Path,
    *,
    rungs: Sequence[str],
    widths: Sequence[int],
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    vary: Sequence[str] = (),  # KEY=VALUE,VALUE: one run for each value
) -> list[Member]:
    """Every combination, seed by seed; a rung without a progress part takes no width."""
    found = []
    for seed, rung in itertools.product(seeds, rungs):
        split = RUNGS.get(rung, {}).get("model.k") == "k"
        for k in widths if split else (None,):
            name = f"{rung}-k{k}-s{seed}" if split else f"{rung}-s{seed}"
            for varied in itertools.product(*(_values(one) for one in vary)):
                full = "-".join([name, *(_short(one) for one in varied)])
                sets = [*settings, f"train.seed={seed}", *varied]
                config = complete(resolve(recipe, rung=rung, k=k, settings=sets))
                found.append(Member(full, config))
    return found


def _values(said: str) -> list[str]:
    """`KEY=A,B` as `KEY=A` and `KEY=B`."""
    key, equals, values = said.partition("=")
    if not (key and equals and values):
        raise UserError(f"--vary {said!r} is not like objectives.sigreg_weight=0.09,0.03")
    return [f"{key}={value}" for value in values.split(",")]


def _short(said: str) -> str:
    """A setting as a part of a folder's name: the last part of its key, and its value."""
    key, _, value = said.partition("=")
    return key.rpartition(".")[2] + value.replace("/", "_")


def sweep(wanted: Sequence[Member], out: Path, *, progress: Progress = silent) -> list[Path]:
    """Train all of them under `out`; returns their last checkpoints."""
    feeds: dict[str, Feed] = {}
    done = []
    for number, member in enumerate(wanted, start=1):
        run = Run(out / member.name)
        with run.lock():
            begun = (run.path / "config.toml").exists()
            if not begun:
                Run.create(run.path, member.config)
            elif run.config != member.config:
                raise UserError(
                    f"{run.path} holds a run of other settings; use another --out, or remove it"
                )
            tell = _counted(progress, f"run {number}/{len(wanted)}")
            done.append(train(run, resume=begun, feeds=feeds, progress=tell))
        _forget()
    return done


def _counted(progress: Progress, which: str) -> Progress:
    def tell(done: int, total: int, note: str = "") -> None:
        unit, _, rest = note.partition(", ")
        progress(done, total, ", ".join(filter(None, (unit, which, rest))) if note else "")

    return tell


def _forget() -> None:
    """Of the last run: what was compiled and recorded for it holds its weights."""
    gc.collect()
    if torch.cuda.is_available():
        torch.compiler.reset()  # imports the compiler, which elsewhere nobody needs
        torch.cuda.empty_cache()
