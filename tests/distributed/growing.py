"""Labels that ranks count together, and tables that grow; `test_ranks.py` runs it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from headtail import (
    Constant,
    Frequency,
    Labels,
    LogUniform,
    Mixture,
    Queue,
    RowAdagrad,
    SampledSoftmaxLoss,
    Tail,
    Uniform,
)
from headtail.collectives.gather import gather
from headtail.core.placement import Placement
from headtail.core.sharded_labels import ShardedLabels
from headtail.distributed import (
    ShardedLabelHead,
    as_one,
    count_labels,
    load_checkpoint,
    save_checkpoint,
)
from headtail.errors import HeadtailError
from tests.distributed.batches import LABELS, D, L
from tests.distributed.checkpoint_checks import _folder
from tests.distributed.small_runs import OPTIMISERS, Run, assert_equal

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


def a_head_grows_with_another_sampler():
    samplers = [
        lambda labels: Uniform(labels, 8),
        lambda labels: Queue(labels, 32),
        lambda labels: Queue(labels, 64),
        lambda labels: Mixture([Uniform(labels, 8), Queue(labels, 32)]),
        lambda labels: Mixture([Queue(labels, 32), Uniform(labels, 8)]),
    ]
    grown = LABELS.grow([3] * NEW)
    for make, other in itertools.permutations(samplers, 2):
        head = ShardedLabelHead(LABELS, D, SampledSoftmaxLoss(make(LABELS), Constant()))
        optimizer = RowAdagrad(head.parameters(), lr=0.1)
        _train(head, optimizer, L)
        loss = SampledSoftmaxLoss(other(grown), Constant())
        head.grow(grown, optimizer, loss)
        assert head.loss is loss
        assert not any(_filled(head.part))  # as a LabelHead that is given this loss
        _train(head, optimizer, L + NEW)


def an_equal_queue_of_a_new_loss_keeps_its_content():
    head = ShardedLabelHead(LABELS, D, _loss(LABELS))
    _train(head, RowAdagrad(head.parameters(), lr=0.1), L)
    filled = _filled(head.part)
    assert any(filled)
    grown = LABELS.grow([3] * NEW)
    head.grow(grown, loss=SampledSoftmaxLoss(_loss(grown).sampler, Constant()))
    assert _filled(head.part) == filled


def _filled(part: Any) -> list[list[int]]:
    """What queues hold."""
    queues = [module for module in part.modules() if isinstance(module, Queue)]
    return [queue.past[: queue._filled].tolist() for queue in queues]


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


def _counted_run(kind: str, added: int, *, placed: bool, group: Any = None) -> Run:
    """A run with more labels, whose rows are behind the old ones or in new places."""
    run = Run.new(kind, group, labels=53)
    if not added:
        return run
    counts = Labels.zipf(53).grow([2] * added)
    run = Run.new(kind, group, labels=53 + added)
    if placed:
        ranks = run.head.ranks
        share = Placement((53, added)).share(ranks.rank, ranks.size)
        labels = ShardedLabels.part_of(counts, share)
        samplers = [Uniform(counts, 8), Queue(counts, 30), LogUniform(counts, 4)]
        loss = SampledSoftmaxLoss(Mixture(samplers), Constant())
        head = ShardedLabelHead(labels, run.head.dim, loss, group, bias=True, dtype=torch.float64)
        run = Run(head, OPTIMISERS[kind](head.parameters()), run.encoder, run.encoder_optimizer)
    return run


def a_checkpoint_of_fewer_labels_is_loaded_as_if_the_head_had_grown():
    added = 12
    for kind in ("adagrad", "adam", "momentum", "adagrad per row"):
        with _folder() as folder:
            saved = Run.new(kind)
            saved.steps(0, 1, 2)
            save_checkpoint(folder, **saved.parts, facts={"step": 3})
            one = Run.new(kind)
            load_checkpoint(folder, **one.parts)
            one.head.grow(Labels.zipf(53).grow([2] * added), one.optimizer)
            other = _counted_run(kind, added, placed=True)
            other.steps(7)  # what was there before is gone
            assert load_checkpoint(folder, **other.parts) == {"step": 3}
            other.head.flush()
            assert_equal(one.everything(), other.everything())


def rows_of_fewer_labels_find_their_labels_wherever_they_are_placed():
    """Also on other numbers of ranks than those that saved them."""
    group = dist.new_group([0])
    with _folder() as folder:
        saved = Run.new("adagrad")
        saved.steps(0, 1)
        save_checkpoint(folder, **saved.parts)
        saved.head.flush()
        rows = [_by_label(saved.head, table) for table in saved.head.parameters()]
        sums = [
            _by_label(saved.head, saved.optimizer.state[t]["sum"]) for t in saved.head.parameters()
        ]
        for where in (None, group):
            if where is not None and dist.get_rank():
                continue
            run = _counted_run("adagrad", 12, placed=False, group=where)
            load_checkpoint(folder, **run.parts)
            run.head.flush()
            own = run.head.share.labels()
            old = own < 53
            for table, row, state in zip(run.head.parameters(), rows, sums, strict=True):
                assert torch.equal(table[old], row[own[old]])
                kept = run.optimizer.state[table]["sum"]
                assert torch.equal(kept[old], state[own[old]])
                assert not kept[~old].any()
            assert run.head.weight[~old].norm(dim=1).min() > 0.1
            assert not run.head.bias[~old].any()
        dist.barrier()


def a_checkpoint_of_more_labels_or_another_size_is_refused():
    with _folder() as folder:
        save_checkpoint(folder, **Run.new(labels=60).parts)
        run = Run.new()
        before = run.everything()
        with pytest.raises(HeadtailError, match="another table: it has 60 labels"):
            load_checkpoint(folder, **run.parts)
        assert_equal(before, run.everything())
        labels = Labels.zipf(70)
        loss = SampledSoftmaxLoss(Uniform(labels, 8), Constant())
        for options in ({"bias": False}, {"bias": True, "dtype": torch.float32}):
            head = ShardedLabelHead(labels, 6, loss, **({"dtype": torch.float64} | options))
            with pytest.raises(HeadtailError, match="another table"):
                load_checkpoint(folder, head=head)


def fewer_labels_are_refused():
    head = ShardedLabelHead(LABELS, D, _loss(LABELS))
    with pytest.raises(HeadtailError, match="Labels can be added, not removed"):
        head.grow(Labels.zipf(L - 1))


def what_ranks_draw_together_has_their_number():
    loss = as_one(_loss(LABELS), dist.get_world_size())
    assert loss.sampler.samplers[0].ranks == dist.get_world_size()
