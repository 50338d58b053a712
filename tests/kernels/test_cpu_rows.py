"""Adagrad on rows of a table by the CPU kernel, beside the same by torch and the truth in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from headtail import RowAdagrad, optim
from headtail.kernels import cpu_rows

LR, EPS, STEPS = 0.05, 1e-10, 4
SLACK = 1.1


def gradients(num_rows: int, dim: int, sparse: bool) -> list[torch.Tensor]:
    """Of some steps; the sparse ones have rows that occur twice, and rows that occur in none."""
    found = []
    for _ in range(STEPS):
        rows = torch.randint(num_rows // 2, (num_rows // 2,))
        grad = torch.sparse_coo_tensor(rows[None], torch.randn(len(rows), dim), (num_rows, dim))
        found.append(grad if sparse else torch.randn(num_rows, dim))
    return found


def trained(start: torch.Tensor, grads: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    weight = torch.nn.Parameter(start.clone())
    optimiser = RowAdagrad([weight], lr=LR, eps=EPS)
    for grad in grads:
        weight.grad = grad.to(start.dtype)
        optimiser.step()
    return weight.detach(), optimiser.state[weight]["sum"]


def spy(monkeypatch) -> list[int]:
    calls, kernel = [], cpu_rows.adagrad_rows
    monkeypatch.setattr(cpu_rows, "adagrad_rows", lambda *args: calls.append(1) or kernel(*args))
    return calls


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize(("num_rows", "dim"), [(1007, 129), (257, 517)])
def test_the_kernel_s_steps_are_as_near_to_the_truth_as_torch_s(num_rows, dim, sparse, monkeypatch):
    start, grads = torch.randn(num_rows, dim), gradients(num_rows, dim, sparse)
    exact = trained(start.double(), grads)
    with monkeypatch.context() as patch:
        calls = spy(patch)
        kernel = trained(start, grads)
        assert len(calls) == STEPS, "the fast path ran"
    monkeypatch.setattr(optim, "_by_kernel", lambda *_: False)
    plain = trained(start, grads)
    for by_kernel, by_torch, right in zip(kernel, plain, exact, strict=True):
        assert (by_kernel - right).norm() <= SLACK * (by_torch - right).norm()


def test_rows_without_a_gradient_are_not_touched_by_a_bit(monkeypatch):
    start = torch.randn(1007, 129)
    calls = spy(monkeypatch)
    found, total = trained(start, gradients(1007, 129, sparse=True))
    assert calls
    assert torch.equal(found[503:], start[503:])
    assert not total[503:].any()
    assert (found[:503] != start[:503]).any(1).sum() > 400


def test_two_threads_give_what_one_gives_bit_for_bit():
    start, grads = torch.randn(1007, 129), gradients(1007, 129, sparse=True)
    one = trained(start, grads)
    torch.set_num_threads(2)
    try:
        two = trained(start, grads)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])


def test_what_the_kernel_does_not_take_goes_to_torch(monkeypatch):
    calls = spy(monkeypatch)
    trained(torch.randn(1007, 129).double(), gradients(1007, 129, sparse=False))
    trained(torch.randn(129, 1007).T, [torch.randn(1007, 129)])
    trained(torch.randn(2**15), [torch.randn(2**15)])
    trained(torch.randn(8, 8), [torch.randn(8, 8)])
    assert not calls


def test_a_number_that_never_had_a_gradient_stays_where_it_is():
    start, grad = torch.randn(256, 128), torch.randn(256, 128)
    grad[:, ::2] = 0
    found, _ = trained(start, [grad])
    assert torch.equal(found[:, ::2], start[:, ::2])


def test_a_row_looked_up_twice_is_stepped_once_with_the_sum():
    """As a table is used: through autograd, whose gradient holds a row once for each look-up."""
    start, ids = torch.randn(300, 128), torch.randint(300, (400,))
    goal = torch.randn(400, 128)
    found = []
    for dtype in (torch.float32, torch.float64):
        weight = torch.nn.Parameter(start.to(dtype, copy=True))
        ((F.embedding(ids, weight, sparse=True) - goal) ** 2).sum().backward()
        RowAdagrad([weight], lr=LR).step()
        found.append(weight.detach())
    assert torch.allclose(found[0].double(), found[1], atol=1e-5)
