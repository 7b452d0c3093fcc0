"""A policy in an environment in, a dataset out; the seed decides every byte, the workers none.

Episode i draws everything from the stream (seed, "episode", i). Workers leave groups of episodes as
part files under OUT/.collect, each whole or absent; the main process joins them, in order, into the
dataset. A killed collection is continued by the same command: parts that exist are not made again.
"""

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sdjepa.config import MANY, Collect
from sdjepa.crew import Count, Crew
from sdjepa.data.again import make_again
from sdjepa.data.card import card
from sdjepa.data.episodes import Episodes
from sdjepa.data.packing import Packed, Packing
from sdjepa.data.parts import is_whole, read_part, write_part
from sdjepa.data.tally import Tally
from sdjepa.data.writer import FILE, Writer, make_split, refuse_taken
from sdjepa.envs.base import NATIVE_SIZE, Env, env_class, make, reduce
from sdjepa.errors import UserError
from sdjepa.runs import Progress, Run, provenance, read_json, silent, write_json
from sdjepa.seeds import numpy_stream

PARTS = ".collect"
SIMULATORS = ("stable-worldmodel", "mujoco")  # of other versions an episode may be another


def collect(settings: Collect, out: Path, *, progress: Progress = silent) -> Path:
    """Make the dataset `out`, or continue making it."""
    settings = _complete(settings)
    described = env_class(settings.env).describe_policy(settings.policy, _demos(settings))
    parts, made = out / PARTS, (out / FILE).exists()
    if not parts.exists():
        if _is_finished(out, settings, described):
            if not (out / "card.md").exists():
                card(out, progress=progress)
            return out
        refuse_taken(out)
    with Run(parts).lock():
        _claim(parts, settings, described)
        if not made:  # else it was killed when only its card was missing
            _make(settings, out, described, progress=progress)
        _tidy(out, progress=progress)
    return out


def _is_finished(out: Path, settings: Collect, described: dict[str, str]) -> bool:
    """Whether this very dataset is there; one of other settings is refused by what differs."""
    if not (out / FILE).exists() and not make_again(out):  # nor did it hold one of ours
        return False
    with Episodes.open(out) as data:  # refuses one that is damaged, and says what helps
        info = data.info
    if "converted" in info or not info.get("collect"):
        return False
    found = {**info["collect"], **(info.get("policy") or {})}
    for key, value in _deciding(settings, described).items():
        if found.get(key, value) != value:
            raise UserError(
                f"{out} already holds a dataset, with {key} = {found[key]}, not {value}; "
                "remove it or choose another place"
            )
    return True


def _tidy(out: Path, *, progress: Progress) -> None:
    """Describe what was made; parts go last, by which is known that all is done."""
    card(out, progress=progress)
    shutil.rmtree(out / PARTS)


def _make(settings: Collect, out: Path, described: dict[str, str], *, progress: Progress) -> None:
    with Writer(out, image_size=settings.size) as writer:
        reached = _join(settings, out / PARTS, writer, progress=progress)
        split = make_split(
            settings.episodes,
            seed=settings.seed,
            validation=settings.validation_share,
            test=settings.test_share,
        )
        policy = {
            "name": settings.policy,
            "noise": settings.noise,
            "success_share": sum(map(bool, reached)) / len(reached),
            "successes_per_episode": sum(reached) / len(reached),
            **described,
        }
        chosen = settings.model_dump(exclude={"workers"})
        info = {"env": settings.env, "seed": settings.seed, "policy": policy, "collect": chosen}
        writer.finish(info, split=split)


def _complete(settings: Collect) -> Collect:
    """Fill in what the environment decides; refuse what it cannot do before anything is written."""
    env = env_class(settings.env)
    policy = settings.policy
    if policy == "auto":
        policy = env.default_policy(_demos(settings))
    env.check_policy(policy)
    env.check_shadow(settings.shadow)
    if settings.demos and policy != "demos":
        raise UserError(
            f"policy {policy} of {env.name} replays no demonstrations; leave --demos out"
            + (", or say --policy demos" if "demos" in env.policies else "")
        )
    if policy in env.noiseless and settings.noise != Collect.model_fields["noise"].default:
        noisy = next((name for name in env.policies if name not in env.noiseless), None)
        raise UserError(
            f"policy {policy} has no noise; leave --noise out"
            + (f", or say --policy {noisy}" if noisy else "")
        )
    if settings.size > NATIVE_SIZE:
        raise UserError(f"--size {settings.size} exceeds the environment's {NATIVE_SIZE} pixels")
    episodes = settings.episodes
    if settings.frames:
        episodes = -(-settings.frames // (settings.steps + 1))
    if episodes > MANY:
        raise UserError(f"{episodes:,} episodes are more than {MANY:,}; ask for less")
    # Refuses shares that leave nothing to train on before an hour is spent, not after.
    make_split(episodes, seed=0, validation=settings.validation_share, test=settings.test_share)
    return settings.model_copy(update={"policy": policy, "episodes": episodes})


def _demos(settings: Collect) -> Path | None:
    return Path(settings.demos) if settings.demos else None


def _deciding(settings: Collect, described: dict[str, str]) -> dict[str, Any]:
    """What decides the bytes: not how many workers, where demonstrations lie or how much was asked
    for in frames."""
    return {**settings.model_dump(exclude={"workers", "demos", "frames"}), **described}


def _claim(parts: Path, settings: Collect, described: dict[str, str]) -> None:
    """Remember what is being collected; parts of something else are not continued."""
    versions = provenance()["versions"]
    said = {
        **_deciding(settings, described),
        **{name: versions.get(name) for name in SIMULATORS},
        "rows of a part": _part_rows(settings),
    }
    path = parts / "settings.json"
    if path.exists() and (any(parts.glob("part-*")) or (parts.parent / FILE).exists()):
        found = read_json(path)
        if not isinstance(found, dict):
            raise UserError(f"{path} is damaged; remove {parts} and begin again")
        for key, value in said.items():
            if found.get(key) != value:
                raise UserError(
                    f"{parts.parent} holds an unfinished collection with {key} = {found.get(key)}, "
                    f"not {value}; finish that one, or remove {parts}"
                )
    write_json(path, said)


def _part_rows(settings: Collect) -> int:
    """About; decides what a kill loses and how evenly workers are loaded."""
    return env_class(settings.env).rows_between_saves


def _join(
    settings: Collect,
    parts: Path,
    writer: Writer,
    *,
    progress: Progress = silent,
    joined: Callable[[int], None] = lambda episodes: None,
) -> list[int]:
    """Have every part made and written, in order; how often each episode reached its goal.

    `progress` hears of episodes that are made, `joined` how many are written after each part.
    """
    size = max(1, _part_rows(settings) // (settings.steps + 1))
    groups = [
        range(first, min(first + size, settings.episodes))
        for first in range(0, settings.episodes, size)
    ]
    paths = [parts / f"part-{i:06d}" for i in range(len(groups))]
    reached: list[int] = []
    crew: Crew[Path] = Crew(settings.workers, jobs=len(groups), preload="sdjepa.data.collect")
    tally = Tally([len(g) for g in groups], [path.exists() for path in paths], crew.counts)
    look = functools.partial(tally.tell, progress)
    look()
    with crew:
        jobs = [
            crew.submit(_make_part, settings, group, path)
            for group, path in zip(groups, paths, strict=True)
        ]
        for group, job in zip(groups, jobs, strict=True):
            for episode, goals in read_part(crew.wait(job, look=look)):
                writer.add(episode)
                reached.append(goals)
            look()
            joined(group.stop)
    return reached


@functools.cache
def _env(name: str, shadow: int) -> Env:
    """A process makes its environment once."""
    return make(name, shadow=shadow)


def _make_part(settings: Collect, group: range, path: Path, count: Count) -> Path:
    """Record the episodes of `group` into `path`, unless they are there."""
    if is_whole(path):
        return path
    env = _env(settings.env, settings.shadow)
    episodes, rows = [], 0
    for episode in group:
        episodes.append(record(env, settings, episode))
        rows += len(episodes[-1][0].frames)
        count(len(episodes), rows)
    write_part(path, episodes)
    return path


def record(env: Env, settings: Collect, episode: int) -> tuple[Packed, int]:
    """Episode number `episode` of the dataset, and how often it reached what its policy wanted."""
    rng = numpy_stream(settings.seed, "episode", episode)
    env.develop()  # frames of an episode that was broken off are not this one's
    env.reset(rng)
    policy = env.policy(
        settings.policy, noise=settings.noise, rng=rng, demos_given=_demos(settings)
    )
    rows, actions, goals, before = [], [], 0, False
    packing = Packing()
    while True:
        rows.append(env.observe())
        env.shoot()
        # At once, while they are in the processor's cache, and so that none wait in memory.
        for frame in env.finished():
            packing.add(reduce(frame, settings.size))
        now = env.succeeded()
        goals += now and not before  # a policy without a next goal may rest at the last one
        before = now
        action = policy() if len(actions) < settings.steps else None
        if action is None:
            break
        actions.append(np.asarray(action, dtype=np.float32))
        env.step(actions[-1])
    actions.append(np.full(env.action_dim, np.nan, dtype=np.float32))
    columns = {name: np.stack([row[name] for row in rows]) for name in env.state_columns}
    for frame in env.develop():
        packing.add(reduce(frame, settings.size))
    return packing.close({"action": np.stack(actions), **columns}), goals
