"""Batch norm, shortcut and rectifier in two kernels against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headtail.encoders import norm
from headtail.encoders.norm import MOMENTUM, Norm, plain_norm
from tests.kernels.interpreter import DEVICE, GPU, elsewhere, in_triton, interpret

pytest.importorskip("triton")

# n, C, h, w: one row, one part, many parts with a ragged end, several blocks of channels
SHAPES = [(1, 8, 1, 2), (3, 16, 5, 7), (9, 16, 32, 33), (2, 128, 9, 5)]
SHAPES += [(128, 16, 32, 32), (128, 64, 8, 8), (37, 2048, 7, 7)] if GPU else []


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    interpret(__file__)


def image(shape, dtype: torch.dtype = torch.float32) -> Tensor:
    n, channels, height, width = shape
    return torch.randn(n, height, width, channels, device=DEVICE).permute(0, 3, 1, 2).to(dtype)


def both_ways(
    shape, dtype: torch.dtype, added: bool, relu: bool, shift: float = 0.5
) -> tuple[list, list, list]:
    """(by the kernels, by torch in this dtype, by torch in float64): output, running mean and
    variance, gradients.
    """
    x = image(shape, dtype) * 2 + shift
    shortcut = image(shape, dtype) if added else None
    grad = image(shape, dtype)
    weight = torch.rand(shape[1], device=DEVICE) + 0.5
    bias = torch.randn(shape[1], device=DEVICE)
    found = []
    for function, wide in ((by_kernels, False), (plain_norm, False), (plain_norm, True)):
        given = [
            None if t is None else (t.double() if wide else t).detach().requires_grad_()
            for t in (x, weight, bias, shortcut)
        ]
        running = tuple(
            t.double() if wide else t for t in (torch.zeros_like(bias), torch.ones_like(bias))
        )
        y = function(*given, relu, running)
        y.backward(grad.to(y.dtype))
        found.append(
            [t.double() for t in (y.detach(), *running, *(g.grad for g in given if g is not None))]
        )
    return tuple(found)


def by_kernels(x, weight, bias, shortcut, relu, running) -> Tensor:
    from headtail.kernels.triton import norm as kernels

    return norm._Norm.apply(kernels, x, weight, bias, shortcut, relu, running)


@in_triton
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("added", [True, False], ids=["shortcut", "alone"])
@pytest.mark.parametrize("relu", [True, False], ids=["rectified", "linear"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_the_kernels_err_no_more_than_torch_does(shape, added, relu, dtype):
    ours, plain, truth = both_ways(shape, dtype, added, relu)
    names = ("y", "running mean", "running variance", "x", "weight", "bias", "shortcut")
    for name, one, other, right in zip(names, ours, plain, truth, strict=False):
        assert one.shape == right.shape, name
        size = right.abs().amax() + 1e-3
        error = (one - right).abs().amax() / size
        allowed = (other - right).abs().amax() / size
        # Triton's interpreter cuts digits off where a GPU rounds
        cut = 0.0 if GPU or dtype == torch.float32 else 2**-7
        assert error <= 2 * allowed + 4e-6 + cut, f"{name}: {error:.2e} and torch's {allowed:.2e}"


@in_triton
def test_no_digits_are_lost_where_the_mean_is_large():
    ours, _, truth = both_ways((9, 16, 8, 8), torch.float32, False, False, shift=300.0)
    assert torch.allclose(ours[2], truth[2], rtol=1e-5)
    assert torch.allclose(ours[0], truth[0], atol=1e-3)


@in_triton
def test_a_nan_is_not_rectified_away():
    x = image((2, 8, 4, 4))
    x[1, 3, 2, 2] = torch.nan
    running = torch.zeros(8, device=DEVICE), torch.ones(8, device=DEVICE)
    y = by_kernels(
        x, torch.ones(8, device=DEVICE), torch.zeros(8, device=DEVICE), None, True, running
    )
    assert y[:, 3].isnan().all()
    assert not y[:, 4].isnan().any()


@pytest.mark.skipif(not GPU, reason="no GPU here")
def test_a_training_step_on_a_gpu_goes_through_the_kernels(monkeypatch):
    from headtail.kernels.triton import norm as cuda_norm

    called = []
    plain = cuda_norm.norm
    monkeypatch.setattr(cuda_norm, "norm", lambda *args: called.append(1) or plain(*args))
    module = Norm(16).cuda()
    module(image((4, 16, 8, 8)))
    module.eval()(image((4, 16, 8, 8)))
    assert len(called) == 1


@pytest.mark.parametrize("relu", [True, False])
def test_the_plain_twin_is_batch_norm_as_torch_knows_it(relu):
    module = Norm(6, relu=relu)
    torchs = torch.nn.BatchNorm2d(6, momentum=MOMENTUM)
    for _ in range(3):
        x = torch.randn(5, 6, 4, 3)
        shortcut = torch.randn(5, 6, 4, 3)
        expected = torchs(x) + shortcut
        assert torch.equal(module(x, shortcut), expected.relu() if relu else expected)
    module.eval()
    torchs.eval()
    expected = torchs(x)
    assert torch.equal(module(x), expected.relu() if relu else expected)
