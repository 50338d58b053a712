"""Row updates by the CPU kernels, compared with torch and with the truth in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from headtail import RowAdagrad, RowAdam, RowSGD
from headtail.kernels.cpu import rows as cpu_rows
from headtail.kernels.dispatch import use_kernels
from headtail.kernels.gradient import RowGradient

STEPS = 4
SLACK = 1.1
RULES = {
    "sgd": lambda p: RowSGD(p, lr=0.05),
    "momentum": lambda p: RowSGD(p, lr=0.05, momentum=0.9),
    "adagrad": lambda p: RowAdagrad(p, lr=0.05),
    "rowwise adagrad": lambda p: RowAdagrad(p, lr=0.05, per_row=True),
    "adam": lambda p: RowAdam(p, lr=0.05),
    "decayed adagrad": lambda p: RowAdagrad(p, lr=0.05, weight_decay=0.1),
}
rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def gradients(num_rows: int, dim: int, sparse: bool) -> list[torch.Tensor]:
    """Of some steps; the sparse ones have rows that occur twice, and rows that occur in none."""
    found = []
    for _ in range(STEPS):
        rows = torch.randint(num_rows // 2, (num_rows // 2,))
        grad = torch.sparse_coo_tensor(rows[None], torch.randn(len(rows), dim), (num_rows, dim))
        found.append(grad if sparse else torch.randn(num_rows, dim))
    return found


def trained(rule, start: torch.Tensor, grads: list[torch.Tensor]) -> list[torch.Tensor]:
    """The table after these steps, and the optimiser's state."""
    weight = torch.nn.Parameter(start.clone())
    optimiser = rule([weight])
    for grad in grads:
        weight.grad = grad.to(start.dtype)
        optimiser.step()
    optimiser.flush()
    return [
        weight.detach(),
        *(v for v in optimiser.state[weight].values() if isinstance(v, torch.Tensor)),
    ]


def spy(monkeypatch) -> list[int]:
    """An entry for each call of the kernels."""
    calls = []
    kernel = cpu_rows._update
    monkeypatch.setattr(
        cpu_rows, "_update", lambda *args, **kw: calls.append(1) or kernel(*args, **kw)
    )
    return calls


@rules
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize(("num_rows", "dim"), [(1007, 129), (33001, 1)])
def test_the_kernels_steps_are_as_near_to_the_truth_as_torch_s(
    num_rows, dim, sparse, rule, monkeypatch
):
    start = torch.randn(num_rows, dim)
    grads = gradients(num_rows, dim, sparse)
    exact = trained(rule, start.double(), grads)
    calls = spy(monkeypatch)
    kernel = trained(rule, start, grads)
    assert len(calls) == STEPS, "the fast path ran"
    with use_kernels(False):
        plain = trained(rule, start, grads)
    assert len(calls) == STEPS, "and then did not"
    for by_kernel, by_torch, right in zip(kernel, plain, exact, strict=True):
        assert (by_kernel - right).norm() <= SLACK * (by_torch - right).norm() + 1e-7


def test_entries_with_points_and_factors_are_summed_by_row_and_padding_counts_nowhere():
    rows = torch.tensor([4, 1, -1, 4, 4])
    points = torch.tensor([0, 1, 1, 1, 0])
    coefs = torch.tensor([1.0, 2.0, 9.0, 3.0, -0.5])
    values = torch.randn(2, 3)
    table = torch.randn(6, 3)
    found = table.clone()
    cpu_rows.sgd_rows(found, RowGradient(rows, values, points, coefs), 0.1)
    wanted = table.clone()
    wanted[4] -= 0.1 * (0.5 * values[0] + 3 * values[1])
    wanted[1] -= 0.1 * 2 * values[1]
    assert torch.allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize(
    "rows",
    [[0] * 100_000, [7], [], [2**33, 5, 2**33], list(range(999, -1, -1))],
    ids=["one row", "one entry", "none", "huge ids", "all different"],
)
def test_entries_are_grouped_by_row_in_the_order_they_come(rows):
    array = torch.tensor(rows, dtype=torch.int64).numpy()
    different, starts, order = cpu_rows.by_row(array, 0, 2**34)
    assert different.tolist() == list(dict.fromkeys(rows))
    grouped = [order[starts[c] : starts[c + 1]].tolist() for c in range(len(different))]
    assert sorted(e for one in grouped for e in one) == list(range(len(rows)))
    for row, one in zip(different.tolist(), grouped, strict=True):
        assert one == sorted(one)
        assert {rows[e] for e in one} == {row}


def test_one_row_repeated_a_hundred_thousand_times_gets_its_sum():
    values = torch.rand(100_000, 3)
    table = torch.zeros(2, 3)
    cpu_rows.sgd_rows(table, RowGradient(torch.ones(100_000, dtype=torch.int64), values), 1.0)
    assert torch.allclose(table[1].double(), -values.double().sum(0), rtol=1e-4)
    assert not table[0].any()


@rules
def test_rows_without_a_gradient_are_not_touched_by_a_bit(rule, monkeypatch):
    start = torch.randn(1007, 129)
    calls = spy(monkeypatch)
    weight = torch.nn.Parameter(start.clone())
    optimiser = rule([weight])
    for grad in gradients(1007, 129, sparse=True):
        weight.grad = grad
        optimiser.step()
    assert calls
    assert torch.equal(weight[503:], start[503:])
    assert all(
        not v[503:].any() for v in optimiser.state[weight].values() if isinstance(v, torch.Tensor)
    )
    assert (weight[:503] != start[:503]).any(1).sum() > 400


@rules
def test_two_threads_give_what_one_gives_bit_for_bit(rule):
    start = torch.randn(5007, 129)
    grads = gradients(5007, 129, sparse=True)
    one = trained(rule, start, grads)
    torch.set_num_threads(2)
    try:
        two = trained(rule, start, grads)
    finally:
        torch.set_num_threads(1)
    assert all(map(torch.equal, one, two))


def test_what_the_kernels_do_not_take_goes_to_torch(monkeypatch):
    calls = spy(monkeypatch)
    rule = RULES["adagrad"]
    trained(rule, torch.randn(1007, 129).double(), gradients(1007, 129, sparse=False))
    trained(rule, torch.randn(129, 1007).T, [torch.randn(1007, 129)])
    trained(rule, torch.randn(8, 8), [torch.randn(8, 8)])
    assert not calls


def test_small_tables_go_to_the_kernels_if_these_are_always_used(monkeypatch):
    calls = spy(monkeypatch)
    with use_kernels("always"):
        trained(RULES["adagrad"], torch.randn(8, 8), [torch.randn(8, 8)])
    assert len(calls) == 1


def test_a_number_that_never_had_a_gradient_stays_where_it_is():
    start = torch.randn(256, 128)
    grad = torch.randn(256, 128)
    grad[:, ::2] = 0
    found, _ = trained(RULES["adagrad"], start, [grad])
    assert torch.equal(found[:, ::2], start[:, ::2])


def test_a_row_looked_up_twice_is_stepped_once_with_the_sum():
    """As a table is used: through autograd, whose gradient holds a row once for each look-up."""
    start = torch.randn(300, 128)
    ids = torch.randint(300, (400,))
    goal = torch.randn(400, 128)
    found = []
    for dtype in (torch.float32, torch.float64):
        weight = torch.nn.Parameter(start.to(dtype, copy=True))
        ((F.embedding(ids, weight, sparse=True) - goal) ** 2).sum().backward()
        RowAdagrad([weight], lr=0.05).step()
        found.append(weight.detach())
    assert torch.allclose(found[0].double(), found[1], atol=1e-5)


@rules
def test_a_vector_is_updated_as_a_table_of_one_row(rule, monkeypatch):
    start = torch.randn(2**15)
    grads = [torch.randn(2**15) for _ in range(STEPS)]
    exact = trained(rule, start.double(), grads)
    calls = spy(monkeypatch)
    found = trained(rule, start, grads)
    assert len(calls) == STEPS
    for one, right in zip(found, exact, strict=True):
        assert one.shape == right.shape
        assert torch.allclose(one.double(), right, rtol=1e-4, atol=1e-5)
