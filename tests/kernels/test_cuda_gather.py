"""Rows that Triton copies from a table in host memory, and a head that is trained with them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import headtail as ht
from headtail.device.host_memory import HostTensor
from headtail.kernels import dispatch
from tests.kernels.interpreter import DEVICE, GPU, elsewhere, in_triton, interpret

pytest.importorskip("triton")

# table rows, rows to copy, d
SHAPES = [(1, 1, 1), (7, 13, 5), (100, 25, 33), (5, 9, 1100), (60, 0, 8)]
SHAPES += [(100_000, 1280, 512)] if GPU else []


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    interpret(__file__)


@in_triton
@pytest.mark.parametrize(("num_rows", "n", "d"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_rows_are_copied(num_rows, n, d, dtype, bias):
    from headtail.kernels.triton.gather import gather

    table = HostTensor.of(torch.randn(num_rows, d).to(dtype), torch.device(DEVICE))
    biases = HostTensor.of(torch.randn(num_rows, 1), torch.device(DEVICE)) if bias else None
    rows = torch.randint(num_rows, (n,), device=DEVICE)
    near, near_bias = gather(table, biases, rows)
    assert torch.equal(near.cpu(), table.host[rows.cpu()])
    assert near.data_ptr() != table.data_ptr() or n == 0
    if biases is None:
        assert near_bias is None
    else:
        assert torch.equal(near_bias.cpu(), biases.host[rows.cpu()])


@in_triton
def test_a_row_that_is_not_there_is_not_a_number():
    from headtail.kernels.triton.gather import gather

    table = HostTensor.of(torch.ones(4, 3), torch.device(DEVICE))
    rows = torch.tensor([0, 4, -1, 3, 2**40], device=DEVICE)
    near, near_bias = gather(table, HostTensor.of(torch.ones(4, 1), torch.device(DEVICE)), rows)
    outside = torch.tensor([False, True, True, False, True])
    assert torch.equal(near.isnan().all(1).cpu(), outside)
    assert torch.equal(near_bias.isnan()[:, 0].cpu(), outside)


OPTIMISERS = {
    "sgd": lambda p: ht.RowSGD(p, lr=0.3),
    "momentum": lambda p: ht.RowSGD(p, lr=0.3, momentum=0.9),
    "adagrad": lambda p: ht.RowAdagrad(p, lr=0.3),
    "per row": lambda p: ht.RowAdagrad(p, lr=0.3, per_row=True),
    "adam": lambda p: ht.RowAdam(p, lr=0.03),
}


@in_triton
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("scheme", ["uniform:importance@7", "logistic/frequency:tail@5"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_head_is_trained_by_the_kernels_of_a_gpu(optimiser, scheme, bias, monkeypatch):
    """Without a GPU: by the same kernels, on a table that counts as far away."""
    if not GPU:
        monkeypatch.setattr(dispatch, "_engine", lambda _: "triton")
        monkeypatch.setattr(HostTensor, "is_far", property(lambda _: True))
    results: list[list[Tensor]] = []
    for placement in ("host", "device"):
        torch.manual_seed(0)
        labels = ht.Labels.zipf(60)
        loss = ht.scheme(scheme, labels)
        head = ht.LabelHead(labels, 9, loss, bias=bias, sparse=True, placement=placement)
        head.to(DEVICE).capture(False)
        optimizer = OPTIMISERS[optimiser](head.parameters())
        losses = []
        for seed in range(3):
            torch.manual_seed(seed)
            hidden = torch.randn(6, 9).to(DEVICE)
            target = torch.randint(60, (6,)).to(DEVICE)
            optimizer.zero_grad()
            value = head(hidden, target)
            value.backward()
            optimizer.step()
            losses.append(value.detach())
        results.append([*losses, *(p.detach() for p in head.parameters())])
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)
    assert results[0][-1].isfinite().all()
