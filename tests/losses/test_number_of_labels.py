"""Margins, weightings and samplers over another number of labels than the table has are refused."""

from __future__ import annotations

import pytest
import torch

from headtail import (
    Adaptive,
    CustomSeparable,
    DecoupledLoss,
    Equalised,
    FromMargin,
    HeadtailError,
    Importance,
    LabelHead,
    Labels,
    LogitAdjusted,
    Pairwise,
    Relative,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    SoftmaxLoss,
    Tail,
    Uniform,
    Unit,
    explain,
)
from headtail.core import Margin, Weighting
from headtail.functional import (
    decoupled_loss,
    sampled_decoupled_loss,
    sampled_softmax_loss,
    softmax_loss,
    two_tower_softmax_loss,
)

FEW = Labels.zipf(10)
SIZES = {"more": Labels.zipf(20), "fewer": Labels.zipf(7)}
MARGINS = {
    "logit-adjusted": LogitAdjusted,
    "equalised": Equalised,
    "adaptive": Adaptive,
    "custom": lambda labels: CustomSeparable([0.0] * labels.num_labels, [0.0] * labels.num_labels),
}
HIDDEN = torch.randn(3, 4)
TABLE = torch.randn(10, 4)
TARGET = torch.tensor([0, 3, 6])
DRAW = Uniform(7, 5).draw(TARGET)


@pytest.mark.parametrize("labels", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("margin", MARGINS.values(), ids=MARGINS)
@pytest.mark.parametrize("function", [softmax_loss, decoupled_loss])
@pytest.mark.parametrize("options", [{}, {"reduction": "none"}, {"collisions": "none"}], ids=str)
def test_an_exact_loss_refuses_a_margin_over_other_labels(function, margin, labels, options):
    with pytest.raises(
        HeadtailError, match=f"`margin` has {labels.num_labels} labels, but `weight` 10"
    ):
        function(HIDDEN, TABLE, TARGET, margin(labels), **options)


@pytest.mark.parametrize("labels", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("margin", MARGINS.values(), ids=MARGINS)
@pytest.mark.parametrize("loss", [SoftmaxLoss, DecoupledLoss])
def test_a_module_of_an_exact_loss_refuses_a_table_of_other_labels(loss, margin, labels):
    with pytest.raises(
        HeadtailError, match=f"`margin` has {labels.num_labels} labels, but `weight` 10"
    ):
        loss(margin(labels))(HIDDEN, TABLE, TARGET)


@pytest.mark.parametrize("labels", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("function", [sampled_softmax_loss, sampled_decoupled_loss])
@pytest.mark.parametrize("sparse", [False, True], ids=["plain", "kernel"])
def test_a_sampled_loss_refuses_a_weighting_over_other_labels(function, labels, sparse):
    with pytest.raises(
        HeadtailError, match=f"`weighting` has {labels.num_labels} labels, but `weight` 10"
    ):
        function(HIDDEN, TABLE, TARGET, DRAW, Tail(labels), sparse=sparse)


def test_two_towers_refuse_a_weighting_over_other_labels():
    with pytest.raises(HeadtailError, match="`weighting` has 20 labels, but `num_labels` is 10"):
        two_tower_softmax_loss(
            HIDDEN, HIDDEN, torch.randn(5, 4), TARGET, DRAW, Tail(SIZES["more"]), num_labels=10
        )


@pytest.mark.parametrize("labels", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("kind", [SampledSoftmaxLoss, SampledDecoupledLoss])
@pytest.mark.parametrize("sparse", [False, True], ids=["plain", "kernel"])
@pytest.mark.parametrize("draw", [None, DRAW], ids=["drawn", "given"])
def test_a_module_of_a_sampled_loss_refuses_a_table_of_other_labels(kind, labels, sparse, draw):
    for weighting in (Importance(), Relative(), Tail(labels)):
        loss = kind(Uniform(labels, 3), weighting)
        with pytest.raises(
            HeadtailError, match=f"`sampler` has {labels.num_labels} labels, but `weight` 10"
        ):
            loss(HIDDEN, TABLE, TARGET, sparse=sparse, draw=draw)


@pytest.mark.parametrize("labels", SIZES.values(), ids=SIZES)
def test_a_head_refuses_a_loss_over_other_labels(labels):
    losses = [SoftmaxLoss(margin(labels)) for margin in MARGINS.values()]
    losses += [DecoupledLoss(margin(labels)) for margin in MARGINS.values()]
    losses += [
        SampledSoftmaxLoss(Uniform(labels, 3), Importance()),
        SampledDecoupledLoss(Uniform(labels, 3), Tail(labels)),
    ]
    for loss in losses:
        with pytest.raises(HeadtailError, match=f"{labels.num_labels} labels, but `labels` has 10"):
            LabelHead(FEW, 4, loss)


@pytest.mark.parametrize("labels", SIZES.values(), ids=SIZES)
def test_a_head_does_not_grow_with_a_loss_over_other_labels(labels):
    head = LabelHead(FEW, 4, SoftmaxLoss(LogitAdjusted(FEW)))
    grown = FEW.grow([1, 1])
    for loss in (
        SoftmaxLoss(LogitAdjusted(labels)),
        SampledSoftmaxLoss(Uniform(labels, 3), Tail(labels)),
    ):
        with pytest.raises(HeadtailError, match=f"{labels.num_labels} labels, but `labels` has 12"):
            head.grow(grown, loss=loss)
    assert len(head.weight) == 10


@pytest.mark.parametrize("labels", SIZES.values(), ids=SIZES)
def test_a_loss_over_other_labels_is_not_explained(labels):
    with pytest.raises(
        HeadtailError, match=f"`margin` has {labels.num_labels} labels, but `labels` has 10"
    ):
        explain(SoftmaxLoss(LogitAdjusted(labels)), FEW)


def test_a_loss_put_into_a_head_later_is_checked_when_it_is_used():
    head = LabelHead(FEW, 4, SoftmaxLoss(LogitAdjusted(FEW)))
    head.loss = SoftmaxLoss(LogitAdjusted(SIZES["more"]))
    with pytest.raises(HeadtailError, match="`margin` has 20 labels, but `weight` 10"):
        head(HIDDEN, TARGET)


def test_a_head_grows_with_the_margin_of_its_loss():
    head = LabelHead(FEW, 4, SoftmaxLoss(LogitAdjusted(FEW)))
    head.grow(FEW.grow([1, 1]))
    assert head(HIDDEN, TARGET).isfinite()


@pytest.mark.parametrize(
    "margin", [Unit(), Pairwise(lambda y, other: 0.0 * (y - other))], ids=["unit", "pairwise"]
)
def test_margins_that_fit_any_number_of_labels_are_taken(margin):
    assert margin.num_labels is None
    assert softmax_loss(HIDDEN, TABLE, TARGET, margin).isfinite()
    assert sampled_softmax_loss(HIDDEN, TABLE, TARGET, DRAW, FromMargin(margin)).isfinite()


class OwnMargin(Margin):
    """A margin of a user's own, over seven labels."""

    @property
    def num_labels(self):
        """Seven."""
        return 7

    def log_rho(self, target, ids):
        """0."""
        return torch.zeros(len(target), ids.shape[-1], dtype=torch.float64)


class OwnWeighting(Weighting):
    """A weighting of a user's own, over seven labels."""

    @property
    def num_labels(self):
        """Seven."""
        return 7

    def offsets(self, draw, target):
        """0."""
        return torch.zeros(len(target)), torch.zeros(draw.ids.shape)


def test_margins_and_weightings_of_one_s_own_are_checked_too():
    with pytest.raises(HeadtailError, match="`margin` has 7 labels"):
        softmax_loss(HIDDEN, TABLE, TARGET, OwnMargin())
    for weighting in (FromMargin(OwnMargin()), OwnWeighting()):
        with pytest.raises(HeadtailError, match="`weighting` has 7 labels"):
            sampled_softmax_loss(HIDDEN, TABLE, TARGET, DRAW, weighting)
        with pytest.raises(HeadtailError, match="10 labels"):
            SampledSoftmaxLoss(Uniform(10, 5), weighting)
