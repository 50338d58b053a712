"""Draws whose log-weights were looked up beforehand: they serve the loss they were made for, and
any other.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headtail import (
    Constant,
    Frequency,
    FromMargin,
    Importance,
    LabelHead,
    Labels,
    LogitAdjusted,
    Relative,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    Tail,
    Uniform,
    WithinBatch,
)
from headtail.core import Weighting
from headtail.functional import sampled_softmax_loss

LABELS = Labels.zipf(37)
WEIGHTINGS = {
    "constant": Constant(),
    "importance": Importance(),
    "relative": Relative(),
    "tail": Tail(LABELS),
    "weak tail": Tail(LABELS, 0.25),
    "margin": FromMargin(LogitAdjusted(LABELS, -1.0)),
}
SAMPLERS = {
    "uniform": Uniform(LABELS, 17),
    "frequency, excluded": Frequency(LABELS, 17, 0.5, exclude_target=True),
    "within-batch": WithinBatch(LABELS),
}
LOSSES = {"softmax": SampledSoftmaxLoss, "decoupled": SampledDecoupledLoss}


def a_batch():
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(11, 8, generator=generator)
    table = torch.randn(37, 8, generator=generator)
    return hidden, table, torch.randint(37, (11,), generator=generator)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize("given", WEIGHTINGS.values(), ids=WEIGHTINGS)
@pytest.mark.parametrize("own", WEIGHTINGS.values(), ids=WEIGHTINGS)
def test_a_loss_weighs_the_draw_of_another_loss_by_its_own_weighting(own, given, sampler, loss):
    hidden, table, target = a_batch()
    ahead = loss(sampler, given).draw_ahead(target)
    ours = loss(sampler, own)
    plain = sampler.describe(ahead.ids, target, ahead.m)
    truth = ours(hidden.double(), table.double(), target, draw=plain)
    for sparse in (False, True):  # the plain path, and the kernel
        value = ours(hidden, table, target, draw=ahead, sparse=sparse)
        assert value.item() == pytest.approx(truth.item(), rel=1e-6), sparse


@pytest.mark.parametrize("sparse", [False, True], ids=["plain", "kernel"])
def test_a_draw_made_ahead_for_other_targets_is_weighed_for_these(sparse):
    hidden, table, target = a_batch()
    others = target.roll(1)
    loss = SampledSoftmaxLoss(SAMPLERS["uniform"], WEIGHTINGS["tail"])
    ahead = loss.draw_ahead(others)
    plain = loss.sampler.describe(ahead.ids, target, ahead.m)
    truth = loss(hidden.double(), table.double(), target, draw=plain)
    assert loss(hidden, table, target, draw=ahead, sparse=sparse).item() == pytest.approx(
        truth.item(), rel=1e-6
    )


@pytest.mark.parametrize("sparse", [False, True], ids=["plain", "kernel"])
def test_a_draw_made_ahead_and_changed_is_weighed_as_changed(sparse):
    hidden, table, target = a_batch()
    loss = SampledSoftmaxLoss(SAMPLERS["uniform"], WEIGHTINGS["tail"])
    ids = torch.arange(17)
    ahead = replace(loss.draw_ahead(target), ids=ids, m=3.0)
    plain = loss.sampler.describe(ids, target, 3.0)
    truth = loss(hidden.double(), table.double(), target, draw=plain)
    assert loss(hidden, table, target, draw=ahead, sparse=sparse).item() == pytest.approx(
        truth.item(), rel=1e-6
    )


class Counted(Weighting):
    """Importance weights that count how often they are looked up."""

    def __init__(self) -> None:
        self.calls = 0

    def offsets(self, draw, target):
        """As importance weights."""
        self.calls += 1
        return Importance().offsets(draw, target)


@pytest.mark.parametrize("sparse", [False, True], ids=["plain", "kernel"])
def test_the_loss_that_drew_ahead_does_not_look_its_weights_up_again(sparse):
    hidden, _, target = a_batch()
    weighting = Counted()
    head = LabelHead(LABELS, 8, SampledSoftmaxLoss(Uniform(LABELS, 17), weighting), sparse=sparse)
    ahead = head.loss.draw_ahead(target)
    assert weighting.calls == 1
    value = head(hidden, target, draw=ahead, ignore_index=None)
    assert weighting.calls == 1
    truth = sampled_softmax_loss(hidden, head.weight, target, ahead, Importance())
    assert value.item() == pytest.approx(truth.item(), rel=1e-6)
