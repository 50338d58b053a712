"""Images prepared by one kernel, against the plain code."""

from __future__ import annotations

import pytest
import torch

from headtail.encoders.prepare_images import PAD, PLACES, PrepareImages, plain_prepared
from tests.kernels.interpreter import DEVICE, GPU, elsewhere, in_triton, interpret

pytest.importorskip("triton")


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    interpret(__file__)


@in_triton
@pytest.mark.parametrize("shape", [(1, 1, 1), (2 * PLACES, 5, 7), (40, 32, 32)])
@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_makes_what_the_plain_way_makes(shape, moves, dtype):
    from headtail.kernels.triton import images as cuda_images

    n, height, width = shape
    images = torch.randint(256, (n, 3, height, width), dtype=torch.uint8, device=DEVICE)
    chance = torch.arange(n, device=DEVICE) % (2 * PLACES) if moves else None
    mean = torch.tensor([100.0, 120.0, 90.0], device=DEVICE)
    std = torch.tensor([60.0, 50.0, 70.0], device=DEVICE)
    ours = cuda_images.prepared(images, chance, mean, std, PAD, dtype)
    plain = plain_prepared(images, chance, mean, std, dtype)
    assert ours.dtype == plain.dtype == dtype
    assert ours.stride() == plain.stride() or min(shape) == 1
    assert torch.allclose(
        ours.float(), plain.float(), atol=1e-5, rtol=1e-6 if dtype == torch.float32 else 2**-7
    )


@pytest.mark.skipif(not GPU, reason="no GPU here")
def test_a_gpu_prepares_by_the_kernel(monkeypatch):
    from headtail.kernels.triton import images as cuda_images

    called = []
    plain = cuda_images.prepared
    monkeypatch.setattr(cuda_images, "prepared", lambda *args: called.append(1) or plain(*args))
    PrepareImages().cuda()(torch.zeros(2, 3, 8, 8, dtype=torch.uint8, device="cuda"))
    assert called
