"""Recorded states drawn again: does each row have its own frame, and is it the simulator's?

Another program may reduce frames in another way, so that none is equal. Whatever the way, a state
drawn again is nearest to its own frame: nearer than to the frames of the rows before and after, of
other rows, and with its colours as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt8

from sdjepa.data.episodes import Episodes
from sdjepa.data.layout import reduce_frames
from sdjepa.data.replaying import restoring
from sdjepa.envs.base import Env, reduce

FAR_GREY_LEVELS = 20.0  # no way to reduce a frame changes it so much on average
GREY_LEVELS = 1.0  # mean absolute difference of frames that were reduced in another way
# Two processors' frames differ by less, Push-T's contact dots by more, but only in a few pixels.
LITTLE = 8
FEW_PIXELS, FEW_SHARE = 8, 0.005
LEAST_VOTES = 3  # of fewer rows nothing is said
NEIGHBOURS = 2  # rows apart; late frames are as near to what these show as to their own

Frames = Int[np.ndarray, "n h w 3"]


@dataclass(frozen=True)
class Redrawn:
    """A recorded state drawn again, beside recorded frames."""

    gap: float  # mean absolute difference from its own frame, in grey levels
    apart: int  # pixels that differ by more than a little
    between: bool  # whether there are rows before and after, of its episode
    lag: int | None  # the row, from the one before to the one after, whose frame is nearest
    astray: bool  # nearer to the frame of another row that was drawn, no neighbour
    reversed: bool  # nearer with red and blue exchanged


def redraw(data: Episodes, env: Env, rows: Int[np.ndarray, "n"]) -> list[Redrawn]:
    """Draw the states of `rows`, which ascend, and compare."""
    own = data.frames(rows).astype(np.int32)
    step = data.column("step_idx")[rows]
    inside = (step > 0) & (step < np.repeat(data.lengths, data.lengths)[rows] - 1)
    drawn = []
    for at, row in enumerate(rows):
        with restoring(data, int(row)):
            env.set_state(data.row(int(row)))
            picture = _picture(data, env).astype(np.int32)
        off = np.abs(picture - own[at])
        far = distances(picture, own)
        around = None
        if inside[at]:
            before, after = data.frames([row - 1, row + 1]).astype(np.int32)
            around = distances(picture, np.stack([before, own[at], after]))
        drawn.append(
            Redrawn(
                gap=float(off.mean()),
                apart=int((off > LITTLE).any(-1).sum()),
                between=bool(inside[at]),
                lag=nearest_lag(around) if around is not None else None,
                astray=bool((far[np.abs(rows - row) > NEIGHBOURS] < far[at]).any()),
                reversed=bool(distances(picture[..., ::-1], own[[at]])[0] < far[at]),
            )
        )
    return drawn


def _picture(data: Episodes, env: Env) -> UInt8[np.ndarray, "size size 3"]:
    """The present state as the data would have it: frames of ours may have been reduced twice.

    The simulator alone draws it, so that a faster way that is wrong does not vouch for itself.
    """
    collected = (data.info.get("collect") or {}).get("size", data.image_size)
    once = reduce(env.plain(), max(collected, data.image_size))
    return reduce_frames(once[None], data.image_size)[0]


def distances(picture: Int[np.ndarray, "h w 3"], frames: Frames) -> Float[np.ndarray, "n"]:
    """Mean squared difference of a picture from each frame."""
    return np.square(frames - picture).mean(axis=(1, 2, 3))


def nearest_lag(distance: Float[np.ndarray, "3"]) -> int | None:
    """Whether the row before, the row itself or the row after is nearest; None where two are."""
    best = int(np.argmin(distance))
    return best - 1 if (distance == distance[best]).sum() == 1 else None


def faults(drawn: Sequence[Redrawn]) -> list[str]:
    """What is wrong with most frames, however they were reduced."""
    said = []
    for wrong, what in (
        ([each.reversed for each in drawn], "with red and blue exchanged the frames are nearer"),
        ([each.astray for each in drawn], "frames are nearer to states of other rows"),
    ):
        if 2 * sum(wrong) > len(drawn):
            said.append(f"{what} ({sum(wrong)} of {len(drawn)})")
    votes = [each.lag for each in drawn if each.lag is not None]
    for lag, name in ((1, "late"), (-1, "early")):
        count = votes.count(lag)
        if not said and len(votes) >= LEAST_VOTES and 2 * count > len(votes):
            said.append(f"frames are one row {name} ({count} of {len(votes)})")
    if not said and np.median([each.gap for each in drawn]) > FAR_GREY_LEVELS:
        said.append("these are not the simulator's pictures, which a score would show the model")
    return said


def within(drawn: Sequence[Redrawn], *, size: int, exact: bool) -> bool:
    """Whether frames are the simulator's: all but a few pixels, or where not `exact` on average."""
    if exact:
        return max(each.apart for each in drawn) <= max(FEW_PIXELS, FEW_SHARE * size**2)
    return max(each.gap for each in drawn) <= GREY_LEVELS


def as_drawn(data: Episodes) -> bool:
    """Whether frames should be equal to those drawn here: ours, and not reduced a second time.

    Where the frames of a pack come from is not known.
    """
    converted, collected = data.info.get("converted") or {}, data.info.get("collect") or {}
    if not data.ours or not converted.get("ours", True) or data.info.get("pack"):
        return False
    return (
        collected["size"] == data.image_size if "size" in collected else not converted.get("size")
    )


def described(drawn: Sequence[Redrawn]) -> str:
    """How near the frames are, in words."""
    exact = sum(each.gap == 0 for each in drawn)
    said = f"{exact} of {len(drawn)} frames drawn again are identical"
    if exact == len(drawn):
        return said
    apart, gap = max(each.apart for each in drawn), max(each.gap for each in drawn)
    return (
        f"{said}; in a frame at most {apart} pixels differ by more than {LITTLE} grey levels, "
        f"all by {gap:.1f} on average"
    )


def excused(drawn: Sequence[Redrawn]) -> str:
    """What can be said for frames that are not the simulator's, and do not seem to be at fault."""
    away = sum(each.astray or each.lag in (-1, 1) for each in drawn)
    if away:
        return f"{away} of {len(drawn)} frames are nearest to another row's state"
    between = [each.lag for each in drawn if each.between]  # none of a pack's are
    if between and all(lag is None for lag in between):
        return "none can be told from those before and after it"
    return "they may be reduced in another way: each is nearest to its own state"
