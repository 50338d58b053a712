"""What ranks send and hold: bytes of a step by collective, and of a rank by label."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from headtail import (
    Constant,
    Frequency,
    Importance,
    Labels,
    LogUniform,
    Mixture,
    Queue,
    RowAdagrad,
    RowAdam,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    SoftmaxLoss,
    Tail,
    Uniform,
    WithinBatch,
)
from headtail.distributed import ShardedLabelHead
from headtail.distributed.traffic import StepShape, step_messages
from headtail.samplers import Sampler
from tests.distributed import batches
from tests.distributed.batches import LABELS, D, of_ranks
from tests.distributed.counted import Call, collectives


def _calls(
    labels: Labels,
    shape: dict[str, Any],
    form: Any = batches.ids,
    dtype: torch.dtype = torch.float32,
) -> list[Call]:
    """What a training step with a given size on each rank sends."""
    loss = shape.get("loss") or SampledSoftmaxLoss(Uniform(labels, 8), Importance(), **shape)
    head = ShardedLabelHead(labels, D, loss, bias=True, dtype=dtype)
    optimizer = RowAdagrad(head.parameters(), lr=0.1, weight_decay=0.1)
    parts = of_ranks(form, 2, dist.get_world_size(), dtype)
    batch = parts[dist.get_rank()]
    hidden = batch.hidden.clone().requires_grad_()
    with collectives() as calls:
        head(hidden, batch.target, **batch.options).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return calls


def _messages(form: Any = batches.ids, **shape: Any) -> list[Call]:
    parts = of_ranks(form, 2, dist.get_world_size(), torch.float32)
    pairs = [batches.number_of_pairs(part.target) for part in parts]
    sizes = {"examples": max(part.hidden.flatten(0, -2).shape[0] for part in parts), "dim": D}
    if "known_positives" in parts[0].options:
        given = [batches.number_of_pairs(part.options["known_positives"]) for part in parts]
        shape["known"] = max(given)
    whole = StepShape(**sizes, all_pairs=sum(pairs), pairs=max(pairs), **shape)
    return [(message.collective, message.size) for message in step_messages(whole)]


def bytes_of_a_step_are_those_of_the_formula():
    decoupled = SampledDecoupledLoss(WithinBatch(LABELS), Tail(LABELS))
    learnt = nn.Parameter(torch.tensor(0.5))
    weights = {"form": batches.weighed, "weight": 8}
    assert _calls(LABELS, {}, dtype=torch.bfloat16) == _messages(number=2)
    assert _calls(LABELS, {}, dtype=torch.float64) == _messages(number=8)
    assert _calls(LABELS, {}) == _messages()
    assert _calls(LABELS, {"loss": decoupled}) == _messages(loss="decoupled")
    assert _calls(LABELS, {"label_smoothing": 0.1}) == _messages(smoothed=True)
    assert _calls(LABELS, {"temperature": learnt}) == _messages(temperature=4)
    assert _calls(LABELS, {"reduction": "none"}) == _messages(each=True)
    assert _calls(LABELS, {}, batches.weighed) == _messages(**weights)
    assert _calls(LABELS, {}, batches.with_known) == _messages(batches.with_known)
    assert _calls(LABELS, {}, batches.ragged) == _messages(batches.ragged, several=True)
    assert _calls(LABELS, {}, batches.positions) == _messages(batches.positions)
    within = {"loss": SampledSoftmaxLoss(WithinBatch(LABELS), Tail(LABELS))}
    assert _calls(LABELS, within, batches.groups) == _messages(batches.groups, grouped=True)


def bytes_where_a_label_never_occurs_are_those_of_the_formula():
    """Ranks ask each other about targets only where a sampler may refuse them."""
    unseen = Labels.from_counts([*LABELS.counts[:-1].tolist(), 0])
    batch = of_ranks(batches.ids, 2, dist.get_world_size(), torch.float32)
    assert not any((part.target == LABELS.num_labels - 1).any() for part in batch)
    samplers: list[tuple[Sampler, bool]] = [
        (Uniform(unseen, 8), False),
        (Frequency(unseen, 8), False),
        (WithinBatch(LABELS), False),
        (WithinBatch(unseen), True),
        (Queue(unseen, 9), True),
        (Mixture([Uniform(unseen, 8), WithinBatch(unseen)]), True),
    ]
    for sampler, asked in samplers:
        loss = {"loss": SampledSoftmaxLoss(sampler, Constant())}
        assert _calls(unseen, loss) == _messages(unseen=asked), sampler


def nothing_that_a_step_sends_grows_with_the_labels():
    few, many = (Labels.zipf(number) for number in (1_000, 1_000_000))
    assert _calls(few, {}) == _calls(many, {})
    kinds = [lambda n: Frequency(n, 8), lambda n: LogUniform(n, 8), WithinBatch]
    for kind in kinds:
        sizes = [_calls(n, {"loss": SampledSoftmaxLoss(kind(n), Tail(n))}) for n in (few, many)]
        assert sizes[0] == sizes[1]


def nothing_that_a_head_or_a_search_sends_grows_with_the_labels():
    sent = []
    for number in (1_000, 1_000_000):
        with collectives() as calls:
            head = ShardedLabelHead(Labels.zipf(number), D, _uniform(number))
            head.topk(torch.randn(2, D), 5)
        sent.append(calls)
    assert sent[0] == sent[1]
    assert max(size for _, size in sent[0]) < 100 * (1 + dist.get_world_size())


def _uniform(number: int) -> SampledSoftmaxLoss:
    return SampledSoftmaxLoss(Uniform(number, 8), Importance())


def the_memory_of_a_rank_is_that_of_the_documentation():
    """Bytes per label of a rank, as `benchmarks/scale.py` and docs/scale.md count them."""
    samplers = [(Uniform(LABELS, 8), 0), (WithinBatch(LABELS), 0)]
    samplers += [(Frequency(LABELS, 8), 8), (LogUniform(LABELS, 8), 16)]
    for sampler, expected in samplers:
        head = ShardedLabelHead(LABELS, D, SampledSoftmaxLoss(sampler, Importance()))
        tables = [buffer for buffer in head.part.buffers() if len(buffer)]
        for module in head.part.modules():
            own = getattr(module, "labels", None)
            if isinstance(own, Labels):
                tables.append(own.counts)
        counts = head.labels.counts
        assert counts.nbytes == 8 * len(head.share)
        others = {table.data_ptr(): table.nbytes for table in tables}
        others.pop(counts.data_ptr(), None)
        assert sum(others.values()) == expected * len(head.share)
    for make, expected in (
        (lambda p: RowAdagrad(p, per_row=True), 4),
        (RowAdagrad, 4 * D),
        (RowAdam, 8 * D),
    ):
        head = ShardedLabelHead(LABELS, D, _uniform(LABELS.num_labels))
        optimizer = make(head.parameters())
        head(torch.randn(3, D), torch.arange(3)).backward()
        optimizer.step()
        state = optimizer.state[head.weight].values()
        sizes = [value.nbytes for value in state if isinstance(value, torch.Tensor)]
        assert sum(sizes) == expected * len(head.share)


def an_exact_loss_sends_no_more():
    exact = {"loss": SoftmaxLoss()}
    head = ShardedLabelHead(LABELS, D, exact["loss"], sparse=False)
    with collectives() as calls:
        head(torch.ones(6, D, requires_grad=True), torch.arange(6)).backward()
    size = 6 * dist.get_world_size()
    shape = StepShape(examples=6, dim=D, all_pairs=size)
    assert calls == [(message.collective, message.size) for message in step_messages(shape)]
