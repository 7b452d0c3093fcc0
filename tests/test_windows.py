"""Windows never leave their episode, and an action block is the raw actions between two frames."""

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sdjepa.config import Data
from sdjepa.data.episodes import ActionStats
from sdjepa.data.loader import Loader
from sdjepa.data.windows import windows
from sdjepa.errors import UserError

PAPER = {"frames": 4, "frame_skip": 5}


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    return np.cumsum(lengths) - lengths


@given(st.integers(0, 60))
def test_an_episode_of_length_l_holds_l_minus_19_windows(length: int):
    lengths = np.array([length])
    found = windows(lengths, np.array([0]), episodes=np.array([0]), **PAPER)
    assert len(found) == max(0, length - 19)
    full = windows(lengths, np.array([0]), episodes=np.array([0]), tail="full", **PAPER)
    assert len(full) == max(0, length - 15)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.integers(2, 5),
    st.integers(1, 5),
    st.sampled_from(["ref", "full"]),
)
@settings(max_examples=100, deadline=None)
def test_a_window_never_leaves_its_episode(sizes: list[int], frames: int, skip: int, tail: str):
    lengths = np.array(sizes)
    offsets = offsets_of(lengths)
    chosen = np.arange(0, len(sizes), 2)
    found = windows(lengths, offsets, episodes=chosen, frames=frames, frame_skip=skip, tail=tail)
    last_frame = found.first_row + (frames - 1) * skip
    assert set(found.episode) <= set(chosen)
    assert (found.first_row == offsets[found.episode] + found.start).all()
    assert (found.first_row >= offsets[found.episode]).all()
    assert (last_frame <= found.last_row).all()
    assert (found.last_row == offsets[found.episode] + lengths[found.episode] - 1).all()
    assert len(set(found.first_row.tolist())) == len(found)  # every window once


class Recording:
    """Episodes, two at first, whose pixels and actions say which row they are."""

    path = Path("recording")
    image_size = 2

    def __init__(self, lengths: Sequence[int] = (25, 22)) -> None:
        self.lengths = np.array(lengths)
        self.offsets, self.num_rows = offsets_of(self.lengths), int(self.lengths.sum())

    def episode_ids(self, split: str) -> np.ndarray:
        return np.arange(len(self.lengths))

    def rows(self, episode: int) -> slice:
        start = int(self.offsets[episode])
        return slice(start, start + int(self.lengths[episode]))

    def frames(self, rows: np.ndarray, *, progress: object) -> np.ndarray:
        return np.tile(rows.astype(np.uint8)[:, None, None, None], (1, 2, 2, 3))

    def column(self, name: str) -> np.ndarray:
        rows = np.arange(self.num_rows, dtype=np.float32)
        values = np.stack([rows, -rows], axis=1)
        values[self.offsets + self.lengths - 1] = np.nan
        return values


def loader(batch: int = 4, data: Recording | None = None, **changes: object) -> Loader:
    return Loader(
        data or Recording(),  # type: ignore[arg-type]
        Data.model_validate(changes),
        split="train",
        batch=batch,
        seed=0,
        stats=ActionStats(mean=np.zeros(2), std=np.ones(2)),
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize("tail", ["ref", "full"])
def test_block_i_holds_the_raw_actions_from_frame_i_to_the_next_in_time_major_order(tail: str):
    load = loader(tail=tail)
    seen = 0
    for step in range(load.batches_per_epoch):
        batch = load(step)
        first = batch.frames[:, 0, 0, 0, 0].long()
        rows = batch.frames[:, :, 0, 0, 0].long()
        assert (rows == first[:, None] + 5 * torch.arange(4)).all()
        assert (batch.episode == (first >= 25).long()).all()
        assert (batch.step == rows - torch.where(first >= 25, 25, 0)[:, None]).all()
        for block in range(3):
            raw = first[:, None] + 5 * block + torch.arange(5)
            expected = torch.stack([raw, -raw], dim=-1).flatten(1).float()
            assert torch.equal(batch.actions[:, block], expected)
        assert batch.actions.isfinite().all()
        seen += len(first)
    assert seen == {"ref": 8, "full": 16}[tail]  # 6 + 3 and 10 + 7, less the partial batch


def test_an_epoch_visits_every_window_once_and_the_next_in_another_order():
    load = loader(batch=3)
    epochs = [
        torch.cat([load.window_ids(e * load.batches_per_epoch + i) for i in range(3)]).tolist()
        for e in range(2)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(9))
    assert epochs[0] != epochs[1]
    fresh = loader(batch=3)
    assert fresh.window_ids(4).tolist() == epochs[1][3:6]  # resuming needs the step alone


def test_what_a_loader_needs_grows_with_the_rows_not_with_rows_times_episodes():
    """68 GB for 10,000 episodes, once: every episode's rows were a view of all rows."""
    data = Recording([25] * 1000)
    tracemalloc.start()
    loader(data=data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400 * data.num_rows  # of one table of rows for each episode: 8,000 times


def test_too_few_windows_for_a_batch_is_said_in_one_line():
    with pytest.raises(UserError, match="has 9 train windows, one batch needs 16"):
        loader(batch=16)
