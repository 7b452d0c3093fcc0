"""Any dataset we can read in, a dataset of ours out: same rows, one layout, one description."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from sdjepa.data.episodes import Episodes
from sdjepa.data.layout import reduce_frames
from sdjepa.data.lerobot import LeRobot
from sdjepa.data.nearby import nearest
from sdjepa.data.packing import Packed, pack
from sdjepa.data.writer import Writer, make_split, refuse_taken
from sdjepa.envs.base import NAMES, UNKNOWN, called, fits, guess
from sdjepa.errors import UserError
from sdjepa.interrupts import held
from sdjepa.runs import Progress, cores, silent

Episode = tuple[dict[str, np.ndarray], UInt8[np.ndarray, "n h w 3"]]
_DROPPED = {"episode_idx", "step_idx", "render_time"}  # written anew, or true of one machine only


def convert(
    source: Path,
    out: Path,
    *,
    size: int | None = None,
    env: str | None = None,
    camera: str | None = None,
    action: str | None = None,
    compress: bool = True,
    seed: int = 0,
    progress: Progress = silent,
) -> Path:
    """Copy `source` to `out`; a `size` reduces frames by area averaging, `camera` and `action` pick
    features of a LeRobot folder, `compress=False` is for programs without an HDF5 plug-in, an `env`
    "none" says that there is no simulator here."""
    refuse_taken(out)
    asked = called(env) if env else None
    if not source.exists():
        raise UserError(
            f"no dataset at {source}; {nearest(source)}make one: sdjepa collect ENV --out DIR, or "
            "fetch a hub's: hf download --repo-type dataset OWNER/NAME --local-dir DIR"
        )
    if (source / "meta" / "info.json").exists():
        robot = LeRobot.open(source, camera=camera, action=action)
        side = _side(robot.frame_shape(), source, wanted=size)
        kind, count, episodes, info, ours = "lerobot", len(robot), robot.reduced(side), {}, False
        guessed = True
    else:
        if camera or action:
            raise UserError("--camera and --action pick features of a LeRobot folder only")
        opened = Episodes.open(source, size=size)  # which reduces them as they are read
        if "pack" in opened.info:
            raise UserError(f"{source} is a pack; convert the dataset it was made from, then pack")
        side = _side(opened.frame_shape, source, wanted=size)
        kind, count, episodes = "episodes", len(opened), _all(opened)
        info, guessed = opened.info, opened.env_origin == "guessed"
        ours = opened.ours and info.get("converted", {}).get("ours", True)
    kept = {key: info[key] for key in ("seed", "policy", "collect") if key in info}
    split = info.get("split") or make_split(count, seed=seed, validation=0.05, test=0.05)
    first = next(episodes)
    shapes = {name: values.shape[1:] for name, values in first[0].items()}
    named = asked or info.get("env") or guess(shapes)
    amiss = named in NAMES and fits(named, shapes, shapes["action"][0])
    if amiss and asked:
        raise UserError(f"{source} has {amiss}; leave --env out, or correct it")
    described = {
        "env": UNKNOWN if amiss else named,
        "env_guessed": asked is None and (guessed or bool(amiss)),
        **kept,
        "converted": {
            "from": source.name,
            "kind": kind,
            "ours": ours,
            "size": size,
            "camera": camera,
        },
    }
    with Writer(out, image_size=side, compress=compress) as writer, held() as take:
        for done, packed in enumerate(_packed(first, episodes, side, compress, take), start=1):
            writer.add(packed)
            progress(done, count, "episodes")
            take()  # here and there, not among the locks of those that compress
        return writer.finish(described, split=split)


def _all(source: Episodes) -> Iterator[Episode]:
    for index in range(len(source)):
        rows = source.rows(index)
        yield source.episode(index), source.frames(range(rows.start, rows.stop))


def _packed(
    first: Episode, rest: Iterator[Episode], side: int, compress: bool, take: Callable[[], None]
) -> Iterator[Packed]:
    """Episodes resized and compressed, several at a time, in order; `take` is called between."""

    def work(episode: Episode) -> Packed:
        columns, frames = episode
        columns = {name: values for name, values in columns.items() if name not in _DROPPED}
        columns["action"] = np.array(columns["action"], dtype=np.float32)
        columns["action"][-1] = np.nan
        return pack(columns, list(reduce_frames(frames, side)), compressed=compress)

    workers = min(8, cores())
    with ThreadPoolExecutor(workers) as pool:

        def begin() -> Iterator[Future[Packed]]:
            for episode in islice(rest, workers):
                take()
                yield pool.submit(work, episode)

        yield work(first)
        while begun := list(begin()):
            for each in begun:
                yield each.result()


def _side(shape: tuple[int, ...], source: Path, *, wanted: int | None) -> int:
    height, width = shape[:2]
    most = min(height, width)
    if wanted is None and height != width:
        raise UserError(
            f"frames of {source} are {height} x {width}; say how large a square to make of them, "
            f"e.g. --size {min(224, most)}"
        )
    if (wanted or most) > most:
        raise UserError(
            f"--size {wanted} would enlarge the frames of {source}, {height} x {width}; say --size "
            f"{most} or less"
        )
    return wanted or most
