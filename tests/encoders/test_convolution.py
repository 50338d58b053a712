"""Convolutions go to the kernels where these take them, and only there."""

from __future__ import annotations

import types

import pytest
import torch
import torch.nn.functional as F

from headtail.encoders import convolution
from headtail.encoders.convolution import convolve, fits
from headtail.encoders.resnet import ResNet


def like(*shape: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda", last: bool = True):
    """What `fits` looks at of a tensor on a device that need not be there."""
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


def test_kernels_take_three_by_three_filters_of_few_channels_in_bfloat16_on_a_gpu(monkeypatch):
    monkeypatch.setattr(convolution, "HAS_TRITON", True)
    monkeypatch.setattr(convolution, "BY_KERNELS", (16, 32, 64))
    assert fits(like(2, 16, 7, 9), FILTER, 1, 1)
    assert fits(like(128, 64, 8, 8), like(64, 64, 3, 3), 1, 1)


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
def test_kernels_are_not_asked_for_what_they_do_not_take(monkeypatch, x, weight, stride, padding):
    monkeypatch.setattr(convolution, "HAS_TRITON", True)
    monkeypatch.setattr(convolution, "BY_KERNELS", (16, 32, 64))
    assert not fits(x, weight, stride, padding)


def test_nobody_is_asked_without_triton_or_for_channels_that_are_switched_off(monkeypatch):
    x = like(2, 16, 7, 9)
    monkeypatch.setattr(convolution, "HAS_TRITON", False)
    assert not fits(x, FILTER, 1, 1)
    monkeypatch.setattr(convolution, "HAS_TRITON", True)
    monkeypatch.setattr(convolution, "BY_KERNELS", (16,))
    assert not fits(x, FILTER, 1, 1)
    assert fits(x, like(16, 16, 3, 3), 1, 1)


def test_elsewhere_it_is_torchs_convolution():
    x = torch.randn(2, 16, 6, 5)
    weight = torch.randn(8, 16, 3, 3)
    assert torch.equal(
        convolve(x, weight, stride=2, padding=1), F.conv2d(x, weight, stride=2, padding=1)
    )


def test_a_small_network_asks_for_the_kernels_wherever_its_size_stays(monkeypatch):
    asked = []

    def told(x, weight, stride, padding):
        asked.append((x.shape[1], weight.shape[0], stride))
        return False

    monkeypatch.setattr(convolution, "fits", told)
    ResNet(20, augment=False)(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    same = [channels for channels, out, stride in asked if channels == out and stride == 1]
    assert same == [16] * 6 + [32] * 5 + [64] * 5
    assert len(asked) == 19
