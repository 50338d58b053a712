"""What has to hold on every number of ranks besides equal training; `test_ranks.py` runs it."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from headtail import (
    Adaptive,
    Equalised,
    Frequency,
    FromMargin,
    Importance,
    LabelHead,
    LogitAdjusted,
    LogUniform,
    Mixture,
    Queue,
    Relative,
    RowAdagrad,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    SoftmaxLoss,
    Tail,
    Uniform,
    WithinBatch,
)
from headtail.collectives.gather import gather
from headtail.collectives.ranks import Ranks
from headtail.collectives.shared import states_of_all
from headtail.core.placement import Placement
from headtail.core.sharded_labels import ShardedLabels
from headtail.distributed import ShardedLabelHead
from headtail.samplers import Draw
from headtail.samplers.fixed.stratified import Stratified, Stratum, strata_sizes
from tests.distributed import batches
from tests.distributed.batches import LABELS, D, L, as_one, of_ranks


def uniform(**options: Any) -> SampledSoftmaxLoss:
    return SampledSoftmaxLoss(Uniform(LABELS, 8), Importance(), **options)


def heads(loss: Any = None, **options: Any) -> tuple[LabelHead, ShardedLabelHead]:
    """One head of this process and one of all ranks, with the same rows."""
    loss = uniform() if loss is None else loss
    options = {"bias": True, "dtype": torch.float64} | options
    torch.manual_seed(1)
    alone = LabelHead(LABELS, D, loss, sparse=True, **options)
    together = ShardedLabelHead(LABELS, D, copy.deepcopy(loss), **options)
    own = together.share.labels()
    with torch.no_grad():
        together.weight.copy_(alone.weight[own])
        if alone.bias is not None and together.bias is not None:
            nn.init.normal_(alone.bias)
            together.bias.copy_(alone.bias[own])
    return alone, together


def _same_best(alone: LabelHead, together: ShardedLabelHead, k: int, **options: Any) -> None:
    for step in range(3):
        parts = of_ranks(batches.with_known, step, dist.get_world_size(), torch.float64)
        rank = dist.get_rank()
        joint = as_one(parts)
        given = dict(options)
        own = dict(options)
        if options.get("exclude"):
            given["exclude"] = joint.options["known_positives"]
            own["exclude"] = parts[rank].options["known_positives"]
        expected = alone.topk(joint.hidden, k, **given)
        found = together.topk(parts[rank].hidden, k, **own)
        start = sum(len(part.hidden) for part in parts[:rank])
        here = slice(start, start + len(parts[rank].hidden))
        torch.testing.assert_close(found.values, expected.values[here], rtol=1e-12, atol=1e-12)
        assert torch.equal(found.indices, expected.indices[here])


def the_best_labels_are_those_of_one_process():
    alone, together = heads()
    for k in (1, 5, L // 2 + 3, L):  # more than a rank's rows, and all
        _same_best(alone, together, k)
        _same_best(alone, together, k, exclude=True)
        _same_best(alone, together, k, post_hoc=0.7)
        _same_best(alone, together, k, post_hoc=1.0, exclude=True)


def the_best_labels_of_cosines_with_a_temperature_are_those_of_one_process():
    _same_best(*heads(uniform(score="cosine", temperature=0.2)), 5, post_hoc=0.5)
    _same_best(*heads(uniform(), bias=False), 5)


def the_best_labels_are_found_where_one_rank_excludes():
    alone, together = heads()
    hidden = torch.randn(3, D, dtype=torch.float64)
    first = dist.get_rank() == 0
    exclude = [[0, 1, 2]] * 3 if first else None
    expected = alone.topk(hidden, 4, exclude=exclude)
    assert torch.equal(together.topk(hidden, 4, exclude=exclude).indices, expected.indices)


def the_best_candidates_are_those_of_one_process():
    alone, together = heads()
    rank = dist.get_rank()
    torch.manual_seed(4 + rank)
    hidden = torch.randn(3 + rank, D, dtype=torch.float64)
    rows = len(hidden)
    mask = torch.rand(L) < 0.3
    every: list[Any] = [
        torch.tensor([5, 2, 2, 9, L - 1]),
        mask,
        [7],
        [[3, 5, 5, 8], *[[] for _ in range(rows - 2)], list(range(L))],
        torch.tensor([[1, 4, -1]] * rows),
        torch.zeros(0, dtype=torch.int64),
    ]
    exclude = [[5, 8, 1]] * rows
    for candidates in every:
        for options in ({}, {"exclude": exclude}, {"post_hoc": 0.7}):
            for k in (1, 4, L):
                expected = alone.topk(hidden, k, candidates=candidates, **options)
                found = together.topk(hidden, k, candidates=candidates, **options)
                torch.testing.assert_close(found.values, expected.values, rtol=1e-12, atol=1e-12)
                assert torch.equal(found.indices, expected.indices), candidates
    # Each rank in its own way.
    candidates = [every[0], None, every[3], mask][rank]
    expected = alone.topk(hidden, 4, candidates=candidates)
    assert torch.equal(together.topk(hidden, 4, candidates=candidates).indices, expected.indices)


def candidates_have_their_weight_decay_before_they_are_scored():
    _, together = heads()
    optimizer = RowAdagrad(together.parameters(), lr=0.1, weight_decay=0.5)
    for step in range(3):
        part = of_ranks(batches.ids, step, dist.get_world_size(), torch.float64)[dist.get_rank()]
        optimizer.zero_grad()
        together(part.hidden, part.target).backward()
        optimizer.step()
    hidden = torch.randn(2, D, dtype=torch.float64)
    found = together.topk(hidden, 5, candidates=list(range(20)))
    together.flush()
    again = together.topk(hidden, 5, candidates=list(range(20)))
    torch.testing.assert_close(found.values, again.values, rtol=1e-12, atol=1e-12)


def gradients_in_bfloat16_are_rounded_once_however_many_ranks_send_them():
    """All ranks send 1, and one of them 2⁻⁸ more: a sum in bfloat16 would lose it."""
    ranks = Ranks.of()
    sizes = [2] * ranks.size
    hidden = torch.zeros(2, D, dtype=torch.bfloat16, requires_grad=True)
    terms = torch.full((2 * ranks.size, D), 1.0 if ranks.rank else 2.0**-8)
    (states_of_all(hidden, ranks, sizes).float() * terms).sum().backward()
    own = torch.tensor((ranks.size - 1 + 2.0**-8) * ranks.size).bfloat16()
    assert hidden.grad is not None
    assert torch.equal(hidden.grad, own.expand(2, D))
    twice = torch.randn(
        8, ranks.size, 2 * ranks.size, D, generator=torch.Generator().manual_seed(1)
    )
    for parts in twice.bfloat16():
        hidden.grad = None
        (states_of_all(hidden, ranks, sizes) * parts[ranks.rank]).sum().backward()
        here = slice(2 * ranks.rank, 2 * ranks.rank + 2)
        exact = (parts[:, here].float().sum(0) * ranks.size).bfloat16()
        assert torch.equal(hidden.grad, exact)


def rows_have_their_weight_decay_before_they_are_searched_or_saved():
    alone, together = heads()
    for head in (alone, together):
        optimizer = RowAdagrad(head.parameters(), lr=0.1, weight_decay=0.5)
        for step in range(3):
            parts = of_ranks(batches.ids, step, dist.get_world_size(), torch.float64)
            batch = as_one(parts) if head is alone else parts[dist.get_rank()]
            draw = Uniform(LABELS, 8).draw(
                as_one(parts).target, generator=torch.Generator().manual_seed(step)
            )
            optimizer.zero_grad()
            head(batch.hidden, batch.target, draw=draw).backward()
            optimizer.step()
    _same_best(alone, together, 5)
    saved = together.state_dict()["weight"]
    assert (saved - alone.state_dict()["weight"][together.share.labels()]).abs().max() < 1e-12


def labels_whose_counts_are_spread_over_ranks_train_the_same():
    """No rank knows the counts of other ranks' labels."""
    size = dist.get_world_size()
    own = ShardedLabels.part_of(LABELS, Placement((L,)).share(dist.get_rank(), size))
    losses = [
        lambda labels: SampledSoftmaxLoss(Frequency(labels, 9, 0.5), Tail(labels)),
        lambda labels: SampledSoftmaxLoss(WithinBatch(labels), FromMargin(Adaptive(labels))),
        lambda labels: SampledDecoupledLoss(Uniform(L, 9), FromMargin(Equalised(labels))),
        lambda labels: SampledSoftmaxLoss(Queue(labels, 9), Relative()),
        lambda labels: SoftmaxLoss(LogitAdjusted(labels)),
    ]
    for make in losses:
        results = []
        for labels in (LABELS, own):
            torch.manual_seed(5)
            loss = make(labels)
            sparse = not isinstance(loss, SoftmaxLoss)
            head = ShardedLabelHead(labels, D, loss, sparse=sparse, dtype=torch.float64)
            for step in range(2):
                batch = of_ranks(batches.ids, step, size, torch.float64)[dist.get_rank()]
                results.append(head(batch.hidden, batch.target).detach())
            results.append(head.topk(torch.ones(2, D, dtype=torch.float64), 3, post_hoc=0.5).values)
        half = len(results) // 2
        for one, other in zip(results[:half], results[half:], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-14)


def an_encoder_under_ddp_learns_the_same():
    alone, together = heads()
    torch.manual_seed(2)
    first = nn.Linear(D, D, dtype=torch.float64)
    second = DistributedDataParallel(copy.deepcopy(first))
    for encoder, head in ((first, alone), (second, together)):
        optimizer = RowAdagrad(head.parameters(), lr=0.1)
        dense = torch.optim.AdamW(encoder.parameters(), lr=0.1)
        for step in range(20):
            parts = of_ranks(batches.ignoring, step, dist.get_world_size(), torch.float64)
            joint = as_one(parts)
            batch = joint if head is alone else parts[dist.get_rank()]
            draw = Uniform(LABELS, 8).draw(
                joint.target, generator=torch.Generator().manual_seed(step)
            )
            for each in (optimizer, dense):
                each.zero_grad()
            head(encoder(batch.hidden), batch.target, draw=draw).backward()
            for each in (optimizer, dense):
                each.step()
    assert (first.weight - second.module.weight).abs().max() < 1e-12
    assert (alone.weight[together.share.labels()] - together.weight).abs().max() < 1e-12


def ranks_whose_padding_has_different_widths_are_one_batch():
    """A rank whose examples happen to have one label each pads to one column."""
    alone, together = heads()
    rank = dist.get_rank()
    lists = [[[3], [4]] if other else [[1, 2], [5, -100]] for other in range(dist.get_world_size())]
    wide = [row + [-100] * (2 - len(row)) for part in lists for row in part]
    hidden = torch.randn(len(wide), D, dtype=torch.float64)
    own = slice(2 * rank, 2 * rank + 2)
    drawn = torch.arange(8)
    targets = [torch.zeros(size, dtype=torch.int64) for size in (2 * len(wide), len(wide) + 2)]
    draw, narrow = (Uniform(LABELS, 8).describe(drawn, target, 8.0) for target in targets)
    expected = alone(hidden, torch.tensor(wide), draw=draw)
    found = together(hidden[own], torch.tensor(lists[rank]), draw=narrow)
    assert abs((expected - found).item()) < 1e-12
    known = {"known_positives": torch.tensor(wide)}
    target = torch.arange(len(wide))
    draw = Uniform(LABELS, 8).draw(target)
    expected = alone(hidden, target, draw=draw, **known)
    known = {"known_positives": torch.tensor(lists[rank])}
    found = together(hidden[own], target[own], draw=draw, **known)
    assert abs((expected - found).item()) < 1e-12


def all_ranks_return_the_same_loss():
    _, together = heads()
    loss = together(torch.randn(3, D, dtype=torch.float64), torch.tensor([dist.get_rank(), 5, 6]))
    first, *others = gather(loss.detach()[None])
    assert all(torch.equal(first, other) for other in others)


def a_mesh_and_a_group_are_taken():
    size = dist.get_world_size()
    for mesh in (init_device_mesh("cpu", (size,)), dist.new_group(), None):
        head = ShardedLabelHead(LABELS, D, uniform(), mesh)
        assert head(torch.randn(2, D), torch.tensor([1, 2])).isfinite()


def first_weights_do_not_depend_on_ranks():
    torch.manual_seed(3 + dist.get_rank())
    head = ShardedLabelHead(LABELS, D, uniform())
    every = gather(head.weight.detach())
    generator = torch.Generator()
    torch.manual_seed(3)
    generator.manual_seed(int(torch.randint(2**30, ())))
    expected = torch.randn(2**16, D, generator=generator)[:L] * D**-0.5
    assert torch.equal(every, expected)


def _drawn(head: ShardedLabelHead, seed: int) -> list[Draw]:
    """What the head draws in one step."""
    draws: list[Draw] = []
    original = head._drawn

    def recorded(*args: Any) -> Draw:
        draws.append(original(*args))
        return draws[-1]

    head._drawn = recorded  # pyright: ignore[reportAttributeAccessIssue]
    generator = torch.Generator().manual_seed(seed + 100 * dist.get_rank())
    head(torch.randn(2, D, dtype=torch.float64), torch.tensor([1, 7]), generator=generator)
    del head._drawn
    return draws


SHARED = {
    "uniform": lambda: Uniform(LABELS, 9),
    "uniform, without replacement": lambda: Uniform(LABELS, 9, replacement=False),
    "frequency": lambda: Frequency(LABELS, 9),
    "frequency 0.5, without replacement": lambda: Frequency(LABELS, 9, 0.5, replacement=False),
    "log-uniform": lambda: LogUniform(LABELS, 9),
}


def a_rank_draws_what_its_stratum_draws_from_the_same_seed():
    size = dist.get_world_size()
    rank = dist.get_rank()
    for make in SHARED.values():
        sampler = make()
        head = ShardedLabelHead(LABELS, D, SampledSoftmaxLoss(sampler, Tail(LABELS)))
        head = head.double()
        (draw,) = _drawn(head, seed=5)
        generator = torch.Generator().manual_seed(5 + 100 * rank)  # its own
        seed = int(torch.randint(2**62, (), generator=generator))
        own = strata_sizes(9, size)[rank]
        stratum = Stratum(make(), head.placement.share(rank, size), own)
        expected = stratum.pick(torch.Generator().manual_seed(seed + 1 + rank), torch.device("cpu"))
        assert torch.equal(draw.ids, expected)
        together = Stratified(make(), size)
        torch.testing.assert_close(draw.log_q, together.log_q(expected), rtol=1e-14, atol=1e-14)
        target = torch.tensor([1, 7] * size)
        mine = head.share.holds(head.share.places(target))
        of_target = together.log_q(target)
        torch.testing.assert_close(draw.log_q_target[mine], of_target[mine], rtol=1e-14, atol=1e-14)
        assert draw.log_q_target[~mine].isnan().all()
        assert draw.m == 9.0
        assert int(gather(torch.tensor([len(draw.ids)])).sum()) == 9


def a_mixture_draws_each_part_with_the_q_of_the_sum():
    size = dist.get_world_size()
    sampler = Mixture([Uniform(LABELS, 6), WithinBatch(LABELS), Frequency(LABELS, 5)])
    head = ShardedLabelHead(LABELS, D, SampledSoftmaxLoss(sampler, Tail(LABELS))).double()
    (draw,) = _drawn(head, seed=5)
    within = 2 * size - 1.0
    parts = [(6.0, Stratified(Uniform(LABELS, 6), size).log_q(draw.ids).exp())]
    parts.append((within, LABELS.log_frequency(draw.ids).exp()))
    parts.append((5.0, Stratified(Frequency(LABELS, 5), size).log_q(draw.ids).exp()))
    q = sum(m * part for m, part in parts) / (11 + within)
    torch.testing.assert_close(draw.log_q.exp(), q, rtol=1e-13, atol=0)
    assert draw.m == 11 + within


def the_mean_over_own_draws_is_the_exact_loss():
    """Decoupled losses are linear in the draws: their mean over many draws is the exact loss."""
    loss = SampledDecoupledLoss(Uniform(LABELS, 12, replacement=False), Importance())
    alone, together = heads(loss)
    hidden = torch.ones(1, D, dtype=torch.float64)
    target = torch.tensor([3])
    values = []
    with torch.no_grad():
        for seed in range(300):
            generator = torch.Generator().manual_seed(seed)
            values.append(float(together(hidden, target, generator=generator)))
    scores = alone.logits(hidden)[0]
    others = torch.arange(L) != 3
    exact = nn.functional.softplus(-scores[3]) + nn.functional.softplus(scores[others]).sum()
    mean = torch.tensor(values, dtype=torch.float64)
    error = float((mean.mean() - exact).abs() / (mean.std() / 300**0.5))
    assert error < 4, f"{error} standard errors"
