"""The bag on the CPU: no worse than torch's, the same on any number of threads, and really used."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from headtail import bags
from headtail.bags import plain_weighted_bag, weighted_bag
from headtail.data.points import Bag
from headtail.kernels import cpu_bag

SHAPES = [(1, 1, 1), (7, 5, 3), (33, 129, 17), (252, 507, 123)]
SLACK = 1.5  # torch's bag fuses multiplication and addition, which saves one rounding of two


def ragged_bag(n: int, num_columns: int) -> Bag:
    """Rows of zero to five entries, every fourth and the last empty, columns repeated within a row."""
    generator = torch.Generator().manual_seed(n)
    lengths = torch.randint(6, (n,), generator=generator)
    lengths[3::4], lengths[0], lengths[n - 1 :] = 0, 5, 5 if n == 1 else 0
    columns = torch.randint(num_columns, (int(lengths.sum()),), generator=generator).int()
    columns[1] = columns[0]
    values = torch.randn(len(columns), generator=generator)
    return Bag(torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]), columns, values, num_columns)


def truth(bag: Bag, weight: Tensor) -> Tensor:
    """Row by row, entry by entry."""
    rows = []
    for start, stop in zip(bag.offsets[:-1].tolist(), bag.offsets[1:].tolist(), strict=True):
        row = torch.zeros(weight.shape[1], dtype=weight.dtype)
        for j in range(start, stop):
            row = row + bag.values[j].to(weight.dtype) * weight[int(bag.columns[j])]
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize(("n", "num_columns", "dim"), SHAPES)
def test_the_kernel_s_sums_and_gradients_are_as_near_to_the_truth_as_torch_s(n, num_columns, dim):
    bag, upstream = ragged_bag(n, num_columns), torch.randn(n, dim)
    start = torch.randn(num_columns, dim)
    exact = start.double().requires_grad_()
    wanted = truth(bag, exact)
    wanted.backward(upstream.double())
    errors = []
    for function in (weighted_bag, plain_weighted_bag):
        weight = start.clone().requires_grad_()
        found = function(bag, weight, sparse=True)
        found.backward(upstream)
        assert weight.grad.is_sparse
        errors.append(((found - wanted).norm().item(), (weight.grad.to_dense() - exact.grad).norm().item()))
    (kernel_sum, kernel_gradient), (plain_sum, plain_gradient) = errors
    assert kernel_sum <= SLACK * plain_sum
    assert kernel_gradient <= SLACK * plain_gradient


def test_the_gradient_holds_each_column_that_occurs_once_and_in_order():
    bag, weight = ragged_bag(33, 129), torch.randn(129, 3, requires_grad=True)
    weighted_bag(bag, weight, sparse=True).sum().backward()
    assert weight.grad._indices()[0].tolist() == sorted(set(bag.columns.tolist()))


def test_two_threads_give_what_one_gives_bit_for_bit():
    bag, start, upstream = ragged_bag(252, 507), torch.randn(507, 123), torch.randn(252, 123)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            weight = start.clone().requires_grad_()
            out = weighted_bag(bag, weight, sparse=True)
            out.backward(upstream)
        finally:
            torch.set_num_threads(1)
        found.append((out.detach(), weight.grad.to_dense()))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_transposing_sorts_entries_by_column_and_leaves_its_workspace_clean():
    bag = ragged_bag(33, 20)
    nnz = len(bag.columns)
    place, rows, starts = np.full(20, -1), np.empty(nnz, np.int64), np.empty(nnz + 1, np.int64)
    points, turned = np.empty(nnz, np.int64), np.empty(nnz, np.float32)
    count = cpu_bag.transpose(bag.offsets.numpy(), bag.columns.numpy(), bag.values.numpy(), place, rows, starts, points, turned)
    order = np.argsort(bag.columns.numpy(), kind="stable")
    point_of = np.repeat(np.arange(33), bag.offsets.diff().numpy())
    assert points.tolist() == point_of[order].tolist()
    assert turned.tolist() == bag.values.numpy()[order].tolist()
    assert np.repeat(rows[:count], np.diff(starts[: count + 1])).tolist() == bag.columns.numpy()[order].tolist()
    assert (place == -1).all()


@pytest.mark.parametrize("offsets", [[0], [0, 0, 0]], ids=["no rows", "empty rows"])
def test_a_bag_without_entries_gives_zeros_and_a_gradient_without_rows(offsets):
    bag = Bag(torch.tensor(offsets), torch.zeros(0, dtype=torch.int32), torch.zeros(0), 4)
    weight = torch.randn(4, 2, requires_grad=True)
    out = weighted_bag(bag, weight, sparse=True)
    assert torch.equal(out, torch.zeros(len(offsets) - 1, 2))
    out.sum().backward()
    assert weight.grad._nnz() == 0


def test_the_kernel_is_what_runs_for_float32_tables_on_a_cpu(monkeypatch):
    calls = []
    kernel = cpu_bag.weighted_bag
    monkeypatch.setattr(cpu_bag, "weighted_bag", lambda *args: calls.append(1) or kernel(*args))
    bag, weight = ragged_bag(7, 5), torch.randn(5, 3, requires_grad=True)
    weighted_bag(bag, weight, sparse=True).sum().backward()
    assert len(calls) == 2, "forward and backward"
    weighted_bag(bag, weight.double(), sparse=True)
    weighted_bag(bag, weight)
    assert len(calls) == 2, "float64 and dense gradients are torch's"
    assert (bags._PLACES[5] == -1).all()
