"""The best labels on a CPU against sorting all float64 scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import headtail as ht

pytest.importorskip("numba")

from headtail.kernels.cpu import candidates, topk

# points, labels, d, k
SHAPES = [(1, 1, 1, 1), (5, 700, 7, 3), (140, 4500, 40, 50), (130, 3000, 64, 1), (7, 300, 9, 300)]


@pytest.fixture(params=["screened", "scored"])
def way(request, monkeypatch):
    monkeypatch.setattr(candidates, "WORTH_SCREENING", 0)
    monkeypatch.setattr(topk, "screens", lambda hidden: request.param == "screened")
    monkeypatch.setattr(topk, "SCORES_AT_ONCE", 1)  # many narrow blocks


def check(hidden: Tensor, table: Tensor, *terms: Tensor | None, k: int, excluded=None) -> Tensor:
    """No label left out may beat one that was returned by more than rounding does."""
    values, indices = topk.topk(hidden, table, *terms, k, excluded)
    scores = hidden.double() @ table.double().T
    for term in terms:
        scores = scores if term is None else scores + term.double()
    if excluded is not None:
        scores[excluded] = -torch.inf
    rounding = 1e-5
    chosen = scores.gather(1, indices)
    assert all(len(row.unique()) == k for row in indices)
    torch.testing.assert_close(values.double(), chosen, rtol=rounding, atol=rounding)
    assert (values[:, :-1] >= values[:, 1:]).all()
    assert (chosen.amin(1) >= scores.topk(k).values[:, -1] - rounding).all()
    return indices


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("terms", [0, 1, 2])
def test_the_best_labels_are_those_of_float64_up_to_rounding(way, shape, terms):
    n, num_labels, d, k = shape
    torch.manual_seed(0)
    extra = [torch.randn(num_labels) if i < terms else None for i in range(2)]
    check(torch.randn(n, d), torch.randn(num_labels, d), *extra, k=k)


def test_labels_of_very_different_lengths_and_excluded_ones_change_nothing(way):
    torch.manual_seed(0)
    hidden = torch.randn(20, 16)
    table = torch.randn(2000, 16) * torch.logspace(-3, 3, 2000)[torch.randperm(2000), None]
    best = check(hidden, table, None, None, k=10)
    excluded = torch.arange(20).repeat_interleave(5), best[:, :5].reshape(-1)
    again = check(hidden, table, None, None, k=10, excluded=excluded)
    assert torch.equal(again[:, :5], best[:, 5:])


def test_points_with_more_near_ties_than_there_is_room_for_are_scored_again(way):
    torch.manual_seed(0)
    hidden = torch.randn(6, 32)
    near = torch.randn(1, 32) + 1e-4 * torch.randn(5000, 32)  # bfloat16 cannot tell them apart
    excluded = torch.tensor([0, 2]), torch.tensor([3, 4])
    check(hidden, near, None, None, k=5, excluded=excluded)


def test_nan_is_above_all_numbers_and_a_score_of_minus_infinity_below_them(way):
    hidden = torch.ones(3, 32)
    table = torch.rand(600, 32)
    bias = torch.zeros(600)
    bias[: 600 - 4] = -torch.inf
    values, indices = topk.topk(hidden, table, bias, None, 4)
    assert (indices.sort(1).values == torch.arange(596, 600)).all()
    values, _ = topk.topk(hidden, table, bias, None, 6)
    assert (values[:, 4:] == -torch.inf).all()
    table[[7, 500]] = torch.nan
    values, indices = topk.topk(hidden, table, None, None, 4)
    assert (indices[:, :2].sort(1).values == torch.tensor([7, 500])).all()
    assert values[:, :2].isnan().all()


def test_the_head_answers_by_the_kernel_as_it_does_without():
    torch.manual_seed(0)
    labels = ht.Labels.zipf(20_000)
    loss = ht.SampledSoftmaxLoss(ht.Uniform(labels, 8), ht.Importance(), temperature=0.5)
    head = ht.LabelHead(labels, 32, loss, bias=True)
    torch.nn.init.normal_(head.bias)
    hidden = torch.randn(150, 32)
    exclude = torch.randint(20_000, (150, 3))
    fast = head.topk(hidden, 10, exclude=exclude, post_hoc=0.5)
    with ht.use_kernels(False):
        plain = head.topk(hidden, 10, exclude=exclude, post_hoc=0.5)
    torch.testing.assert_close(fast.values, plain.values, rtol=1e-5, atol=1e-5)
    assert (fast.indices == plain.indices).double().mean() > 0.99
