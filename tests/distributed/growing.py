"""Labels that ranks count together, and tables that grow; `test_ranks.py` runs it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from headtail import (
    Frequency,
    Labels,
    Mixture,
    Queue,
    RowAdagrad,
    SampledSoftmaxLoss,
    Tail,
    Uniform,
)
from headtail.collectives.gather import gather
from headtail.distributed import ShardedLabelHead, as_one, count_labels
from headtail.errors import HeadtailError
from tests.distributed.batches import LABELS, D, L

NEW = 17


def _loss(labels: Labels) -> SampledSoftmaxLoss:
    return SampledSoftmaxLoss(Mixture([Frequency(labels, 8), Queue(labels, 30)]), Tail(labels))


def _by_label(head: ShardedLabelHead, rows: Tensor) -> Tensor:
    """The rows of all ranks, in the order of labels."""
    return gather(rows.detach())[head.placement.rows(torch.arange(head.labels.num_labels))]


def _train(head: ShardedLabelHead, optimizer: RowAdagrad, num_labels: int) -> None:
    for step in range(4):
        generator = torch.Generator().manual_seed(7 * step + dist.get_rank())
        target = torch.randint(num_labels, (5,), generator=generator)
        head(torch.randn(5, D, generator=generator), target).backward()
        optimizer.step()
        optimizer.zero_grad()


def old_rows_their_state_and_a_queue_outlive_growing():
    torch.manual_seed(0)
    head = ShardedLabelHead(LABELS, D, _loss(LABELS), bias=True)
    optimizer = RowAdagrad(head.parameters(), lr=0.1, weight_decay=0.01)
    _train(head, optimizer, L)
    head.flush()
    before = [_by_label(head, table) for table in head.parameters()]
    sums = [_by_label(head, optimizer.state[table]["sum"]) for table in head.parameters()]
    past = {name: value.clone() for name, value in head.part.state_dict().items()}
    assert any("past" in name for name in past)
    same = list(head.parameters())
    head.grow(LABELS.grow([3] * NEW), optimizer)
    assert [id(table) for table in head.parameters()] == [id(table) for table in same]
    for table, old, state in zip(head.parameters(), before, sums, strict=True):
        assert torch.equal(_by_label(head, table)[:L], old)
        grown = _by_label(head, optimizer.state[table]["sum"])
        assert torch.equal(grown[:L], state)
        assert not grown[L:].any()
        assert len(table) == len(head.share)
    lengths = _by_label(head, head.weight)[L:].norm(dim=1)
    assert len(lengths) == NEW
    assert 0.2 < float(lengths.min()) < float(lengths.max()) < 3
    for name, value in head.part.state_dict().items():
        assert torch.equal(value, past[name])
    _train(head, optimizer, L + NEW)


def ranks_count_what_one_process_counts():
    size = dist.get_world_size()
    parts = [
        torch.randint(40, (100 + rank,), generator=torch.Generator().manual_seed(rank))
        for rank in range(size)
    ]
    counted = count_labels(parts[dist.get_rank()], 60, smoothing=1)
    whole = Labels.from_targets(torch.cat(parts), 60, smoothing=1)
    own = counted.share.labels()
    assert torch.equal(counted.counts, whole.counts[own])
    assert torch.equal(counted.log_prior(own), whole.log_prior(own))
    assert (counted.total, counted.never_seen) == (whole.total, whole.never_seen)
    assert counted.rarest == whole.rarest
    others = torch.ones(60, dtype=torch.bool).index_fill(0, own, False).nonzero().squeeze(1)
    assert counted.log_prior(others).isnan().all()


def counted_labels_grow_with_the_placement_of_the_head():
    target = torch.arange(20)
    labels = count_labels(target, 20)
    head = ShardedLabelHead(labels, D, SampledSoftmaxLoss(Uniform(labels, 8), Tail(labels)))
    more = torch.arange(25)
    with pytest.raises(HeadtailError, match=r"placement=head\.placement\.grow\(5\)"):
        head.grow(count_labels(more, 25))
    grown = count_labels(more, 25, placement=head.placement.grow(5))
    before = _by_label(head, head.weight)
    head.grow(grown)
    assert torch.equal(_by_label(head, head.weight)[:20], before)
    assert head(torch.randn(3, D), torch.tensor([24, 0, 3])).isfinite()


def fewer_labels_are_refused():
    head = ShardedLabelHead(LABELS, D, _loss(LABELS))
    with pytest.raises(HeadtailError, match="Labels can be added, not removed"):
        head.grow(Labels.zipf(L - 1))


def what_ranks_draw_together_has_their_number():
    loss = as_one(_loss(LABELS), dist.get_world_size())
    assert loss.sampler.samplers[0].ranks == dist.get_world_size()
