"""How far the cost sees: known curves give known reaches, and nothing is ordered by chance."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sdjepa.compass.result import Diagnosis, rounded
from sdjepa.compass.sight import BINS, reach, sight
from sdjepa.compass.trace import EpisodeTrace, Trace
from sdjepa.report import latent_panels

ROOM, SCALE, SKIP, STEPS, WIDTH, K = 200.0, 12.0, 5, 20, 256, 2
FEW = {"pairs": 12_000, "draws": 49, "swaps": 99}


def features(seed: int):
    """Fourier features of a place: their squared distance is 2 - 2 exp(-d^2 / 2 SCALE^2)."""
    rng = np.random.default_rng([7, seed])
    wave = rng.standard_normal((2, WIDTH)) / SCALE
    shift = rng.uniform(0, 2 * np.pi, WIDTH)
    return lambda place: np.sqrt(2 / WIDTH) * np.cos(place @ wave + shift)


def walk(index: int, place: np.ndarray, latents: np.ndarray) -> EpisodeTrace:
    """One episode whose frames between steps are unknown, so that using one would show."""
    rows = len(place) * SKIP
    seen, path = np.full((rows, latents.shape[1]), np.nan), np.full((rows, 2), np.nan)
    seen[::SKIP], path[::SKIP] = latents, place
    return EpisodeTrace(
        index=index, latents=seen, actions=np.zeros((len(place), 2)), predicted=latents[3:],
        rollouts=latents[1:, None], measures={}, events={}, path=path, k=K, frame_skip=SKIP,
    )  # fmt: skip


def planted(seed: int, *, episodes: int = 40) -> Trace:
    """Progress is the place turned and scaled, content its Fourier features."""
    rng = np.random.default_rng([8, seed])
    content, turn = features(seed), np.array([[0.6, -0.8], [0.8, 0.6]]) * 0.02
    made = []
    for index in range(episodes):
        start, end = rng.uniform(0, ROOM, (2, 1, 2))
        place = start + np.linspace(0, 1, STEPS)[:, None] * (end - start)
        place += rng.normal(0, 4, place.shape)
        made.append(walk(index, place, np.concatenate([place @ turn, content(place)], 1)))
    return Trace("made", K, False, SKIP, 3, tuple(made))


def remade(trace: Trace, change) -> Trace:
    """The trace with every episode's latents changed."""
    return replace(
        trace, episodes=tuple(replace(e, latents=change(e.latents)) for e in trace.episodes)
    )


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    return sight(planted(0), seed=0, **FEW)


def test_a_reach_lies_where_the_line_between_two_bins_crosses():
    x = np.arange(1.0, BINS + 1)
    height = np.minimum(x / 4, 1.0) * 7  # 90 % of 7 between the third and the fourth bin
    assert reach(x, height) == pytest.approx(3.6)
    height[2] = np.nan
    assert reach(x, height) == pytest.approx(3.6)
    assert reach(x, np.ones(BINS)) == pytest.approx(0.9)  # flat: within the first bin
    assert np.isnan(reach(x, np.zeros(BINS)))


def test_saturating_content_stops_where_its_kernel_does(found):
    known = SCALE * np.sqrt(2 * np.log(10))
    assert found.results["content"]["reach"] == pytest.approx(known, rel=0.1)
    assert found.results["content"]["plateau"] == pytest.approx(2, rel=0.05)
    low, high = found.results["content"]["reach_ci95"]
    assert low < found.results["content"]["reach"] < high < 0.5 * found.results["truth"]["reach"]


def test_a_turned_and_scaled_place_sees_as_far_as_the_truth(found):
    own, truth = found.results["progress"], found.results["truth"]
    assert_allclose(own["mean"], truth["mean"], rtol=1e-6)
    assert own["share_of_truth"] == pytest.approx(1)
    assert own["rho_beyond"] == pytest.approx(1)
    assert own["effective_rank"] == pytest.approx(2, abs=0.05)
    assert found.nulls["swapped_paths"]["progress"]["p"] == 0.01
    assert abs(found.results["content"]["rho_beyond"]) < 0.2


def test_reach_is_counted_in_moves_of_one_block(found):
    moves = [np.diff(e.path[e.step_rows], axis=0) for e in planted(0).episodes]
    block = np.median(np.linalg.norm(np.concatenate(moves), axis=-1))
    own = found.results["content"]
    assert own["blocks"] == pytest.approx(own["reach"] / block)


def test_latents_of_other_places_have_no_order():
    trace = planted(1)
    order = np.random.default_rng(0).permutation(len(trace.episodes))
    made = [
        replace(e, latents=trace.episodes[j].latents)
        for e, j in zip(trace.episodes, order, strict=True)
    ]
    lost = sight(replace(trace, episodes=tuple(made)), seed=0, **FEW)
    assert abs(lost.results["progress"]["rho_beyond"]) < 0.2
    assert lost.nulls["swapped_paths"]["progress"]["p"] > 0.01
    assert "progress does not order pairs" in lost.verdict


def settled(seed: int) -> Trace:
    """Episodes that stay near a place of their own, with latents near an unrelated point."""
    rng = np.random.default_rng([9, seed])
    made = []
    for index in range(8):
        centre = rng.standard_normal(2 + 6)
        near = centre + 0.3 * rng.standard_normal((10, 8))
        made.append(walk(index, near[:, :2], near[:, 2:]))
    return Trace("made", K, False, SKIP, 3, tuple(made))


def test_unrelated_episodes_are_called_ordered_at_most_one_time_in_twenty():
    """Frames of one episode are no independent points: permuting those would claim far too much."""
    small = {"pairs": 800, "draws": 2, "swaps": 99}
    p = [
        sight(settled(seed), seed=seed, **small).nulls["swapped_paths"]["progress"]["p"]
        for seed in range(40)
    ]
    assert sum(one <= 0.01 for one in p) <= 2
    assert sum(one <= 0.5 for one in p) >= 10  # nor is it a test that never says anything


def test_the_unit_of_a_part_changes_nothing(found):
    def tripled(latents: np.ndarray) -> np.ndarray:
        return np.concatenate([3 * latents[:, :K], latents[:, K:] / 3 + 5], axis=1)

    other = sight(remade(planted(0), tripled), seed=0, **FEW)
    for part in ("content", "progress"):
        for name in ("mean", "band", "reach", "reach_ci95", "rho_beyond", "effective_rank"):
            expected = found.results[part][name]
            assert_allclose(other.results[part][name], expected, rtol=1e-5, atol=1e-9)
    assert other.results["content"]["plateau"] == pytest.approx(
        found.results["content"]["plateau"] / 9
    )


def test_the_seed_alone_decides(found):
    again, other = (sight(planted(0), seed=seed, **FEW) for seed in (0, 1))
    assert rounded(again.results) == rounded(found.results)
    assert again.nulls == found.nulls
    assert rounded(other.results) != rounded(found.results)
    assert other.results["content"]["reach"] == pytest.approx(
        found.results["content"]["reach"], rel=0.1
    )


def test_a_scene_in_which_nothing_moves_is_not_tested():
    trace = planted(0, episodes=4)
    still = [replace(e, path=np.ones_like(e.path)) for e in trace.episodes]
    lost = sight(replace(trace, episodes=tuple(still)), seed=0, **FEW)
    assert lost.status == "not tested"
    assert list(latent_panels.sight({"results": lost.results})) == []


def test_a_stand_in_is_called_one():
    found = sight(replace(planted(0, episodes=6), stand_in=True), seed=0, **FEW)
    assert "the first 2 coordinates, which stand in for progress" in found.verdict


def test_the_figure_marks_each_reach_and_adds_the_baseline(found):
    record = {"results": rounded(found.results)}
    (alone,) = latent_panels.sight(record)
    (beside,) = latent_panels.sight(record | {"against": {"run": "a0", **record}})
    (axes,) = alone.draw().axes
    at = found.results["content"]["reach"]
    assert f"content {at:.3g}" in " ".join(text.get_text() for text in axes.texts)
    (more,) = beside.draw().axes
    assert len(more.lines) == len(axes.lines) + 1
    assert "baseline" in beside.caption
    assert "baseline" not in alone.caption
