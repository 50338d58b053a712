"""Kernels compile for a Hopper GPU, for every kind of argument that their callers pass: no GPU is
needed to see that a type, a shape or an argument is wrong.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter does not compile"
)
P, M, D, ROWS = 48, 24, 40, 100


def _tables(dtype: torch.dtype, bias: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    input = torch.zeros(P, D, dtype=dtype)
    table = torch.zeros(ROWS, D, dtype=dtype)
    return input, table, torch.zeros(ROWS, 1) if bias else None


def _ids(size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.int64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scalars", [False, True])
def test_the_stages_of_ranks(dtype: torch.dtype, scalars: bool):
    from headtail.kernels.triton import staged
    from tests.kernels.compiling import compiles_only

    scored = (*_tables(dtype, bias=not scalars), _ids(P), _ids(M))
    a = 0.5 if scalars else torch.zeros(P, dtype=torch.float64)
    b = -1.0 if scalars else torch.zeros(M, dtype=torch.float64)
    with compiles_only() as names:
        terms = staged.own_terms(scored, None if scalars else _ids(P), _ids(M), a, b)
        staged.sum_terms(terms)
        staged.own_gradients(scored, terms, torch.zeros(P, dtype=a.dtype if not scalars else dtype))
    wanted = ["shared_scores", "_own_terms", "_sum_terms", "_coefficients", "gradients"]
    assert names == wanted


@pytest.mark.parametrize("shared", [True, False])
def test_the_losses_of_one_process(shared: bool):
    from headtail.kernels.triton import loss
    from tests.kernels.compiling import compiles_only

    tables = _tables(torch.float32, bias=True)
    negatives = _ids(M) if shared else _ids(P * M).reshape(P, M)
    label = _ids(P)
    with compiles_only() as names:
        loss.sampled_softmax(*tables, label, negatives, label, negatives, 0.0, -1.0, None, 0.1)
        loss.sampled_decoupled(
            *tables, label, negatives, label, negatives, 0.0, -1.0, None, 0.1, piece=0, margin=0.0
        )
    assert names.count("equation") == 2


def test_rows_of_a_table_in_host_memory_and_their_updates():
    from headtail.kernels.gradient import RowGradient
    from headtail.kernels.triton import gather, rows
    from tests.kernels.compiling import compiles_only

    _, table, bias = _tables(torch.float32, bias=True)
    gradient = RowGradient(_ids(P), torch.zeros(P, D))
    with compiles_only() as names:
        gather.gather(table, bias, _ids(P))
        rows.adagrad_rows(table, torch.zeros(ROWS, 1), gradient, torch.zeros(()), 1e-10)
        rows.adam_rows(table, table.clone(), table.clone(), gradient, 0.1, 0.9, 0.99, 1e-8)
        rows.sgd_rows(table.bfloat16(), gradient, 0.1, torch.zeros((), dtype=torch.int64))
    assert names.count("_update") == 3


@pytest.mark.parametrize("grown", [(1,), (ROWS,), (2_900_000_000,), (7, 600, 1)])
@pytest.mark.parametrize("draws", [1, M])
def test_places_in_a_shared_table(grown: tuple[int, ...], draws: int):
    from headtail.core.placement import Placement
    from headtail.kernels.triton import places
    from tests.kernels.compiling import compiles_only

    share = Placement(grown).share(0, 1)
    runs = share.placement.runs(torch.device("cpu"))
    scale = torch.zeros(P)
    with compiles_only() as names:
        places.mapped(_ids(P), runs, 0, -share.start, len(share))
        places.own_targets(_ids(P), None, scale, runs, share)
        places.own_targets(_ids(P), _ids(P) > 0, scale.double(), runs, share)
        places.rows_in_use(_ids(P), _ids(draws), _ids(P + draws))
    assert names == ["_mapped", "_own_targets", "_own_targets", "_rows_in_use"]


def test_an_argument_of_another_type_is_noticed():
    from headtail.kernels.triton import staged
    from tests.kernels.compiling import compiles_only

    scored = (*_tables(torch.float32, bias=False), torch.zeros(P), _ids(M))
    with compiles_only(), pytest.raises(Exception, match="at "):
        staged.own_terms(scored, None, _ids(M), 0.5, -1.0)
