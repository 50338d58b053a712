"""Dropout by bytes: the share that is asked for, and the mean as it was."""

from __future__ import annotations

import pytest
import torch

from headtail.encoders.dropout import dropout, shift_and_drop
from headtail.kernels.dispatch import use_kernels


@pytest.mark.parametrize("share", [0.001, 0.2, 0.5, 0.9, 0.999])
def test_the_share_is_dropped_and_the_mean_stays(share):
    out = dropout(torch.ones(200, 501), share)
    rounded = min(255, max(1, round(share * 256))) / 256
    assert abs(rounded - share) <= 1 / 256
    assert (out == 0).float().mean().item() == pytest.approx(rounded, abs=0.01)
    assert out.max().item() == pytest.approx(1 / (1 - rounded), rel=1e-6)
    assert out.double().mean().item() == pytest.approx(
        1, abs=6 * (rounded / (1 - rounded) / out.numel()) ** 0.5
    )


def test_each_number_is_dropped_by_itself():
    """Neighbours share a random word but not a byte of it."""
    dropped = (dropout(torch.ones(100_000), 0.5) == 0).double() - 0.5
    for distance in (1, 2, 4, 7, 8, 64):
        assert abs((dropped[distance:] * dropped[:-distance]).mean().item()) < 0.25 * 0.02


def test_the_same_seed_drops_the_same_and_none_are_dropped_out_of_training():
    x = torch.randn(5, 3)
    torch.manual_seed(1)
    first = dropout(x, 0.5)
    torch.manual_seed(1)
    assert torch.equal(first, dropout(x, 0.5))
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0) is x


def test_the_gradient_is_zero_where_a_number_was_dropped():
    x = torch.randn(1000, requires_grad=True)
    out = dropout(x, 0.5)
    out.sum().backward()
    assert torch.equal(x.grad, torch.where(out == 0, 0.0, 2.0))


@pytest.mark.parametrize("shape", [(1,), (3, 5), (64, 129), (7, 2, 3)])
@pytest.mark.parametrize("share", [0.001, 0.3, 0.999])
def test_the_same_numbers_are_dropped_with_and_without_kernels(shape, share):
    x = torch.randn(shape)
    torch.manual_seed(3)
    by_kernels = dropout(x, share)
    after = torch.rand(())
    with use_kernels(False):
        torch.manual_seed(3)
        assert torch.equal(dropout(x, share), by_kernels)
        assert torch.equal(torch.rand(()), after), "as many random numbers were taken"


def test_bias_and_dropout_in_one_pass_drop_what_plain_torch_drops():
    x = torch.randn(33, 17)
    bias = torch.randn(17)
    torch.manual_seed(5)
    by_kernels = shift_and_drop(x.clone(), bias, 0.3)
    with use_kernels(False):
        torch.manual_seed(5)
        plain = shift_and_drop(x.clone(), bias, 0.3)
    assert torch.equal(by_kernels == 0, plain == 0)
    assert torch.allclose(by_kernels, plain)
