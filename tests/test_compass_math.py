"""The compass's arithmetic: closed forms, invariances, and equality with independent libraries."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.optimize import linear_sum_assignment
from sklearn.feature_selection import mutual_info_regression
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import LeaveOneOut, cross_val_predict

from compass_synthetic import wandering
from sdjepa.compass import association, detection, geometry, nulls, ridge, segmentation
from sdjepa.compass.corruption import band_labels, choose_band, corrupt
from sdjepa.compass.perturb import reverse, splice, teleport, teleport_continue
from sdjepa.compass.place import agreement
from sdjepa.compass.probe import clock_polynomials, progress_target
from sdjepa.compass.ranking import Readings, summarise


@pytest.fixture
def rng():
    return np.random.default_rng(7)


# --- association --------------------------------------------------------------------------------


def test_spearman_equals_scipy_row_by_row_with_ties(rng):
    left, right = rng.integers(0, 5, (6, 30)).astype(float), rng.standard_normal((6, 30))
    expected = [stats.spearmanr(a, b).statistic for a, b in zip(left, right, strict=True)]
    assert_allclose(association.spearman(left, right), expected, atol=1e-12)


def test_ranks_share_ties_in_every_row(rng):
    table = rng.integers(0, 4, (5, 20)).astype(float)
    assert_allclose(association.ranks(table), stats.rankdata(table, axis=-1))


def test_a_constant_series_correlates_with_nothing():
    flat, line = np.full(10, 0.3), np.arange(10.0)
    assert np.isnan(association.spearman(flat, line))
    assert np.isnan(association.circular_linear(line, flat))


def test_partial_spearman_equals_the_correlation_of_rank_residuals(rng):
    time = np.arange(40.0)
    left, right = time + 9 * rng.standard_normal(40), time + 9 * rng.standard_normal(40)
    r = [stats.rankdata(x)[:, None] for x in (left, right, time)]
    rest = [x[:, 0] - LinearRegression().fit(r[2], x[:, 0]).predict(r[2]) for x in r[:2]]
    expected = np.corrcoef(*rest)[0, 1]
    assert_allclose(association.partial_spearman(left, right, time), expected, atol=1e-10)
    assert np.isnan(association.partial_spearman(time, right, time))


def test_circular_linear_correlation_is_the_multiple_correlation(rng):
    angle, series = rng.uniform(-9, 9, 50), rng.standard_normal(50)
    x = np.stack([np.cos(angle), np.sin(angle)], -1)
    expected = np.sqrt(LinearRegression().fit(x, series).score(x, series))
    assert_allclose(association.circular_linear(angle, series), expected, atol=1e-10)
    assert_allclose(association.circular_linear(angle + 2 * np.pi, series), expected, atol=1e-10)


def test_mutual_information_equals_sklearn_and_sees_what_ranks_miss(rng):
    x, y = rng.standard_normal(60), rng.standard_normal(60)
    y = y + x
    ours = association.mutual_information(
        association.distances(x[:, None]), association.distances(y[:, None])
    )
    # sklearn scales its inputs and clips at 0; scaled inputs make the two estimators one.
    x, y = x / x.std(), y / y.std()
    ours = association.mutual_information(
        association.distances(x[:, None]), association.distances(y[:, None])
    )
    theirs = mutual_info_regression(x[:, None], y, n_neighbors=3, random_state=0)[0]
    assert_allclose(ours, theirs, atol=1e-6)
    phase = np.linspace(0, 2 * np.pi, 60)
    height = np.cos(phase)
    assert abs(association.spearman(phase, height)) < 0.05
    assert (
        association.mutual_information(
            association.distances(association.on_circle(phase)),
            association.distances(height[:, None]),
        )
        > 1
    )


def test_resampling_keeps_ends_and_straight_lines():
    line = np.linspace(3, 5, 17)
    assert_allclose(association.resample(line, 40), np.linspace(3, 5, 40), atol=1e-12)


# --- nulls --------------------------------------------------------------------------------------


def test_p_value_counts_the_observation_itself():
    assert nulls.p_value(5.0, np.zeros(99)) == pytest.approx(0.01)
    assert nulls.p_value(0.0, np.zeros(99)) == 1.0
    assert np.isnan(nulls.p_value(float("nan"), np.zeros(9)))


@pytest.mark.parametrize("size", [40, 41])
def test_phase_randomisation_keeps_the_power_spectrum(rng, size):
    series = wandering(rng, size, 1)[:, 0]
    drawn = nulls.phase_randomised(series, 5, rng=rng)
    assert_allclose(np.abs(np.fft.rfft(drawn)), np.abs(np.fft.rfft(series))[None].repeat(5, 0))
    assert np.abs(drawn - series).max(-1).min() > 0.1


def test_random_frames_are_orthonormal_and_uniform(rng):
    frames = nulls.random_frames(6, 2, 4000, rng=rng)
    assert_allclose(
        np.einsum("nik,nil->nkl", frames, frames), np.eye(2)[None].repeat(4000, 0), atol=1e-9
    )
    # Uniform means no preferred direction; a bare QR always points one way.
    assert np.abs(frames.mean(0)).max() < 0.03


def test_swapping_episodes_averages_off_the_diagonal(rng):
    table = np.eye(30) + 0.0
    drawn = nulls.swapped(table, 4000, rng=rng)
    assert_allclose(drawn.mean(), 1 / 30, atol=0.005)


def test_shift_sums_equal_rolling_the_labels(rng):
    values, labels = rng.standard_normal((3, 17)), rng.random(17) < 0.3
    expected = [values[:, np.roll(labels, s)].sum(-1) for s in range(17)]
    assert_allclose(nulls.shift_sums(values, labels), np.array(expected).T, atol=1e-10)


# --- detection (oracles 12 and 13) --------------------------------------------------------------


def test_labels_reach_one_step_around_each_event():
    assert np.flatnonzero(detection.labels_near(np.array([2, 4]), 5, 1)).tolist() == [1, 2, 3, 4]


def test_auroc_equals_sklearn_with_ties_and_negation_mirrors_it(rng):
    scores, labels = rng.integers(0, 6, (4, 80)).astype(float), rng.random(80) < 0.3
    expected = [roc_auc_score(labels, s) for s in scores]
    assert_allclose(detection.auroc(scores, labels), expected, atol=1e-12)
    assert_allclose(detection.auroc(-scores, labels), 1 - np.array(expected), atol=1e-12)
    assert np.isnan(detection.auroc(scores[0], np.zeros(80, bool)))


def test_average_precision_equals_sklearn_with_ties(rng):
    scores, labels = rng.integers(0, 9, 80).astype(float), rng.random(80) < 0.3
    expected = average_precision_score(labels, scores)
    assert detection.average_precision(scores, labels) == pytest.approx(expected)


def test_pair_tables_add_up_to_the_pooled_auroc_of_any_resample(rng):
    scores = [rng.integers(0, 9, n).astype(float) for n in (12, 20, 15)]
    labels = [rng.random(len(s)) < 0.4 for s in scores]
    table = detection.pair_table(scores, labels)
    for picked in ([0, 1, 2], [0, 0, 2], [1, 2, 2]):
        weights = np.bincount(picked, minlength=3)
        pairs = (weights @ [own.sum() for own in labels]) * (
            weights @ [(~own).sum() for own in labels]
        )
        expected = roc_auc_score(
            np.concatenate([labels[i] for i in picked]), np.concatenate([scores[i] for i in picked])
        )
        assert weights @ table @ weights / pairs == pytest.approx(expected)


def test_shift_null_holds_only_values_that_turned_labels_can_give(rng):
    scores, labels = [rng.standard_normal(9)], [np.arange(9) < 3]
    possible = [roc_auc_score(np.roll(labels[0], s), scores[0]) for s in range(9)]
    drawn = detection.shift_null(scores, labels, draws=200, rng=rng)
    assert np.abs(drawn[:, None] - np.array(possible)).min(-1).max() < 1e-9
    assert len(np.unique(drawn.round(9))) == len(np.unique(np.round(possible, 9)))


# --- probes (oracle 15) -------------------------------------------------------------------------


def test_leave_one_out_equals_refitting_ridge_for_every_step(rng):
    x, y = rng.standard_normal((25, 4)), rng.standard_normal(25)
    expected = cross_val_predict(Ridge(alpha=1e-3), x, y, cv=LeaveOneOut())
    assert_allclose(ridge.leave_one_out(x[None], y[None], 1e-3)[0], expected, atol=1e-9)


def test_ridge_prediction_equals_sklearn(rng):
    x, y, new = rng.standard_normal((20, 30)), rng.standard_normal(20), rng.standard_normal((5, 30))
    ours = ridge.fit_predict(x[None], y[None], new[None], alphas=(0.7,), standardise=False)[0]
    assert_allclose(ours, Ridge(alpha=0.7).fit(x, y).predict(new), atol=1e-9)


def test_nested_penalty_is_the_one_with_the_least_leave_one_out_error(rng):
    x, y = rng.standard_normal((20, 12)), rng.standard_normal(20)
    scaled = (x - x.mean(0)) / x.std(0)
    wrong = [
        ((ridge.leave_one_out(scaled[None], y[None], a)[0] - y) ** 2).sum() for a in ridge.ALPHAS
    ]
    best = ridge.ALPHAS[int(np.argmin(wrong))]
    expected = Ridge(alpha=best).fit(scaled, y).predict(scaled[:3])
    assert_allclose(ridge.fit_predict(x[None], y[None], x[None, :3])[0], expected, atol=1e-9)


def test_affine_target_is_read_out_and_shuffled_target_is_not(rng):
    x = rng.standard_normal((200, 40, 3))
    y = x[0] @ [1.0, -2.0, 0.5] + 4
    assert ridge.r2(ridge.leave_one_out(x[:1], y[None]), y)[0] > 0.999
    shuffled = rng.permuted(np.tile(y, (len(x) - 1, 1)), axis=1)
    assert np.mean(ridge.r2(ridge.leave_one_out(x[1:], shuffled), shuffled)) <= 0


def test_a_constant_added_to_features_changes_nothing(rng):
    x, y = rng.standard_normal((2, 30, 3)), rng.standard_normal((2, 30))
    assert_allclose(ridge.leave_one_out(x + 5, y), ridge.leave_one_out(x, y), atol=1e-7)
    folds = ridge.blocked(30)
    assert_allclose(
        ridge.cross_validated_r2(x + 5, y, folds), ridge.cross_validated_r2(x, y, folds), atol=1e-7
    )


@pytest.mark.parametrize("steps", [12, 40, 41])
def test_blocks_cover_every_step_once_and_keep_their_distance(steps):
    folds = ridge.blocked(steps, gap=2)
    assert (np.sum([fold.test for fold in folds], axis=0) == 1).all()
    for fold in folds:
        apart = np.abs(np.flatnonzero(fold.train)[:, None] - np.flatnonzero(fold.test)[None])
        assert apart.min() > 2


def test_forward_folds_never_learn_from_the_future():
    for fold in ridge.forward(40):
        assert np.flatnonzero(fold.train).max() < np.flatnonzero(fold.test).min()


def test_progress_target_runs_from_0_to_1_at_the_nearest_point():
    target = progress_target(np.array([4.0, 3.0, 1.0, 2.0]))
    assert_allclose(target, [0, 1 / 3, 1, 2 / 3])


def test_clock_polynomials_span_every_polynomial_of_their_degree():
    time = np.linspace(0, 1, 30)
    x = clock_polynomials(30, 3)
    y = 1 - 4 * time + 2 * time**3
    assert LinearRegression().fit(x, y).score(x, y) > 1 - 1e-12
    assert LinearRegression().fit(x, time**4).score(x, time**4) < 1 - 1e-6


# --- change points (oracle 14) ------------------------------------------------------------------


def step_signal(at: int, size: int = 37) -> np.ndarray:
    return (np.arange(size) >= at).astype(float)


def test_a_noiseless_step_is_found_exactly_and_on_the_grid_only_nearly():
    assert segmentation.binary(step_signal(18), 1).tolist() == [18]
    assert segmentation.penalised(step_signal(18), 0.5).tolist() == [18]
    assert segmentation.binary(step_signal(18), 1, jump=5).tolist() == [20]


@pytest.mark.parametrize("jump", [1, 5])
def test_binary_segmentation_equals_ruptures(rng, jump):
    ruptures = pytest.importorskip("ruptures")
    for _ in range(20):
        series = rng.standard_normal(39)
        for count in (1, 3, 4):
            theirs = ruptures.Binseg(model="l2", jump=jump).fit(series).predict(n_bkps=count)[:-1]
            assert segmentation.binary(series, count, jump=jump).tolist() == theirs


def test_penalised_segmentation_equals_the_exact_search_of_ruptures(rng):
    ruptures = pytest.importorskip("ruptures")
    counts = set()
    for _ in range(15):
        series = rng.standard_normal((30, 2)) + 3 * step_signal(11, 30)[:, None]
        found = segmentation.penalised(series, 4.0)
        counts.add(len(found))
        if len(found):
            exact = ruptures.Dynp(model="l2", min_size=2, jump=1).fit(series)
            assert exact.predict(n_bkps=len(found))[:-1] == found.tolist()
        pelt = ruptures.Pelt(model="l2", min_size=2, jump=1).fit(series).predict(pen=4.0)[:-1]
        assert pelt == found.tolist()
    assert len(counts) > 1


def test_best_matching_equals_optimal_assignment_and_greedy_never_exceeds_it(rng):
    worse = 0
    for _ in range(200):
        found, truth = (np.sort(rng.choice(30, rng.integers(1, 6), replace=False)) for _ in "ab")
        near = (np.abs(found[:, None] - truth[None]) <= 2).astype(int)
        rows, columns = linear_sum_assignment(-near)
        best = segmentation.match_best(found, truth, 2)
        assert best == near[rows, columns].sum()
        greedy = segmentation.match_published(found, truth, 2)
        assert greedy <= best
        worse += greedy < best
    assert worse  # otherwise the two rules would be one


def test_told_the_number_of_changes_precision_is_recall():
    truth = np.array([5, 12, 20])
    found = segmentation.binary(np.random.default_rng(0).standard_normal(30), 3)
    matched = segmentation.match_published(found, truth, 3)
    assert segmentation.f1(matched, 3, 3) == pytest.approx(matched / 3)


# --- edits (oracle 16) --------------------------------------------------------------------------


def test_splice_and_teleport_continue_are_one_film():
    one, other = splice(30, 40, 12), teleport_continue(30, 40, 12)
    assert (one.source == other.source).all()
    assert (one.row == other.row).all()


def test_after_a_splice_everything_is_the_donors(rng):
    own, donor = rng.standard_normal((30, 4)), rng.standard_normal((25, 4))
    shown = splice(30, 25, 12).take(own, donor)
    assert (shown[12:] == donor[12:]).all()
    assert (shown[:12] == own[:12]).all()
    assert len(shown) == 25


def test_reversing_twice_is_the_identity_and_keeps_every_frame():
    edit = reverse(30, 10, 7)
    assert (edit.row[edit.row] == np.arange(30)).all()
    assert edit.row[10] == 16


def test_a_single_frame_teleport_changes_one_frame(rng):
    own, donor = rng.standard_normal((30, 4)), rng.standard_normal((30, 4))
    changed = (teleport(30, 30, 9).take(own, donor) != own).any(-1)
    assert np.flatnonzero(changed).tolist() == [9]


# --- false actions ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["shuffle", "other_episode", "reverse", "random"])
def test_only_the_band_of_actions_is_replaced(rng, mode):
    actions, other = rng.standard_normal((40, 3)), rng.standard_normal((30, 3))
    band = choose_band(40, rng=rng)
    assert band is not None
    changed = (corrupt(actions, band, mode=mode, other=other, rng=rng) != actions).any(-1)
    assert changed.any()
    assert set(np.flatnonzero(changed)) <= set(range(*band))


def test_corrected_labels_are_the_steps_whose_prediction_read_a_replaced_block():
    band, steps, history = (10, 14), 30, 3
    read = [
        any(band[0] <= b < band[1] for b in range(t - history, t)) for t in range(history, steps)
    ]
    assert band_labels(band, steps, history, corrected=True).tolist() == read
    early = band_labels(band, steps, history, corrected=False)
    assert np.flatnonzero(early).tolist() == [t - history for t in range(10, 14)]


# --- geometry -----------------------------------------------------------------------------------


def test_curvature_of_a_line_a_corner_and_a_reversal():
    path = np.array([[0, 0], [1, 0], [2, 0], [2, 1], [2, 0]], float)
    assert_allclose(geometry.curvature(path), [0, 1, 2], atol=1e-6)


def test_mean_cosine_over_pairs_equals_the_upper_triangle(rng):
    vectors = rng.standard_normal((7, 3))
    table = geometry.cosines(vectors)
    expected = table[np.triu_indices(7, 1)].mean()
    assert geometry.mean_off_diagonal(table) == pytest.approx(expected)


def test_neighbourhoods_tell_separate_episodes_from_mixed_ones(rng):
    episode, step = np.repeat(np.arange(5), 40), np.tile(np.arange(40), 5)
    apart = geometry.neighbourhood(
        rng.standard_normal((200, 3)) + 50 * episode[:, None], episode, step
    )
    mixed = geometry.neighbourhood(rng.standard_normal((200, 3)), episode, step)
    assert apart["purity"] == 1.0
    assert apart["mixing_entropy"] == 0.0
    # Chance is a little under 1/5: the nearest moments of the same episode do not count.
    assert 0.1 < mixed["purity"] < 0.25
    assert mixed["mixing_entropy"] > 0.5


def test_bootstrap_interval_covers_the_mean_at_its_rate(rng):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inside = 0
        for _ in range(200):
            low, high = nulls.bootstrap_mean(rng.standard_normal(40), rng=rng, draws=300)
            inside += low <= 0 <= high
    assert 175 <= inside <= 199


# --- place and ranking --------------------------------------------------------------------------


def test_agreement_is_with_other_episodes_only(rng):
    cell, episode = np.repeat(np.arange(6), 20), np.tile(np.arange(20) // 10, 6)
    by_place = cell * 1.0
    assert_allclose(agreement(by_place[None], cell, episode), 1.0)
    # An angle that every episode makes up for itself agrees with itself, not with others.
    own_way = by_place + np.where(episode == 0, 0.0, np.pi)
    assert_allclose(agreement(own_way[None], cell, episode), -1.0)
    noise = rng.uniform(-np.pi, np.pi, (50, 120))
    assert abs(agreement(noise, cell, episode).mean()) < 0.05


def test_agreement_equals_the_slow_sum(rng):
    cell, episode = rng.integers(0, 4, 60), rng.integers(0, 3, 60)
    angle = rng.uniform(-np.pi, np.pi, 60)
    expected = []
    for i in range(60):
        others = (cell == cell[i]) & (episode != episode[i])
        if others.any():
            mean = np.exp(1j * angle[others]).sum()
            expected.append((np.exp(-1j * angle[i]) * mean / abs(mean)).real)
    assert_allclose(agreement(angle[None], cell, episode)[0], np.mean(expected), atol=1e-9)


def test_ranking_tells_a_wrong_imagination_from_a_poor_cost(rng):
    distance = [rng.uniform(0, 9, 20) for _ in range(8)]
    found = [Readings(imagined=rng.uniform(0, 9, 20), reached=d**2, distance=d) for d in distance]
    results, nulls_ = summarise(found, seed=0)
    assert results["reached_cost_and_distance"]["mean"] == pytest.approx(1)
    assert abs(results["imagined_cost_and_distance"]["mean"]) < 0.3
    assert nulls_["reached_cost_and_distance"]["p"] < 0.01
    perfect, _ = summarise([Readings(d, d, d) for d in distance], seed=0)
    assert perfect["standing_of_favourite"]["mean"] == 0
