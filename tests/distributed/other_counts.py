"""Samplers with other counts than the head's: what ranks draw is what one process draws, as far as
`as_one` says it; `test_ranks.py` runs it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headtail import (
    Frequency,
    Importance,
    LabelHead,
    Labels,
    LogUniform,
    Mixture,
    Queue,
    SampledSoftmaxLoss,
    StreamingLabels,
    Tail,
    WithinBatch,
)
from headtail.core.placement import Placement
from headtail.core.sharded_labels import ShardedLabels
from headtail.distributed import ShardedLabelHead, as_one, count_labels
from headtail.samplers import FixedSampler, Sampler
from tests.distributed.bad_input import _last, _refused
from tests.distributed.batches import LABELS, D, L
from tests.distributed.checks import _drawn

OTHERS = Labels.from_counts(list(range(1, L + 1)), smoothing=0.5)
SAMPLERS = {
    "frequency": lambda labels: Frequency(labels, 9),
    "frequency 0.5": lambda labels: Frequency(labels, 9, 0.5, replacement=False),
    "log-uniform": lambda labels: LogUniform(labels, 9),
    "within-batch": WithinBatch,
    "queue": lambda labels: Queue(labels, 12),
}


def _head(sampler: Sampler, labels: Any = LABELS) -> ShardedLabelHead:
    loss = SampledSoftmaxLoss(sampler, Importance())
    return ShardedLabelHead(labels, D, loss, dtype=torch.float64)


def _after_a_step(head: ShardedLabelHead) -> Any:
    """A draw for targets 1 and 7 of each rank, when a queue holds something."""
    _drawn(head, seed=4)
    (draw,) = _drawn(head, seed=5)
    return draw


def _assert_q(head: ShardedLabelHead, expected: Tensor) -> None:
    """Negatives and own positives have this q."""
    draw = _after_a_step(head)
    torch.testing.assert_close(draw.log_q, expected[draw.ids], rtol=1e-13, atol=1e-13)
    target = torch.tensor([1, 7] * dist.get_world_size())
    own = head.share.own_places(target) >= 0
    of_target = draw.log_q_target[own]
    torch.testing.assert_close(of_target, expected[target[own]], rtol=1e-13, atol=1e-13)


def _q_of_ranks(sampler: Sampler) -> Tensor:
    whole = as_one(SampledSoftmaxLoss(sampler, Importance()), dist.get_world_size()).sampler
    assert isinstance(whole, FixedSampler)
    return whole.log_q(torch.arange(L), 2 * dist.get_world_size())


def ranks_draw_by_the_counts_of_the_sampler():
    even = Labels.from_counts([3] * L)
    for labels in (OTHERS, even):
        for make in SAMPLERS.values():
            _assert_q(_head(make(labels)), _q_of_ranks(make(labels)))


def ranks_draw_by_the_counts_of_each_part_of_a_mixture():
    def mixture() -> Mixture:
        return Mixture([Frequency(OTHERS, 6), WithinBatch(OTHERS), Frequency(LABELS, 5)])

    _assert_q(_head(mixture()), _q_of_ranks(mixture()))


def sharded_counts_of_a_sampler_are_its_own():
    rank = dist.get_rank()
    target = torch.randint(L, (50,), generator=torch.Generator().manual_seed(rank))
    every = [torch.arange(L), target]
    counted = [count_labels(t, L, smoothing=1) for t in every]
    for make in (SAMPLERS["frequency"], SAMPLERS["within-batch"]):
        even = Labels.from_counts([dist.get_world_size()] * L, smoothing=1)
        for head_labels in (LABELS, counted[1]):
            _assert_q(_head(make(counted[0]), head_labels), _q_of_ranks(make(even)))


def the_loss_is_that_of_one_process_with_the_same_negatives():
    def loss() -> SampledSoftmaxLoss:
        return SampledSoftmaxLoss(WithinBatch(OTHERS), Tail(LABELS))

    size = dist.get_world_size()
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(3 * size, D, generator=generator, dtype=torch.float64)
    target = torch.randint(L, (3 * size,), generator=generator)
    alone = LabelHead(LABELS, D, loss(), sparse=True, dtype=torch.float64)
    with torch.no_grad():
        weight = torch.randn(L, D, generator=generator, dtype=torch.float64)
        alone.weight.copy_(weight)
    head = ShardedLabelHead(LABELS, D, loss(), dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(weight[head.share.labels()])
    own = slice(3 * dist.get_rank(), 3 * dist.get_rank() + 3)
    expected = alone(hidden, target)
    assert abs(float((head(hidden[own], target[own]) - expected).detach())) < 1e-12


def equal_counts_are_held_once():
    for labels in (LABELS, Labels.from_counts(LABELS.counts.clone())):
        for name in ("within-batch", "queue"):
            head = _head(SAMPLERS[name](labels))
            assert head.part.sampler.labels is head.labels
        head = _head(SAMPLERS["frequency"](labels))
        counts = head.part.stratum.sampler.labels.counts
        assert counts.data_ptr() == head.labels.counts.data_ptr()


def samplers_whose_counts_differ_between_ranks_are_refused():
    if dist.get_world_size() == 1:
        return
    for name in ("frequency", "within-batch", "queue"):
        labels = OTHERS if _last() else LABELS
        work = lambda labels=labels, name=name: _head(SAMPLERS[name](labels))  # noqa: E731
        _refused(work, "Ranks have different counts of labels")


def samplers_of_labels_that_ranks_cannot_share_are_refused():
    counting = StreamingLabels(L)
    for make in (WithinBatch, lambda labels: Queue(labels, 9)):
        work = lambda make=make: _head(make(counting))  # noqa: E731
        _refused(work, "counted while they are used, by each rank for itself. Make the sampler")
    elsewhere = ShardedLabels.part_of(LABELS, Placement((L - 3, 3)).share(*_place()))
    for name in ("frequency", "within-batch", "queue"):
        work = lambda name=name: _head(SAMPLERS[name](elsewhere))  # noqa: E731
        _refused(work, "`labels` whose rows are not those of this head")


def a_label_that_never_occurs_is_refused_before_any_queue_has_it():
    labels = Labels.from_counts([5, 0, *([3] * (L - 2))])
    hidden = torch.zeros(2, D, dtype=torch.float64)
    target = torch.tensor([1, 2] if _last() else [3, 2])
    for make in (SAMPLERS["queue"], lambda labels: Mixture([SAMPLERS["queue"](labels)])):
        head = _head(make(labels))
        _refused(lambda head=head: head(hidden, target), "label 1, which has no training example")
        assert all(queue._filled == 0 for queue in head.modules() if isinstance(queue, Queue))
        assert head(hidden, torch.tensor([3, 2])).isfinite()
        assert head.eval()(hidden, target).isfinite()  # nothing is remembered


def _place() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()
