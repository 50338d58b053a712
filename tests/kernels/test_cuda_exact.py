"""The exact softmax by Triton is that of plain PyTorch."""

from __future__ import annotations

import pytest
import torch

from headtail import Labels, LogitAdjusted
from headtail.functional import softmax_loss
from headtail.losses import chunked, cross_entropy, tiles
from tests.kernels.interpreter import DEVICE, elsewhere, in_triton, interpret

pytest.importorskip("triton")
B = 9
D = 6


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    interpret(__file__)


@in_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [1, 100, 4096, 9001])
@pytest.mark.parametrize("with_offset", [False, True])
def test_sums_and_exponentials(dtype: torch.dtype, columns: int, with_offset: bool):
    from headtail.kernels.triton.exact import exponentials_, sums

    scores = (30 * torch.randn(5, columns, device=DEVICE)).to(dtype)
    scores[2] = -torch.inf  # a row without any label
    scores[3, 0] = -torch.inf
    offset = torch.randn(columns, device=DEVICE) if with_offset else None
    g = scores.double() if offset is None else scores.double() + offset.double()
    largest, total = sums(scores, offset)
    exact = g.amax(1)
    assert torch.equal(largest.double(), exact.clamp(min=torch.finfo(torch.float32).min).float())
    there = exact > -torch.inf
    right = (g - largest.double()[:, None]).exp2()
    torch.testing.assert_close(total[there].double(), right.sum(1)[there], rtol=1e-5, atol=0)
    assert total[2] == 0
    exponentials_(scores, offset, largest)
    digits = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(scores.double(), right, rtol=digits, atol=1e-30)


@in_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("adjusted", [False, True])
@pytest.mark.parametrize("chunk_bytes", [2**31, 4 * 5000 * 4])
def test_losses_err_no_more_than_plain_ones(
    dtype: torch.dtype, adjusted: bool, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
):
    from headtail.kernels.triton import exact

    labels = Labels.zipf(5000)
    margin = LogitAdjusted(labels) if adjusted else None
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(B, D, generator=generator)
    table = torch.randn(5000, D, generator=generator)
    bias = torch.randn(5000, generator=generator)
    target = torch.randint(5000, (B,), generator=generator).to(DEVICE)
    target[3] = -100

    def gradients(kind: torch.dtype) -> list[torch.Tensor]:
        leaves = [t.clone().to(DEVICE, kind).requires_grad_() for t in (hidden, table, bias)]
        loss = softmax_loss(leaves[0], leaves[1], target, margin, bias=leaves[2])
        (2 * loss).backward()
        return [loss.detach().double(), *(leaf.grad.double() for leaf in leaves)]

    device = torch.device(DEVICE).type
    monkeypatch.setattr(chunked, "FEWEST_SCORES", {device: 2**62})
    plain = gradients(dtype)
    right = gradients(torch.float64)
    monkeypatch.setattr(chunked, "FEWEST_SCORES", {device: 0})
    monkeypatch.setattr(chunked, "CHUNK_BYTES", {device: chunk_bytes})
    monkeypatch.setattr(chunked, "FEWEST_IN_CHUNKS", {device: 0})
    for module in (chunked, cross_entropy, tiles):
        monkeypatch.setattr(module, "exact_kernels", lambda *_: exact)
    for mine, theirs, true in zip(gradients(dtype), plain, right, strict=True):
        digits = torch.finfo(dtype).eps
        error = (mine - true).norm()
        assert error <= 2 * (theirs - true).norm() + 2 * digits * true.norm()


@in_triton
def test_a_kept_graph_gives_the_same_gradient_twice(monkeypatch: pytest.MonkeyPatch):
    from headtail.kernels.triton import exact

    device = torch.device(DEVICE).type
    monkeypatch.setattr(chunked, "FEWEST_SCORES", {device: 0})
    for module in (chunked, cross_entropy):
        monkeypatch.setattr(module, "exact_kernels", lambda *_: exact)
    hidden = torch.randn(B, D, device=DEVICE, requires_grad=True)
    table = torch.randn(50, D, device=DEVICE)
    loss = softmax_loss(hidden, table, torch.arange(B, device=DEVICE))
    assert "CrossEntropy" in loss.grad_fn.name()
    loss.backward(retain_graph=True)
    first = hidden.grad.clone()
    hidden.grad = None
    loss.backward()
    assert torch.equal(hidden.grad, first)


@in_triton
def test_rows_that_do_not_count_may_hold_anything(monkeypatch: pytest.MonkeyPatch):
    from headtail.kernels.triton import exact

    device = torch.device(DEVICE).type
    monkeypatch.setattr(chunked, "FEWEST_SCORES", {device: 0})
    for module in (chunked, cross_entropy):
        monkeypatch.setattr(module, "exact_kernels", lambda *_: exact)
    hidden = torch.randn(3, D, device=DEVICE)
    hidden[1] = torch.inf
    hidden.requires_grad_()
    table = torch.randn(50, D, device=DEVICE)
    loss = softmax_loss(hidden, table, torch.tensor([4, -100, 5], device=DEVICE))
    loss.backward()
    assert loss.isfinite()
    assert torch.equal(hidden.grad[1], torch.zeros(D, device=DEVICE))
