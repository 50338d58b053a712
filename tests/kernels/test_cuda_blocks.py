"""Products with the labels of visited blocks against float64."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.interpreter import DEVICE, GPU, elsewhere, in_triton, interpret

pytest.importorskip("triton")

# groups, share, visits, k, largest block
SHAPES = [
    (1, 1, 1, 1, 1),
    (5, 1, 3, 20, 7),
    (3, 1, 2, 130, 40),
    (4, 2, 3, 20, 33),
    (2, 17, 2, 129, 5),
    (2, 32, 2, 8, 70),
]
SHAPES += (
    [(1024, 1, 6, 128, 104), (32, 32, 6, 128, 104), (256, 4, 4, 32, 500), (64, 1, 6, 300, 1000)]
    if GPU
    else []
)


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    interpret(__file__)


@in_triton
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_float64_up_to_rounding_and_0_where_no_label_is(shape):
    from headtail.kernels.triton import blocks as cuda_blocks

    groups, share, visits, k, most = shape
    sizes = torch.randint(0, most + 1, (9,))
    sizes[0] = most
    sizes[1] = 0
    ends = sizes.cumsum(0)
    rows = torch.randn(int(ends[-1]), k)
    x = torch.randn(groups, share, k)
    block = torch.randint(0, 9, (groups, visits))
    block[0, 0] = 0
    place = torch.arange(most)
    held = place < sizes[block][..., None]
    at = ((ends - sizes)[block][..., None] + place).clamp(max=len(rows) - 1)
    truth = torch.einsum("gmk,gtsk->gtms", x.double(), rows.double()[at]).masked_fill(
        ~held[:, :, None], 0.0
    )
    given = x, rows, (ends - sizes)[block], sizes[block]
    found = cuda_blocks.products(*(t.to(DEVICE) for t in given), most).cpu()
    assert found.shape == truth.shape
    assert torch.allclose(found.double(), truth, rtol=0, atol=2e-6 * k)
    assert (found.masked_select(~held[:, :, None]) == 0).all(), "exactly"
