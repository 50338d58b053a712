"""The lean: labels of equal count are never ranked by their id."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from headtail import (
    CustomSeparable,
    HeadtailError,
    Labels,
    LogitAdjusted,
    Pairwise,
    explain,
    scheme,
)
from headtail.cli.drawing import head_to_tail
from headtail.core import Margin
from headtail.implicit import lean_of
from headtail.schemes import PAPER

OTHERS = (
    "log-uniform:constant",
    "log-uniform:relative",
    "log-uniform:tail",
    "frequency(0.5):constant",
    "queue(64):relative",
)
COUNTS = {
    "head, torso and tail": [400, 400, 150, 150, 150, 60, 60, 30, 9, 9, 9, 9, 2, 2],
    "no head": [15, 15, 8, 8, 8, 3, 3, 3, 3, 1],
    "two counts": [500] * 5 + [5] * 7,
    "one frequent label": [1000] + [1] * 20,
    "never seen": [40, 40, 6, 6, 6, 0, 0],
}


def random_parts(size: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    positive, negative = torch.randn(2, size, dtype=torch.float64, generator=generator)
    return positive, negative


def both_kinds(positive: Tensor, negative: Tensor) -> list[Margin]:
    """A margin as two vectors, and as a function of pairs."""
    return [
        CustomSeparable(positive, negative),
        Pairwise(lambda y, other: positive[y] + negative[other]),
    ]


def shuffled_within_counts(counts: Tensor, seed: int) -> Tensor:
    """A random permutation of labels that moves each to a place of the same count."""
    order = torch.arange(len(counts))
    generator = torch.Generator().manual_seed(seed)
    for value in counts.unique():
        places = (counts == value).nonzero().squeeze(1)
        order[places] = places[torch.randperm(len(places), generator=generator)]
    return order


@pytest.mark.parametrize("size", [2, 7, 150])
@pytest.mark.parametrize("count", [1, 10, 50, 1000])
@pytest.mark.parametrize("name", [*PAPER, *OTHERS])
def test_balanced_counts_have_no_head_and_no_tail_to_lean_to(name, count, size):
    labels = Labels.from_counts([count] * size)
    found = explain(scheme(name, labels, 4), labels, batch_size=8)
    assert (found.lean, found.leans) == (0.0, "neither")


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS.keys())
def test_permuting_labels_of_equal_count_changes_no_lean(counts):
    labels = Labels.from_counts(counts, smoothing=0.5)
    positive, negative = random_parts(len(counts), seed=0)
    for before in both_kinds(positive, negative):
        expected = lean_of(before, labels)
        for seed in range(20):
            order = shuffled_within_counts(labels.counts, seed)
            after = both_kinds(positive[order], negative[order])[isinstance(before, Pairwise)]
            assert lean_of(after, labels) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS.keys())
def test_the_lean_is_the_mean_over_all_pairs_of_median_count(counts):
    labels = Labels.from_counts(counts, smoothing=0.5)
    positive, negative = random_parts(len(counts), seed=1)
    slices = labels.slices_by_mass()
    values = []
    for name, otherwise in (("tail", min(counts)), ("head", max(counts))):
        seen = sorted(
            count
            for count, here in zip(counts, getattr(slices, name).tolist(), strict=True)
            if here and count
        )
        values.append(seen[(len(seen) - 1) // 2] if seen else otherwise)
    tail, head = ([i for i, count in enumerate(counts) if count == value] for value in values)
    pairs = [
        float(positive[t] + negative[h] - positive[h] - negative[t]) for t in tail for h in head
    ]
    for margin in both_kinds(positive, negative):
        assert lean_of(margin, labels) == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


def test_a_margin_that_only_looks_at_counts_has_the_lean_of_any_pair_to_the_last_digit():
    labels = Labels.from_counts([700] * 3 + [50] * 4 + [7] * 11)
    margin = LogitAdjusted(labels)
    tail = torch.tensor([17])
    head = torch.tensor([2])
    assert lean_of(margin, labels) == float(margin.log_rho(tail, head) - margin.log_rho(head, tail))


def test_labels_that_never_push_each_other_down_lean_nowhere():
    labels = Labels.from_counts([900, 900, 3, 3])
    nothing = torch.full((4,), -math.inf, dtype=torch.float64)
    assert lean_of(CustomSeparable(torch.zeros(4), nothing), labels) == 0.0
    only_head = torch.tensor([0.0, 0.0, -math.inf, -math.inf], dtype=torch.float64)
    assert lean_of(CustomSeparable(torch.zeros(4), only_head), labels) == math.inf


def test_a_head_of_many_tied_labels_is_compared_in_parts():
    labels = Labels.from_counts([500] * 1500 + [3] * 2500)
    positive, negative = random_parts(4000, seed=2)
    separable, pairwise = both_kinds(positive, negative)
    assert lean_of(pairwise, labels) == pytest.approx(lean_of(separable, labels), abs=1e-9)


def test_the_line_from_head_to_tail_is_flat_where_counts_are():
    labels = Labels.from_counts([10] * 64)
    margin = explain(scheme("log-uniform:constant", labels), labels).margin
    line = head_to_tail(margin, labels)
    assert line is not None
    assert len(set(line.plain)) == 1


def test_labels_and_margin_of_different_sizes_are_refused():
    with pytest.raises(HeadtailError):
        explain(scheme("uniform:tail", Labels.zipf(5)), Labels.zipf(6))
