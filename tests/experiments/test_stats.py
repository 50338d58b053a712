"""The statistics of the studies agree with scipy, with enumeration and with what they simulate."""

from __future__ import annotations

import math
from itertools import combinations, permutations

import numpy as np
import pytest
from scipy import stats as reference
from stats.correlation import rank_correlation
from stats.curves import Curve, Level, at_equal_head, tail_at
from stats.paired import equivalence, margin_for, outside, paired
from stats.resample import Resample
from stats.verdicts import LEVEL, Claim, alone, holm, verdicts

RNG = np.random.default_rng(7)


def test_without_resamples_it_is_the_paired_t_test_of_scipy():
    left, right = RNG.normal(size=(2, 5))
    mine = paired((left - right).tolist())
    theirs = reference.ttest_rel(left, right)
    assert mine.p == pytest.approx(theirs.pvalue, rel=1e-12)
    assert mine.interval() == pytest.approx(tuple(theirs.confidence_interval()), rel=1e-12)
    one_sided = reference.ttest_rel(left, right, alternative="greater")
    assert mine.p_above() == pytest.approx(one_sided.pvalue, rel=1e-12)


def test_twice_the_deviation_with_three_seeds_is_not_significant():
    deviation = 1.0
    seeds = np.array([-1, 0, 1]) * deviation
    difference = seeds + 2 * deviation
    assert paired(difference.tolist()).p == pytest.approx(0.074, abs=5e-4)


def test_the_equivalence_test_is_that_of_two_t_tests():
    values = RNG.normal(0.004, 0.003, size=5)
    low = reference.ttest_1samp(values, -0.01, alternative="greater").pvalue
    high = reference.ttest_1samp(values, 0.01, alternative="less").pvalue
    assert equivalence(paired(values.tolist()), 0.01) == pytest.approx(max(low, high), rel=1e-12)


def test_the_margin_is_the_smaller_of_two_points_and_a_tenth():
    assert margin_for(0.3) == 0.02
    assert margin_for(0.11) == pytest.approx(0.011)


def test_the_test_set_adds_to_the_error_and_to_the_degrees_of_freedom():
    differences = [0.01, 0.02, 0.03]
    alone = paired(differences)
    resampled = RNG.normal(0.02, 0.01, size=2000)
    both = paired(differences, resampled)
    assert both.error == pytest.approx(math.hypot(alone.error, resampled.std(ddof=1)))
    assert alone.freedom == 2
    assert both.freedom > alone.freedom
    assert both.difference == alone.difference


def test_one_seed_has_the_test_sets_error_alone_and_none_without_it():
    resampled = RNG.normal(0.02, 0.01, size=2000)
    one = paired([0.02], resampled)
    assert one.error == pytest.approx(resampled.std(ddof=1))
    assert math.isinf(one.freedom)
    assert paired([0.02]).p == 1.0


def test_intervals_cover_the_truth_where_seeds_and_test_points_are_both_random():
    # d[s, i] = truth + seed effect + point effect: 95% intervals, 300 experiments.
    covered = 0
    rng = np.random.default_rng(3)
    for _ in range(300):
        seeds = rng.normal(0, 0.5, size=(4, 1))
        points = rng.normal(0, 5.0, size=(1, 100))
        values = 1.0 + seeds + points + rng.normal(0, 1.0, size=(4, 100))
        resample = Resample.of(np.arange(100), resamples=200, seed=int(rng.integers(1 << 30)))
        ratios = resample.ratio(values, np.ones(100))
        low, high = paired(values.mean(1).tolist(), ratios.mean(0)).interval()
        covered += low <= 1.0 <= high
    assert 0.92 <= covered / 300 <= 0.99
    # Seeds alone would claim far too much here.
    assert (
        paired(values.mean(1).tolist()).error
        < 0.7 * paired(values.mean(1).tolist(), ratios.mean(0)).error
    )


def test_points_of_a_group_are_resampled_together():
    groups = np.repeat(np.arange(50), 8)
    effect = np.repeat(RNG.normal(size=50), 8)  # points of a group are equal
    by_group = Resample.of(groups, resamples=4000).ratio(effect, np.ones(400)).std()
    by_point = Resample.of(np.arange(400), resamples=4000).ratio(effect, np.ones(400)).std()
    assert by_group == pytest.approx(effect.std() / math.sqrt(50), rel=0.08)
    assert by_point == pytest.approx(effect.std() / math.sqrt(400), rel=0.08)


def test_pools_have_the_variance_of_groups():
    values = RNG.exponential(size=5000)
    error = values.std() / math.sqrt(5000)
    pooled = Resample.of(np.arange(5000), resamples=3000, most_pools=400)
    assert pooled.times.shape == (3000, 400)
    assert pooled.ratio(values, np.ones(5000)).std() == pytest.approx(error, rel=0.12)
    assert pooled.ratio(values, np.ones(5000)).mean() == pytest.approx(values.mean(), rel=0.01)


def test_all_that_is_compared_sees_the_same_resamples():
    groups = RNG.integers(0, 30, size=100)
    first, second = (Resample.of(groups, resamples=20, seed=5) for _ in range(2))
    assert (first.times == second.times).all()
    hits = RNG.integers(0, 2, size=(3, 100)).astype(float)
    together = first.ratio(hits, np.ones(100))
    for row, one in zip(together, hits, strict=True):
        assert row == pytest.approx(second.ratio(one, np.ones(100)))


def test_holm_rejects_what_the_closed_test_of_all_intersections_rejects():
    # Holm is the closure of Bonferroni: a hypothesis is rejected if every set that holds it is.
    for _ in range(50):
        given = RNG.uniform(0, 0.2, size=4).tolist()
        corrected = holm(given)
        for i in range(4):
            worst = max(
                min(1.0, len(group) * min(given[j] for j in group))
                for size in range(1, 5)
                for group in combinations(range(4), size)
                if i in group
            )
            assert corrected[i] == pytest.approx(worst)


def test_a_nan_is_never_rejected_by_holm():
    assert holm([math.nan, 0.001]) == [1.0, 0.002]


def test_verdicts_follow_from_the_numbers():
    clear = paired([0.050, 0.052, 0.051, 0.049, 0.050])
    none = paired([0.0001, -0.0001, 0.0, 0.0001, -0.0001])
    vague = paired([0.05, -0.03, 0.02, -0.01, 0.0])
    claims = [
        Claim("gain", "above", clear, 0.02),
        Claim("no gain", "above", none, 0.02),
        Claim("who knows", "above", vague, 0.02),
        Claim("wrong way", "below", clear, 0.02),
        Claim("follows", "follows", none, 0.02),
        Claim("does not follow", "follows", clear, 0.02),
        Claim("may follow", "follows", vague, 0.02),
        Claim("tiny gain", "above", paired([0.0050, 0.0052, 0.0051]), 0.02),
    ]
    answers = ["holds", "does not hold", "inconclusive", "does not hold"]
    answers += ["holds", "does not hold", "inconclusive", "holds"]
    found = verdicts([[claim] for claim in claims])
    assert [verdict.answer for verdict in found] == answers
    assert [alone([claim]) for claim in claims] == answers


def test_a_verdict_that_holds_alone_may_not_hold_among_many_claims():
    near = paired([0.01, 0.02, 0.03, 0.02, 0.005])
    assert near.p < 0.05
    one = Claim("x", "above", near, 0.02)
    vague = Claim("y", "above", paired([0.05, -0.05, 0.01, 0.0, 0.02]), 0.02)
    assert verdicts([[one]])[0].answer == "holds"
    assert verdicts([[one], *[[vague]] * 20])[0].answer == "inconclusive"


def test_a_claim_is_as_sure_as_its_worst_part_however_many_parts_hold():
    clear = Claim("clear", "above", paired([0.050, 0.052, 0.051, 0.049, 0.050]), 0.02)
    near = Claim("near", "above", paired([0.01, 0.02, 0.03, 0.02, 0.005]), 0.02)
    wrong = Claim("wrong", "below", clear.result, 0.02)
    [claim] = verdicts([[clear] * 30 + [near]])
    assert claim.answer == alone([clear] * 30 + [near]) == "holds"
    assert claim.p_for == pytest.approx(2 * near.p_for)  # two hypotheses: it holds, it fails
    [failed] = verdicts([[clear, clear, wrong]])
    assert failed.answer == "does not hold"
    assert failed.p_against == pytest.approx(2 * 3 * wrong.p_against)
    # Other claims are what a claim is corrected for, not their parts.
    assert verdicts([[clear] * 9, [near]])[1].p_for == verdicts([[clear], [near]])[1].p_for


def test_a_gain_that_is_shown_but_small_does_not_fail():
    small = Claim("small", "above", paired([0.010, 0.011, 0.009, 0.010, 0.0105]), 0.02)
    open_ = Claim("open", "above", paired([0.05, -0.05, 0.01, 0.0, 0.02]), 0.02)
    assert small.p_for < LEVEL
    assert small.p_against < LEVEL
    assert alone([small]) == "holds"
    assert alone([small, open_]) == "inconclusive"


def test_a_part_that_cannot_be_tested_leaves_its_claim_open():
    clear = Claim("clear", "above", paired([0.050, 0.052, 0.051, 0.049, 0.050]), 0.02)
    unknown = Claim("one seed", "follows", paired([0.001]), 0.02)
    for parts in ([clear, unknown], [unknown, clear]):
        assert verdicts([parts])[0].answer == "inconclusive"


def test_verdicts_are_rarely_wrong_where_every_claim_is_false_by_a_hair():
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(400):
        gains = rng.normal(0, 0.01, size=(6, 2, 5))  # six claims of two parts; none gains
        claims = [[Claim("x", "above", paired(part.tolist()), 0.02) for part in c] for c in gains]
        wrong += any(verdict.answer == "holds" for verdict in verdicts(claims))
    assert wrong <= 400 * LEVEL


def test_outside_is_small_only_beyond_the_margin():
    beyond = paired([0.050, 0.052, 0.051])
    assert outside(beyond, 0.02) < 0.05 < outside(beyond, 0.06)


@pytest.mark.parametrize("number", [4, 6, 7])
def test_rank_correlation_is_spearmans_with_an_enumerated_p(number):
    left, right = RNG.normal(size=(2, number))
    right[1] = right[0]  # a tie
    found = rank_correlation(left.tolist(), right.tolist())
    assert found.value == pytest.approx(reference.spearmanr(left, right).statistic)
    as_far = (
        [
            abs(reference.pearsonr(reference.rankdata(left), np.array(order)).statistic)
            >= abs(found.value) - 1e-9
            for order in permutations(reference.rankdata(right))
        ]
        if number < 7
        else None
    )
    if as_far is not None:
        assert found.p == pytest.approx(np.mean(as_far))
    assert found.exact


def test_rank_correlation_of_many_draws_orders():
    left = np.arange(14.0)
    right = left + RNG.normal(0, 4, size=14)
    found = rank_correlation(left.tolist(), right.tolist())
    assert not found.exact
    assert found.p == pytest.approx(reference.spearmanr(left, right).pvalue, abs=0.02)


def test_rank_correlation_of_equal_numbers_is_unknown():
    assert math.isnan(rank_correlation([1, 1, 1], [1, 2, 3]).value)


def curve(head, tail, seeds: int = 3, resamples: int = 50, noise: float = 0.0) -> Curve:
    heads = np.tile(head, (seeds, 1)) + noise * RNG.normal(size=(seeds, len(head)))
    tails = np.tile(tail, (seeds, 1)) + noise * RNG.normal(size=(seeds, len(head)))
    again = (np.repeat(x[..., None], resamples, axis=-1) for x in (heads, tails))
    return Curve(heads, tails, *again)


def test_curves_are_compared_where_head_recall_is_equal():
    first = curve([0.5, 0.4, 0.2], [0.1, 0.2, 0.3])
    second = curve([0.5, 0.3], [0.1, 0.15])
    result = at_equal_head(first, second, Level.of(0.8, first))
    assert result is not None
    assert result.difference == pytest.approx(0.2 - 0.125)
    assert at_equal_head(first, second, Level.of(0.5, first)) is None  # the second ends at 0.3


def test_a_resample_that_is_harder_for_all_changes_nothing():
    first = curve([0.5, 0.4, 0.2], [0.1, 0.2, 0.3])
    second = curve([0.5, 0.4, 0.2], [0.1, 0.15, 0.2])
    scale = np.linspace(0.9, 1.1, 50)
    harder = [
        Curve(c.head, c.tail, c.head_resampled * scale, c.tail_resampled) for c in (first, second)
    ]
    result = at_equal_head(*harder, Level.of(0.6, harder[0]))
    assert result is not None
    assert result.test_error == pytest.approx(0, abs=1e-12)


def test_heads_need_not_fall_in_order():
    assert tail_at(np.array([0.5, 0.52, 0.3]), np.array([0.1, 0.12, 0.3]), 0.51) == pytest.approx(
        0.11
    )
