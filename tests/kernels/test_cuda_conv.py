"""3 × 3 convolutions and their gradients by the kernels, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headtail.encoders import convolution
from headtail.kernels.dispatch import use_kernels
from tests.kernels.interpreter import DEVICE, GPU, elsewhere, in_triton, interpret

pytest.importorskip("triton")

# n, C, D, h, w: one pixel, one row, one column, odd sizes, several programs with a ragged end,
# channels that differ
SHAPES = [
    (1, 16, 16, 1, 1),
    (2, 16, 16, 1, 5),
    (3, 32, 32, 7, 1),
    (2, 64, 64, 3, 3),
    (3, 16, 16, 11, 13),
    (2, 32, 32, 10, 9),
]
SHAPES += [(3, 64, 64, 5, 6), (2, 16, 64, 3, 4), (1, 64, 16, 5, 2), (1, 32, 16, 3, 4)]
SHAPES += (
    [(128, 16, 16, 32, 32), (128, 32, 32, 16, 16), (128, 64, 64, 8, 8), (37, 64, 64, 56, 56)]
    if GPU
    else []
)
# Triton's interpreter cannot multiply matrices of bfloat16: another narrow dtype replaces it there.
DTYPES = [torch.float32, torch.bfloat16 if GPU else torch.float16]


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    interpret(__file__)


def case(shape, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Input, filter and gradient of the output, channels last."""
    n, channels, out, height, width = shape
    sizes = (n, height, width, channels), (out, 3, 3, channels), (n, height, width, out)
    return tuple(torch.randn(size, device=DEVICE).to(dtype).permute(0, 3, 1, 2) for size in sizes)


def by_torch(x: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(x, weight, padding=1)


def by_kernels(x: Tensor, weight: Tensor) -> Tensor:
    from headtail.kernels.triton import convolution as kernels

    return convolution._Convolve.apply(kernels, x, weight)


def answers(function, x: Tensor, weight: Tensor, grad: Tensor) -> list[Tensor]:
    """Output, and gradients of input and filter."""
    x = x.detach().requires_grad_()
    weight = weight.detach().requires_grad_()
    y = function(x, weight)
    y.backward(grad)
    return [y.detach(), x.grad, weight.grad]


@in_triton
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernels_err_no_more_than_torch_does(shape, dtype):
    torch.manual_seed(0)
    given = case(shape, dtype)
    ours = answers(by_kernels, *given)
    plain = answers(by_torch, *given)
    truth = answers(by_torch, *(one.double() for one in given))
    for name, one, other, right in zip(("y", "x", "weight"), ours, plain, truth, strict=True):
        assert one.dtype == dtype
        assert one.shape == right.shape, name
        assert one.is_contiguous(memory_format=torch.channels_last), name
        size = right.abs().amax()
        error = (one - right).abs().amax() / size
        allowed = (other - right).abs().amax() / size
        assert error <= 1.5 * allowed + 1e-6, f"{name}: {error:.2e} and torch's {allowed:.2e}"


@in_triton
@pytest.mark.parametrize("channels", [16, 64])
def test_a_pixel_reaches_its_neighbours_and_nobody_beyond_the_edges(channels):
    x, weight, _ = case((2, channels, channels, 4, 5), torch.float32)
    x.zero_()
    x[0, :, 3, 4] = 1e6  # the last pixel of an image, next to the first of the next image
    expected = torch.zeros(2, 4, 5, dtype=torch.bool, device=DEVICE)
    expected[0, 2:, 3:] = True
    assert torch.equal(by_kernels(x, weight).any(1), expected)


@in_triton
def test_gradients_repeat_themselves_bit_for_bit():
    given = case((128, 16, 16, 32, 32) if GPU else (3, 16, 16, 11, 13), DTYPES[1])
    assert all(
        torch.equal(*both)
        for both in zip(answers(by_kernels, *given), answers(by_kernels, *given), strict=True)
    )


@in_triton
def test_parts_of_several_turns_are_summed_whole():
    from headtail.kernels.triton import convolution as cuda_conv

    for channels, tiles in cuda_conv.TILES.items():
        x, weight, grad = case((2, channels, channels, 9, 8), torch.float32)
        few = tiles._replace(depth=16, parts=3)
        _, grad_weight = cuda_conv.conv2d_backward(grad, x, weight, few)
        right = answers(by_torch, x.double(), weight.double(), grad.double())[2]
        assert torch.allclose(grad_weight.double(), right, atol=1e-4)


@pytest.mark.skipif(not GPU, reason="no GPU here")
def test_a_gpu_takes_the_kernels_for_what_fits_and_torch_for_the_rest(monkeypatch):
    from headtail.encoders import ResNet
    from headtail.kernels.triton import convolution as cuda_conv

    called = []
    plain = cuda_conv.conv2d
    monkeypatch.setattr(
        cuda_conv, "conv2d", lambda *args: called.append(args[0].shape[1]) or plain(*args)
    )
    images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8, device="cuda")
    ResNet(20, narrow=True).cuda()(images).sum().backward()
    assert called == [16] * 6 + [32] * 5 + [64] * 5  # not the stem, nor where the size halves
    ResNet(20).cuda()(images)
    assert len(called) == 16, "float32 is not for the kernels"
    with use_kernels(False):
        ResNet(20, narrow=True).cuda()(images)
    assert len(called) == 16
