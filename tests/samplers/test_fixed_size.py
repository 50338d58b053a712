"""Within-batch draws of a fixed size: places of ignored targets are void, all else is the same."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import headtail as ht
from headtail.core.targets import Pairs
from headtail.core.weightings import Weighting

LABELS = ht.Labels.from_counts([8, 4, 2, 1, 1])
WEIGHTINGS: dict[str, Weighting] = {
    "importance": ht.Importance(),
    "tail": ht.Tail(LABELS),
    "constant": ht.Constant(),
    "relative": ht.Relative(),
    "infonce": ht.InfoNCE(),
}
TARGETS = [list(ids) for ids in itertools.product((0, 3, -100), repeat=4)]


def loss_of(
    kind: str, weighting: Weighting, target: Tensor, fixed_size: bool, collisions: str | None
) -> list[Tensor]:
    """The loss and its gradients, with every example in its own row."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(len(target), 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    hidden.requires_grad_()
    weight.requires_grad_()
    sampler = ht.WithinBatch(LABELS)
    made = ht.SampledSoftmaxLoss if kind == "softmax" else ht.SampledDecoupledLoss
    loss = made(sampler, weighting, collisions=collisions)
    draw = sampler.draw(target, fixed_size=fixed_size)
    value = loss(hidden, weight, target, draw=draw)
    return [value, *torch.autograd.grad(value, [hidden, weight])]


@pytest.mark.parametrize("kind", ["softmax", "decoupled"])
@pytest.mark.parametrize("name", WEIGHTINGS)
@pytest.mark.parametrize("collisions", [None, "none"])
def test_it_is_the_same_loss(kind: str, name: str, collisions: str | None) -> None:
    for ids in TARGETS:
        target = torch.tensor(ids)
        fixed = loss_of(kind, WEIGHTINGS[name], target, True, collisions)
        usual = loss_of(kind, WEIGHTINGS[name], target, False, collisions)
        for ours, theirs in zip(fixed, usual, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["importance", "tail"])
def test_it_is_the_same_loss_for_sequences(name: str) -> None:
    label = torch.tensor([0, 3, 0, 1, 2, 3])
    for ignored in itertools.product((False, True), repeat=6):
        skipped = torch.tensor(ignored)
        group = torch.tensor([0, 0, 2, 2, 4, 4])
        pairs = Pairs(label, None, skipped, 6, group=group)
        weighting = WEIGHTINGS[name]
        sampler = ht.WithinBatch(LABELS)
        loss = ht.SampledSoftmaxLoss(sampler, weighting)
        hidden = torch.randn(6, 3, dtype=torch.float64)
        weight = torch.randn(5, 3, dtype=torch.float64)
        ours = loss(hidden, weight, pairs, draw=sampler.draw(pairs, fixed_size=True))
        theirs = loss(hidden, weight, pairs, draw=sampler.draw(pairs))
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_it_has_a_place_for_each_target() -> None:
    target = torch.tensor([0, -100, 3, -100])
    draw = ht.WithinBatch(LABELS).draw(target, fixed_size=True)
    assert draw.ids.shape == (4,)
    assert draw.void is not None
    assert draw.void.tolist() == [False, True, False, True]
    assert float(draw.m) == 1.0


def test_a_part_of_the_batch_is_taken_as_before() -> None:
    target = torch.tensor([0, -100, 3, 1])
    draw = ht.WithinBatch(LABELS, 2).draw(target, fixed_size=True)
    assert draw.void is None
    assert draw.ids.shape == (2,)
