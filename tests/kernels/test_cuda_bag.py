"""The bag by Triton against float64, and against plain PyTorch in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.kernels.interpreter import DEVICE, GPU, elsewhere, in_triton, interpret

pytest.importorskip("triton")

# points, features, d, longest point, batch
SHAPES = [(1, 1, 1, 1, 1), (9, 40, 5, 70, 4), (5, 7, 130, 3, 11), (30, 300, 33, 9, 17)]
SHAPES += [(2000, 20_000, 512, 500, 500), (300, 1000, 1000, 40, 77)] if GPU else []


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    interpret(__file__)


def csr(num: int, features: int, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    lengths = (torch.rand(num) ** 3 * (longest + 1)).long()
    lengths[0] = longest
    lengths[num // 2] = 0 if num > 1 else longest
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return (
        offsets,
        torch.randint(features, (int(offsets[-1]),), dtype=torch.int32),
        torch.randn(int(offsets[-1])),
    )


def plain(
    offsets: Tensor, columns: Tensor, values: Tensor, ids: Tensor, weight: Tensor, normalise: bool
) -> Tensor:
    out = weight.new_zeros(len(ids), weight.shape[1])
    for i, point in enumerate(ids.tolist()):
        part = slice(int(offsets[point]), int(offsets[point + 1]))
        value = values[part].to(weight.dtype)
        out[i] = value @ weight[columns[part].long()]
        if normalise:
            out[i] /= value.norm().clamp(min=torch.finfo(torch.float32).tiny)
    return out


def on_device(*tensors: Tensor) -> list[Tensor]:
    return [t.to(DEVICE) for t in tensors]


@in_triton
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bags_are_as_near_to_the_truth_as_torch_on_ragged_shapes(
    shape, normalise: bool, dtype: torch.dtype
):
    from headtail.kernels.triton import bag as cuda_bag

    num, features, d, longest, batch = shape
    bag = csr(num, features, longest)
    weight = torch.randn(features, d).to(dtype)
    ids = torch.randint(num, (batch,))
    for kind, chosen in ((torch.int32, ids), (torch.int64, ids), (torch.int32, None)):
        which = torch.arange(num) if chosen is None else chosen
        exact = plain(*bag, which, weight.double(), normalise)
        near = plain(*bag, which, weight.float(), normalise)
        out = torch.full((len(which), d), torch.nan, device=DEVICE)
        offsets, columns, values, table = on_device(bag[0], bag[1].to(kind), bag[2], weight)
        cuda_bag.weighted_bag(
            offsets,
            columns,
            values,
            None if chosen is None else ids.to(DEVICE),
            table,
            normalise,
            out,
        )
        assert (out.cpu() - exact).norm() <= 1.1 * (near - exact).norm() + 1e-7 * exact.norm()


@in_triton
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("normalise", [False, True])
def test_entries_are_the_batch_point_after_point_and_then_padding(shape, normalise: bool):
    from headtail.kernels.triton import bag as cuda_bag

    num, features, _, longest, batch = shape
    bag = csr(num, features, longest)
    for ids in (torch.randint(num, (batch,)), None):
        which = torch.arange(num) if ids is None else ids
        ranges = [range(int(bag[0][p]), int(bag[0][p + 1])) for p in which.tolist()]
        places = torch.tensor([j for r in ranges for j in r], dtype=torch.int64)
        owners = torch.tensor([i for i, r in enumerate(ranges) for _ in r], dtype=torch.int64)
        lengths = torch.stack(
            [bag[2][r.start : r.stop].double().norm().clamp(min=1e-37) for r in ranges]
        )
        coefs = bag[2][places].double() / (lengths[owners] if normalise else 1)
        for spare in (0, 1, 1000):
            capacity = len(places) + spare
            made = cuda_bag.list_entries(
                *on_device(*bag), None if ids is None else ids.to(DEVICE), normalise, capacity
            )
            rows, points, factors = (t.cpu() for t in made)
            assert rows.shape == points.shape == factors.shape == (capacity,)
            assert torch.equal(rows[: len(places)], bag[1][places].long())
            assert torch.equal(points[: len(places)], owners)
            assert (rows[len(places) :] == -1).all()
            assert (points[len(places) :] == 0).all()
            assert torch.allclose(factors[: len(places)].double(), coefs, rtol=5e-7, atol=0)


@in_triton
def test_a_point_of_zeros_has_no_direction_and_too_little_room_harms_nobody():
    from headtail.kernels.triton import bag as cuda_bag

    bag = on_device(
        torch.tensor([0, 2, 5]),
        torch.tensor([0, 1, 1, 2, 0]),
        torch.tensor([0.0, 0.0, 1.0, 2.0, 2.0]),
    )
    out = torch.full((2, 3), torch.nan, device=DEVICE)
    cuda_bag.weighted_bag(*bag, None, torch.eye(3, device=DEVICE), True, out)
    assert torch.allclose(out.cpu(), torch.tensor([[0.0, 0.0, 0.0], [2.0, 1.0, 2.0]]) / 3)
    rows, points, coefs = cuda_bag.list_entries(*bag, None, True, 4)
    assert rows.tolist() == [0, 1, 1, 2]
    assert points.tolist() == [0, 0, 1, 1]
    assert torch.allclose(coefs.cpu(), torch.tensor([0, 0, 1 / 3, 2 / 3]))
