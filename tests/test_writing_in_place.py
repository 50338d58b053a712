"""What a caller writes into a tensor that it was handed is seen by no other caller."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import headtail as ht
from headtail.core.lookup import written_out
from headtail.core.targets import Pairs

LABELS = ht.Labels.from_counts([50, 30, 20])
TARGET = torch.tensor([0, 2, 1, 0])
ONE = torch.tensor([1])
EVERY = torch.arange(3)

SAMPLERS = {
    "uniform": lambda: ht.Uniform(LABELS, 4),
    "uniform, one draw": lambda: ht.Uniform(LABELS, 1),
    "uniform, distinct": lambda: ht.Uniform(LABELS, 2, replacement=False),
    "uniform, excluded": lambda: ht.Uniform(LABELS, 4, exclude_target=True),
    "frequency": lambda: ht.Frequency(LABELS, 4),
    "log-uniform": lambda: ht.LogUniform(LABELS, 4),
    "within-batch": lambda: ht.WithinBatch(LABELS),
    "mixture": lambda: ht.Mixture([ht.Uniform(LABELS, 2), ht.WithinBatch(LABELS)]),
}
MARGINS = {
    "unit": ht.Unit,
    "logit-adjusted": lambda: ht.LogitAdjusted(LABELS),
    "equalised": lambda: ht.Equalised(LABELS),
    "adaptive": lambda: ht.Adaptive(LABELS),
    "custom": lambda: ht.CustomSeparable([0.0, 1.0, 2.0], [0.0, 0.0, 0.0]),
}
WEIGHTINGS = {
    "constant": ht.Constant,
    "infonce": ht.InfoNCE,
    "relative": ht.Relative,
    "importance": ht.Importance,
    "tail": lambda: ht.Tail(LABELS),
    "equalised": lambda: ht.FromMargin(ht.Equalised(LABELS)),
    "adaptive": lambda: ht.FromMargin(ht.Adaptive(LABELS)),
}


def overwrite(*tensors: torch.Tensor | float | None) -> None:
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            tensor.add_(1)


def numbers_of(draw: ht.samplers.Draw) -> list[torch.Tensor]:
    assert draw.log_q_target is not None
    return [draw.log_q.clone(), draw.log_q_target.clone()]


@pytest.mark.parametrize("ids", [ONE, EVERY], ids=["one id", "several ids"])
@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_writing_into_log_q_leaves_every_sampler_as_it_was(make, ids):
    sampler = make()
    other = make()
    before = sampler.log_q(ids, 4).clone()
    overwrite(sampler.log_q(ids, 4))
    assert torch.equal(sampler.log_q(ids, 4), before)
    assert torch.equal(other.log_q(ids, 4), before)


@pytest.mark.parametrize("target", [ONE.repeat(2), TARGET], ids=["one label", "several labels"])
@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_writing_into_a_draw_leaves_every_other_draw_as_it_was(make, target):
    sampler = make()
    draw, again = (
        sampler.draw(target, generator=torch.Generator().manual_seed(0)) for _ in range(2)
    )
    before = numbers_of(draw)
    overwrite(draw.log_q, draw.log_q_target, draw.log_keep, draw.ids)
    third = make().draw(target, generator=torch.Generator().manual_seed(0))
    for other in (again, third):
        assert all(torch.equal(*pair) for pair in zip(numbers_of(other), before, strict=True))


@pytest.mark.parametrize("ids", [ONE, EVERY], ids=["one id", "several ids"])
@pytest.mark.parametrize("make", MARGINS.values(), ids=MARGINS.keys())
def test_writing_into_a_margin_leaves_every_margin_as_it_was(make, ids):
    margin = make()
    before = (
        margin.log_positive(ids).clone(),
        margin.log_negative(ids).clone(),
        margin.log_rho(ids, ids).clone(),
    )
    overwrite(margin.log_positive(ids), margin.log_negative(ids), margin.log_rho(ids, ids))
    for other in (margin, make()):
        after = other.log_positive(ids), other.log_negative(ids), other.log_rho(ids, ids)
        assert all(torch.equal(*pair) for pair in zip(after, before, strict=True))


@pytest.mark.parametrize("sampler", ["uniform", "uniform, one draw", "frequency", "within-batch"])
@pytest.mark.parametrize("make", WEIGHTINGS.values(), ids=WEIGHTINGS.keys())
def test_writing_into_log_weights_leaves_draw_and_weighting_as_they_were(make, sampler):
    weighting = make()
    for target in (ONE.repeat(2), TARGET):
        draw = SAMPLERS[sampler]().draw(target)
        before = [part.clone() for part in weighting.offsets(draw, target)]
        overwrite(*weighting.offsets(draw, target))
        after = weighting.offsets(draw, target)
        assert all(torch.equal(*pair) for pair in zip(after, before, strict=True))
        other = make().offsets(SAMPLERS[sampler]().draw(target), target)
        assert torch.equal(other[0], before[0])


def test_writing_into_the_ignored_targets_of_a_batch_leaves_the_next_batch_as_it_was():
    Pairs.of(ONE, ignore_index=None).ignored.fill_(True)
    assert not bool(Pairs.of(ONE, ignore_index=None).ignored.any())


@pytest.mark.parametrize("collisions", ["target", "none"])
def test_a_loss_is_the_same_after_a_caller_wrote_into_everything_it_was_handed(collisions):
    loss = ht.SampledSoftmaxLoss(ht.Uniform(LABELS, 1), ht.Importance(), collisions=collisions)
    hidden = torch.randn(1, 4, generator=torch.Generator().manual_seed(1))
    table = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))

    def values() -> list[float]:
        draw = ht.samplers.Draw(torch.tensor([2]), loss.sampler.log_q(torch.tensor([2])), None, 1.0)
        options = {"draw": draw, "ignore_index": None}
        return [
            float(loss(hidden, table, ONE, sparse=sparse, **options)) for sparse in (False, True)
        ]

    before = values()
    ids = torch.tensor([2])
    draw = loss.draw_ahead(ONE)
    assert draw is not None
    overwrite(
        loss.sampler.log_q(ids),
        draw.log_q,
        draw.log_q_target,
        ht.Unit().log_positive(ids),
        ht.Unit().log_negative(ids),
    )
    overwrite(*loss.weighting.offsets(draw, ONE))
    assert values() == before


@pytest.mark.parametrize("make", WEIGHTINGS.values(), ids=WEIGHTINGS.keys())
def test_a_uniform_draw_with_another_log_q_is_weighed_by_that_on_both_paths(make):
    hidden = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    table = torch.randn(3, 4, generator=torch.Generator().manual_seed(2))
    loss = ht.SampledSoftmaxLoss(ht.Uniform(LABELS, 5), make())
    draw = loss.sampler.draw(TARGET, generator=torch.Generator().manual_seed(0))
    assert draw.log_q_target is not None
    for change in ({"log_q": draw.log_q - 1}, {"log_q_target": draw.log_q_target - 2}):
        changed = replace(draw, **change)
        plain, kernel = (
            float(loss(hidden, table, TARGET, draw=changed, sparse=sparse))
            for sparse in (False, True)
        )
        assert plain == pytest.approx(kernel, rel=1e-6)
        if make is ht.Relative:
            assert plain != pytest.approx(float(loss(hidden, table, TARGET, draw=draw)), rel=1e-3)


@pytest.mark.parametrize("make", WEIGHTINGS.values(), ids=WEIGHTINGS.keys())
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_log_weights_for_kernels_are_those_for_everyone_to_the_last_digit(make, sampler):
    weighting = make()
    draw = sampler().draw(TARGET)
    for numbers, tensor, ids in zip(
        weighting.numbers(draw, TARGET),
        weighting.offsets(draw, TARGET),
        (TARGET, draw.ids),
        strict=True,
    ):
        assert torch.equal(written_out(numbers, ids), tensor)
