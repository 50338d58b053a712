"""Bags as the library meets them."""

from __future__ import annotations

import pytest
import torch

from headtail.data.bag import Bag, Picked
from headtail.encoders.weighted_bag import plain_weighted_bag, weighted_bag
from headtail.errors import HeadtailError
from tests.kernels.test_cpu_bag import ragged_bag


@pytest.mark.parametrize("function", [weighted_bag, plain_weighted_bag])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_bag_is_the_dense_matrix_times_the_table(function, sparse):
    bag = ragged_bag(33, 20)
    weight = torch.randn(20, 6)
    assert torch.allclose(function(bag, weight, sparse=sparse), bag.to_dense() @ weight, atol=1e-5)


def test_a_table_of_another_size_is_refused_before_the_kernel_reads_beyond_it():
    bag = Bag(torch.tensor([0, 1]), torch.tensor([9]).int(), torch.ones(1), 10)
    for sparse in (True, False):
        with pytest.raises(HeadtailError, match="10 columns, but the table 4 rows"):
            weighted_bag(bag, torch.randn(4, 2), sparse=sparse)


@pytest.mark.parametrize("sparse", [True, False])
def test_points_scaled_to_length_one_are_those_of_the_dense_matrix(sparse):
    bag = ragged_bag(33, 20)
    weight = torch.randn(20, 6)
    dense = torch.zeros(33, 20).index_put_(
        (owners(bag), bag.columns.long()), bag.values, accumulate=True
    )
    # The length is that of the features as they stand, a repeated column being two of them.
    squares = torch.zeros(33).index_add_(0, owners(bag), bag.values**2)
    wanted = dense / squares.sqrt().clamp(min=1e-30)[:, None] @ weight
    assert torch.allclose(
        weighted_bag(bag, weight, normalise=True, sparse=sparse), wanted, atol=1e-5
    )
    assert not wanted[3].any(), "a point without features stays at 0"


@pytest.mark.parametrize("sparse", [True, False])
def test_rows_picked_from_a_bag_are_as_good_as_gathered_ones(sparse):
    bag = ragged_bag(33, 20)
    ids = torch.tensor([5, 0, 3, 5, 32, 1])
    found = []
    for picked in (Picked(bag, ids), bag.rows(ids)):
        weight = torch.nn.Parameter(torch.arange(120.0).reshape(20, 6))
        weighted_bag(picked, weight, normalise=True, sparse=sparse).square().sum().backward()
        found.append(weight.grad.to_dense())
    assert torch.equal(*found)


def owners(bag: Bag) -> torch.Tensor:
    return torch.arange(len(bag)).repeat_interleave(bag.offsets.diff())
