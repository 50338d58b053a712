"""Within-batch negatives of other groups keep the promise of a draw where pairs come together."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from headtail import HeadtailError, Importance, LabelHead, Labels, SampledSoftmaxLoss, WithinBatch
from headtail.core.targets import Pairs
from headtail.data.batches import TrainingBatch
from headtail.encoders import Model, SASRec
from headtail.kernels.dispatch import use_kernels
from headtail.losses.options import Settings
from headtail.schemes import scheme

SEQUENCES = [(0, 1), (0, 2), (3, 1), (0, 0)]
"""Sequences of two targets each, all equally likely: items of one come together."""
LABELS = Labels.from_counts(torch.bincount(torch.tensor(SEQUENCES).flatten()).tolist())
GROUP = torch.tensor([0, 0, 1, 1, 2, 2])


def grouped(target, group=GROUP):
    return replace(Pairs.of(target), group=group)


def expected_copies(own, groups):
    """Σ over batches: how often each other label counts for the first target of a sequence `own`,
    times 1/(m·q·e^−keep), which must be 1.
    """
    sums = torch.zeros(4, dtype=torch.float64)
    batches = list(product(SEQUENCES, repeat=2))
    for others in batches:
        target = torch.tensor([own, *others]).flatten()
        pairs = grouped(target) if groups else Pairs.of(target)
        draw = WithinBatch(LABELS).draw(pairs)
        counts = ~Settings().masks(pairs, draw, Importance())[0]
        keep = draw.log_keep[0] if isinstance(draw.log_keep, torch.Tensor) else draw.log_keep
        weight = (keep - math.log(draw.m) - draw.log_q).exp()
        sums.index_add_(0, draw.ids[counts], weight[counts])
    return sums / len(batches)


@pytest.mark.parametrize("own", SEQUENCES)
def test_every_other_label_is_counted_once_in_expectation(own):
    others = torch.tensor([label for label in range(4) if label != own[0]])
    torch.testing.assert_close(
        expected_copies(own, True)[others], torch.ones(3, dtype=torch.float64)
    )


def test_without_groups_the_items_of_a_sequence_are_negatives_too_often():
    copies = expected_copies((3, 1), False)
    assert copies[1] > 1.3, "the other item of its own sequence"
    assert copies[2] < 1


@pytest.mark.parametrize("number", [None, 4])
def test_what_is_taken_from_the_own_group_does_not_count(number):
    target = torch.tensor([0, 1, 0, 2, 3, 1])
    loss = SampledSoftmaxLoss(WithinBatch(LABELS, number), Importance())
    torch.manual_seed(0)
    draw = loss.sampler.draw(grouped(target))
    assert draw.log_keep.exp().tolist() == pytest.approx([5 / 4] * 6)
    hidden = torch.randn(6, 3, dtype=torch.float64)
    table = torch.randn(4, 3, dtype=torch.float64)
    value = loss(hidden, table, grouped(target), draw=draw, reduction="none")
    for i in range(6):
        total = torch.zeros((), dtype=torch.float64)
        for slot in draw.slots.tolist():
            if slot // 2 != i // 2 and target[slot] != target[i]:
                weight = 5 / 4 / (draw.m * LABELS.log_frequency(target[slot]).exp())
                gap = hidden[i] @ (table[target[slot]] - table[target[i]])
                total += weight * gap.exp()
        torch.testing.assert_close(value[i], (1 + total).log())


def test_ignored_targets_are_in_no_group_and_one_group_has_no_negatives():
    target = torch.tensor([0, -100, 0, 2, 3, -100])
    draw = WithinBatch(LABELS).draw(grouped(target))
    assert draw.log_keep.exp()[[0, 2, 4]].tolist() == pytest.approx([1, 3 / 2, 1])
    alone = grouped(torch.tensor([0, 1]), torch.tensor([0, 0]))
    loss = SampledSoftmaxLoss(WithinBatch(LABELS), Importance())
    assert loss(torch.randn(2, 3), torch.randn(4, 3), alone).item() == 0
    with pytest.raises(HeadtailError, match="`group`"):
        WithinBatch(LABELS).draw(grouped(torch.tensor([0, 1]), torch.tensor([0, 2])))


@pytest.mark.parametrize("name", ["within-batch:importance@5", "hinge/within-batch:tail@5"])
def test_kernels_mask_groups_as_plain_code_does(name):
    labels = Labels.zipf(9)
    head = LabelHead(labels, 8, scheme(name, labels), sparse=True)
    items = torch.tensor([[1, 2, 3], [4, 5, -1]])
    rows, target = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([2, 3, 4, 5, 6])
    model = Model(SASRec(9, 8, length=3), head)
    found = []
    for kernels in (True, False):
        torch.manual_seed(1)
        model.zero_grad()
        with use_kernels("always" if kernels else False):
            loss = model(TrainingBatch(items, rows, target))
            loss.backward()
        found.append((loss.item(), head.weight.grad.to_dense().clone()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-6)
