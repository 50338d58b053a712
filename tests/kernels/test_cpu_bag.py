"""The bag on the CPU: no worse than torch's, the same on any number of threads, and really used."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headtail.data.bag import Bag
from headtail.encoders.weighted_bag import plain_weighted_bag, weighted_bag
from headtail.kernels.cpu import bag as cpu_bag

SHAPES = [(1, 1, 1), (7, 5, 3), (33, 129, 17), (252, 507, 123)]
SLACK = 1.5  # torch's bag fuses multiplication and addition, which saves one rounding of two


def ragged_bag(n: int, num_columns: int) -> Bag:
    """Rows of zero to five entries; every fourth and the last are empty, and columns repeat."""
    generator = torch.Generator().manual_seed(n)
    lengths = torch.randint(6, (n,), generator=generator)
    lengths[3::4] = 0
    lengths[0] = 5
    lengths[n - 1 :] = 5 if n == 1 else 0
    columns = torch.randint(num_columns, (int(lengths.sum()),), generator=generator).int()
    columns[1] = columns[0]
    values = torch.randn(len(columns), generator=generator)
    return Bag(
        torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
        columns,
        values,
        num_columns,
    )


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
    bag = ragged_bag(n, num_columns)
    upstream = torch.randn(n, dim)
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
        errors.append(
            ((found - wanted).norm().item(), (weight.grad.to_dense() - exact.grad).norm().item())
        )
    (kernel_sum, kernel_gradient), (plain_sum, plain_gradient) = errors
    assert kernel_sum <= SLACK * plain_sum
    assert kernel_gradient <= SLACK * plain_gradient


def test_two_threads_give_what_one_gives_bit_for_bit():
    bag = ragged_bag(252, 507)
    start = torch.randn(507, 123)
    upstream = torch.randn(252, 123)
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


def test_entries_are_those_of_the_picked_rows_scaled_to_length_one():
    bag = ragged_bag(33, 20)
    ids = torch.tensor([4, 0, 3, 4])
    rows, points, coefs, _ = cpu_bag.entries(
        bag.offsets, bag.columns, bag.values, ids, True, None, 20
    )
    places = [range(bag.offsets[i], bag.offsets[i + 1]) for i in ids.tolist()]
    assert rows.tolist() == [int(bag.columns[j]) for one in places for j in one]
    assert points.tolist() == [i for i, one in enumerate(places) for _ in one]
    wanted = torch.cat([bag.values[one] / bag.values[one].norm() for one in places if len(one)])
    assert torch.allclose(coefs, wanted)


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
    bag = ragged_bag(7, 5)
    weight = torch.randn(5, 3, requires_grad=True)
    weighted_bag(bag, weight, sparse=True).sum().backward()
    assert len(calls) == 1
    weighted_bag(bag, weight.double(), sparse=True)
    weighted_bag(bag, weight)
    assert len(calls) == 1, "float64 and dense gradients are torch's"
