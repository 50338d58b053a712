"""Hidden states and tables with NaN have no best labels: that is said, and never answered."""

from __future__ import annotations

import math

import pytest
import torch

import headtail
from headtail import HeadtailError, LabelHead, Labels, SoftmaxLoss


def head(number: int = 40, score: str = "dot") -> LabelHead:
    loss = SoftmaxLoss(score=score)
    return LabelHead(Labels.zipf(number), 4, loss, bias=score == "dot").eval()


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("candidates", [None, [1, 3, 5], [[1, 3, 5], [2, 3]]])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["hidden", "head.weight", "head.bias"])
def test_a_value_that_is_not_finite_is_named_and_counted(where, value, candidates, kernels):
    one = head()
    hidden = torch.ones(2, 4)
    values = {"hidden": hidden, "head.weight": one.weight, "head.bias": one.bias}[where]
    with torch.no_grad():
        one.weight.copy_(torch.ones_like(one.weight))
        values.view(-1)[3 if where == "head.bias" else 12 if where == "head.weight" else 0] = value
    hopeless = value == -math.inf  # a score of −∞ has its place in the order: the last
    with headtail.use_kernels(kernels):
        if hopeless:
            assert one.topk(hidden, 1, candidates=candidates).indices.shape == (2, 1)
            return
        with pytest.raises(HeadtailError, match=rf"`{where}` has 1 of \d+ values that are NaN"):
            one.topk(hidden, 2, candidates=candidates)


@pytest.mark.parametrize("score", ["dot", "cosine"])
def test_one_label_of_very_many_is_enough(score):
    one = head(5000, score)
    with torch.no_grad():
        one.weight[4321, 2] = math.nan
    with pytest.raises(HeadtailError, match=r"`head.weight` has 1 of 20,000 values"):
        one.topk(torch.ones(3, 4), 5)


def test_scores_beyond_the_largest_number_are_told_from_values_that_are_not_finite():
    one = head()
    with torch.no_grad():
        one.weight.fill_(1e38)
    with pytest.raises(HeadtailError, match="so large that 2 of 3 rows"):
        one.topk(torch.tensor([[1e3] * 4, [0.0] * 4, [1e3] * 4]), 5)


def test_excluded_labels_are_no_reason_to_refuse():
    best = head(3).topk(torch.ones(1, 4), 3, exclude=[[0, 1, 2]])
    assert best.indices.tolist() == [[-1, -1, -1]]
