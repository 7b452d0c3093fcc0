"""What a latent notices: closed forms, on scenes whose picture is their state."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from compass_synthetic import unrelated
from sdjepa.compass.notice import notice, shares
from sdjepa.envs import base
from sdjepa.envs.pusht import PushT

EPISODES, ROWS = 6, 60


@dataclass
class Recorded:
    """States of Push-T, in place of a dataset."""

    state: np.ndarray
    env: str = "pusht"
    image_size: int = 8

    def rows(self, episode: int) -> slice:
        return slice(episode * ROWS, (episode + 1) * ROWS)

    def row(self, index: int) -> dict[str, np.ndarray]:
        return {"state": self.state[index]}


class Sees:
    """Reads some of the numbers that are written into a picture."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = numbers

    def encode(self, frames: np.ndarray) -> np.ndarray:
        return frames[:, 0, [0, 0, *self._numbers], 0]  # two of progress come first


@pytest.fixture
def scenes(monkeypatch):
    rng = np.random.default_rng(0)
    state = np.zeros((EPISODES * ROWS, 7))
    state[:, :4] = rng.uniform(150, 350, (len(state), 4))

    def written(self, size):
        seen = self.observe()["state"]
        frame = np.zeros((size, size, 3), dtype=np.uint8)
        frame[0, :5, 0] = np.round(seen[:5] / 2)
        return frame

    monkeypatch.setattr(PushT, "render", written)
    trace: Any = replace(unrelated(0, episodes=EPISODES, rows=ROWS), env="pusht", k=2)
    return trace, Recorded(state)


def test_a_latent_that_reads_one_thing_notices_that_and_nothing_else(scenes):
    trace, recorded = scenes
    for reader, other, thing in ((Sees(0, 1), "block", "agent"), (Sees(2, 3), "agent", "block")):
        found = notice(trace, reader, recorded, seed=0, pairs=12)  # type: ignore[arg-type]
        assert found.status == "shown"
        assert found.results["content"][other] == {"share": 0.0, "ci95": [0.0, 0.0]}
        assert found.results["content"][thing]["share"] == 1.0
        assert f"the {other} alone moves content by 0.0 % [0.0, 0.0]" in found.verdict


def test_shares_of_things_that_are_read_apart_add_up(scenes):
    trace, recorded = scenes
    found = notice(trace, Sees(0, 1, 2, 3), recorded, seed=0, pairs=12)  # type: ignore[arg-type]
    for what in ("content", "pixels"):
        parts = [found.results[what][thing]["share"] for thing in ("agent", "block")]
        assert sum(parts) == pytest.approx(1)
        assert min(parts) > 0.2
    assert found.results["progress"]["agent"]["share"] == 1


def test_an_interval_holds_the_share_and_shrinks_to_it_where_pairs_agree():
    rng = np.random.default_rng(0)
    whole, drawn = rng.uniform(1, 2, 40), rng.integers(40, size=(500, 40))
    assert shares(0.25 * whole, whole, drawn)["ci95"] == pytest.approx([0.25, 0.25])
    low, high = shares(whole * rng.uniform(0, 1, 40), whole, drawn)["ci95"]
    assert 0.3 < low < 0.5 < high < 0.7


def test_where_one_thing_moves_there_is_nothing_to_compare(scenes):
    trace, recorded = scenes
    alone = replace(recorded, env="tworoom")
    assert notice(trace, Sees(0), alone, seed=0).status == "not tested"  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["pusht", "cube"])
def test_an_exchanged_part_is_there_and_all_else_is_here(name):
    env = base.make(name)
    rows = []
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        env.reset(rng)
        policy = env.policy("random", noise=1.0, rng=rng)
        for _ in range(3):
            env.step(policy())
        rows.append(env.observe())
    here, there = rows
    column, _ = env.signature
    assert len(env.parts) > 1
    for part, where in env.parts.items():
        env.set_state(env.exchange(here, there, part))
        seen, right = env.observe()[column], np.array(here[column])
        right[where] = there[column][where]
        assert not np.allclose(here[column][where], there[column][where])
        np.testing.assert_allclose(seen[: where.stop], right[: where.stop], atol=1e-6)
