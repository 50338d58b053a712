"""Where labels are in a table that ranks share: Triton's kernels give what plain PyTorch gives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest
import torch

from headtail.core.placement import Placement, Share
from headtail.core.targets import Pairs
from headtail.distributed.rows_in_use import own_targets, rows_in_use
from tests.kernels.interpreter import DEVICE, elsewhere, in_triton, interpret

LARGEST = 3_000_000_000
PLACEMENTS = [
    Placement((1,)),
    Placement((1300,)),
    Placement((7, 600, 1, 800)),
    Placement((LARGEST,)),
]


@elsewhere
def test_everything_in_this_file_by_the_interpreter():
    pytest.importorskip("triton")
    interpret(__file__)


@contextmanager
def kernels() -> Iterator[None]:
    """Whoever asks which kernels find places gets them, in the interpreter as on a GPU."""
    from headtail.kernels.triton import places

    with (
        mock.patch("headtail.core.placement.placing_kernels", return_value=places),
        mock.patch("headtail.distributed.rows_in_use.placing_kernels", return_value=places),
    ):
        yield


def _shares(placement: Placement) -> list[Share]:
    return [placement.share(rank, ranks) for ranks in (1, 3) for rank in range(ranks)]


def _labels(placement: Placement, number: int = 1100) -> torch.Tensor:
    """Labels, some of which do not exist."""
    most = placement.num_labels
    odd = torch.tensor([-1, -5, most, most + 7, 0, most - 1])
    return torch.cat([odd, torch.randint(most, (number,))])


def _plain_places(share: Share, labels: torch.Tensor) -> torch.Tensor:
    """By Python's whole numbers."""
    found = []
    for label in labels.tolist():
        place = -1
        start = 0
        for size, (factor, _) in zip(share.placement.grown, share.placement._factors, strict=True):
            if start <= label < start + size:
                place = start + (label - start) * factor % size - share.start
            start += size
        found.append(place if 0 <= place < len(share) else -1)
    return torch.tensor(found)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_plain_places_are_those_of_whole_numbers(placement: Placement):
    for share in _shares(placement):
        labels = _labels(placement, 50)
        assert torch.equal(share.own_places(labels), _plain_places(share, labels))


@in_triton
@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_places_by_the_kernel_are_those_of_whole_numbers(placement: Placement):
    from headtail.kernels.triton import places

    runs = placement.runs(torch.device(DEVICE))
    back = placement.runs(torch.device(DEVICE), back=True)
    for share in _shares(placement):
        labels = _labels(placement)
        mine = places.mapped(labels.to(DEVICE), runs, 0, -share.start, len(share))
        assert torch.equal(mine.cpu(), _plain_places(share, labels))
        own = mine[mine >= 0]
        with kernels():
            assert torch.equal(share.own_places(labels.to(DEVICE)), mine)
            assert torch.equal(share.labels(own).cpu(), labels[mine.cpu() >= 0])
        again = places.mapped(own, back, share.start, 0, placement.num_labels)
        assert torch.equal(again.cpu(), labels[mine.cpu() >= 0])
    assert places.mapped(labels[:0].to(DEVICE), runs, 0, 0, 1).tolist() == []


@in_triton
@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
@pytest.mark.parametrize("all_count", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_targets_by_the_kernel_are_the_plain_ones(
    placement: Placement, all_count: bool, dtype: torch.dtype
):
    label = _labels(placement)
    skipped = None if all_count else torch.rand(len(label)) < 0.3
    pairs = Pairs(label, None, skipped, len(label))
    scale = torch.rand(len(label), dtype=dtype)
    for share in _shares(placement):
        there = replace(pairs, label=label.to(DEVICE))
        if skipped is not None:
            there = replace(there, skipped=skipped.to(DEVICE))
        with kernels():
            ours = own_targets(share, there, scale.to(DEVICE))
        for mine, plain in zip(ours, own_targets(share, pairs, scale), strict=True):
            torch.testing.assert_close(mine.cpu(), plain, rtol=0, atol=0, equal_nan=True)


@in_triton
@pytest.mark.parametrize("sizes", [(1, 1), (5, 3), (3, 700), (700, 5), (1300, 2500)])
@pytest.mark.parametrize("held", [0.0, 0.001, 0.4, 1.0])
def test_rows_in_use_by_the_kernel_are_the_plain_ones(sizes: tuple[int, int], held: float):
    positive, drawn = (
        torch.where(torch.rand(size) < held, torch.randint(2**40, (size,)), -1) for size in sizes
    )
    outs = [torch.full((sum(sizes),), -9) for _ in range(2)]
    plain = rows_in_use(positive, drawn, outs[0])
    there = outs[1].to(DEVICE)
    with kernels():
        ours = rows_in_use(positive.to(DEVICE), drawn.to(DEVICE), there)
    assert torch.equal(ours.cpu(), plain)
    assert torch.equal(there.cpu(), outs[0])
    assert int(there.min()) >= 0
