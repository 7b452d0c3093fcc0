"""Windows to batches: frames live on the device as uint8, order is a function of (seed, epoch).

Batch number `step` is the same whatever was read before, so resuming is one integer. With several
ranks each takes its slice of the same batch.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from sdjepa import ranks
from sdjepa.config import Data
from sdjepa.data.episodes import ActionStats, Episodes, Split
from sdjepa.data.windows import Windows, windows
from sdjepa.errors import UserError
from sdjepa.runs import Progress, silent
from sdjepa.seeds import stream


@dataclass(frozen=True)
class Batch:
    """A batch of windows, on the device."""

    frames: UInt8[Tensor, "batch time height width 3"]
    actions: Float[Tensor, "batch time block"]  # normalised; block i leads from frame i to i + 1
    episode: Int[Tensor, "batch"]
    step: Int[Tensor, "batch time"]  # raw step of each frame in its episode


def normalise_actions(
    actions: Float[np.ndarray, "rows action"], stats: ActionStats
) -> Float[np.ndarray, "rows action"]:
    """z-scores as float32; a missing action (the last row of an episode) becomes 0, the mean."""
    scaled = (actions - stats.mean) / np.maximum(stats.std, 1e-8)
    return np.nan_to_num(scaled, nan=0.0).astype(np.float32)


class Loader:
    """Batches of the windows of one split."""

    def __init__(
        self,
        data: Episodes,
        settings: Data,
        *,
        split: Split,
        batch: int,
        seed: int,
        stats: ActionStats,
        device: torch.device,
        progress: Progress = silent,
    ) -> None:
        ids = data.episode_ids(split)
        self.windows: Windows = windows(
            data.lengths,
            data.offsets,
            episodes=ids,
            frames=settings.window_frames,
            frame_skip=settings.frame_skip,
            tail=settings.tail,
        )
        if batch % ranks.world_size():
            raise UserError(
                f"train.batch {batch} does not divide over {ranks.world_size()} processes"
            )
        if len(self.windows) < batch:
            raise UserError(
                f"{data.path} has {len(self.windows)} {split} windows, one batch needs {batch}; "
                "collect more episodes or lower train.batch"
            )
        self.batch, self.seed, self.split, self.device = batch, seed, split, device
        rows = np.concatenate([np.arange(data.num_rows)[data.rows(int(i))] for i in ids])
        self._place = torch.full((data.num_rows,), -1, dtype=torch.int64)
        self._place[rows] = torch.arange(len(rows))
        self._place = self._place.to(device)
        self._frames = torch.from_numpy(data.frames(rows, progress=progress)).to(device)
        actions = normalise_actions(data.column("action")[rows], stats)
        self._actions = torch.from_numpy(actions).to(device)
        self._first_row = torch.from_numpy(self.windows.first_row).to(device)
        self._last_row = torch.from_numpy(self.windows.last_row).to(device)
        self._episode = torch.from_numpy(self.windows.episode).to(device)
        self._start = torch.from_numpy(self.windows.start).to(device)
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    @property
    def batches_per_epoch(self) -> int:
        return len(self.windows) // self.batch

    def window_ids(self, step: int) -> Int[Tensor, "rank_batch"]:
        """This rank's windows of batch `step`; the last partial batch of an epoch is dropped."""
        epoch, position = divmod(step, self.batches_per_epoch)
        if self._order[0] != epoch:
            generator = stream(self.seed, "order", self.split, epoch)
            self._order = (epoch, torch.randperm(len(self.windows), generator=generator))
        share = self.batch // ranks.world_size()
        low = position * self.batch + ranks.rank() * share
        return self._order[1][low : low + share].to(self.device)

    def __call__(self, step: int) -> Batch:
        """Batch number `step` of this rank."""
        ids = self.window_ids(step)
        frames, skip = self.windows.frames, self.windows.frame_skip
        first, last = self._first_row[ids, None], self._last_row[ids, None]
        ahead = torch.arange(frames, device=self.device) * skip
        frame_rows = first + ahead
        # Past the episode's end (only in the unused last block) read its last row: no action.
        action_rows = (first + torch.arange(frames * skip, device=self.device)).minimum(last)
        return Batch(
            frames=self._frames[self._place[frame_rows]],
            actions=self._actions[self._place[action_rows]].view(len(ids), frames, -1),
            episode=self._episode[ids],
            step=self._start[ids, None] + ahead,
        )
