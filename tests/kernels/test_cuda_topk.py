"""The best labels by certified TF32 candidates against sorting all float64 scores."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels.interpreter import DEVICE, GPU, elsewhere, in_triton, interpret

pytest.importorskip("triton")

# points, labels, d, k
SHAPES = [(1, 1, 1, 1), (5, 700, 7, 3), (9, 4500, 20, 1), (5, 129, 600, 50)]
SHAPES += [(3000, 50_000, 512, 50), (777, 33_333, 100, 7), (100, 200_000, 256, 200)] if GPU else []


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    interpret(__file__)


def check(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor | None,
    shift: Tensor | None,
    k: int,
    **options: int,
) -> None:
    """No label left out may beat one that was returned by more than rounding does."""
    from headtail.kernels.triton import topk as cuda_topk

    hidden = hidden.to(DEVICE)
    table = table.to(DEVICE)
    bias, shift = (None if t is None else t.to(DEVICE) for t in (bias, shift))
    values, indices = cuda_topk.topk(hidden, table, bias, shift, k, **options)
    assert values.shape == indices.shape == (len(hidden), k)
    assert indices.dtype == torch.int64
    scores = hidden.double() @ table.double().T
    for term in (bias, shift):
        scores = scores if term is None else scores + term.double()
    size = hidden.double().norm(dim=1) * table.double().norm(dim=1).max() + scores.abs().nan_to_num(
        0, 0, 0
    ).amax(1)
    rounding = 4e-7 * size[:, None] + 1e-12  # float32 scores have it too
    chosen = scores.gather(1, indices)
    assert all(len(row.unique()) == k for row in indices)
    same = values.double() == chosen  # minus infinity
    assert (same | ((values.double() - chosen).abs() <= rounding)).all()
    assert (values[:, :-1] >= values[:, 1:]).all()
    assert (chosen.amin(1, keepdim=True) >= scores.topk(k).values[:, -1:] - 2 * rounding).all()


@in_triton
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("terms", [0, 1, 2])
def test_the_best_labels_are_those_of_float64_up_to_rounding(shape, terms: int):
    n, num_labels, d, k = shape
    bias = torch.randn(num_labels)
    shift = 3 * torch.rand(num_labels)
    check(
        torch.randn(n, d),
        torch.randn(num_labels, d),
        bias if terms else None,
        shift if terms == 2 else None,
        k,
    )


@in_triton
def test_ordinary_points_are_certain_at_once():
    from headtail.kernels.triton import topk as cuda_topk

    n, num_labels, d, k = (2000, 100_000, 512, 50) if GPU else (10, 2000, 64, 5)
    hidden = torch.randn(n, d, device=DEVICE)
    table = torch.randn(num_labels, d, device=DEVICE)
    assert (
        cuda_topk.search(hidden, table, torch.zeros(num_labels, device=DEVICE), k)[2].float().mean()
        > 0.98
    )


def cut(x: Tensor) -> Tensor:
    """To a TF32 number."""
    return (x.view(torch.int32) & -(2**13)).view(torch.float32)


@in_triton
@pytest.mark.parametrize("rounded", ["both", "hidden", "table"])
def test_no_label_left_out_beats_the_bound_where_tf32_can_hardly_tell_labels_apart(
    rounded: str, monkeypatch: pytest.MonkeyPatch
):
    from headtail.kernels.triton import topk as cuda_topk

    seen = []
    candidates = cuda_topk.candidates
    monkeypatch.setattr(
        cuda_topk, "candidates", lambda *args: seen.append(candidates(*args)) or seen[-1]
    )
    num_labels, d, k = (20_000, 256, 10) if GPU else (900, 16, 2)
    for spread in (1e-4, 1e-3, 1e-2):
        hidden = torch.randn(1, d)
        table = torch.randn(num_labels, d)
        hidden = cut(hidden) if rounded == "table" else hidden
        table = cut(table) if rounded == "hidden" else table
        # scores that nearly tie
        base = (spread * torch.randn(num_labels) - (table.double() @ hidden[0].double())).float()
        check(hidden, table, base, None, k)
        labels, bound = seen[-1]
        scores = hidden.double() @ table.double().T + base.double()
        assert scores.scatter(1, labels.cpu(), -torch.inf).max() <= bound.cpu() + 1e-6
        # and the bound is not far from the best score
        assert bound.cpu() <= scores.max() + 2e-3 * hidden.norm() * table.norm(dim=1).max()


@in_triton
@pytest.mark.parametrize(
    "case",
    [
        "equal rows",
        "many ties",
        "one dominates",
        "zero hidden",
        "large bias",
        "all ruled out but few",
    ],
)
def test_adversaries_are_answered_exactly(case: str):
    n, num_labels, d, k = (300, 9000, 64, 20) if GPU else (9, 300, 5, 4)
    hidden = torch.randn(n, d)
    table = torch.randn(num_labels, d)
    bias = torch.randn(num_labels)
    if case == "equal rows":
        table = table[:1].repeat(num_labels, 1)
        bias = torch.zeros(num_labels)
    elif case == "many ties":
        table = table[torch.randint(3, (num_labels,))]
        bias = torch.zeros(num_labels)
    elif case == "one dominates":
        table[num_labels // 2] *= 1e4
    elif case == "zero hidden":
        hidden.zero_()
    elif case == "large bias":
        bias *= 1e4
    else:
        bias[2 * k :] = -torch.inf
        bias[k // 2 : k] = -torch.inf
    check(hidden, table, bias, None, k)


@in_triton
def test_batches_may_be_cut_and_the_precision_of_products_is_restored():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cuda.matmul.fp32_precision
    check(torch.randn(11, 6), torch.randn(1000, 6), None, torch.randn(1000), 3, at_once=4000)
    check(torch.randn(11, 6), torch.randn(1, 6).repeat(1000, 1), None, None, 3, at_once=4000)
    assert (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cuda.matmul.fp32_precision,
    ) == before


@in_triton
@pytest.mark.parametrize("at_once", [2**29, 8 * 320])
def test_excluded_labels_are_never_among_the_best_however_many_they_are(at_once: int):
    from headtail.kernels.triton import topk as cuda_topk

    n, num_labels, d, k = (300, 9000, 64, 20) if GPU else (20, 300, 5, 4)
    hidden = torch.randn(n, d, device=DEVICE)
    table = torch.randn(num_labels, d, device=DEVICE)
    bias = torch.randn(num_labels, device=DEVICE)
    scores = hidden.double() @ table.double().T + bias.double()
    ruled_out = torch.rand(n, num_labels, device=DEVICE) < torch.rand(n, 1, device=DEVICE)
    best = scores.topk(2 * k).indices
    ruled_out[1].index_fill_(0, best[1, :k], True)
    ruled_out[0] = False
    ruled_out[n - 2] = True
    ruled_out[n - 1] = True
    ruled_out[n - 1, : k - 1] = False
    excluded = ruled_out.nonzero(as_tuple=True)
    values, indices = cuda_topk.topk(hidden, table, bias, None, k, excluded, at_once)
    left = scores.masked_fill(ruled_out, -torch.inf)
    wanted = left.topk(k).values
    assert (wanted == -torch.inf).any()
    assert torch.equal(values == -torch.inf, wanted == -torch.inf)
    known = wanted > -torch.inf
    assert torch.allclose(values.double()[known], wanted[known], atol=1e-4)
    assert torch.allclose(left.gather(1, indices)[known], wanted[known], atol=1e-4)


@in_triton
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["hidden", "table", "bias"])
def test_a_score_that_is_not_a_number_comes_first(where: str, bad: float):
    from headtail.kernels.triton import topk as cuda_topk

    torch.manual_seed(0)
    values = {"hidden": torch.randn(5, 7), "table": torch.randn(700, 7), "bias": torch.randn(700)}
    clean = cuda_topk.topk(*(t.to(DEVICE) for t in values.values()), None, 3)
    # NaN with all its digits set, which a rounding to fewer of them would make −0
    number = torch.tensor(2**31 - 1, dtype=torch.int32).view(torch.float32) if bad != bad else bad
    values[where].view(-1)[3] = number
    hidden, table, bias = (t.to(DEVICE) for t in values.values())
    scores, labels = cuda_topk.topk(hidden, table, bias, None, 3)
    exact = (hidden @ table.T + bias).topk(3)
    torch.testing.assert_close(scores, exact.values, equal_nan=True)
    if where == "hidden":
        assert torch.equal(labels[1:], clean[1][1:])


@in_triton
def test_a_tile_with_a_bound_that_is_nan_is_looked_at_first():
    from headtail.kernels.triton import topk as cuda_topk

    scores = torch.zeros(2, 128, device=DEVICE)
    scores[1, 70] = torch.nan
    zeros = torch.zeros(128, device=DEVICE)
    maxima = cuda_topk._tile_maxima(scores, zeros, torch.ones(2, device=DEVICE), zeros)
    assert maxima.tolist() == [[0, 0], [0, torch.inf]]
