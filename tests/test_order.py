"""Order accuracy: 1 for a clock, chance for noise, and honest about the sense it may choose."""

import numpy as np
import pytest

from sdjepa.compass.order import (
    best_sense,
    common_sense,
    linear_scores,
    order_accuracy,
    pair_accuracy,
)
from sdjepa.errors import UserError
from sdjepa.seeds import numpy_stream

GAPS = np.arange(1, 6)


def episodes(
    count: int = 12, *, time: int = 30, width: int = 10, turn: float = 0.0, sense: str = "same"
) -> list[np.ndarray]:
    """Noise in every coordinate; the first two turn by `turn` radians a step."""
    made = []
    for number in range(count):
        rng = numpy_stream(number, "order")
        z = rng.standard_normal((time, width))
        if turn:
            sign = -1 if sense == "mixed" and number % 2 else 1
            theta = sign * turn * np.arange(time) + rng.uniform(0, 2 * np.pi)
            z[:, :2] = np.stack([np.cos(theta), np.sin(theta)], axis=1)
        made.append(z)
    return made


def test_pairs_are_counted_by_hand():
    scores = np.array([0.0, 1.0, 1.0, -1.0])
    found = pair_accuracy(scores, np.array([1, 2, 3]))
    assert found.tolist() == pytest.approx([1.5 / 3, 0.5, 0.0])  # up tie down; up down; down
    assert pair_accuracy(-scores, np.array([1, 2, 3])).tolist() == pytest.approx([0.5, 0.5, 1.0])


def test_reversing_time_turns_accuracy_around_and_a_common_shift_does_nothing():
    scores = numpy_stream(0, "s").standard_normal(40)
    found = pair_accuracy(scores, GAPS)
    assert pair_accuracy(scores[::-1], GAPS) == pytest.approx(1 - found)
    assert pair_accuracy(7 + 3 * scores, GAPS) == pytest.approx(found)


def test_the_best_sense_is_one_choice_for_an_episode():
    accuracy = np.array([[0.9, 0.4], [0.2, 0.6]])
    assert best_sense(accuracy).tolist() == pytest.approx(np.array([[0.9, 0.4], [0.8, 0.4]]))


def test_the_common_sense_never_asks_the_episode_it_judges():
    odd = np.array([[0.1], [0.9], [0.9], [0.9]])
    for turned in (odd, 1 - odd):  # the sense itself is nobody's business
        assert common_sense(turned)[:, 0].tolist() == pytest.approx([0.1, 0.9, 0.9, 0.9])
    divided = np.array([[0.9], [0.8], [0.2]])  # the first one's others cancel
    assert common_sense(divided)[0, 0] == pytest.approx(0.5)
    two = np.array([[0.1], [0.9]])  # each is judged by the other alone: both are wrong
    assert common_sense(two)[:, 0].tolist() == pytest.approx([0.1, 0.1])


def test_a_turning_needle_orders_everything_and_beats_both_nulls():
    found = order_accuracy(episodes(turn=0.2), k=2, rng=numpy_stream(0, "n"), max_gap=5)
    assert found.theta_best_sense.min() == 1
    assert found.theta_common_sense.min() == 1
    for record in found.as_json(rng=numpy_stream(0, "b")):
        assert record["against_phase_randomised"]["p"] < 0.01
        assert record["against_random_planes"]["p"] < 0.01


def test_needles_that_turn_either_way_order_in_their_own_sense_only():
    found = order_accuracy(
        episodes(turn=0.2, sense="mixed"), k=2, rng=numpy_stream(0, "n"), max_gap=5, draws=19
    )
    assert found.theta_best_sense.min() == 1
    assert found.theta_common_sense.mean() < 0.5  # even numbers: the others always outvote


def test_noise_is_at_chance_and_the_best_sense_flatters_it_as_it_flatters_its_null():
    found = order_accuracy(episodes(60), k=2, rng=numpy_stream(0, "n"), max_gap=5)
    assert abs(found.theta_common_sense.mean() - 0.5) < 0.05
    assert abs(found.linear.mean() - 0.5) < 0.03
    assert found.theta_best_sense.mean() > 0.55  # not evidence of anything:
    assert abs(found.theta_best_sense.mean() - found.plane_null.mean()) < 0.05
    assert abs(found.theta_best_sense.mean() - found.phase_null.mean()) < 0.15


def test_a_linear_clock_is_found_from_other_episodes():
    made = episodes()
    for number, z in enumerate(made):
        z[:, 3] = 0.3 * z[:, 3] + 0.1 * np.arange(len(z)) + 100 * number  # its own offset
    found = order_accuracy(made, k=4, rng=numpy_stream(0, "n"), max_gap=5, draws=50)
    assert found.linear.mean() > 0.65
    assert found.linear[:, 4].mean() > found.linear[:, 0].mean()
    for record in found.as_json(rng=numpy_stream(0, "b")):
        assert record["linear_ci95"][0] < record["linear"] < record["linear_ci95"][1]
    blind = order_accuracy(made, k=2, rng=numpy_stream(0, "n"), max_gap=5, draws=19)
    assert abs(blind.linear.mean() - 0.5) < 0.06


def test_the_linear_direction_does_not_see_the_episode_it_orders():
    made = [z[:, :3] for z in episodes(4)]
    before = linear_scores(made)[0]
    changed = [made[0], *made[1:]]
    changed[0] = made[0][::-1]
    assert linear_scores(changed)[0][::-1] == pytest.approx(before)


def test_too_little_to_judge_is_said():
    with pytest.raises(UserError, match="1 episodes are longer than 8 steps and k is 2"):
        order_accuracy(episodes(1), k=2, rng=numpy_stream(0, "n"))
    with pytest.raises(UserError, match="k is 0"):
        order_accuracy(episodes(3), k=0, rng=numpy_stream(0, "n"))
