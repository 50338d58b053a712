"""Ids that a table does not have are neither read nor written by Triton's kernels.

Nothing checks ids on a GPU, because that would make the host wait. Every table here is the middle
of a larger one: the rows around it are never read, which would show in the loss, nor written.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from headtail.kernels.gradient import RowCounters, RowGradient
from tests.kernels.interpreter import DEVICE, elsewhere, in_triton, interpret
from tests.kernels.test_cuda_loss import PIECES, case, whole
from tests.kernels.test_cuda_rows import NUMBERS, ROWWISE, STATES

pytest.importorskip("triton")

L = 9
DIM = 5
AROUND = 20
NEAR = [-1, -AROUND, L, L + AROUND - 1]
"""Just outside, where the larger table has rows."""
OUT = [*NEAR, -(10**6), 10**6, 2**31 - 1, 2**32 + 1, 2**62, 2**63 - 1, -(2**63)]
FEW = [-1, L, 2**32 + 1, 2**63 - 1]
"""The interpreter takes its time."""
UPDATES = [(kind, "ranked", out) for kind in STATES for out in FEW]
UPDATES += [("adagrad_rows", grouping, out) for grouping in ("sorted", "counted") for out in FEW]
UPDATES += [("adagrad_rows", "ranked", out) for out in OUT if out not in FEW]


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    interpret(__file__)


def surrounded(table: Tensor) -> tuple[Tensor, Tensor]:
    """The same table in the middle of a larger one, and the larger one."""
    larger = torch.full((len(table) + 2 * AROUND, *table.shape[1:]), 7.0).to(table)
    larger[AROUND:-AROUND] = table
    return larger[AROUND:-AROUND], larger


@in_triton
@pytest.mark.parametrize("out", FEW)
@pytest.mark.parametrize("own", [False, True], ids=["shared", "per example"])
@pytest.mark.parametrize("piece", PIECES)
def test_a_label_that_does_not_exist_makes_the_loss_nan(piece, own, out):
    for argument in ("positive", "negatives"):
        for bias in (False, True):
            q = case(4, 3, DIM, own=own, bias=bias)
            q.known = None
            q.scale = torch.ones(4, device=DEVICE)
            q.label = q.positive.clone()
            q.ids = q.negatives.clone() + 1000  # no draw collides
            q.table, _ = surrounded(q.table)
            if bias:
                q.bias, _ = surrounded(q.bias)
            finite = whole(q, piece)
            assert finite.loss.isfinite().all()
            ids = getattr(q, argument)
            ids[0] = out  # of all draws, the first; or of the first example
            loss = whole(q, piece).loss
            shared = argument == "negatives" and not own
            needs_it = [0, 1, 2, 3] if shared else [0]
            assert loss[needs_it].isnan().all()
            others = [i for i in range(4) if i not in needs_it]
            assert torch.equal(loss[others], finite.loss[others])


@in_triton
@pytest.mark.parametrize("out", OUT)
def test_an_exact_loss_of_a_label_that_does_not_exist_is_nan(out):
    from headtail.kernels.triton.exact import cross_entropy

    scores, _ = surrounded(torch.randn(3, L, device=DEVICE))
    offset, _ = surrounded(torch.randn(L, device=DEVICE))
    label = torch.tensor([0, out, L - 1], device=DEVICE)
    loss, _ = cross_entropy(scores, offset, label, torch.ones(3, device=DEVICE))
    assert loss.isnan().tolist() == [False, True, False]


@in_triton
@pytest.mark.parametrize("out", OUT)
def test_an_exact_decoupled_loss_of_a_label_that_does_not_exist_is_nan(out):
    from headtail.kernels.triton.exact_decoupled import decoupled

    scores, _ = surrounded(torch.randn(3, L, device=DEVICE))
    label = torch.tensor([0, out, L - 1], device=DEVICE)
    given = {"a": None, "b": None, "piece": 0, "margin": 0.0}
    loss, _ = decoupled(scores, None, label, torch.ones(3, device=DEVICE), **given)
    assert loss.isnan().tolist() == [False, True, False]


@in_triton
@pytest.mark.parametrize(("kind", "grouping", "out"), UPDATES)
def test_a_row_that_does_not_exist_is_not_updated(kind, grouping, out):
    from headtail.kernels.triton import groups as cuda_groups
    from headtail.kernels.triton import rows as cuda_rows

    width = 1 if kind == ROWWISE else DIM
    widths = [DIM, *[width] * STATES[kind]]
    whole_tables = [surrounded(torch.rand(L, columns, device=DEVICE)) for columns in widths]
    before = [larger.clone() for _, larger in whole_tables]
    tables = [table for table, _ in whole_tables]
    expected = [table.clone() for table in tables]
    rows = torch.tensor([3, out, 0, out, 3], device=DEVICE)
    gradient = RowGradient(rows, torch.randn(5, DIM, device=DEVICE))
    right = RowGradient(rows[::2].contiguous(), gradient.values[::2].contiguous())
    update = getattr(cuda_rows, kind.partition(",")[0])
    update(*expected, right, 0.05, *NUMBERS[kind])
    counters = RowCounters()
    if grouping == "ranked":
        gradient = cuda_groups.by_rank(gradient, L)
    elif grouping == "sorted":
        gradient = cuda_groups.by_sorting(gradient)
    else:
        gradient = cuda_groups.by_counting(gradient, L, counters)
        assert not counters.zeros(L, gradient.rows.device).any()
    update(*tables, gradient, 0.05, *NUMBERS[kind])
    for table, wanted in zip(tables, expected, strict=True):
        torch.testing.assert_close(table, wanted)
    for (_, larger), old in zip(whole_tables, before, strict=True):
        assert torch.equal(larger[:AROUND], old[:AROUND])
        assert torch.equal(larger[-AROUND:], old[-AROUND:])


def bag() -> tuple[Tensor, Tensor, Tensor]:
    """Three points with two, no and three entries."""
    offsets = torch.tensor([0, 2, 2, 5])
    columns = torch.tensor([0, 3, 1, 2, 8])
    return offsets.to(DEVICE), columns.to(DEVICE), torch.ones(5, device=DEVICE)


@in_triton
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("out", OUT)
def test_a_column_that_does_not_exist_makes_its_point_nan(out, normalise):
    from headtail.kernels.triton.bag import weighted_bag

    weight, _ = surrounded(torch.randn(L, DIM, device=DEVICE))
    ids = torch.tensor([2, 0, 1], device=DEVICE)
    for place, nan in ((4, [True, False, False]), (0, [False, True, False])):
        offsets, columns, values = bag()
        columns[place] = out
        result = torch.zeros(3, DIM, device=DEVICE)
        weighted_bag(offsets, columns, values, ids, weight, normalise, result)
        assert result.isnan().all(1).tolist() == nan
        assert result.isnan().any(1).tolist() == nan


@in_triton
@pytest.mark.parametrize("out", [number for number in OUT if number not in (L, L + AROUND - 1)])
@pytest.mark.parametrize("wrong", ["ids", "offsets"])
def test_a_point_that_does_not_exist_is_nan_and_has_no_entries(wrong, out):
    from headtail.kernels.triton.bag import list_entries, weighted_bag

    offsets, columns, values = bag()
    ids = torch.tensor([2, 0, 1], device=DEVICE)
    if wrong == "ids":
        ids[1] = out
    else:
        offsets[0] = out if out < 0 else -out
    weight = torch.randn(L, DIM, device=DEVICE)
    result = torch.zeros(3, DIM, device=DEVICE)
    weighted_bag(offsets, columns, values, ids, weight, True, result)
    assert result.isnan().all(1).tolist() == [False, True, False]
    rows, points, _ = list_entries(offsets, columns, values, ids, True, 6)
    assert rows.tolist() == [1, 2, 8, -1, -1, -1]
    assert points.tolist()[:3] == [0, 0, 0]


@in_triton
def test_a_point_with_more_columns_than_values_is_nan():
    from headtail.kernels.triton.bag import list_entries, weighted_bag

    offsets, columns, values = bag()
    result = torch.zeros(3, DIM, device=DEVICE)
    weighted_bag(
        offsets, columns, values[:4], None, torch.ones(L, DIM, device=DEVICE), True, result
    )
    assert result.isnan().all(1).tolist() == [False, False, True]
    rows, _, _ = list_entries(offsets, columns, values[:4], None, True, 4)
    assert rows.tolist() == [0, 3, -1, -1]


@in_triton
def test_a_table_without_rows_is_not_read():
    from headtail.kernels.triton.bag import weighted_bag

    result = torch.ones(3, DIM, device=DEVICE)
    weighted_bag(*bag(), None, torch.empty(0, DIM, device=DEVICE), False, result)
    assert not result.any()


@in_triton
@pytest.mark.parametrize("start", [-1, -AROUND, L - 1, L, 10**6, 2**62])
@pytest.mark.parametrize("share", [1, 3])
def test_labels_outside_of_all_blocks_are_not_multiplied(share, start):
    from headtail.kernels.triton.blocks import products

    rows, _ = surrounded(torch.ones(L, DIM, device=DEVICE))
    x = torch.ones(1, share, DIM, device=DEVICE)
    starts = torch.tensor([[0, start]], device=DEVICE)
    out = products(x, rows, starts, torch.full_like(starts, 3), 4)
    inside = [DIM if 0 <= start + label < L and label < 3 else 0 for label in range(4)]
    assert out[0, 0].tolist() == [[DIM, DIM, DIM, 0]] * share
    assert out[0, 1].tolist() == [inside] * share
