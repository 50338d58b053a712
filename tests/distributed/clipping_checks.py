"""Clipping where the rows of a table are spread over ranks."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from headtail import clip_grad_norm_
from headtail.collectives.ranks import Ranks
from headtail.distributed import replicate
from headtail.distributed.replicate import average_encoder
from tests.distributed.encoder_checks import Model, Pair, batches, optimizer_of, own_part

NORM = 0.1
"""Smaller than all norms before clipping."""


def _check_clipping(pair: Pair, wrapped: nn.Module, *, encoder: nn.Module | None = None) -> None:
    """Norms, weights and encoders are those of one process."""
    optimizers = [optimizer_of(model) for model in pair]
    for ((words, target, draw),) in batches():
        pair.alone(words, target, draw=draw).backward()
        wrapped(own_part(words), own_part(target), draw=draw).backward()
        expected, norm = (clip_grad_norm_(model.parameters(), NORM) for model in pair)
        assert expected > NORM, "nothing was clipped"
        assert math.isclose(norm, expected, rel_tol=1e-12), (norm, expected)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert pair.distance(encoder) < 1e-12
    if encoder is None:
        check_equal(pair.shared.encoder.parameters())


def check_equal(copies: Iterable[Tensor]) -> None:
    """All ranks have the same, to the last bit."""
    for copied in copies:
        every = Ranks.of().gather(copied.detach())
        assert all(map(every[0].equal, every))


def the_norm_below_ddp_is_that_of_all_ranks_rows() -> None:
    pair = Pair.of()
    _check_clipping(pair, DistributedDataParallel(replicate(pair.shared)))


def the_norm_below_averaged_copies_is_that_of_all_ranks_rows() -> None:
    pair = Pair.of()
    average_encoder(pair.shared.encoder, pair.shared.head)
    _check_clipping(pair, pair.shared)


def the_norm_counts_dense_gradients_of_rows_too() -> None:
    pair = Pair.of(sparse=False)
    for model in pair:
        model.head.sparse = False
    average_encoder(pair.shared.encoder, pair.shared.head)
    _check_clipping(pair, pair.shared)
    assert not _after_backward(pair).head.weight.grad.is_sparse


def the_norm_of_a_copied_head_is_that_of_all_ranks_rows() -> None:
    pair = Pair.of()
    pair = pair._replace(shared=copy.deepcopy(pair.shared))
    average_encoder(pair.shared.encoder, pair.shared.head)
    _check_clipping(pair, pair.shared)


def the_norm_counts_what_fsdp_has_spread_too() -> None:
    pair = Pair.of(sparse=False)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    encoder = fully_shard(pair.shared.encoder, mesh=mesh)
    _check_clipping(pair, pair.shared, encoder=encoder)


def a_table_that_a_rank_has_to_itself_is_clipped_by_its_own_norm() -> None:
    table = nn.Parameter(torch.ones(3, 1))
    table.grad = torch.full_like(table, 1.0 + dist.get_rank())
    assert clip_grad_norm_([table], NORM).item() == pytest.approx(3**0.5 * (1 + dist.get_rank()))


def the_norm_takes_one_sum_over_ranks() -> None:
    model = _after_backward(Pair.of())
    sums = []
    reduce = Ranks.reduce_
    Ranks.reduce_ = lambda ranks, tensor, **how: sums.append(tensor) or reduce(ranks, tensor, **how)
    try:
        clip_grad_norm_(model.parameters(), NORM)
    finally:
        Ranks.reduce_ = reduce
    assert [tensor.shape for tensor in sums] == [()]


def _after_backward(pair: Pair) -> Model:
    ((words, target, draw),) = next(batches())
    pair.shared(own_part(words), own_part(target), draw=draw).backward()
    return pair.shared
