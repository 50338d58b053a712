"""Metrics against slow, obvious recomputations and against napkinxc."""

from __future__ import annotations

import math
import os
import random
import statistics
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headtail import HeadtailError, Labels, Ragged, Slices
from headtail.evaluation.bootstrap import intervals
from headtail.evaluation.measures import Measure, measure_ranking
from headtail.metrics import (
    Ranked,
    inverse_propensity,
    label_errors,
    mean_and_deviation,
    most_popular,
)

DATA = Path(os.environ.get("HEADTAIL_DATA") or Path(__file__).parents[2] / "shared" / "data")
SLICES = ("full", "head", "torso", "tail")


def measured(
    top, lists, train, slices=None, num_points=1000, resamples=0, **options
) -> dict[tuple[str, str], Measure]:
    slices = slices or train.slices()
    labels = Ragged.from_lists(lists)
    top = torch.as_tensor(top)
    rows = measure_ranking(
        top, labels, train, slices, num_points=num_points, resamples=resamples, **options
    )
    assert len({row[:2] for row in rows}) == len(rows)
    return {row[:2]: row for row in rows}


def values(rows: dict[tuple[str, str], Measure]) -> dict[tuple[str, str], float]:
    return {key: row.value for key, row in rows.items()}


def slowly(top, lists, train, slices, num_points):
    """Every metric, one point and one label at a time."""
    counts = train.counts.tolist()
    prior = train.prior.tolist()
    names = ["head", "torso", "tail"]
    pairs = [(row, y) for row, own in zip(top, lists, strict=True) for y in own]
    found = {}
    for name in SLICES:
        mine = {y for y, s in enumerate(slices.of_label.tolist()) if name in ("full", names[s])}
        for k in (1, 10, 20, 50):
            found[f"recall@{k}", name] = mean([y in row[:k] for row, y in pairs if y in mine])
        tested = sorted({y for _, y in pairs} & mine)
        found["macro-recall@10", name] = mean(
            [mean([y in row[:10] for row, z in pairs if z == y]) for y in tested]
        )
        errors = [mean([y not in row[:1] for row, z in pairs if z == y]) for y in tested]
        found["balanced-error", name] = mean(errors)
        over_points(found, name, top, lists, mine)
        if name == "full":
            mass = sum(prior[y] for y in tested)
            weighted = sum(prior[y] * error for y, error in zip(tested, errors, strict=True))
            found["class-weighted-error", name] = weighted / mass if mass else math.nan
        found["coverage@10", name] = mean([any(y in row[:10] for row in top) for y in sorted(mine)])
    points = [(row, own) for row, own in zip(top, lists, strict=True) if own]
    c = (math.log(num_points) - 1) * 2.5**0.55
    gain = [1 / (1 / (1 + c * math.exp(-0.55 * math.log(count + 1.5)))) for count in counts]
    for k in (1, 3, 5):
        found[f"precision@{k}", "full"] = mean(
            [sum(y in own for y in row[:k]) / k for row, own in points]
        )
        above = sum(gain[y] for row, own in points for y in row[:k] if y in own)
        below = sum(sum(sorted((gain[y] for y in own), reverse=True)[:k]) for _, own in points)
        found[f"psp@{k}", "full"] = above / below if below else math.nan
    share = [count / num_points for count in counts]
    answered = [(shown(row[:10]), own) for row, own in points if shown(row[:10])]
    recommended = mean([mean([share[y] for y in first]) for first, _ in answered])
    consumed = mean([mean([share[y] for y in own]) for _, own in answered])
    found["popularity@10", "full"] = recommended
    found["popularity-lift@10", "full"] = recommended / consumed - 1 if consumed else math.nan
    return found


def over_points(found, name, top, lists, mine):
    """Metrics of points with a right label of a slice, one point at a time."""
    points = [(row, [y for y in own if y in mine]) for row, own in zip(top, lists, strict=True)]
    points = [(row, own) for row, own in points if own]
    for k in (10, 20):
        hits = [[r for r, y in enumerate(row[:k], 1) if y in own] for row, own in points]
        found[f"hit-rate@{k}", name] = mean([bool(ranks) for ranks in hits])
        found[f"mrr@{k}", name] = mean([1 / ranks[0] if ranks else 0 for ranks in hits])
    for k in (1, 3, 5, 10, 20):
        dcg = [
            sum(1 / math.log2(r + 2) for r, y in enumerate(row[:k]) if y in own)
            for row, own in points
        ]
        best = [sum(1 / math.log2(r + 2) for r in range(min(k, len(own)))) for _, own in points]
        found[f"ndcg@{k}", name] = mean([d / b for d, b in zip(dcg, best, strict=True)])


def shown(row):
    """The answers of a row, without the places that have none."""
    return [y for y in row if y >= 0]


def mean(numbers) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan


def world(num_labels: int, n: int, seed: int, most: int = 4):
    """A random ranking with gaps, label lists (some empty), counts (some zero) and slices (some
    empty).
    """
    rng = random.Random(seed)
    counts = [rng.choice([0, 1, 3, 30, 200]) for _ in range(num_labels - 1)] + [7]
    top = [rng.sample(range(num_labels), min(50, num_labels)) for _ in range(n)]
    some = [rng.sample(row, min(len(row), rng.randint(0, most))) for row in top]
    lists = [own if rng.random() < 0.6 else [rng.randrange(num_labels)] for own in some]
    top = [[y if rng.random() < 0.9 else -1 for y in row] for row in top]
    return top, lists, Labels.from_counts(counts)


@settings(max_examples=120, deadline=None)
@given(st.integers(1, 70), st.integers(0, 9), st.integers(0, 10**6))
def test_every_metric_equals_its_definition(num_labels, n, seed):
    top, lists, train = world(num_labels, n, seed)
    top_ids = torch.tensor(top, dtype=torch.int64).reshape(n, min(50, num_labels))
    expected = slowly(top, lists, train, train.slices(), 1000)
    assert values(measured(top_ids, lists, train)) == pytest.approx(
        expected, rel=1e-12, nan_ok=True
    )


def test_every_metric_equals_its_definition_on_many_points():
    top, lists, train = world(60, 400, seed=1, most=9)
    rows = measured(top, lists, train, num_points=77)
    assert values(rows) == pytest.approx(slowly(top, lists, train, train.slices(), 77), rel=1e-12)


def test_blocks_of_comparisons_do_not_change_ranks():
    top, lists, train = world(60, 40, seed=2)
    labels = Ragged.from_lists(lists)
    whole = Ranked.of(torch.tensor(top), labels, train.num_labels)
    blocks = Ranked.of(torch.tensor(top), labels, train.num_labels, most_places=120)
    assert len(whole.rank) * 50 > 120
    assert torch.equal(blocks.rank, whole.rank)


def test_narrow_integers_on_either_side_measure_the_same():
    top, lists, train = world(60, 40, seed=3)
    ragged = Ragged.from_lists(lists)
    narrow = Ragged(ragged.values.int(), ragged.offsets)
    wide = measure_ranking(torch.tensor(top), ragged, train, train.slices(), num_points=99)
    assert (
        measure_ranking(torch.tensor(top).int(), narrow, train, train.slices(), num_points=99)
        == wide
    )


def test_places_after_the_fiftieth_count_nowhere():
    train = Labels.from_counts([5] * 60)
    top = torch.arange(60).repeat(60, 1)
    every = [[y] for y in range(60)]
    assert values(measured(top, every, train)) == pytest.approx(
        values(measured(top[:, :50], every, train)), nan_ok=True
    )


@pytest.mark.parametrize("k", [1, 3, 10, 20, 49])
def test_a_short_ranking_has_the_metrics_that_it_decides(k):
    train = Labels.from_counts(range(100, 0, -1))
    top = torch.stack([torch.randperm(100)[:50] for _ in range(40)])
    lists = [random.sample(range(100), 3) for _ in range(40)]
    whole = values(measured(top, lists, train))
    depths = {key: int(key[0].partition("@")[2] or 1) for key in whole}
    decided = {key: value for key, value in whole.items() if depths[key] <= k}
    assert repr(values(measured(top[:, :k], lists, train))) == repr(decided)


def test_a_label_listed_twice_counts_once():
    train = Labels.from_counts([5, 4, 3])
    assert values(measured([[0, 1, 2]], [[2, 0, 2]], train)) == pytest.approx(
        values(measured([[0, 1, 2]], [[0, 2]], train)), nan_ok=True
    )


def test_points_without_labels_count_for_coverage_and_nowhere_else():
    train = Labels.from_counts([5, 4, 3])
    with_empty = values(measured([[0, -1, -1], [1, 2, -1]], [[0], []], train))
    without = values(measured([[0, -1, -1]], [[0]], train))
    assert with_empty.pop(("coverage@10", "full")) == 1
    assert without.pop(("coverage@10", "full")) == pytest.approx(1 / 3)
    assert {k: v for k, v in with_empty.items() if k[0] != "coverage@10"} == pytest.approx(
        {k: v for k, v in without.items() if k[0] != "coverage@10"}, nan_ok=True
    )


def test_without_test_labels_only_coverage_has_a_value():
    rows = measured([[0, 1], [1, 0]], [[], []], Labels.from_counts([300, 3]), resamples=50)
    assert {key for key, row in rows.items() if not math.isnan(row.value)} == {
        ("coverage@10", s) for s in ("full", "head", "tail")
    }
    assert all(row.low is None and row.high is None for row in rows.values())


def test_an_empty_slice_has_a_row_of_nan_and_no_interval():
    train = Labels.from_counts([300, 3])
    rows = measured([[0, 1]] * 9, [[0], [1], [0]] * 3, train, resamples=50)
    for metric in (
        "recall@1",
        "recall@10",
        "recall@50",
        "macro-recall@10",
        "balanced-error",
        "coverage@10",
    ):
        assert math.isnan(rows[metric, "torso"].value)
        assert rows[metric, "torso"].low is rows[metric, "torso"].high is None
    assert rows["recall@1", "head"][2:] == (1, 1, 1)
    assert rows["recall@1", "tail"][2:] == (0, 0, 0)


def test_one_label_is_always_found():
    rows = measured([[0], [0]], [[0], [0]], Labels.from_counts([9]))
    assert (
        rows["recall@50", "full"].value
        == rows["ndcg@5", "full"].value
        == rows["psp@5", "full"].value
        == 1
    )
    assert rows["precision@5", "full"].value == pytest.approx(1 / 5), (
        "missing predictions are misses"
    )
    assert rows["balanced-error", "full"].value == 0


def test_errors_weighted_by_the_prior_renormalise_over_tested_labels():
    train = Labels.from_counts([60, 30, 10])
    rows = measured([[0, 1, 2]] * 3, [[0], [1], [1]], train)
    assert rows["class-weighted-error", "full"].value == pytest.approx(30 / 90)


@pytest.mark.parametrize("num_points", [1, 2])
def test_propensities_never_exceed_one_on_tiny_data(num_points):
    assert inverse_propensity(Labels.from_counts([0, 1]), num_points).tolist() == [1, 1]


def test_other_propensity_constants_reach_psp():
    train = Labels.from_counts([500, 2])
    a = 0.5
    b = 0.4
    gain = [1 + (math.log(900) - 1) * (b + 1) ** a * (count + b) ** -a for count in (500, 2)]
    rows = measured([[0, 1], [0, 1]], [[0], [1]], train, num_points=900, propensity=(a, b))
    assert rows["psp@1", "full"].value == pytest.approx(gain[0] / sum(gain))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"top": torch.tensor([[0.0, 1.0]])}, "integer label ids"),
        ({"top": torch.tensor([[0, 1], [0, 1]])}, r"best labels of 1 points, of shape \[1, K\]"),
        ({"top": torch.zeros(1, 0).long()}, r"best labels of 1 points, of shape \[1, K\]"),
        ({"top": torch.tensor([[0, 2]])}, "from 0 to 1, or -1 for none, but got 2"),
        ({"top": torch.tensor([[0, -2]])}, "or -1 for none, but got -2"),
        (
            {"labels": Ragged.from_lists([[2]])},
            "`labels` must hold label ids from 0 to 1, but got 2",
        ),
        (
            {"slices": Slices.by_count(torch.tensor([1, 2, 3]))},
            "`slices` has 3 labels, but `train` 2",
        ),
        ({"num_points": 0}, "`num_points` must be a whole number of at least 1"),
        ({"resamples": -1}, "`resamples` must be a whole number"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(change, words, request):
    if request.config.getoption("--shapes"):
        pytest.skip("under --shapes the annotations speak first")
    train = Labels.from_counts([5, 5])
    good = {
        "top": torch.tensor([[0, 1]]),
        "labels": Ragged.from_lists([[0]]),
        "slices": train.slices(),
        "num_points": 10,
    }
    given_now = good | change
    with pytest.raises(HeadtailError, match=words):
        measure_ranking(
            given_now.pop("top"),
            given_now.pop("labels"),
            train,
            given_now.pop("slices"),
            **given_now,
        )


# napkinxc


def compare_with_napkinxc(top, lists, train_lists, num_labels):
    napkinxc = pytest.importorskip(
        "napkinxc.metrics", reason="napkinxc, the independent implementation, is not installed"
    )
    train = Labels.from_targets(Ragged.from_lists(train_lists), num_labels=num_labels)
    rows = values(measured(top, lists, train, num_points=len(train_lists)))
    inverse = napkinxc.Jain_et_al_inverse_propensity(train_lists)
    assert inverse_propensity(train, len(train_lists)).tolist() == pytest.approx(
        inverse.tolist(), rel=1e-12
    )
    predicted = torch.as_tensor(top).tolist()
    labelled = mean([bool(own) for own in lists])
    precision = napkinxc.precision_at_k(lists, predicted, k=5)
    ndcg = napkinxc.ndcg_at_k(lists, predicted, k=5)
    psp = napkinxc.psprecision_at_k(lists, predicted, inverse, k=5)
    for k in (1, 3, 5):
        assert rows[f"precision@{k}", "full"] * labelled == pytest.approx(
            precision[k - 1], rel=1e-12
        )
        assert rows[f"ndcg@{k}", "full"] * labelled == pytest.approx(ndcg[k - 1], rel=1e-12)
        assert rows[f"psp@{k}", "full"] == pytest.approx(psp[k - 1], rel=1e-12)


@pytest.mark.parametrize("num_labels", [2, 60])
def test_precision_ndcg_and_psp_agree_with_napkinxc_but_for_points_without_labels(num_labels):
    top, lists, _ = world(num_labels, 150, seed=4, most=8)
    train_lists = world(num_labels, 300, seed=5, most=8)[1] + [[num_labels - 1], []]
    assert any(not own for own in lists)
    compare_with_napkinxc(top, lists, train_lists, num_labels)


def test_precision_ndcg_and_psp_agree_with_napkinxc_on_delicious():
    folder = DATA / "delicious"
    if not folder.is_dir():
        pytest.skip(
            "Delicious is not here; set HEADTAIL_DATA to a folder that holds delicious/train.txt "
            "and test.txt"
        )
    lines = {name: (folder / f"{name}.txt").read_text().splitlines() for name in ("train", "test")}
    num_labels = int(lines["test"][0].split()[2])
    lists = {
        name: [[int(y) for y in line.split(" ")[0].split(",") if y] for line in lines[name][1:]]
        for name in lines
    }
    popular = most_popular(
        Labels.from_targets(Ragged.from_lists(lists["train"]), num_labels=num_labels),
        len(lists["test"]),
        50,
    )
    compare_with_napkinxc(popular, lists["test"], lists["train"], num_labels)
    rng = random.Random(0)
    oracle = [
        rng.sample(own, len(own)) + [y for y in range(60) if y not in own] for own in lists["test"]
    ]
    noisy = [[y if rng.random() < 0.6 else -1 for y in row[:50]] for row in oracle]
    compare_with_napkinxc(noisy, lists["test"], lists["train"], num_labels)


# The bootstrap


def shares(hit: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(column, torch.ones_like(column)) for column in hit.T]


def test_intervals_have_the_width_of_resampled_points():
    rng = random.Random(0)
    above = [rng.random() ** 3 for _ in range(60)]
    below = [a + rng.random() for a in above]
    drawn = [rng.choices(range(60), k=60) for _ in range(20_000)]
    ratios = sorted(sum(above[i] for i in ids) / sum(below[i] for i in ids) for ids in drawn)
    both = torch.tensor(above).double(), torch.tensor(below).double()
    interval = intervals([both], 60, 20_000, seed=0)[0]
    width = ratios[19_500] - ratios[500]
    assert interval.tolist() == pytest.approx([ratios[500], ratios[19_500]], abs=0.03 * width)


@pytest.mark.parametrize("groups", [4096, 500])
def test_intervals_of_points_and_of_groups_have_the_width_that_theory_gives(groups):
    hit = (torch.rand(3001, 50) < 0.3).double()
    ends = intervals(shares(hit), 3001, 500, seed=0, most_groups=groups)
    theory = 2 * 1.96 * (hit.mean(0) * (1 - hit.mean(0)) / 3001).sqrt()
    assert float(((ends[:, 1] - ends[:, 0]) / theory).mean()) == pytest.approx(1, abs=0.02)
    assert torch.allclose(ends.mean(1), hit.mean(0), atol=float(theory.mean()) / 10)


def test_about_95_of_100_intervals_hold_the_truth():
    hit = (torch.rand(400, 600) < 0.3).double()
    ends = intervals(shares(hit), 400, 500, seed=0)
    assert 0.925 < float(((ends[:, 0] <= 0.3) & (ends[:, 1] >= 0.3)).double().mean()) < 0.97


def test_every_row_but_coverage_has_an_interval_around_its_value():
    top, lists, train = world(60, 2000, seed=6, most=6)
    for (metric, _), row in measured(top, lists, train, resamples=200).items():
        if metric == "coverage@10":
            assert row.low is row.high is None
        else:
            assert row.low is not None
            assert row.high is not None
            assert row.low < row.value < row.high


def test_label_averages_do_not_drift_to_labels_with_many_pairs():
    """One label with 200 hits and 200 labels with one miss each: a fresh average a resample loses
    37% of the latter.
    """
    train = Labels.from_counts([9] * 251)
    top = [list(range(50))] * 400
    lists = [[0]] * 200 + [[y] for y in range(51, 251)]
    row = measured(top, lists, train, resamples=400)["macro-recall@10", "full"]
    assert row.low is not None
    assert row.high is not None
    assert row.low < row.value < row.high
    rng = random.Random(0)
    fresh = []
    for _ in range(400):
        occurring = Counter(y for i in rng.choices(range(400), k=400) for y in lists[i])
        fresh.append((0 in occurring) / len(occurring))
    assert min(fresh) > row.value, "averaging again would not hold the value itself"


def test_equal_seeds_give_equal_intervals_and_other_seeds_others():
    top, lists, train = world(60, 100, seed=7)
    first, again, other = (
        measured(top, lists, train, resamples=100, seed=seed) for seed in (1, 1, 2)
    )
    assert repr(first) == repr(again)
    assert first["recall@10", "full"][3:] != other["recall@10", "full"][3:]


def test_a_single_point_has_no_interval():
    assert measured([[0, 1]], [[0]], Labels.from_counts([5, 5]), resamples=50)["recall@1", "full"][
        2:
    ] == (1, None, None)


def test_resamples_that_miss_a_slice_are_left_out_of_its_interval():
    """Two tail pairs among 40 points: 13% of the resamples hold neither."""
    train = Labels.from_counts([300, 3])
    rows = measured([[0, 1]] * 39 + [[1, 0]], [[0]] * 38 + [[1], [1]], train, resamples=300)
    assert rows["recall@1", "tail"][2:] == (0.5, 0, 1)


def test_no_resamples_mean_no_intervals():
    top, lists, train = world(60, 100, seed=8)
    assert all(row.low is None and row.high is None for row in measured(top, lists, train).values())


# Most popular


def test_the_most_popular_labels_come_first_and_ties_by_id():
    top = most_popular(Labels.from_counts([2, 9, 2, 9, 0]), n=3, k=4)
    assert top.tolist() == [[1, 3, 0, 2]] * 3
    assert top.stride(0) == 0, "one row serves all points"


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 12), st.integers(1, 14), st.integers(0, 6), st.integers(0, 10**6))
def test_seen_labels_are_left_out(num_labels, k, n, seed):
    rng = random.Random(seed)
    counts = [rng.randint(0, 3) for _ in range(num_labels - 1)] + [1]
    seen = [[rng.randrange(num_labels) for _ in range(rng.randint(0, 9))] for _ in range(n)]
    ranking = sorted(range(num_labels), key=lambda y: (-counts[y], y))
    expected = [([y for y in ranking if y not in own] + [-1] * k)[:k] for own in seen]
    assert (
        most_popular(Labels.from_counts(counts), n, k, Ragged.from_lists(seen)).tolist() == expected
    )


def test_seen_must_be_of_the_same_points():
    with pytest.raises(
        HeadtailError, match=r"`seen` has 1 points, but `n` is 2\. Give a list for each point"
    ):
        most_popular(Labels.from_counts([1, 2]), 2, 1, Ragged.from_lists([[0]]))


# Over seeds


def test_deviation_over_seeds_is_that_of_a_sample():
    numbers = [0.31, 0.35, 0.3, 0.38]
    assert mean_and_deviation(numbers) == pytest.approx(
        (statistics.fmean(numbers), statistics.stdev(numbers))
    )
    with pytest.raises(HeadtailError, match="no mean"):
        mean_and_deviation([])


def test_the_error_of_a_label_counts_its_own_pairs_alone():
    top = torch.tensor([[0, 1], [1, 0], [2, 1], [-1, -1], [3, 0]])
    errors = label_errors(top, Ragged.from_lists([[0], [0, 1], [0], [1], []]), num_labels=4)
    assert errors.points.tolist() == [3, 2, 0, 0]
    assert errors.error[:2].tolist() == pytest.approx([2 / 3, 1 / 2])
    assert errors.error[2:].isnan().all(), "no test point of theirs decides"
