"""The metrics against hand-computed cases, against scipy, at the edges, and as properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial.distance import jensenshannon

from clpu import metrics

LN2 = math.log(2)
LOGITS = hnp.arrays(np.float64, (2, 4, 3), elements=st.floats(-60, 60))


def log_softmax(z):
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def random_runs(seed, runs=4, images=300, classes=10, scale=3.0):
    return log_softmax(np.random.default_rng(seed).normal(scale=scale, size=(runs, images, classes)))


# Three tasks; 0 is learned, 1 is learned, 1 is forgotten, 2 is learned. One seed a column.
ACCURACY = np.array(
    [
        [[0.9, 0.8], [0.1, 0.1], [0.1, 0.1]],
        [[0.8, 0.8], [0.7, 0.9], [0.1, 0.2]],
        [[0.6, 0.4], [0.2, 0.1], [0.3, 0.2]],
        [[0.5, 0.6], [0.1, 0.1], [0.9, 0.7]],
    ]
)
ALIVE = [[0], [0, 1], [0], [0, 2]]


class TestLearning:
    def test_accuracy_averages_over_every_request_and_active_task(self):
        acc, _ = metrics.accuracy_and_forgetting(ACCURACY, ALIVE)
        assert acc == pytest.approx([(0.9 + 0.8 + 0.7 + 0.6 + 0.5 + 0.9) / 6, (0.8 + 0.8 + 0.9 + 0.4 + 0.6 + 0.7) / 6])

    def test_forgetting_is_the_drop_since_the_task_was_learned(self):
        _, fm = metrics.accuracy_and_forgetting(ACCURACY, ALIVE)
        assert fm == pytest.approx([(0 + 0.1 + 0 + 0.3 + 0.4 + 0) / 6, (0 + 0 + 0 + 0.4 + 0.2 + 0) / 6])

    def test_a_task_learned_again_is_measured_from_when_it_was_learned_last(self):
        accuracy = [[[0.9]], [[0.1]], [[0.5]], [[0.4]]]
        _, fm = metrics.accuracy_and_forgetting(accuracy, alive=[[0], [], [0], [0]])
        assert fm == pytest.approx([(0 + 0 + 0.1) / 3])

    def test_no_active_task_gives_nan(self):
        acc, fm = metrics.accuracy_and_forgetting(ACCURACY[:1], alive=[[]])
        assert np.isnan(acc).all()
        assert np.isnan(fm).all()

    def test_backward_transfer_leaves_out_the_task_just_learned(self):
        assert metrics.backward_transfer(ACCURACY, ALIVE) == pytest.approx([0.5 - 0.9, 0.6 - 0.8])

    def test_forward_transfer_compares_with_learning_alone_from_the_second_task_on(self):
        expected = [((0.7 - 0.8) + (0.9 - 0.6)) / 2, ((0.9 - 0.8) + (0.7 - 0.6)) / 2]
        assert metrics.forward_transfer(ACCURACY, ALIVE, alone=[0.0, 0.8, 0.6]) == pytest.approx(expected)

    def test_transfer_needs_a_second_task(self):
        assert np.isnan(metrics.backward_transfer(ACCURACY[:1], [[0]])).all()
        assert np.isnan(metrics.forward_transfer(ACCURACY[:1], [[0]], [0.5] * 3)).all()

    def test_forgotten_accuracy_is_measured_right_after_the_forget_request(self):
        assert metrics.forgotten_accuracy(ACCURACY, [(2, 1)]) == pytest.approx(np.array([[0.2, 0.1]]))
        assert metrics.forgotten_accuracy(ACCURACY, []).shape == (0, 2)

    def test_an_array_without_a_seed_axis_is_refused(self):
        with pytest.raises(ValueError, match=r"accuracy\[request, task, seed\].*\(4, 3\)"):
            metrics.accuracy_and_forgetting(ACCURACY[:, :, 0], ALIVE)

    @given(st.permutations(range(2)))
    def test_seeds_do_not_influence_each_other(self, order):
        acc, fm = metrics.accuracy_and_forgetting(ACCURACY, ALIVE)
        acc2, fm2 = metrics.accuracy_and_forgetting(ACCURACY[:, :, order], ALIVE)
        assert acc2.tolist() == acc[order].tolist()
        assert fm2.tolist() == fm[order].tolist()


class TestDivergence:
    def test_agrees_with_scipy(self):
        p, q = random_runs(0, 1)[0], random_runs(1, 1)[0]
        expected = np.mean(jensenshannon(np.exp(p), np.exp(q), axis=1) ** 2)
        assert metrics.jsd(p, q) == pytest.approx(expected, rel=1e-12)

    def test_by_hand(self):
        # p = (1, 0), q = (1/2, 1/2), m = (3/4, 1/4)
        expected = 0.5 * math.log(4 / 3) + 0.5 * (0.5 * math.log(2 / 3) + 0.5 * math.log(2))
        assert metrics.jsd([[0, -math.inf]], np.log([[0.5, 0.5]])) == pytest.approx(expected, rel=1e-14)

    @pytest.mark.parametrize("low", [-1e10, -math.inf, -800.0, -745.0, -1e300])
    def test_saturated_outputs_stay_finite(self, low):
        p, q = [[0.0, low, low]], [[low, 0.0, low]]
        assert metrics.jsd(p, q) == pytest.approx(LN2)
        assert metrics.jsd(p, p) == 0

    def test_logits_and_log_probabilities_give_the_same(self):
        logits = np.random.default_rng(3).normal(size=(2, 50, 4))
        a, b = metrics.jsd(*logits), metrics.jsd(*log_softmax(logits))
        assert a == pytest.approx(b, rel=1e-12)

    def test_small_differences_keep_their_digits(self):
        # To second order JSD = sum (p - q)² / (8 p): far below what subtracting entropies could resolve.
        p = np.array([0.2, 0.3, 0.5])
        delta = np.array([1e-9, -2e-9, 1e-9])
        assert metrics.jsd(np.log(p)[None], np.log(p + delta)[None]) == pytest.approx(
            (delta**2 / p).sum() / 8, rel=1e-3
        )

    @given(LOGITS)
    def test_symmetric_and_between_0_and_ln_2(self, logits):
        p, q = logits
        assert metrics.jsd(p, q) == metrics.jsd(q, p)
        assert 0 <= metrics.jsd(p, q) <= LN2

    @given(LOGITS, st.permutations(range(4)), st.permutations(range(3)))
    def test_the_order_of_images_and_classes_does_not_matter(self, logits, images, classes):
        p, q = logits
        shuffled = metrics.jsd(p[images][:, classes], q[images][:, classes])
        assert shuffled == pytest.approx(metrics.jsd(p, q), rel=1e-9, abs=1e-15)

    def test_the_matrix_holds_every_pair_whatever_the_chunks(self, monkeypatch):
        p, q = random_runs(0, 3, images=57), random_runs(1, 2, images=57)
        expected = np.array([[metrics.jsd(a, b) for b in q] for a in p])
        whole = metrics.jsd_matrix(p, q)
        monkeypatch.setattr("clpu.metrics.forgetting._CHUNK", 600)
        assert metrics.jsd_matrix(p, q) == pytest.approx(expected, rel=1e-12)
        assert whole == pytest.approx(expected, rel=1e-12)

    def test_the_matrix_of_one_group_is_symmetric_with_exact_zeros(self):
        runs = random_runs(0, 4)
        runs[3] = runs[1]
        d = metrics.jsd_matrix(runs)
        assert (d == d.T).all()
        assert (np.diag(d) == 0).all()
        assert d[1, 3] == 0
        assert d == pytest.approx(metrics.jsd_matrix(runs, runs), rel=1e-12)

    def test_float32_outputs_lose_nothing_that_matters(self):
        runs = random_runs(0, 3)
        assert metrics.jsd_matrix(runs.astype(np.float32)) == pytest.approx(metrics.jsd_matrix(runs), rel=1e-5)

    def test_inputs_are_left_alone(self):
        runs = random_runs(0, 3)
        before = runs.copy()
        metrics.jsd_matrix(runs)
        assert (runs == before).all()

    def test_groups_with_different_images_are_refused(self):
        with pytest.raises(ValueError, match=r"same images and classes.*\(5, 10\).*\(6, 10\)"):
            metrics.jsd_matrix(random_runs(0, images=5), random_runs(1, images=6))


IN = [np.array([[0, 0.1, 0.2], [0.1, 0, 0.3], [0.2, 0.3, 0]]), np.array([[0, 0.3, 0.2], [0.3, 0, 0.1], [0.2, 0.1, 0]])]
ACROSS = [np.full((3, 3), 0.2), np.array([[0.2, 0.0, 0.4], [0.2, 0.2, 0.2], [0.2, 0.2, 0.6]])]


class TestGroups:
    def test_distances_are_means_over_forget_requests(self):
        assert metrics.in_group(IN) == pytest.approx([0.2, 0.2, 0.2])
        assert metrics.across_group(ACROSS) == pytest.approx([0.2, 0.1, 0.3, 0.2, 0.2, 0.2, 0.2, 0.2, 0.4])

    def test_ratio_by_hand(self):
        assert metrics.js_ratio([0.1, 0.3], [0.3, 0.5]) == pytest.approx(1.0)
        assert metrics.js_ratio([0.1, 0.3], [0.1, 0.1]) == pytest.approx(0.5)

    def test_in_range_rate_counts_ties_by_definition_and_not_as_published(self):
        ijsd, ajsd = [0.1, 0.25], [0.25, 0.25, 0.2, 0.3]
        assert metrics.irr(ijsd, ajsd) == 0.75
        assert metrics.irr(ijsd, ajsd, strict=True) == 0.25

    def test_identical_replicas(self):
        zeros = metrics.in_group([np.zeros((3, 3))])
        assert metrics.js_ratio(zeros, np.zeros(9)) == 0
        assert metrics.irr(zeros, np.zeros(9)) == 1
        assert metrics.js_ratio(zeros, np.full(9, 0.1)) == math.inf
        assert metrics.irr(zeros, np.full(9, 0.1)) == 0
        assert math.isnan(metrics.irr(zeros, np.zeros(9), strict=True)), "no distance is smaller than another"
        assert metrics.irr(zeros, np.full(9, 0.1), strict=True) == 0

    def test_one_seed_has_no_pairs(self):
        ijsd = metrics.in_group([[[0.0]]])
        assert ijsd.size == 0
        assert math.isnan(metrics.js_ratio(ijsd, [0.1]))
        assert math.isnan(metrics.irr(ijsd, [0.1]))
        assert math.isnan(metrics.spread_as_published(ijsd))

    @given(st.permutations(range(3)), st.permutations(range(3)))
    def test_the_order_of_replicas_does_not_matter(self, i, j):
        d, e = IN[0], ACROSS[1]
        assert sorted(metrics.in_group([d[np.ix_(j, j)]])) == sorted(metrics.in_group([d]))
        assert sorted(metrics.across_group([e[np.ix_(i, j)]])) == sorted(metrics.across_group([e]))

    def test_replicas_of_one_distribution_are_in_range_and_others_are_not(self):
        shared = np.random.default_rng(0).normal(size=(200, 5))
        noise = np.random.default_rng(1).normal(scale=0.3, size=(15, 200, 5))
        never, exact, leaky = shared + noise[:5], shared + noise[5:10], shared + noise[10:] + 2 * np.eye(5)[0]
        ijsd = metrics.in_group([metrics.jsd_matrix(never)])
        assert metrics.irr(ijsd, metrics.across_group([metrics.jsd_matrix(exact, never)])) > 0.6
        assert metrics.irr(ijsd, metrics.across_group([metrics.jsd_matrix(leaky, never)])) == 0


def script_as_published(outputs_a, outputs_b, mask):
    """What the authors' script computes, with its overwritten mask, from probabilities [forget][task][image, class]."""
    total, forgets = 0.0, len(outputs_a)
    for k in range(1, forgets + 1):
        for p, q, counts in zip(outputs_a[k - 1], outputs_b[k - 1], mask[k]):
            if counts > 0:
                mixture = (p + q) / 2
                divergence = 0.5 * (p * np.log(p / mixture) + q * np.log(q / mixture)).sum(axis=1)
                total += divergence.mean()
        mask = mixture
    return total / forgets


class TestAsPublished:
    @pytest.mark.parametrize("classes", [2, 3, 10])
    def test_agrees_with_a_script_that_overwrites_its_mask(self, classes):
        tasks, forgotten, runs = 5, [2, 4], 3
        shape = (2, len(forgotten), tasks, runs, 20, classes)
        actual, never = log_softmax(np.random.default_rng(classes).normal(size=shape))
        mask = {1: [s == 2 for s in range(tasks)], 2: [s in (2, 4) for s in range(tasks)]}
        matrices = [[metrics.jsd_matrix(actual[k, s], never[k, s]) for s in range(tasks)] for k in range(2)]
        ours = metrics.across_group(metrics.as_published(matrices, forgotten, [classes] * tasks)).reshape(runs, runs)
        for i in range(runs):
            for j in range(runs):
                theirs = script_as_published(np.exp(actual[:, :, i]), np.exp(never[:, :, j]), dict(mask))
                assert ours[i, j] == pytest.approx(theirs, rel=1e-10)

    def test_one_forget_request_is_the_definition(self):
        matrices = [[np.full((2, 2), 0.1 * s) for s in range(5)]]
        assert metrics.as_published(matrices, [3], [10] * 5)[0] == pytest.approx(matrices[0][3])

    def test_may_exceed_ln_2(self):
        matrices = [[np.full((2, 2), 0.5)] * 5] * 2
        assert metrics.across_group(metrics.as_published(matrices, [2, 4], [10] * 5)).max() == pytest.approx(1.5)

    def test_spread_counts_each_pair_twice(self):
        pairs = [0.1, 0.2, 0.4]
        assert metrics.spread_as_published(pairs) == pytest.approx(np.std(pairs + pairs, ddof=1))

    def test_matrices_of_a_different_number_of_forget_requests_are_refused(self):
        with pytest.raises(ValueError, match="1 forget requests and 2 forgotten"):
            metrics.as_published([[np.zeros((2, 2))]], [0, 0], [10])


class TestBootstrap:
    def test_the_interval_of_a_mean_contains_it_and_shrinks_with_seeds(self):
        values = np.random.default_rng(0).normal(size=200)
        few = metrics.bootstrap_mean(values[:5], np.random.default_rng(1))
        many = metrics.bootstrap_mean(values, np.random.default_rng(1))
        assert few[0] < values[:5].mean() < few[1]
        assert many[1] - many[0] < few[1] - few[0]

    def test_the_same_generator_gives_the_same_interval(self):
        a, b = (metrics.bootstrap_pairs(IN, ACROSS, np.random.default_rng(7)) for _ in range(2))
        assert a == b

    def test_pairs_agree_with_drawing_replicas_one_by_one(self):
        rng = np.random.default_rng(5)
        within = metrics.jsd_matrix(random_runs(0, 5))
        between = metrics.jsd_matrix(random_runs(1, 5, scale=4), random_runs(0, 5))
        draws = []
        for _ in range(3000):
            i, j = rng.integers(0, 5, 5), rng.integers(0, 5, 5)
            a, b = np.triu_indices(5, 1)
            pairs = np.array([within[j[x], j[y]] for x, y in zip(a, b) if j[x] != j[y]])
            across = between[np.ix_(i, j)].ravel()
            if len(pairs):
                draws.append((pairs.mean(), across.mean(), metrics.js_ratio(pairs, across), metrics.irr(pairs, across)))
        slow = np.quantile(np.array(draws), [0.025, 0.975], axis=0).T
        fast = metrics.bootstrap_pairs([within], [between], np.random.default_rng(0), resamples=3000)
        for (low, high), (slow_low, slow_high) in zip((fast.ijsd, fast.ajsd, fast.js_ratio, fast.irr), slow):
            width = slow_high - slow_low
            assert low == pytest.approx(slow_low, abs=0.2 * width + 1e-12)
            assert high == pytest.approx(slow_high, abs=0.2 * width + 1e-12)

    def test_one_seed_has_no_interval(self):
        rng = np.random.default_rng(0)
        assert np.isnan(metrics.bootstrap_mean([0.5], rng)).all()
        assert np.isnan(metrics.bootstrap_pairs([[[0.0]]], [[[0.1]]], rng).ajsd).all()

    def test_a_ratio_without_bound_stays_readable(self):
        interval = metrics.bootstrap_pairs([np.zeros((3, 3))], [np.full((3, 3), 0.1)], np.random.default_rng(0))
        assert interval.js_ratio == (math.inf, math.inf)

    @settings(max_examples=20)
    @given(hnp.arrays(float, 4, elements=st.floats(0, 1)))
    def test_intervals_stay_within_the_values(self, values):
        low, high = metrics.bootstrap_mean(values, np.random.default_rng(0), resamples=50)
        assert values.min() - 1e-12 <= low <= high <= values.max() + 1e-12


class TestResolution:
    def test_steps_and_expectation(self):
        five = metrics.irr_resolution(5)
        assert five.step == pytest.approx(0.04)
        assert five.expected == pytest.approx(10 / 11)
        assert not five.coarse
        assert metrics.irr_resolution(4).coarse

    @pytest.mark.parametrize("runs", [2, 3, 5])
    def test_exact_forgetting_has_about_the_expected_rate(self, runs):
        rng = np.random.default_rng(runs)
        rates = []
        for _ in range(150):
            never, exact = rng.normal(size=(40, 4)) + rng.normal(scale=0.5, size=(2, runs, 40, 4))
            ijsd = metrics.in_group([metrics.jsd_matrix(never)])
            rates.append(metrics.irr(ijsd, metrics.across_group([metrics.jsd_matrix(exact, never)])))
        assert np.mean(rates) == pytest.approx(metrics.irr_resolution(runs).expected, abs=0.06)

    def test_one_replica_says_that_there_are_no_pairs(self):
        assert "no pair" in str(metrics.irr_resolution(1))
