"""Convolutions go to the kernels where these take them, and only there."""

from __future__ import annotations

import types

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from headtail.encoders.convolution import convolve
from headtail.encoders.resnet import ResNet
from headtail.kernels.dispatch import convolution_kernels, use_kernels

pytest.importorskip("triton")


def like(*shape: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda", last: bool = True):
    """What the dispatch looks at of a tensor, on a device that need not be there."""
    stored = torch.empty(shape, dtype=dtype, device="meta")
    stored = stored.contiguous(memory_format=torch.channels_last) if last else stored
    about = {
        "device": torch.device(device),
        "dtype": dtype,
        "shape": stored.shape,
        "numel": stored.numel,
    }
    return types.SimpleNamespace(**about, is_contiguous=stored.is_contiguous)


FILTER = like(32, 16, 3, 3)


def test_kernels_take_three_by_three_filters_of_few_channels_in_bfloat16_on_a_gpu():
    assert convolution_kernels(like(2, 16, 7, 9), FILTER, 1, 1) is not None
    assert convolution_kernels(like(128, 64, 8, 8), like(64, 64, 3, 3), 1, 1) is not None


@pytest.mark.parametrize(
    ("x", "weight", "stride", "padding"),
    [
        (like(2, 16, 7, 9, device="cpu"), FILTER, 1, 1),
        (like(2, 16, 7, 9, dtype=torch.float32), FILTER, 1, 1),
        (like(2, 16, 7, 9), like(32, 16, 3, 3, dtype=torch.float32), 1, 1),
        (like(2, 16, 7, 9, last=False), FILTER, 1, 1),
        (like(2, 16, 7, 9), like(32, 16, 3, 3, last=False), 1, 1),
        (like(2, 16, 7, 9), FILTER, 2, 1),
        (like(2, 16, 7, 9), FILTER, 1, 0),
        (like(2, 16, 7, 9), like(32, 16, 1, 1), 1, 0),
        (like(2, 3, 7, 9), like(16, 3, 3, 3), 1, 1),
        (like(2, 16, 7, 9), like(128, 16, 3, 3), 1, 1),
        (like(0, 16, 7, 9), FILTER, 1, 1),
        (like(2**15, 16, 64, 64), FILTER, 1, 1),
    ],
    ids=[
        "CPU",
        "float32",
        "filter",
        "layout",
        "filter's layout",
        "stride",
        "padding",
        "1 × 1",
        "stem",
        "wide",
        "empty",
        "large",
    ],
)
def test_kernels_are_not_chosen_for_what_they_do_not_take(x, weight, stride, padding):
    assert convolution_kernels(x, weight, stride, padding) is None


def test_kernels_are_not_chosen_where_they_are_switched_off():
    with use_kernels(False):
        assert convolution_kernels(like(2, 16, 7, 9), FILTER, 1, 1) is None


def test_elsewhere_it_is_torchs_convolution():
    x = torch.randn(2, 16, 6, 5)
    weight = torch.randn(8, 16, 3, 3)
    assert torch.equal(
        convolve(x, weight, stride=2, padding=1), F.conv2d(x, weight, stride=2, padding=1)
    )


class Convolutions(TorchFunctionMode):
    """Records (channels in, channels out, stride, padding) of the convolutions in it."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is F.conv2d:
            x, weight = args
            self.seen.append((x.shape[1], weight.shape[0], *kwargs.values()))
        return function(*args, **(kwargs or {}))


def test_most_convolutions_of_a_small_network_have_a_shape_that_the_kernels_take():
    network = ResNet(20, augment=False)
    with Convolutions() as convolutions:
        network(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    assert len(convolutions.seen) == 19
    taken = [
        channels
        for channels, out, stride, padding in convolutions.seen
        if convolution_kernels(like(1, channels, 8, 8), like(out, channels, 3, 3), stride, padding)
    ]
    assert taken == [16] * 6 + [32] * 5 + [64] * 5
