"""Bags as the library meets them."""

from __future__ import annotations

import pytest
import torch

from headtail.bags import plain_weighted_bag, sum_rows, weighted_bag
from headtail.data.points import Bag
from headtail.errors import HeadtailError
from tests.kernels.test_cpu_bag import ragged_bag


@pytest.mark.parametrize("function", [weighted_bag, plain_weighted_bag])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_bag_is_the_dense_matrix_times_the_table(function, sparse):
    bag, weight = ragged_bag(33, 20), torch.randn(20, 6)
    assert torch.allclose(function(bag, weight, sparse=sparse), bag.to_dense() @ weight, atol=1e-5)


def test_a_table_of_another_size_is_refused_before_the_kernel_reads_beyond_it():
    bag = Bag(torch.tensor([0, 1]), torch.tensor([9]).int(), torch.ones(1), 10)
    for sparse in (True, False):
        with pytest.raises(HeadtailError, match="10 columns, but the table 4 rows"):
            weighted_bag(bag, torch.randn(4, 2), sparse=sparse)


def test_summing_rows_is_coalescing():
    rows, values = torch.randint(50, (200,)), torch.randn(200, 7)
    found, sums = sum_rows(rows, values, 50)
    wanted = torch.sparse_coo_tensor(rows[None], values.double(), (50, 7)).coalesce()
    assert torch.equal(found, wanted.indices()[0])
    assert torch.allclose(sums.double(), wanted.values(), rtol=1e-5, atol=1e-5)


def test_rows_that_share_one_gradient_in_memory_are_summed_too():
    """What `.sum().backward()` hands over: values expanded from a single number."""
    rows, one = torch.tensor([3, 0, 3]), torch.ones(1).expand(3, 4)
    assert sum_rows(rows, one, 5)[1].tolist() == [[1.0] * 4, [2.0] * 4]
