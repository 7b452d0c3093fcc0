"""A run comes in, one JSON file per diagnostic goes out.

Episodes are encoded once into a trace, kept beside the results, and every diagnostic reads the
trace. A baseline given as `against` is traced on the same episodes and read the same way.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, UInt8

from sdjepa.compass.changes import changes
from sdjepa.compass.correlation import correlation
from sdjepa.compass.corruption import corruption
from sdjepa.compass.course import course
from sdjepa.compass.embedding import embedding
from sdjepa.compass.events import events
from sdjepa.compass.film import film
from sdjepa.compass.geometry import geometry
from sdjepa.compass.horizon import horizon
from sdjepa.compass.notice import notice
from sdjepa.compass.order import order
from sdjepa.compass.place import place
from sdjepa.compass.probe import probe
from sdjepa.compass.published import published
from sdjepa.compass.ranking import ranking
from sdjepa.compass.reader import Reader, action_blocks, encode_rows, foresee
from sdjepa.compass.result import Diagnosis, rounded
from sdjepa.compass.sight import sight
from sdjepa.compass.surprise import surprise
from sdjepa.compass.teleport import teleport
from sdjepa.compass.trace import EpisodeTrace, Trace, load, save
from sdjepa.config import Config
from sdjepa.data.episodes import Episodes, Split
from sdjepa.envs.base import env_class
from sdjepa.errors import UserError
from sdjepa.runs import Progress, Run, provenance, silent, write_json
from sdjepa.seeds import numpy_stream
from sdjepa.train.checkpoint import Checkpoint, load_checkpoint, refuse_other
from sdjepa.train.source import episodes_for

STAND_IN = 2  # a model without a progress part is read through this many first coordinates
MIN_EPISODES = 3


@dataclass(frozen=True)
class Case:
    """What a diagnostic may use."""

    trace: Trace
    reader: Reader
    checkpoint: Checkpoint
    episodes: Episodes
    seed: int
    against: Trace | None
    progress: Progress

    @property
    def chosen(self) -> list[int]:
        return [e.index for e in self.trace.episodes]

    def frames(
        self, episode: int, rows: Int[np.ndarray, "rows"]
    ) -> UInt8[np.ndarray, "rows height width 3"]:
        return self.episodes.frames(self.episodes.rows(episode).start + rows)


DIAGNOSTICS: dict[str, Callable[[Case], Diagnosis]] = {
    "course": lambda case: course(case.trace),
    "film": lambda case: film(
        case.trace,
        case.frames,
        extent=env_class(case.trace.env).extent,
    ),
    "correlation": lambda case: correlation(case.trace, seed=case.seed),
    "probe": lambda case: probe(case.trace, seed=case.seed, against=case.against),
    "order": lambda case: order(case.trace, seed=case.seed),
    "geometry": lambda case: geometry(case.trace, seed=case.seed),
    "embedding": lambda case: embedding(case.trace, seed=case.seed),
    "place": lambda case: place(case.trace, case.reader, case.episodes, seed=case.seed),
    "surprise": lambda case: surprise(case.trace, case.reader, seed=case.seed, frames=case.frames),
    "events": lambda case: events(case.trace, seed=case.seed),
    "corruption": lambda case: corruption(case.trace, case.reader, seed=case.seed),
    "changes": lambda case: changes(case.trace, seed=case.seed),
    "horizon": lambda case: horizon(case.trace, seed=case.seed),
    "sight": lambda case: sight(case.trace, seed=case.seed),
    "notice": lambda case: notice(case.trace, case.reader, case.episodes, seed=case.seed),
    "ranking": lambda case: ranking(
        case.checkpoint, case.episodes, case.chosen, seed=case.seed, progress=case.progress
    ),
}
# Plans many times, so it runs only when it is named.
ON_REQUEST: dict[str, Callable[[Case], Diagnosis]] = {
    "teleport": lambda case: teleport(
        case.checkpoint,
        case.episodes,
        case.chosen,
        k=case.trace.k,
        seed=case.seed,
        progress=case.progress,
    ),
}
_ALL = DIAGNOSTICS | ON_REQUEST


def compass(
    run: Run,
    *,
    data: Path | None = None,
    only: Sequence[str] = (),
    episodes: int | None = None,
    seed: int | None = None,
    split: Split | None = None,
    against: Path | None = None,
    progress: Progress = silent,
) -> list[Path]:
    """Write RUN/compass/<diagnostic>.json for every diagnostic, or those in `only`.

    What is in ON_REQUEST is written only when `only` names it.
    """
    names = _chosen(only)
    checkpoint = load_checkpoint(run.path, device=_device())
    baseline = load_checkpoint(against, device=_device()) if against else None
    config = checkpoint.config
    split = split or config.compass.split
    seed = config.compass.seed if seed is None else seed
    wanted = config.compass.episodes if episodes is None else episodes
    where = episodes_for(run.path, config, given=data)
    with Episodes.open(where, size=config.model.image_size) as source:
        refuse_other(run.path, config, source)
        chosen = choose(source, config, split=split, count=wanted, seed=seed)
        k = config.model.k or STAND_IN
        folder = run.path / "compass"
        trace = read_trace(
            checkpoint, source, chosen, k=k, keep=folder / "trace.npz", progress=progress
        )
        other = None
        if baseline:
            keep = folder / "trace-against.npz"
            other = read_trace(baseline, source, chosen, k=k, keep=keep, progress=progress)
        reader = Reader(checkpoint.model)
        case = Case(trace, reader, checkpoint, source, seed, other, progress)
        facts = {
            "config": config.model_dump(),
            "checkpoint_step": checkpoint.step,
            "env": source.env,
            "split": split,
            "split_hash": source.split_hash,
            "episodes": chosen,
            "seed": seed,
            "stand_in": trace.stand_in,
            **provenance(),
        }
        written = []
        for number, name in enumerate(names):
            progress(number, len(names), f"diagnostics, {name}")
            record = _record(_ALL[name](case), facts)
            record["published"] = published(
                name, source.env, config=config, episodes=len(chosen), split=split
            )
            if against and baseline and other:
                reader = Reader(baseline.model)
                beside = Case(other, reader, baseline, source, seed, None, progress)
                found = _ALL[name](beside)
                record["against"] = {"run": against.resolve().name, **_outcome(found)}
            written.append(write_json(folder / f"{name}.json", rounded(record)))
        progress(len(names), len(names), "diagnostics")
    return written


def choose(source: Episodes, config: Config, *, split: Split, count: int, seed: int) -> list[int]:
    """Episodes to trace, drawn once from one side of the split; too short ones are left out."""
    if "pack" in source.info:
        raise UserError(
            f"{source.path} is a pack of tasks, without the frames between; make a dataset: sdjepa "
            f"collect {config.collect.env} --episodes 200 --out DIR, then --data DIR"
        )
    shortest = config.data.frame_skip * (config.model.history + 2)
    able = [int(e) for e in source.episode_ids(split) if source.lengths[e] >= shortest]
    if len(able) < MIN_EPISODES:
        other = "" if split == "train" else ", or use --split train"
        raise UserError(
            f"{source.path} has {len(able)} {split} episodes of at least {shortest} frames, the "
            f"compass needs {MIN_EPISODES}; collect more{other}"
        )
    rng = numpy_stream(seed, "compass", "episodes")
    return sorted(rng.permutation(able)[:count].tolist())


def read_trace(
    checkpoint: Checkpoint,
    source: Episodes,
    chosen: Sequence[int],
    *,
    k: int,
    keep: Path | None = None,
    progress: Progress = silent,
) -> Trace:
    """The trace of `chosen`, from `keep` when it was made from the same things."""
    config = checkpoint.config
    source.require(config.model.image_size)
    key = _trace_key(checkpoint, source, chosen, k)
    found = load(keep, key=key) if keep else None
    if found:
        return found
    reader, skip, history = Reader(checkpoint.model), config.data.frame_skip, config.model.history
    latents = encode_rows(
        source.frames,
        [source.rows(e) for e in chosen],
        encode=reader.encode,
        batch=reader.batch,
        progress=progress,
    )
    blocks = [
        action_blocks(
            source.column("action")[source.rows(e)],
            frame_skip=skip,
            mean=checkpoint.stats.mean,
            std=checkpoint.stats.std,
        )
        for e in chosen
    ]
    steps = [z[np.arange(len(a)) * skip] for z, a in zip(latents, blocks, strict=True)]
    foreseen = foresee(reader, steps, blocks, history=history)
    knows = env_class(source.env)
    traced = []
    for e, z, a, (predicted, rollouts) in zip(chosen, latents, blocks, foreseen, strict=True):
        columns = source.episode(e)
        traced.append(
            EpisodeTrace(
                index=int(e),
                latents=z,
                actions=a,
                predicted=predicted,
                rollouts=rollouts,
                measures=knows.measures(columns),
                events=knows.events(columns),
                path=knows.path(columns),
                k=k,
                frame_skip=skip,
            )
        )
    trace = Trace(
        env=source.env,
        k=k,
        stand_in=config.model.k == 0,
        frame_skip=skip,
        history=history,
        episodes=tuple(traced),
    )
    if keep:
        save(trace, keep, key=key)
    return trace


def _trace_key(checkpoint: Checkpoint, source: Episodes, chosen: Sequence[int], k: int) -> str:
    weights = hashlib.sha256((checkpoint.path / "model.safetensors").read_bytes()).hexdigest()
    facts = [weights, str(source.path), source.split_hash, source.num_rows, list(chosen), k]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _chosen(only: Sequence[str]) -> list[str]:
    unknown = [name for name in only if name not in _ALL]
    if unknown:
        raise UserError(f"no diagnostic {unknown[0]!r}; there are {', '.join(_ALL)}")
    return [name for name in _ALL if name in (only or DIAGNOSTICS)]


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _record(found: Diagnosis, facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "diagnostic": found.diagnostic,
        "title": found.title,
        "question": found.question,
        **_outcome(found),
        **facts,
    }


def _outcome(found: Diagnosis) -> dict[str, Any]:
    return {
        "status": found.status,
        "verdict": found.verdict,
        "results": found.results,
        "nulls": found.nulls,
    }
