"""What has to hold on every number of ranks; `test_ranks.py` runs it in processes."""

from __future__ import annotations

import copy
import itertools
import re
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import headtail
from headtail import (
    HeadtailError,
    Importance,
    InfoNCE,
    LabelHead,
    Labels,
    Mixture,
    Queue,
    RowAdagrad,
    RowAdam,
    RowSGD,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    SplitOptimizer,
    Tail,
    Uniform,
    WithinBatch,
)
from headtail.core.targets import Pairs
from headtail.device.graphs import rerun
from headtail.distributed import gather, replicate
from headtail.functional import two_tower_softmax_loss
from headtail.rows.decay import flush
from tests.collectives.replicas import (
    LABELS,
    Batch,
    D,
    F,
    L,
    Model,
    adagrad,
    device,
    distance,
    given_draw,
    models,
    train_both,
    uniform,
)


def a_table_learns_the_same_with_sgd_momentum_and_decay():
    both = train_both(optimizer=lambda p: RowSGD(p, lr=0.5, momentum=0.9, weight_decay=0.1))
    assert distance(*both) < 1e-12


def a_table_learns_the_same_with_adagrad():
    assert distance(*train_both()) < 1e-12
    assert distance(*train_both(optimizer=lambda p: RowAdagrad(p, per_row=True))) < 1e-12


def a_table_learns_the_same_with_adam_and_decay():
    both = train_both(optimizer=lambda p: RowAdam(p, lr=0.1, weight_decay=0.1))
    assert distance(*both) < 1e-12


def a_table_learns_the_same_with_the_optimisers_of_torch():
    for optimizer in (torch.optim.SGD, torch.optim.SparseAdam):

        def split(parameters, optimizer=optimizer):
            parameters = list(parameters)
            tables = [p for p in parameters if len(p) == L]
            rest = [p for p in parameters if len(p) != L]
            return SplitOptimizer(optimizer(tables, lr=0.1), torch.optim.AdamW(rest, lr=0.1))

        assert distance(*train_both(optimizer=split)) < 1e-12


def entries_that_wait_for_a_step_are_averaged():
    both = train_both(optimizer=lambda p: RowAdagrad(p, lr=0.3).inside_backward())
    assert distance(*both) < 1e-12


def the_norm_that_is_clipped_is_that_of_the_mean():
    norms = []

    def clip(model: nn.Module) -> None:
        norms.append(float(headtail.clip_grad_norm_(model.parameters(), 0.05)))

    both = train_both(optimizer=lambda p: RowSGD(p, lr=1.0), between=clip)
    assert distance(*both) < 1e-12
    torch.testing.assert_close(norms[:3], norms[3:], rtol=1e-12, atol=0)


def positions_of_sequences_learn_the_same():
    assert distance(*train_both(shape=(9, 3))) < 1e-12


def a_dense_head_learns_the_same():
    both = train_both(optimizer=lambda p: torch.optim.SGD(p, lr=1.0), sparse=False)
    assert distance(*both) < 1e-12


def cosines_a_learnt_temperature_and_smoothing_learn_the_same():
    def loss():
        temperature = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
        return uniform(temperature=temperature, score="cosine", label_smoothing=0.1)

    assert distance(*train_both(loss)) < 1e-12


def a_decoupled_loss_learns_the_same():
    both = train_both(lambda: SampledDecoupledLoss(Uniform(LABELS, 6), Importance()))
    assert distance(*both) < 1e-12


def float32_is_as_near_to_float64_as_one_process():
    exact, _ = train_both()
    alone, together = train_both(dtype=torch.float32)
    assert distance(exact, together) <= 2 * distance(exact, alone)


def tables_are_equal_to_the_last_bit():
    _, together = train_both(dtype=torch.float32)
    for parameter in together.parameters():
        first, *others = gather(parameter.detach()[None])
        assert all(torch.equal(first, other) for other in others)


def a_rank_on_which_nothing_counts_changes_nothing():
    alone, together = models(uniform, torch.float64)
    wrapped = DistributedDataParallel(replicate(together))
    batch = Batch.of(0, torch.float64)
    batch.target[batch.cuts()[1] :] = -100
    for model, part in ((alone, batch), (wrapped, batch.part())):
        optimizer = RowAdam(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            given = given_draw(together, 0, part.target)
            model(part.features, part.target, **given).backward()
            optimizer.step()
    assert distance(alone, together) < 1e-12
    assert 0 not in together.head.weight.grad.coalesce().indices()


def weights_of_examples_count_over_all_ranks():
    alone, together = models(uniform, torch.float64)
    wrapped = DistributedDataParallel(replicate(together))
    batch = Batch.of(0, torch.float64)
    weight = torch.arange(len(batch.target), dtype=torch.float64, device=device())
    _, own = Batch(batch.target[:, None].double(), weight).part()
    for model, (features, target), each in (
        (alone, batch, weight),
        (wrapped, batch.part(), own),
    ):
        given = given_draw(together, 0, target)
        model(features, target, sample_weight=each, **given).backward()
    _same_gradients(alone, together)


def the_mean_of_what_ranks_return_is_the_loss():
    alone, together = models(uniform, torch.float64)
    replicate(together)
    batch = Batch.of(0, torch.float64).ignoring(0)
    part = batch.part()
    whole = alone(*batch, **given_draw(alone, 0, batch.target))
    own = together(*part, **given_draw(alone, 0, part.target))
    torch.testing.assert_close(gather(own.detach()[None]).mean(), whole.detach())
    means = gather(together.eval()(*part, **given_draw(alone, 0, part.target)).detach()[None])
    assert abs(means.mean() - whole) > 0.05  # and in evaluation, a mean of means is not


def micro_batches_without_sync_are_added_up():
    _accumulated(lambda wrapped: wrapped.no_sync())


def micro_batches_that_are_averaged_each_are_added_up():
    _accumulated(lambda wrapped: torch.enable_grad())


def _accumulated(context):
    for inside in (False, True):
        alone, together = models(uniform, torch.float64)
        wrapped = DistributedDataParallel(replicate(together))
        if inside:
            optimizer = RowAdagrad(together.parameters(), lr=0.3).inside_backward()
        batches = [Batch.of(seed, torch.float64).ignoring(seed) for seed in range(3)]
        for step, batch in enumerate(batches):
            alone(*batch, **given_draw(alone, step, batch.target)).backward()
            part = batch.part()
            given = given_draw(alone, step, part.target)
            if step < 2:
                with context(wrapped):
                    wrapped(*part, **given).backward()
            else:
                wrapped(*part, **given).backward()
        _same_gradients(alone, together)
        if inside:
            optimizer.step()


def without_sync_and_by_name_gradients_stay_those_of_the_rank():
    _, together = models(uniform, torch.float64)
    wrapped = DistributedDataParallel(replicate(together))
    part = Batch.of(0, torch.float64).part()
    with wrapped.no_sync():
        wrapped(*part).backward()
    own = together.head.weight.grad.to_dense()
    hidden = together.encoder(part.features)
    torch.autograd.grad(together.head(hidden, part.target), hidden)
    assert torch.equal(together.head.weight.grad.to_dense(), own)
    of_ranks = gather(own[None])
    assert not torch.equal(of_ranks[0], of_ranks[1])
    wrapped(*part).backward()
    of_ranks = gather(together.head.weight.grad.to_dense()[None])
    assert torch.equal(of_ranks[0], of_ranks[1])


def sparse_embeddings_of_an_encoder_are_averaged_too():
    class Items(nn.Module):
        def __init__(self):
            super().__init__()
            self.items = nn.EmbeddingBag(30, D, sparse=True, dtype=torch.float64)
            self.head = LabelHead(LABELS, D, uniform(), sparse=True, dtype=torch.float64)
            self.out = nn.Linear(D, D, dtype=torch.float64)

        def forward(self, items, target, **options):
            return self.head(self.out(self.items(items)), target, **options)

    torch.manual_seed(0)
    alone = Items().to(device())
    together = copy.deepcopy(alone)
    wrapped = DistributedDataParallel(replicate(together))
    items = torch.randint(30, (11, 2), generator=torch.Generator().manual_seed(3))
    batch = Batch(items.to(device()), Batch.of(0, torch.float64).target).ignoring(0)
    for model, part in ((alone, batch), (wrapped, batch.part())):
        model(*part, **given_draw(alone, 0, part.target)).backward()
    _same_gradients(alone, together)
    for model in (alone, together):
        RowSGD(model.items.parameters(), lr=0.1, weight_decay=1.0).step()
    flush(alone.items)
    every = torch.arange(30, device=device())[:, None]
    # Rows that no batch had have their weight decay when they are read.
    assert (together.items(every) - alone.items.weight).abs().max() < 1e-12


def a_captured_head_learns_the_same():
    for accumulated in (1, 2):
        eager, captured = models(uniform, torch.float32)
        eager.head.capture(False)
        if device() == "cpu":  # work that is done again stands in for a graph
            captured.head._graphs.record = rerun
            captured.head._graphs.devices = ("cpu",)
        results = []
        for model in (eager, captured):
            torch.manual_seed(3)
            wrapped = DistributedDataParallel(replicate(model))
            optimizer = adagrad(model.parameters())
            for step in range(8 * accumulated):
                batch = Batch.of(step, torch.float32).part()
                if step % accumulated < accumulated - 1:
                    with wrapped.no_sync():
                        results.append(wrapped(*batch))
                        results[-1].backward()
                    continue
                results.append(wrapped(*batch))
                results[-1].backward()
                optimizer.step()
                optimizer.zero_grad()
        half = len(results) // 2
        torch.testing.assert_close(torch.stack(results[half:]), torch.stack(results[:half]))
        assert captured.head.captured.shapes
        assert distance(eager, captured) < 1e-6


def batches_of_all_ranks_stay_out_of_graphs():
    loss = SampledSoftmaxLoss(WithinBatch(LABELS, group="world"), Importance(), ignore_index=None)
    model = replicate(Model(loss, torch.float32))
    model.head._graphs.devices = ("cpu",)
    with pytest.warns(UserWarning, match="negatives come from the batches of all ranks"):
        model(*Batch.of(0, torch.float32).part())


def a_table_that_is_used_whole_is_averaged_whole():
    alone, together = models(uniform, torch.float64)
    wrapped = DistributedDataParallel(replicate(together))
    batch = Batch.of(0, torch.float64)
    part = batch.part()
    first = alone(*batch, **given_draw(alone, 0, batch.target))
    (first + alone.head.weight.square().sum()).backward()
    own = wrapped(*part, **given_draw(alone, 0, part.target))
    if dist.get_rank() == 0:  # the others have a sparse gradient
        own = own + dist.get_world_size() * together.head.weight.square().sum()
    own.backward()
    _same_gradients(alone, together)


def a_head_may_stay_outside_of_the_wrapper():
    alone, together = models(uniform, torch.float64)
    encoder = DistributedDataParallel(together.encoder)
    replicate(together.head)
    batch = Batch.of(0, torch.float64).ignoring(0)
    part = batch.part()
    alone(*batch, **given_draw(alone, 0, batch.target)).backward()
    given = given_draw(alone, 0, part.target)
    together.head(encoder(part.features), part.target, **given).backward()
    _same_gradients(alone, together)


def groups_and_meshes_are_taken_and_copied():
    target = Batch.of(0, torch.float64)
    for group in (dist.new_group(), init_device_mesh("cpu", (dist.get_world_size(),))):
        sampler = copy.deepcopy(WithinBatch(LABELS, group=group))
        assert torch.equal(sampler.draw(target.part().target).ids, target.target)
        model = copy.deepcopy(replicate(Model(uniform(), torch.float64), group))
        model(*target.part()).backward()
        first, *others = gather(model.head.weight.grad.to_dense()[None])
        assert all(torch.equal(first, other) for other in others)


def replicas_start_with_the_weights_of_the_first_rank():
    torch.manual_seed(dist.get_rank())
    model = replicate(Model(uniform(), torch.float32))
    first, *others = gather(model.head.weight.detach()[None])
    assert all(torch.equal(first, other) for other in others)


def nothing_of_the_size_of_a_table_travels():
    frequency = SampledSoftmaxLoss(headtail.Frequency(LABELS, 4), Tail(LABELS))
    model = replicate(Model(frequency, torch.float32))
    wrapped = DistributedDataParallel(model)
    assert not wrapped.modules_buffers
    assert {id(p) for p in wrapped._module_parameters} == {
        id(p) for p in model.encoder.parameters()
    }
    head = DistributedDataParallel(
        replicate(nn.Sequential(nn.BatchNorm1d(D), Model(uniform(), torch.float32)))
    )
    assert len(head.modules_buffers) == 3


def queues_of_ranks_stay_their_own():
    loss = SampledSoftmaxLoss(Queue(LABELS, 4), Importance())
    model = replicate(Model(loss, torch.float64))
    wrapped = DistributedDataParallel(model)
    for seed in range(2):
        wrapped(*Batch.of(seed, torch.float64).part())
    own = Batch.of(1, torch.float64).part().target
    assert set(own[-4:].tolist()) <= set(loss.sampler.past.tolist())


def ranks_draw_different_negatives_and_resume_with_them():
    drawn = []

    class Recorded(SampledSoftmaxLoss):
        def draw(self, *args, **options):
            drawn.append(super().draw(*args, **options))
            return drawn[-1]

    model = Model(Recorded(Uniform(LABELS, 40), Importance()), torch.float64)
    replicate(model)
    part = Batch.of(0, torch.float64).part()
    torch.manual_seed(5)
    for _ in range(2):
        model(*part)
    state = torch.get_rng_state()
    model(*part)
    torch.set_rng_state(state)
    model(*part)
    first, second, third, again = (draw.ids for draw in drawn)
    assert not torch.equal(first, second)
    assert torch.equal(third, again)
    of_ranks = gather(first[None])
    assert not any(torch.equal(of_ranks[0], other) for other in of_ranks[1:])
    assert torch.equal(*gather(torch.rand(1, 3))[:2])  # what is shared stays shared
    torch.manual_seed(5)
    seed = int(torch.randint(2**62, ()))
    ids = (
        Uniform(LABELS, 40)
        .draw(part.target, generator=torch.Generator().manual_seed(seed + dist.get_rank()))
        .ids
    )
    assert torch.equal(first, ids)  # as documented


def an_error_leaves_the_random_state_as_it_was():
    model = replicate(Model(uniform(), torch.float64))
    state = torch.get_rng_state()
    torch.randint(2**62, ())
    expected = torch.rand(1)
    torch.set_rng_state(state)
    part = Batch.of(0, torch.float64).part()
    model.head.loss.forward = lambda *args, **options: 1 / 0
    with pytest.raises(ZeroDivisionError):
        model(*part)
    assert torch.equal(torch.rand(1), expected)


def a_second_call_changes_nothing():
    alone, together = models(uniform, torch.float64)
    replicate(replicate(together))
    batch = Batch.of(0, torch.float64).ignoring(0)
    part = batch.part()
    alone(*batch, **given_draw(alone, 0, batch.target)).backward()
    together(*part, **given_draw(alone, 0, part.target)).backward()
    torch.testing.assert_close(
        together.head.weight.grad.to_dense(), alone.head.weight.grad.to_dense()
    )


def a_copy_is_a_replica_too():
    alone, together = models(uniform, torch.float64)
    copied = copy.deepcopy(replicate(together))
    wrapped = DistributedDataParallel(copied)
    batch = Batch.of(0, torch.float64).ignoring(0)
    for model, part in ((alone, batch), (wrapped, batch.part())):
        model(*part, **given_draw(alone, 0, part.target)).backward()
    _same_gradients(alone, copied)
    assert together.head.weight.grad is None


def gathered_rows_have_exact_gradients():
    whole = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    factor = torch.randn(7, 3, dtype=torch.float64)
    rank, size = dist.get_rank(), dist.get_world_size()
    cuts = [0, *range(6 - size, 5), 7]
    here = slice(cuts[rank], cuts[rank + 1])
    own = whole.detach()[here].requires_grad_()
    every = gather(own)
    assert torch.equal(every, whole)
    (every.sin() * factor * (rank + 1)).sum().backward()
    ranks = sum(range(1, size + 1))
    (whole.sin() * factor * ranks).sum().backward()
    torch.testing.assert_close(own.grad, whole.grad[here], rtol=1e-12, atol=1e-12)


def batches_of_all_ranks_are_one_batch():
    for weighting in (Tail(LABELS), InfoNCE(), Importance()):

        def loss(weighting=weighting, **options):
            return SampledSoftmaxLoss(WithinBatch(LABELS, **options), weighting)

        alone, together = models(loss, torch.float64)
        together.head.loss = loss(group="world")
        wrapped = DistributedDataParallel(replicate(together))
        batch = Batch.of(0, torch.float64).ignoring(0)
        for model, part in ((alone, batch), (wrapped, batch.part())):
            model(*part).backward()
        _same_gradients(alone, together)


def groups_of_all_ranks_stay_apart():
    def loss(**options):
        return SampledSoftmaxLoss(WithinBatch(LABELS, **options), Tail(LABELS))

    alone, together = models(loss, torch.float64)
    together.head.loss = loss(group="world")
    wrapped = DistributedDataParallel(replicate(together))
    batch = Batch.of(0, torch.float64).ignoring(0)
    cuts = batch.cuts()
    pieces = itertools.pairwise(cuts)
    every = [cut + torch.arange(end - cut, device=device()) // 2 for cut, end in pieces]
    own = every[dist.get_rank()] - cuts[dist.get_rank()]
    for model, (features, target), group in (
        (alone, batch, torch.cat(every)),
        (wrapped, batch.part(), own),
    ):
        model(features, replace(Pairs.of(target), group=group)).backward()
    _same_gradients(alone, together)


def two_towers_see_the_items_of_all_ranks():
    torch.manual_seed(0)
    towers = [nn.Linear(F, D, dtype=torch.float64, device=device()) for _ in range(2)]
    together = [DistributedDataParallel(copy.deepcopy(tower)) for tower in towers]
    batch = Batch.of(0, torch.float64)
    size = len(batch.target)
    draw = WithinBatch(LABELS).draw(batch.target)
    queries, items = (tower(batch.features) for tower in towers)
    two_tower_softmax_loss(
        queries, items, items[draw.slots], batch.target, draw, InfoNCE()
    ).backward()
    part = batch.part()
    draw = WithinBatch(LABELS, group="world").draw(part.target)
    queries, items = (tower(part.features) for tower in together)
    loss = two_tower_softmax_loss(
        queries, items, gather(items)[draw.slots], part.target, draw, InfoNCE(), reduction="sum"
    )
    (loss * dist.get_world_size() / size).backward()
    for tower, other in zip(towers, together, strict=True):
        _same_gradients(tower, other)


def within_batch_may_be_a_part_of_a_mixture():
    target = Batch.of(0, torch.float64).target
    part = Batch.of(0, torch.float64).part().target
    whole = Mixture([WithinBatch(LABELS), Uniform(LABELS, 3)]).draw(target)
    own = Mixture([WithinBatch(LABELS, group="world"), Uniform(LABELS, 3)]).draw(part)
    assert own.m == whole.m
    assert torch.equal(own.ids[:-3], whole.ids[:-3])
    assert len(own.log_q_target) == len(part)


def in_evaluation_a_rank_draws_from_its_own_batch():
    if dist.get_rank() == 0:
        draw = WithinBatch(LABELS, group="world").eval().draw(torch.tensor([3, 4, 5]))
        assert draw.ids.tolist() == [3, 4, 5]


def a_head_that_was_not_replicated_says_so():
    wrapped = DistributedDataParallel(Model(uniform(), torch.float64))
    _refused("headtail.distributed.replicate(model)", wrapped, *Batch.of(0, torch.float64))
    inner = nn.Sequential(replicate(Model(uniform(), torch.float64)))
    inner.forward = inner[0].__call__
    _refused("wrap that very", DistributedDataParallel(inner), *Batch.of(0, torch.float64))


def ranks_with_different_labels_say_so():
    more = Labels.zipf(10 + (dist.get_rank() > 0))
    head = LabelHead(more, 3, SampledSoftmaxLoss(Uniform(more, 2), Importance()))
    _refused("rank 1 has 11 of them and rank 0 10", replicate, head)
    other = Labels.from_counts([3, 2, 1 + (dist.get_rank() > 0)])
    head = LabelHead(other, 3, SampledSoftmaxLoss(Uniform(other, 2), Importance()))
    _refused("rank 1 has other counts", replicate, head)
    dim = 3 + (dist.get_rank() > 0)
    loss = SampledSoftmaxLoss(Uniform(LABELS, 2), Importance())
    _refused("other shapes", replicate, LabelHead(LABELS, dim, loss, sparse=True))


def tensors_of_other_widths_are_not_gathered():
    _refused("differ in more than their first axis", gather, torch.ones(2, 3 + dist.get_rank()))
    _refused("must have rows", gather, torch.ones(()))


def tensors_out_of_reach_are_refused():
    _refused("backend 'gloo', which does not reach it", gather, torch.ones(2, device="meta"))


def uneven_numbers_of_batches_are_refused():
    wrapped = DistributedDataParallel(replicate(Model(uniform(), torch.float64)))
    with wrapped.join():
        _refused("the same number of batches", wrapped, *Batch.of(0, torch.float64).part())


def updates_at_once_are_refused():
    model = replicate(Model(uniform(), torch.float64))
    optimizer = adagrad(model.parameters()).inside_backward(at_once=True)
    _refused("without `at_once=True`", model, *Batch.of(0, torch.float64).part())
    assert optimizer.at_once


def other_things_are_refused():
    _refused("before it is wrapped", replicate, nn.Linear(2, 2))
    model = DistributedDataParallel(Model(uniform(), torch.float64))
    _refused("is wrapped already", replicate, model)
    _refused("must be a process group", WithinBatch, LABELS, group="ranks")


def _refused(sentence, function, *args, **options):
    with pytest.raises(HeadtailError, match=re.escape(sentence)):
        function(*args, **options)


def _same_gradients(alone: nn.Module, together: nn.Module) -> None:
    for p, q in zip(alone.parameters(), together.parameters(), strict=True):
        torch.testing.assert_close(q.grad.to_dense(), p.grad.to_dense(), rtol=1e-12, atol=1e-12)
