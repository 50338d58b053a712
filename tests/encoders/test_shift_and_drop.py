"""Bias and dropout in one pass, and rows gathered and normalised by kernels, against plain code."""

from __future__ import annotations

import torch

from headtail.data.bag import Bag
from headtail.encoders.bottleneck import Bottleneck
from headtail.encoders.dropout import dropout, shift_and_drop
from headtail.encoders.weighted_bag import lengths
from headtail.kernels.dispatch import WORTH_GATHERING, use_kernels


def test_one_pass_equals_adding_and_dropping():
    start = torch.randn(33, 17)
    bias = torch.randn(17)
    results = []
    for function in (
        lambda x, b: shift_and_drop(x * 1.0, b, 0.3),
        lambda x, b: dropout(x + b, 0.3),
    ):
        torch.manual_seed(5)
        x = start.clone().requires_grad_()
        b = bias.clone().requires_grad_()
        out = function(x, b)
        (out * torch.arange(17.0)).sum().backward()
        results.append((out.detach(), x.grad, b.grad))
    for one_pass, two_passes in zip(*results, strict=True):
        assert torch.allclose(one_pass, two_passes, rtol=1e-5, atol=1e-4)
    assert 0.2 < float((results[0][0] == 0).float().mean()) < 0.4


def test_nothing_is_dropped_outside_training():
    x = torch.randn(4, 3)
    bias = torch.randn(3)
    assert torch.equal(shift_and_drop(x, bias, 0.5, training=False), x + bias)


def test_rows_gathered_by_the_kernel_are_those_gathered_by_torch():
    count = torch.randint(5, (50,))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), count.cumsum(0)])
    bag = Bag(
        offsets, torch.randint(9, (int(offsets[-1]),)).int(), torch.randn(int(offsets[-1])), 9
    )
    ids = torch.randint(50, (WORTH_GATHERING,))
    fast = bag.rows(ids)
    with use_kernels(False):
        slow = bag.rows(ids)
    assert all(
        torch.equal(getattr(fast, name), getattr(slow, name))
        for name in ("offsets", "columns", "values")
    )


def test_normalised_features_have_length_one_and_empty_points_stay_at_the_bias():
    bag = Bag(
        torch.tensor([0, 2, 2, 3]), torch.tensor([0, 2, 1]).int(), torch.tensor([3.0, 4.0, 0.5]), 3
    )
    encoder = Bottleneck(3, 3, sparse=True)
    encoder.weight.data = torch.eye(3)
    encoder.bias.data = torch.tensor([0.0, 0.0, 1.0])
    assert torch.allclose(
        encoder(bag), torch.tensor([[0.6, 0.0, 1.8], [0.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    )
    assert lengths(bag).tolist() == [5.0, 0.0, 0.5]
