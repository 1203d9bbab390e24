"""The audit's statistics against known answers."""

from math import comb, erf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quicker import fewer_resamples  # noqa: F401  a fixture of the whole module
from scipy import stats
from sklearn import metrics

from clpu.audit.features import cka_distances
from clpu.audit.findings import holm
from clpu.audit.membership import likelihood_ratios
from clpu.audit.permutation import detectable, energy_test, labelings, rank_test, smallest_p
from clpu.audit.relearning import steps_to
from clpu.audit.roc import Scores


def scored(seed, agents=5, cases=40, shift=0.7, rounded=1):
    """Scores with many ties."""
    rng = np.random.default_rng(seed)
    return rng.normal(shift, 1, (agents, cases)).round(rounded), rng.normal(0, 1, (agents, cases)).round(rounded)


@pytest.mark.parametrize("rounded", [0, 1, 6])
@pytest.mark.parametrize("seed", range(5))
def test_area_and_true_positive_rates_are_scikit_learns(seed, rounded):
    positives, negatives = scored(seed, rounded=rounded)
    truth = np.repeat([1, 0], positives.size)
    values = np.concatenate([positives.ravel(), negatives.ravel()])
    roc = Scores(positives, negatives).roc()
    assert roc.area == pytest.approx(metrics.roc_auc_score(truth, values))
    false, true, _ = metrics.roc_curve(truth, values, drop_intermediate=False)
    for rate in (0.0, 0.001, 0.01, 0.05, 0.5, 1.0):
        assert roc.at(rate) == pytest.approx(true[false <= rate].max()), rate


def test_an_agent_weighted_twice_counts_as_two():
    positives, negatives = scored(0, agents=3)
    weights = np.array([2.0, 1, 0, 1, 0, 3])
    again = Scores(positives[[0, 0, 1]], negatives[[0, 2, 2, 2]])
    roc = Scores(positives, negatives).roc(weights)
    assert roc.area == pytest.approx(again.roc().area)
    assert roc.at(0.01) == pytest.approx(again.roc().at(0.01))


def test_intervals_are_percentiles_of_resampled_agents():
    scores = Scores(*scored(3))
    rng = np.random.default_rng(0)
    counts = [rng.multinomial(5, np.full(5, 0.2), size=200) for _ in range(2)]
    rocs = [scores.roc(np.concatenate(w).astype(float)) for w in zip(*counts)]
    figures = [[roc.area, roc.at(0.01), roc.at(0.001)] for roc in rocs]
    expected = np.quantile(figures, [0.025, 0.975], axis=0, method="nearest")
    assert np.allclose(scores.intervals(), expected.T)


def test_intervals_over_agents_are_wider_than_cases_would_say():
    """Cases of an agent share its luck: 4 agents with 500 cases are not 2,000 independent ones."""
    rng = np.random.default_rng(0)
    luck = rng.normal(size=(8, 1)) + rng.normal(size=(8, 500)) / 5
    low, high = Scores(luck[:4], luck[4:]).intervals()[0]
    assert high - low > 0.2


@given(st.lists(st.integers(0, 5), min_size=3, max_size=6), st.lists(st.integers(0, 5), min_size=3, max_size=6))
def test_the_rank_test_is_scipys_permutation_test(first, second):
    def statistic(a, b, axis):
        pooled = np.concatenate([a, b], axis=axis)
        ranks = stats.rankdata(pooled, axis=axis)
        total = np.take(ranks, range(len(first)), axis=axis).sum(axis=axis)
        return np.abs(total - len(first) * (len(first) + len(second) + 1) / 2)

    expected = stats.permutation_test(
        (first, second), statistic, vectorized=True, n_resamples=np.inf, alternative="greater"
    )
    assert rank_test(first, second).p == pytest.approx(expected.pvalue)


def energy(d, first):
    """The definition, run by run."""
    n = len(d)
    one, two = range(first), range(first, n)
    across = np.mean([d[i][j] for i in one for j in two])
    within = [np.mean([d[i][j] for i in g for j in g if i != j]) for g in (one, two)]
    return (2 * across - sum(within)) / (2 * across)


def test_the_energy_statistic_is_its_definition():
    points = np.random.default_rng(1).normal(size=(9, 3))
    d = np.linalg.norm(points[:, None] - points, axis=-1)
    assert energy_test(d, 4).value == pytest.approx(energy(d, 4))


def test_a_permutation_test_of_few_runs_counts_every_labelling_by_hand():
    points = np.array([0.0, 1, 3, 10, 12, 17])
    d = np.abs(points[:, None] - points)
    rows, complete = labelings(3, 3)
    assert complete
    assert len(rows) == comb(6, 3)

    def gap(chosen):
        order = [*chosen, *[i for i in range(6) if i not in chosen]]
        e = d[np.ix_(order, order)]
        return energy(e, 3) * 2 * e[:3, 3:].mean()

    gaps = [gap(np.flatnonzero(row)) for row in rows]
    assert energy_test(d, 3).p == np.mean(np.array(gaps) >= gaps[0] - 1e-12) == smallest_p(3, 3) == 0.1


@pytest.mark.parametrize("runs", [6, 20])
def test_identical_distributions_are_rejected_at_the_stated_rate(runs, monkeypatch):
    """Both ways to count, all labellings and drawn ones: P(p ≤ α) ≤ α, and not much less."""
    monkeypatch.setattr("clpu.audit.permutation.RESAMPLES", 2)  # intervals play no part here
    rng = np.random.default_rng(runs)
    repeats, p_energy, p_rank = 400, [], []
    for _ in range(repeats):
        points = rng.standard_t(3, size=(2 * runs, 4))  # heavy tails, to show that nothing is assumed
        p_energy.append(energy_test(np.linalg.norm(points[:, None] - points, axis=-1), runs).p)
        p_rank.append(rank_test(points[:runs, 0], points[runs:, 0]).p)
    for p in (np.array(p_energy), np.array(p_rank)):
        for level in (0.05, 0.2):
            rejected = int((p <= level).sum())
            assert stats.binomtest(rejected, repeats, level).pvalue > 0.001, (level, rejected)


def test_the_relabelling_of_agents_keeps_its_rate_although_cases_of_an_agent_depend_on_each_other():
    rng = np.random.default_rng(5)
    repeats, rejected = 300, 0
    for _ in range(repeats):
        luck = rng.normal(size=(16, 1)) + rng.normal(size=(16, 30)) / 5
        rejected += Scores(luck[:8], luck[8:]).p(two_sided=False) <= 0.05
    assert stats.binomtest(int(rejected), repeats, 0.05).pvalue > 0.001


def test_the_detectable_shift_is_found_four_times_out_of_five():
    rng, runs, level = np.random.default_rng(0), 16, 0.01
    shift = detectable(runs, runs, level)
    found = np.mean([rank_test(rng.normal(shift, 1, runs), rng.normal(0, 1, runs)).p <= level for _ in range(200)])
    assert 0.68 < found < 0.9  # ranks know a little less than the normal approximation


def test_too_few_runs_can_detect_nothing():
    assert detectable(3, 3, 0.01) == float("inf")


def test_likelihood_ratios_reach_the_optimum_of_a_toy_gaussian():
    """Confidences N(μ + δ, 1) against N(μ, 1): no attack has an area above Φ(δ/√2); with many shadows this has it."""
    rng, delta, agents, cases = np.random.default_rng(0), 1.2, 200, 60
    middle = rng.normal(0, 20, cases)
    draw = lambda shift: middle + shift + rng.normal(size=(agents, cases))  # noqa: E731
    ratios = [
        likelihood_ratios(shadows_in, shadows_out, t)
        for shadows_in, shadows_out in [(draw(delta), draw(0))]
        for t in (draw(delta), draw(0))
    ]
    optimum = 0.5 * (1 + erf(delta / 2))
    assert Scores(*ratios).roc().area == pytest.approx(optimum, abs=0.01)
    # A global threshold drowns in the differences between examples.
    assert Scores(draw(delta), draw(0)).roc().area < 0.55
    assert sqrt(2) * stats.norm.ppf(optimum) == pytest.approx(delta)


def test_likelihood_ratios_use_a_difference_in_spread():
    """Equal means, other variances: the ratio still tells them apart, as the optimum does."""
    rng = np.random.default_rng(1)
    draw = lambda scale: scale * rng.normal(size=(300, 40))  # noqa: E731
    shadows = draw(3), draw(1)
    ratios = [likelihood_ratios(*shadows, t) for t in (draw(3), draw(1))]
    known = [np.abs(draw(3)), np.abs(draw(1))]  # the optimal test thresholds |x|
    assert Scores(*ratios).roc().area == pytest.approx(Scores(*known).roc().area, abs=0.01)


def test_holm_is_the_correction_of_the_textbook():
    p = [0.01, 0.04, 0.03, 0.005]
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_a_p_value_and_keeps_their_order(p):
    adjusted = holm(p)
    assert all(a >= b for a, b in zip(adjusted, p))
    assert [adjusted[i] for i in np.argsort(p, kind="stable")] == sorted(adjusted)


def test_cka_does_not_see_the_order_or_the_scale_of_units_but_other_features():
    rng = np.random.default_rng(0)
    x, rotation = rng.normal(size=(50, 8)), np.linalg.qr(rng.normal(size=(8, 8)))[0]
    d = cka_distances([x, 5 * x @ rotation, rng.normal(size=(50, 8))])
    assert d[0, 1] == pytest.approx(0, abs=1e-12)
    assert d[0, 2] > 0.5


def test_dead_features_are_no_nan():
    assert np.isfinite(cka_distances(np.zeros((3, 10, 4)))).all()


def test_steps_are_interpolated_and_end_with_the_last_mark():
    assert steps_to([[0, 1.0], [0, 0.4]], [0, 8], 0.5).tolist() == [4, 8]
