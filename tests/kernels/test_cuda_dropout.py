"""A bias and a dropout by Triton: what is kept, what is not, and the gradients of exactly that."""

from __future__ import annotations

import pytest
import torch

from headtail.kernels.gradient import Drop
from tests.kernels.interpreter import DEVICE, elsewhere, in_triton, interpret

pytest.importorskip("triton")
SHAPES = [(1, 1), (3, 130), (65, 40), (130, 129)]


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    interpret(__file__)


def dropped(n: int, d: int, share: float, seed: int = 3) -> torch.Tensor:
    from headtail.kernels.triton import dropout as cuda_dropout

    ones = torch.ones(n, d, device=DEVICE)
    drop = Drop(torch.tensor(seed, device=DEVICE), share, 1 / (1 - share))
    cuda_dropout.forward(ones, torch.zeros(d, device=DEVICE), drop)
    return ones == 0


@in_triton
@pytest.mark.parametrize(("n", "d"), SHAPES)
@pytest.mark.parametrize("share", [0.25, 0.5])
def test_kept_numbers_are_shifted_and_scaled_and_gradients_flow_through_them_only(n, d, share):
    from headtail.kernels.triton import dropout as cuda_dropout

    x = torch.randn(n, d, device=DEVICE)
    bias = torch.randn(d, device=DEVICE)
    grad = torch.randn(n, d, device=DEVICE)
    drop = Drop(torch.tensor(3, device=DEVICE), share, 1 / (1 - share))
    gone = dropped(n, d, share)
    out = x.clone()
    cuda_dropout.forward(out, bias, drop)
    assert torch.allclose(out, torch.where(gone, 0.0, (x + bias) / (1 - share)), rtol=1e-6)
    of_x, parts = cuda_dropout.backward(grad, drop)
    assert torch.allclose(of_x, torch.where(gone, 0.0, grad / (1 - share)), rtol=1e-6)
    assert torch.allclose(parts.sum(0), of_x.sum(0), rtol=1e-5, atol=1e-5)


@in_triton
def test_the_share_is_dropped_each_number_by_itself_and_differently_for_each_seed():
    from headtail.kernels.triton import dropout as cuda_dropout

    gone = dropped(100, 257, 0.3)
    assert gone.double().mean().item() == pytest.approx(0.3, abs=0.015)
    flat = gone.flatten().double() - 0.3
    for distance in (1, 2, 8, 128, 257):
        assert abs((flat[distance:] * flat[:-distance]).mean().item()) < 0.21 * 0.04
    assert not torch.equal(gone, dropped(100, 257, 0.3, seed=4))
    x = torch.zeros(2, 2, device=DEVICE)
    assert not torch.equal(cuda_dropout.drop_for(x, 0.5).noise, cuda_dropout.drop_for(x, 0.5).noise)
