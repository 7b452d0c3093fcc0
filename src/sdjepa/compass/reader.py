"""A checkpoint read as numpy: frames to latents, latents and actions to what the model foresees.

Latents leave and enter in the basis of the split, progress first, whatever rotation the model uses
inside. `Dynamics` is all a diagnostic may ask of a model, so a synthetic one can stand in for it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy import ndarray

from sdjepa.model.split import Parts
from sdjepa.model.world_model import WorldModel
from sdjepa.runs import Progress, silent

HORIZON = 10  # blocks a rollout is followed


class Dynamics(Protocol):
    """The two calls a diagnostic may make of a model; latents in the basis of the split."""

    def following(
        self,
        latents: Float[ndarray, "batch time latent"],
        actions: Float[ndarray, "batch time block"],
    ) -> Float[ndarray, "batch latent"]:
        """The latent after the last action."""
        ...

    def rollout(
        self, start: Float[ndarray, "batch latent"], actions: Float[ndarray, "batch horizon block"]
    ) -> Float[ndarray, "batch horizon latent"]:
        """The latents along `actions` from one observed latent."""
        ...


class Reader:
    """A checkpoint read as numpy: encode, predict, roll out, in the basis of the split."""

    def __init__(self, model: WorldModel, *, batch: int = 256) -> None:
        self.model = model.eval()
        self.batch = batch
        self.device = next(model.parameters()).device

    @torch.inference_mode()
    def encode(
        self, frames: UInt8[ndarray, "count height width 3"]
    ) -> Float[ndarray, "count latent"]:
        """Latents of single frames."""
        tensor = torch.from_numpy(np.ascontiguousarray(frames)).to(self.device)
        return self._out(self.model.encode(tensor[:, None])[:, 0])

    @torch.inference_mode()
    def following(
        self,
        latents: Float[ndarray, "batch time latent"],
        actions: Float[ndarray, "batch time block"],
    ) -> Float[ndarray, "batch latent"]:
        """The latent after the last action."""
        found = [
            self._out(self.model.predict(self._in(z), self._tensor(a))[:, -1])
            for z, a in self._chunks(latents, actions)
        ]
        return np.concatenate(found) if found else np.zeros((0, latents.shape[-1]), np.float32)

    @torch.inference_mode()
    def rollout(
        self, start: Float[ndarray, "batch latent"], actions: Float[ndarray, "batch horizon block"]
    ) -> Float[ndarray, "batch horizon latent"]:
        """The latents along `actions` from one observed latent."""
        found = []
        for z, a in self._chunks(start, actions):
            blocks = self._tensor(a)
            found.append(self._out(self.model.rollout(self._in(z)[:, None], blocks[:, :0], blocks)))
        return np.concatenate(found)

    def _chunks(self, left: ndarray, right: ndarray) -> list[tuple[ndarray, ndarray]]:
        size = self.batch * 4  # a predictor call is far lighter than encoding as many frames
        return [(left[i : i + size], right[i : i + size]) for i in range(0, len(left), size)]

    def _tensor(self, array: ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).to(self.device)

    def _in(self, latents: ndarray) -> torch.Tensor:
        tensor, k = self._tensor(latents), self.model.config.k
        return self.model.split.merge(Parts(progress=tensor[..., :k], content=tensor[..., k:]))

    def _out(self, latents: torch.Tensor) -> ndarray:
        parts = self.model.split(latents.float())
        return torch.cat([parts.progress, parts.content], dim=-1).cpu().numpy()


def num_steps(num_rows: int, frame_skip: int) -> int:
    """Steps of an episode: every `frame_skip`-th row that still has a whole action block."""
    return num_rows // frame_skip


def action_blocks(
    actions: Float[ndarray, "rows action"],
    *,
    frame_skip: int,
    mean: Float[ndarray, "action"],
    std: Float[ndarray, "action"],
) -> Float[ndarray, "steps block"]:
    """Normalised blocks, time-major; a missing action (the last row's) is the mean action."""
    count = num_steps(len(actions), frame_skip)
    normalised = (actions[: count * frame_skip] - mean) / std
    return np.nan_to_num(normalised.reshape(count, -1), nan=0.0).astype(np.float32)


def encode_rows(
    read: Callable[[Int[ndarray, "count"]], UInt8[ndarray, "count height width 3"]],
    rows: Sequence[slice],
    *,
    encode: Callable[[ndarray], ndarray],
    batch: int,
    progress: Progress = silent,
) -> list[Float[ndarray, "rows latent"]]:
    """Latents of each slice of rows, in full batches across slices.

    The next frames are read while the model is at work.
    """
    wanted = np.concatenate([np.arange(own.start, own.stop) for own in rows])
    pieces = [wanted[low : low + batch] for low in range(0, len(wanted), batch)]
    found: list[ndarray] = []
    with ThreadPoolExecutor(max_workers=1) as pool:
        coming = pool.submit(read, pieces[0])
        for number in range(len(pieces)):
            frames = coming.result()
            if number + 1 < len(pieces):
                coming = pool.submit(read, pieces[number + 1])
            found.append(encode(frames))
            progress(number + 1, len(pieces), "batches, encoding")
    cuts = np.cumsum([own.stop - own.start for own in rows])[:-1]
    return np.split(np.concatenate(found), cuts)


def foresee(
    dynamics: Dynamics,
    latents: Sequence[Float[ndarray, "steps latent"]],
    actions: Sequence[Float[ndarray, "steps block"]],
    *,
    history: int,
    horizon: int = HORIZON,
) -> list[tuple[ndarray, ndarray]]:
    """Teacher-forced predictions and rollouts of each episode, all episodes in one batch."""
    windows_z, windows_a, starts, plans = [], [], [], []
    for z, a in zip(latents, actions, strict=True):
        # A prediction of step t reads steps t - history .. t - 1.
        index = np.arange(len(z) - history)[:, None] + np.arange(history)
        windows_z.append(z[index])
        windows_a.append(a[index])
        starts.append(z[:-1])
        padded = np.concatenate([a[:-1], np.zeros((horizon, a.shape[1]), a.dtype)])
        plans.append(padded[np.arange(len(z) - 1)[:, None] + np.arange(horizon)])
    predicted = dynamics.following(np.concatenate(windows_z), np.concatenate(windows_a))
    rolled = dynamics.rollout(np.concatenate(starts), np.concatenate(plans))
    found, low, start = [], 0, 0
    for z in latents:
        count = len(z) - 1
        path = rolled[start : start + count].copy()
        past_end = np.arange(count)[:, None] + np.arange(1, horizon + 1) > count
        path[past_end] = np.nan
        found.append((predicted[low : low + len(z) - history], path))
        low, start = low + len(z) - history, start + count
    return found
