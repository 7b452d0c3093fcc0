"""Human demonstrations of Push-T: a file in, states and absolute targets out.

Two layouts are read: an `.npz` with `state`, `action` and `episode_ends`, and the folder published
with Diffusion Policy, `pusht_cchi_v7_replay.zarr`, whose arrays are blosc-compressed chunks.
What is wrong with either is said in one line, before anything is simulated.
"""

import functools
import hashlib
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from sdjepa.envs import zarr
from sdjepa.errors import UserError

VARIABLE = "SDJEPA_PUSHT_DEMOS"
NAMES = ("state", "action", "episode_ends")
FAR = 1e4  # px; nothing that was recorded on a table of 512 lies as far out


@dataclass(frozen=True)
class Demos:
    """Demonstrations end to end; episode i ends before row `ends[i]`."""

    states: Float[np.ndarray, "rows 5"]  # agent x, y, block x, y, block angle
    targets: Float[np.ndarray, "rows 2"]  # where the agent was told to go, absolute
    ends: Int[np.ndarray, "episodes"]

    @property
    def sha256(self) -> str:
        """Names the demonstrations, whatever file they came from."""
        parts = (self.states, self.targets, self.ends)
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    def episode(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        start = int(self.ends[index - 1]) if index else 0
        rows = slice(start, int(self.ends[index]))
        return self.states[rows], self.targets[rows]


def find(given: Path | None) -> Path | None:
    """The demonstrations that were `given`, or those the environment variable names."""
    named = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is not None and not named.exists():
        raise UserError(f"no demonstrations at {named}; correct --demos or {VARIABLE}")
    return named


def missing() -> UserError:
    return UserError(
        "policy demos needs demonstrations: add --demos FILE (an .npz, or Diffusion Policy's "
        f"pusht_cchi_v7_replay.zarr) or set {VARIABLE}; --policy pusher needs none"
    )


@functools.cache
def read(path: Path) -> Demos:
    """Demonstrations in either layout."""
    try:
        if path.is_dir():
            folders = ("data/state", "data/action", "meta/episode_ends")
            state, action, ends = (zarr.read(path, folder) for folder in folders)
        else:
            state, action, ends = _npz(path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}); see that it is whole and that "
            "you may read it"
        ) from error
    if fault := _fault(state, action, ends):
        raise UserError(f"{path}: {fault}")
    return Demos(state.astype(np.float64), action.astype(np.float64), ends.astype(np.int64))


def _npz(path: Path) -> list[np.ndarray]:
    """The arrays of an .npz; whatever else numpy stumbles on, its advice to unpickle is no help."""
    try:
        file = np.load(path, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:
        raise UserError(
            f"{path} is no .npz of state, action, episode_ends, or was cut short; give one, or "
            "Diffusion Policy's folder pusht_cchi_v7_replay.zarr"
        ) from error
    if isinstance(file, np.ndarray):
        raise UserError(
            f"{path} holds one array, needed state, action, episode_ends; save them by numpy.savez"
        )
    found = []
    with file:
        if lacking := [name for name in NAMES if name not in file]:
            raise UserError(
                f"{path} lacks {', '.join(lacking)}; needed an .npz of state, action, "
                "episode_ends, or Diffusion Policy's folder pusht_cchi_v7_replay.zarr"
            )
        for name in NAMES:
            try:
                found.append(np.asarray(file[name]))
            except Exception as error:
                raise UserError(
                    f"{path}: {name} is damaged or not of numbers; fetch or save it again"
                ) from error
    return found


def _fault(state: np.ndarray, action: np.ndarray, ends: np.ndarray) -> str:
    """What is wrong with what was read; empty where it is demonstrations."""
    for name, values in zip(NAMES, (state, action, ends), strict=True):
        if values.dtype.kind not in "iuf":
            return f"{name} is of dtype {values.dtype}; needed numbers, save it as float or int"
    rows = state.shape[:1]
    if (state.shape, action.shape, ends.ndim) != ((*rows, 5), (*rows, 2), 1):
        return (
            f"state {state.shape}, action {action.shape} and episode_ends {ends.shape} do not "
            "belong together; needed (rows, 5), (rows, 2) and (episodes,)"
        )
    if not len(state):
        return "holds no demonstration; needed rows of some"
    for name, values in (("state", state), ("action", action)):
        with np.errstate(all="ignore"):
            near = np.abs(values.astype(np.float64)) <= FAR  # nor is NaN
        if not near.all():
            row, column = np.argwhere(~near)[0]
            value = values[row, column]
            what = f"holds {value:g}" if np.isfinite(value) else "is not finite"
            return f"{name} {row} {what}; needed numbers up to {FAR:g}, leave its episode out"
    needed = f"needed the row after each episode's last, rising to {len(state)}"
    said = [0, *ends.tolist()]
    if odd := [end for end in said if end % 1 != 0]:
        return f"episode_ends holds {odd[0]}, no whole number; {needed}"
    for before, end in pairwise(said):
        if end <= before:
            return f"episode_ends does not rise, from {before} to {end}; {needed}"
    if said[-1] != len(state):
        return f"episode_ends stops at {said[-1]} of {len(state)} rows; {needed}"
    return ""
