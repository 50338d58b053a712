"""Tables of few digits."""

from __future__ import annotations

import pytest
import torch

from headtail import RowAdagrad, RowAdam, RowSGD
from headtail.rows.rounding import stochastic_round


def test_rounding_goes_to_a_neighbour_and_is_right_on_average():
    exact = torch.tensor([1.0 + 1 / 512, -3.14159, 1e-20, 0.0, 65504.0])
    drawn = stochastic_round(exact.expand(20_000, -1).contiguous()).double()
    near = exact.bfloat16().double()
    step = near.abs() * 2**-7
    assert ((drawn - exact.double()).abs() <= step).all()
    assert torch.allclose(drawn.mean(0), exact.double(), rtol=2e-4)
    assert not drawn[:, 3].any()


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 3.3e38])
def test_what_is_no_finite_number_stays_so(value):
    rounded = stochastic_round(torch.full((100,), value))
    assert torch.equal(rounded.isnan(), torch.full((100,), value).isnan())
    assert (rounded.sign() == torch.tensor(value).sign()).all() or value != value


@pytest.mark.parametrize(
    "rule",
    [
        lambda p: RowSGD(p, 1e-4),
        lambda p: RowSGD(p, 1e-4, momentum=0.5),
        lambda p: RowAdagrad(p, 1e-3),
        lambda p: RowAdam(p, 1e-4),
    ],
)
@pytest.mark.parametrize("sparse", [True, False])
def test_many_small_steps_of_a_bfloat16_table_add_up(rule, sparse):
    """Each is far below the distance of two neighbours, so rounding to the nearest would lose them
    all.
    """
    torch.manual_seed(0)
    tables = [
        torch.nn.Parameter(torch.ones(8, 256, dtype=dtype))
        for dtype in (torch.bfloat16, torch.float64)
    ]
    for table in tables:
        optimiser = rule([table])
        for _ in range(100):
            grad = torch.ones(3, 256, dtype=table.dtype)
            rows = torch.tensor([[1, 2, 5]])
            table.grad = (
                torch.sparse_coo_tensor(rows, grad, table.shape)
                if sparse
                else torch.ones_like(table)
            )
            optimiser.step()
    moved, right = (table[1].detach().double().mean() - 1 for table in tables)
    assert moved == pytest.approx(float(right), rel=0.1)
    if sparse:
        assert (tables[0][0] == 1).all()


def test_states_of_a_bfloat16_table_have_all_digits():
    table = torch.nn.Parameter(torch.ones(8, 4, dtype=torch.bfloat16))
    optimiser = RowAdagrad([table])
    table.grad = torch.ones_like(table)
    optimiser.step()
    assert optimiser.state[table]["sum"].dtype == torch.float32
