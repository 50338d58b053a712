"""Filtered ranks, against loops that are too simple to be wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headtail import HeadtailError, Labels, Ragged
from headtail.evaluation.measures import measure_model
from headtail.evaluation.ranks import ranks_of_model, ranks_of_most_popular
from headtail.metrics import filtered_ranks, filtered_ratios
from tests.evaluation.test_evaluate import LABELS, NUM_LABELS, POINTS, lists, logits_of, model_of
from tests.training.test_train import DATA

KNOWN = [[y for y in range(NUM_LABELS) if (i + y) % 4 == 0] for i in range(len(POINTS))]
TRIPLES = replace(POINTS, known=Ragged.from_lists(KNOWN))


def slowly(scores: list[list[float]], labels: list[list[int]], known: list[list[int]]):
    """(point, label, mean rank) of every pair: the mean over all orders of equal scores."""
    found = []
    for i, (row, own, others) in enumerate(zip(scores, labels, known, strict=True)):
        for y in sorted(set(own)):
            kept = [z for z in range(len(row)) if z == y or z not in {*own, *others}]
            first = 1 + sum(row[z] > row[y] for z in kept)
            last = sum(row[z] >= row[y] for z in kept)
            found.append((i, y, (first + last) / 2))
    return found


def triples(ranked) -> list[tuple[int, int, float]]:
    return list(
        zip(ranked.point.tolist(), ranked.label.tolist(), ranked.rank.tolist(), strict=True)
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(0, 6), st.integers(1, 40), st.integers(0, 10**6))
def test_ranks_are_mean_ranks_among_labels_not_known_to_be_right(num_labels, n, at_once, seed):
    rng = random.Random(seed)
    some = lambda most: [rng.randrange(num_labels) for _ in range(rng.randint(0, most))]  # noqa: E731
    scores = [[float(rng.randint(0, 3)) for _ in range(num_labels)] for _ in range(n)]
    labels = [some(4) for _ in range(n)]
    known = [some(9) for _ in range(n)]
    tensor = torch.tensor(scores).reshape(n, num_labels)
    before = tensor.clone()
    ranked = filtered_ranks(tensor, Ragged.from_lists(labels), Ragged.from_lists(known), at_once)
    assert triples(ranked) == slowly(scores, labels, known)
    assert torch.equal(tensor, before), "scores of the caller stay as they are"


def test_without_known_answers_a_points_other_labels_are_removed():
    scores = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    assert filtered_ranks(scores, Ragged.from_lists([[1, 3]])).rank.tolist() == [2, 3]


def test_means_are_over_pairs_and_by_slice_of_the_label():
    ranked = filtered_ranks(
        torch.tensor([[3.0, 2.0, 1.0], [0.0, 3.0, 1.0]]), Ragged.from_lists([[0, 2], [0]])
    )
    assert ranked.rank.tolist() == [1, 2, 3]
    metrics = filtered_ratios(ranked, Labels.from_counts([300, 30, 3]).slices())
    found = {(ratio.metric, ratio.slice): ratio.value for ratio in metrics}
    assert found["filtered-mrr", "full"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert found["filtered-mrr", "head"] == pytest.approx((1 + 1 / 3) / 2)
    assert found["filtered-hits@1", "full"] == pytest.approx(1 / 3)
    assert found["filtered-hits@3", "tail"] == 1


@pytest.mark.parametrize("at_once", [1, 3 * NUM_LABELS, 2**24])
def test_the_ranks_of_a_model_are_those_of_brute_force_in_any_blocks(monkeypatch, at_once):
    monkeypatch.setattr("headtail.evaluation.ranks.SCORES_AT_ONCE", at_once)
    model = model_of()
    ranked = ranks_of_model(model, TRIPLES)
    assert ranked is not None
    scores = logits_of(model, POINTS)
    assert triples(ranked) == slowly(scores, lists(POINTS.labels), KNOWN)


def test_a_model_that_adjusts_its_answers_is_ranked_by_adjusted_scores():
    model = model_of("softmax+post-hoc")
    ranked = ranks_of_model(model, TRIPLES)
    assert ranked is not None
    shift = LABELS.prior.log().tolist()
    scores = [[f - s for f, s in zip(row, shift, strict=True)] for row in logits_of(model, POINTS)]
    assert triples(ranked) == slowly(scores, lists(POINTS.labels), KNOWN)


def test_the_most_popular_labels_are_ranked_by_their_counts():
    ranked = ranks_of_most_popular(LABELS, TRIPLES)
    assert ranked is not None
    scores = [LABELS.counts.double().tolist()] * len(POINTS)
    assert triples(ranked) == slowly(scores, lists(POINTS.labels), KNOWN)


def test_filtered_metrics_are_measured_only_where_other_answers_are_known():
    model = model_of()
    slices = LABELS.slices_by_mass()
    plain = {row.metric for row in measure_model(model, DATA, slices)}
    rows = measure_model(model, replace(DATA, test=TRIPLES), slices)
    names = {"filtered-mrr", "filtered-hits@1", "filtered-hits@3", "filtered-hits@10"}
    assert {row.metric for row in rows} - plain == names
    best = next(row for row in rows if row[:2] == ("filtered-mrr", "full"))
    assert best.low is not None
    assert best.low < best.value < best.high


def test_known_answers_outside_the_labels_are_refused():
    with pytest.raises(HeadtailError, match="`known` must hold label ids from 0 to 2, but got 3"):
        filtered_ranks(torch.zeros(1, 3), Ragged.from_lists([[0]]), Ragged.from_lists([[3]]))
