"""Windows to batches: frames come from a feed as uint8, order is a function of (seed, epoch).

Batch number `step` is the same whatever was read before, so resuming is one integer. With several
ranks each takes its slice of the same batch. Everything but the streaming of frames that do not
fit happens on the device, without waiting for it.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from sdjepa import ranks
from sdjepa.config import Data
from sdjepa.data.episodes import ActionStats, Episodes, Split
from sdjepa.data.feed import Feed, open_feed, place
from sdjepa.data.patches import Reading
from sdjepa.data.replaying import few, gaps
from sdjepa.data.windows import Windows, rows_needed, windows
from sdjepa.data.writer import rows_in
from sdjepa.errors import UserError
from sdjepa.runs import Progress, silent
from sdjepa.seeds import stream


@dataclass(frozen=True)
class Batch:
    """A batch of windows, on the device."""

    frames: UInt8[Tensor, "batch time *frame"]  # height width 3, or as `patches.pack` left them
    actions: Float[Tensor, "batch time block"]  # normalised; block i leads from frame i to i + 1
    episode: Int[Tensor, "batch"]
    step: Int[Tensor, "batch time"]  # raw step of each frame in its episode


def normalise_actions(
    actions: Float[np.ndarray, "rows action"], stats: ActionStats
) -> Float[np.ndarray, "rows action"]:
    """z-scores as float32; a missing action (the last row of an episode) becomes 0, the mean."""
    scaled = (actions - stats.mean) / np.maximum(stats.std, 1e-8)
    return np.nan_to_num(scaled, nan=0.0).astype(np.float32)


def find_windows(
    data: Episodes, settings: Data, *, split: Split, batch: int
) -> tuple[Windows, int]:
    """The windows of a split, and how many make a batch: fewer than wished in a small validation
    split, which only measures. Refuses what cannot be trained on, before a frame is read."""
    _refuse_gaps(data, split)
    ids, processes = data.episode_ids(split), ranks.world_size()
    found = windows(
        data.lengths,
        data.offsets,
        episodes=ids,
        frames=settings.window_frames,
        frame_skip=settings.frame_skip,
        tail=settings.tail,
    )
    if batch % processes:
        raise UserError(f"train.batch {batch} does not divide over {processes} processes")
    if len(found) < processes:
        rows = rows_needed(
            settings.window_frames, frame_skip=settings.frame_skip, tail=settings.tail
        )
        if "pack" in data.info:
            raise UserError(f"{data.path} is a pack, for scoring; train on what it was made from")
        if not len(ids):
            more = "3 episodes or more" if len(data) < 3 else f"with collect.{split}_share above 0"
            raise UserError(
                f"{data.path} has no {split} episode, of {len(data)} in all; collect {more}"
            )
        longest = int(data.lengths[ids].max(initial=0))
        more = " or more of them" if data.lengths.max() >= rows else ""
        raise UserError(
            f"a {split} window needs {rows} rows, and the longest {split} episode of {data.path} "
            f"has {longest}; collect longer episodes (--steps {rows - 1}){more}"
        )
    if len(found) < batch and split == "train":
        raise UserError(
            f"{data.path} has {len(found)} train windows, one batch needs {batch}; collect more "
            f"episodes or add --set train.batch={len(found) - len(found) % processes}"
        )
    return found, min(batch, len(found) - len(found) % processes)


def _refuse_gaps(data: Episodes, split: Split) -> None:
    bad = gaps(data) & rows_in(data.lengths, data.episode_ids(split))
    if bad.any():
        raise UserError(
            f"{data.path}: the action is missing or infinite in {few(bad)}, and no episode ends "
            "there; correct ep_len if one should, or write what was done there"
        )


@dataclass(frozen=True)
class _Tables:
    """What turns the number of a window into rows, on one device."""

    place: Int[Tensor, "rows"]  # of a row of the dataset among the frames of this split
    first_row: Int[Tensor, "windows"]
    last_row: Int[Tensor, "windows"]
    episode: Int[Tensor, "windows"]
    start: Int[Tensor, "windows"]
    ahead: Int[Tensor, "time"]
    within: Int[Tensor, "actions"]


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
        reading: Reading | None = None,
        feed: Feed | None = None,  # of the same split, from another loader
        progress: Progress = silent,
    ) -> None:
        ids = data.episode_ids(split)
        self.windows, batch = find_windows(data, settings, split=split, batch=batch)
        self.batch, self.seed, self.split, self.device = batch, seed, split, device
        every = np.arange(data.num_rows)
        rows = np.concatenate([every[data.rows(int(i))] for i in ids])
        to_place = torch.full((data.num_rows,), -1, dtype=torch.int64)
        to_place[rows] = torch.arange(len(rows))
        at = {"device": device, "reading": reading}
        where = place(data, len(rows), wish=settings.frames_on, **at)
        self.feed = feed or open_feed(data, rows, where=where, progress=progress, **at)
        actions = normalise_actions(data.column("action")[rows], stats)
        self._actions = torch.from_numpy(actions).to(device)
        # Indices are worked out where frames are gathered: asking the device for them would wait.
        self._tables = {
            at: _Tables(
                place=to_place.to(at),
                first_row=torch.from_numpy(self.windows.first_row).to(at),
                last_row=torch.from_numpy(self.windows.last_row).to(at),
                episode=torch.from_numpy(self.windows.episode).to(at),
                start=torch.from_numpy(self.windows.start).to(at),
                ahead=(torch.arange(settings.window_frames) * settings.frame_skip).to(at),
                within=torch.arange(settings.window_frames * settings.frame_skip).to(at),
            )
            for at in {device, self.feed.gathers_on}
        }
        self._orders: dict[tuple[int, torch.device], Tensor] = {}

    @property
    def batches_per_epoch(self) -> int:
        return len(self.windows) // self.batch

    def window_ids(
        self, step: int, *, device: torch.device | None = None
    ) -> Int[Tensor, "rank_batch"]:
        """This rank's windows of batch `step`; the last partial batch of an epoch is dropped."""
        epoch, position = divmod(step, self.batches_per_epoch)
        at = device or self.device
        if (epoch, at) not in self._orders:
            generator = stream(self.seed, "order", self.split, epoch)
            order = torch.randperm(len(self.windows), generator=generator)
            # A feed that looks ahead asks for the next epoch while this one is still read.
            kept = {key: self._orders[key] for key in self._orders if abs(key[0] - epoch) <= 1}
            self._orders = kept | {(epoch, at): order.to(at)}
        share = self.batch // ranks.world_size()
        low = position * self.batch + ranks.rank() * share
        return self._orders[epoch, at][low : low + share]

    def _places(self, step: int) -> Int[Tensor, "batch time"]:
        at = self.feed.gathers_on
        t = self._tables[at]
        return t.place[t.first_row[self.window_ids(step, device=at), None] + t.ahead]

    def __call__(self, step: int) -> Batch:
        """Batch number `step` of this rank."""
        ids, t = self.window_ids(step), self._tables[self.device]
        # Past the episode's end (only in the unused last block) read its last row: no action.
        action_rows = (t.first_row[ids, None] + t.within).minimum(t.last_row[ids, None])
        return Batch(
            frames=self.feed(step, self._places),
            actions=self._actions[t.place[action_rows]].view(len(ids), self.windows.frames, -1),
            episode=t.episode[ids],
            step=t.start[ids, None] + t.ahead,
        )
