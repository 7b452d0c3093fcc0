"""Checks of frames: are they those described, and does each show the state of its own row?"""

import contextlib
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool

from sdjepa.data import redrawing
from sdjepa.data.check import Check
from sdjepa.data.episodes import Episodes
from sdjepa.data.layout import PIXELS
from sdjepa.data.pictures import frozen, is_plain, moved, pictured, read_pictures
from sdjepa.data.replaying import Impossible, few, restoring, sound_states, unsound
from sdjepa.envs.base import NATIVE_SIZE, Env
from sdjepa.runs import Progress, silent
from sdjepa.seeds import numpy_stream

TOGETHER = 12  # frames drawn again are compared with each other


def pixels(data: Episodes, env: Env | None, progress: Progress) -> Iterator[Check]:
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


def frames(data: Episodes, env: Env, *, count: int, progress: Progress = silent) -> Iterator[Check]:
    """Does the simulator draw of recorded states what was recorded?"""
    height, width, _ = data.frame_shape
    if height != width or height > NATIVE_SIZE:
        said = f"frames are {height} x {width}, drawn here are {NATIVE_SIZE} x {NATIVE_SIZE}"
        yield Check("frames", "skipped", f"{said} or smaller squares")
        return
    rows = np.linspace(0, data.num_rows - 1, count).astype(np.int64)
    if data.info.get("pack"):  # which holds frames of starts and goals only
        ends = np.flatnonzero(pictured(data))
        rows = np.sort(numpy_stream(0, "frames").choice(ends, min(count, len(ends)), replace=False))
    rows = np.unique(rows[sound_states(data)[rows]])
    stretches = -(-len(rows) // TOGETHER)
    if not len(rows):
        yield Check("frames", "fail", f"nothing to draw: {unsound(data)}")
        return
    try:
        drawn = []
        for first in range(stretches):  # spread over all the data, each of them
            drawn += redrawing.redraw(data, env, rows[first::stretches])
            progress(len(drawn), len(rows), "frames drawn again")
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


def _seen(data: Episodes, env: Env, plain: Bool[np.ndarray, "rows"]) -> str:
    """What the simulator draws instead of a single colour; empty if it draws that, or cannot."""
    for row in np.flatnonzero(plain & sound_states(data))[:1]:
        with contextlib.suppress(Impossible), restoring(data, int(row)):
            env.set_state(data.row(int(row)))
            if not is_plain(env.frame()):
                return f"in row {row} the simulator draws a scene"
    return ""
