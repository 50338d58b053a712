"""Row updates by Triton against float64, and against plain PyTorch in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headtail.kernels.gradient import RowCounters, RowGradient
from tests.kernels.interpreter import DEVICE, GPU, elsewhere, in_triton, interpret

pytest.importorskip("triton")

ROWWISE = "adagrad_rows, one number per row"
STATES = {"sgd_rows": 0, "momentum_rows": 1, "adagrad_rows": 1, ROWWISE: 1, "adam_rows": 2}
NUMBERS = {
    "sgd_rows": (),
    "momentum_rows": (0.9,),
    "adagrad_rows": (1e-10,),
    ROWWISE: (1e-10,),
    "adam_rows": (0.9, 0.999, 1e-8),
}
# table rows, entries, d
SHAPES = [(1, 1, 1), (7, 13, 5), (100, 25, 33), (3, 30, 130), (60, 40, 1), (5, 9, 1100)]
SHAPES += (
    [
        (50, 1000, 3),
        (20_000, 1280, 512),
        (9, 3000, 600),
        (30_000, 20_000, 512),
        (1 << 20, 43_000, 1),
    ]
    if GPU
    else []
)


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    interpret(__file__)


def plain(kind: str, tables: list[Tensor], rows: Tensor, entries: Tensor, lr: float) -> None:
    """The same by torch, in the dtype of the tables."""
    p, *state = tables
    rows, entries = rows[rows >= 0], entries[rows >= 0]
    g = torch.zeros_like(p).index_add_(0, rows, entries)
    rows = rows.unique()
    old = p[rows]
    g = g[rows]
    state_r = [s[rows] for s in state]
    if kind == "sgd_rows":
        step = lr * g
    elif kind == "momentum_rows":
        state_r = [0.9 * state_r[0] + g]
        step = lr * state_r[0]
    elif kind == "adagrad_rows":
        state_r = [state_r[0] + g * g]
        step = lr * g / (state_r[0].sqrt() + 1e-10)
    elif kind == ROWWISE:
        state_r = [state_r[0] + (g * g).mean(1, keepdim=True)]
        step = lr * g / (state_r[0].sqrt() + 1e-10)
    else:
        mean = state_r[0] + (g - state_r[0]) * (1 - 0.9)
        square = state_r[1] + (g * g - state_r[1]) * (1 - 0.999)
        state_r = [mean, square]
        step = lr * mean / (square.sqrt() + 1e-8)
    p[rows] = old - step
    for s, new in zip(state, state_r, strict=True):
        s[rows] = new


def problem(
    num_rows: int, n: int, d: int, states: int, *, points: bool = False
) -> tuple[list[Tensor], RowGradient]:
    like = {"device": DEVICE}
    tables = [
        torch.randn(num_rows, d, **like),
        *(torch.rand(num_rows, d, **like) for _ in range(states)),
    ]
    rows = (torch.rand(n, **like) ** 2 * (num_rows + 1)).long() - 1  # some rows often, some padding
    if points:
        s = max(1, n // 3)
        return tables, RowGradient(
            rows, torch.randn(s, d, **like), torch.randint(s, (n,), **like), torch.randn(n, **like)
        )
    return tables, RowGradient(rows, torch.randn(n, d, **like))


def entries_of(gradient: RowGradient) -> Tensor:
    values = (
        gradient.values.double()
        if gradient.points is None
        else gradient.values.double()[gradient.points]
    )
    return values if gradient.coefs is None else values * gradient.coefs.double()[:, None]


def check(
    kind: str,
    tables: list[Tensor],
    gradient: RowGradient,
    lr: float | Tensor = 0.05,
    grouping: str | None = None,
) -> list[Tensor]:
    """Tables after a step, which must be as near to the truth as torch's; `grouping` is a way of
    bringing equal rows together, None the one that the kernel chooses.
    """
    from headtail.kernels.triton import rows as cuda_rows

    rows = gradient.rows
    entries = entries_of(gradient)
    if grouping is not None:
        gradient = brought_together(gradient, len(tables[0]), grouping)
    tables = [tables[0], tables[1][:, :1].contiguous()] if kind == ROWWISE else tables
    exact = [t.double() for t in tables]
    near = [t.clone() for t in tables]
    plain(kind, exact, rows, entries, float(lr))
    plain(kind, near, rows, entries.float(), float(lr))
    # what rounding errors are measured by where terms of a sum cancel
    sizes = [t.double().abs() for t in tables]
    plain(kind, sizes, rows, entries.abs(), -float(lr))
    ours = [t.clone() for t in tables]
    getattr(cuda_rows, kind.partition(",")[0])(*ours, gradient, lr, *NUMBERS[kind])
    for our, close, truth, size, before in zip(ours, near, exact, sizes, tables, strict=True):
        assert (our - truth).norm() <= 1.1 * (close - truth).norm() + 1e-7 * size.norm(), (
            kind,
            tables[0].shape,
        )
        untouched = torch.ones(len(before), dtype=torch.bool, device=DEVICE).index_fill_(
            0, rows[rows >= 0], False
        )
        assert torch.equal(our[untouched], before[untouched])
    return ours


def brought_together(gradient: RowGradient, num_rows: int, grouping: str) -> RowGradient:
    """The same entries with equal rows side by side."""
    from headtail.kernels.triton import groups as cuda_groups

    if grouping == "ranked":
        ordered = cuda_groups.by_rank(gradient, num_rows)
    elif grouping == "sorted":
        ordered = cuda_groups.by_sorting(gradient)
    else:
        ordered = cuda_groups.by_counting(gradient, num_rows, RowCounters())
    assert ordered.grouped
    return ordered


each_grouping = pytest.mark.parametrize("grouping", ["ranked", "sorted", "counted"])


@in_triton
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", STATES)
def test_row_updates_are_as_near_to_the_truth_as_torch_on_ragged_shapes(
    kind: str, shape: tuple[int, int, int]
):
    check(kind, *problem(*shape, STATES[kind]))


@in_triton
@pytest.mark.parametrize("kind", STATES)
def test_learning_rates_may_be_tensors(kind: str):
    check(kind, *problem(9, 20, 3, STATES[kind]), torch.tensor(0.05, device=DEVICE))


@in_triton
@each_grouping
@pytest.mark.parametrize("shape", SHAPES)
def test_points_and_coefficients_are_looked_up_however_rows_are_grouped(
    grouping: str, shape: tuple[int, int, int]
):
    if grouping != "ranked" or shape[1] <= 4096:
        check("adagrad_rows", *problem(*shape, 1, points=True), grouping=grouping)


@in_triton
@each_grouping
@pytest.mark.parametrize("shape", SHAPES)
def test_squares_of_rows_add_up_to_the_norm_of_their_sums(
    grouping: str, shape: tuple[int, int, int]
):
    from headtail.kernels.triton.rows import squares_of_rows

    if grouping == "ranked" and shape[1] > 4096:
        return
    tables, gradient = problem(*shape, 0, points=True)
    rows = gradient.rows
    entries = entries_of(gradient).double()
    sums = torch.zeros(tables[0].shape, dtype=torch.float64, device=DEVICE)
    sums.index_add_(0, rows[rows >= 0], entries[rows >= 0])
    together = brought_together(gradient, len(tables[0]), grouping)
    squares = squares_of_rows(together, len(tables[0]))
    assert float(squares.double().sum()) == pytest.approx(float(sums.square().sum()), rel=1e-5)


def runs(n: int) -> list[Tensor]:
    """One row repeated all the time, one among many, and nothing but padding."""
    each = torch.arange(n, device=DEVICE)
    three = torch.full_like(each, 3)
    return [three, torch.where(each % 7 == 0, each, 3), torch.full_like(each, -1)]


@in_triton
@each_grouping
def test_one_row_repeated_all_the_time_and_one_among_many(grouping: str):
    tables, gradient = problem(45, 45, 5, 1)
    for rows in runs(45):
        check("momentum_rows", tables, gradient._replace(rows=rows), grouping=grouping)


@in_triton
@pytest.mark.parametrize("deterministic", [True, False], ids=["sorted", "counted"])
def test_many_entries_are_summed_tile_by_tile(deterministic: bool):
    n, d = (100_000, 64) if GPU else (4097, 3)
    tables, gradient = problem(n, n, d, 1, points=True)
    torch.use_deterministic_algorithms(deterministic)
    try:
        # The interpreter needs seconds for one of these: the second has long runs and single rows.
        for rows in runs(n) if GPU else runs(n)[1:2]:
            check("momentum_rows", tables, gradient._replace(rows=rows))
    finally:
        torch.use_deterministic_algorithms(False)


@in_triton
def test_counters_are_zero_again_after_use():
    from headtail.kernels.triton import groups as cuda_groups

    counters = RowCounters()
    _, gradient = problem(50, 60, 3, 0, points=True)
    cuda_groups.by_counting(gradient, 50, counters)
    counts = counters.zeros(50, gradient.rows.device)
    assert counts.data_ptr() == counters.zeros(50, gradient.rows.device).data_ptr()
    assert not counts.any()


@in_triton
@pytest.mark.parametrize("grouping", ["ranked", "sorted"])
def test_equal_calls_give_equal_bits_unless_rows_are_counted(grouping: str):
    shape = (1000, 4000 if grouping == "ranked" else 50_000, 512) if GPU else (20, 45, 3)
    tables, gradient = problem(*shape, 1)
    once, again = (check("adagrad_rows", tables, gradient, grouping=grouping) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(once, again, strict=True))


@in_triton
def test_bfloat16_rows_are_rounded_up_or_down_with_the_right_odds():
    from headtail.kernels.triton import rows as cuda_rows

    n, d = (64, 512) if GPU else (16, 512)
    start = torch.ones(n, d, dtype=torch.bfloat16, device=DEVICE)
    quarter = torch.full((n, d), -(2.0**-9), device=DEVICE)  # of the way to the next number
    gradient = RowGradient(torch.arange(n, device=DEVICE), quarter)
    seeds = [torch.tensor(s, device=DEVICE) for s in (1, 1, 2, 2**40 + 1)]
    results = [start.clone() for _ in seeds]
    for p, seed in zip(results, seeds, strict=True):
        cuda_rows.sgd_rows(p, gradient, 1.0, seed)
    first, same, other, high = (r.float().cpu() for r in results)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert not torch.equal(first, high)
    for p in (first, other, high):
        assert set(p.unique().tolist()) == {1.0, 1.0 + 2.0**-7}
        up = (p > 1).double()
        assert abs(up.mean() - 0.25) < 4 * (0.25 * 0.75 / (n * d)) ** 0.5
        assert up.mean(0).std() < 1.3 * (0.25 * 0.75 / n) ** 0.5  # no pattern in columns
        assert up.mean(1).std() < 1.8 * (0.25 * 0.75 / d) ** 0.5  # nor in rows


@in_triton
def test_bfloat16_updates_are_the_float32_ones_rounded_to_a_neighbour_and_not_a_number_stays_so():
    from headtail.kernels.triton import rows as cuda_rows

    tables, gradient = problem(40, 90, 7, 1)
    tables[0] = tables[0].bfloat16()
    exact = [t.double() for t in tables]
    plain("adagrad_rows", exact, gradient.rows, entries_of(gradient), 0.05)
    for seed in (None, torch.tensor(5, device=DEVICE)):
        p, total = (t.clone() for t in tables)
        cuda_rows.adagrad_rows(p, total, gradient, 0.05, 1e-10, seed)
        # The interpreter cuts digits off where a GPU rounds to the nearest.
        unit = 2.0 ** (exact[0].abs().log2().floor() - 7)
        assert (
            (p.double() - exact[0]).abs() <= unit * (0.501 if seed is None and GPU else 1.001)
        ).all()
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf, 3e38], device=DEVICE)[None]
    bad.view(torch.int32)[0, 0] = 2**31 - 1  # this one becomes −0 if bits are added to it
    p = torch.zeros(1, 4, dtype=torch.bfloat16, device=DEVICE)
    cuda_rows.sgd_rows(
        p,
        RowGradient(torch.zeros(1, dtype=torch.int64, device=DEVICE), bad),
        1.0,
        torch.tensor(7, device=DEVICE),
    )
    assert p[0, 0].isnan()
    assert p[0, 1:3].tolist() == [-torch.inf, torch.inf]
    assert -3.1e38 < p[0, 3] < -2.9e38


@in_triton
def test_no_entries_change_nothing():
    from headtail.kernels.triton import rows as cuda_rows

    p = torch.ones(3, 2, device=DEVICE)
    cuda_rows.sgd_rows(p, RowGradient(torch.empty(0, dtype=torch.int64), torch.empty(0, 2)), 0.1)
    assert (p == 1).all()


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("n", [1280, 50_000])
def test_row_updates_can_be_captured_in_a_graph(n: int):
    from headtail.kernels.triton import rows as cuda_rows

    tables, gradient = problem(10_000, n, 64, 1, points=True)
    p, total = tables
    lr = torch.tensor(0.05, device=DEVICE)
    seed = torch.tensor(3, device=DEVICE)
    cuda_rows.adagrad_rows(p.clone(), total.clone(), gradient, lr, 1e-10, seed)
    kept = p.clone()
    state = total.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cuda_rows.adagrad_rows(p, total, gradient, lr, 1e-10, seed)
    assert torch.equal(p, kept)
    for _ in range(2):
        gradient.rows.copy_(gradient.rows.roll(1))
        graph.replay()
        cuda_rows.adagrad_rows(kept, state, gradient, lr, 1e-10, seed)
    assert torch.allclose(p, kept, rtol=0, atol=1e-6)
    assert torch.allclose(total, state, rtol=1e-5)


@in_triton
def test_the_dense_kernel_is_as_near_to_the_truth_as_torch_on_ragged_shapes():
    from headtail.kernels.triton import rows as cuda_rows

    for shape in ((1, 1), (3, 517), (2, 1024), (41, 129)):
        p = torch.randn(shape)
        total = torch.rand(shape)
        grad = torch.randn(shape)
        total[0, 0] = grad[0, 0] = 0
        exact_total = total.double() + grad.double() ** 2
        exact = p.double() - 0.05 * grad.double() / (exact_total.sqrt() + 1e-10)
        plain_total = total + grad * grad
        near = p - 0.05 * grad / (plain_total.sqrt() + 1e-10)
        for lr in (0.05, torch.tensor(0.05, device=DEVICE)):
            q = p.clone().to(DEVICE)
            sums = total.clone().to(DEVICE)
            cuda_rows.adagrad_(q, sums, grad.to(DEVICE), lr, 1e-10)
            assert (q.cpu() - exact).norm() <= 1.1 * (near - exact).norm() + 1e-9, shape
            assert (sums.cpu() - exact_total).norm() <= 1.1 * (
                plain_total - exact_total
            ).norm() + 1e-9, shape
            assert q[0, 0] == p[0, 0]
        assert cuda_rows.fits(p, total)
        assert not cuda_rows.fits(p.double())
        assert not cuda_rows.fits(torch.randn(4, 3).T)
