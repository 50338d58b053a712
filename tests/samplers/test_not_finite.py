"""Hidden states and label rows that are not finite spoil what is theirs, and nothing else."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from headtail import (
    Adversarial,
    Block,
    FourierKernel,
    Importance,
    QuadraticKernel,
    SampledSoftmaxLoss,
)
from headtail.samplers import Scorer
from tests.samplers.steps import step_of

KINDS = {
    "block": Block,
    "block, uniform inside": lambda *args, **options: Block(*args, inside="uniform", **options),
    "quadratic kernel": QuadraticKernel,
    "fourier kernel": FourierKernel,
    "adversarial": Adversarial,
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
each_value = pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
LABELS = 60
EVERY = torch.arange(LABELS)


def model(examples: int = 11, dim: int = 5) -> Scorer:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(examples, dim, generator=generator)
    return Scorer(
        hidden, torch.randn(LABELS, dim, generator=generator), torch.linspace(-1, 1, LABELS)
    )


def drawn(sampler, scorer: Scorer, label: torch.Tensor, seed: int = 0):
    return sampler.draw(label, model=scorer, generator=torch.Generator().manual_seed(seed))


def claimed(sampler, scorer: Scorer, label: torch.Tensor) -> torch.Tensor:
    """`[p, L]` q of every label for each example."""
    return sampler.log_q_given(step_of(scorer, label), EVERY).exp()


def losses(sampler, scorer: Scorer, label: torch.Tensor, draw) -> torch.Tensor:
    loss = SampledSoftmaxLoss(sampler, Importance())
    return loss(scorer.input, scorer.weight, label, bias=scorer.bias, draw=draw, reduction="none")


@each_kind
@each_value
def test_an_example_that_is_not_finite_changes_its_neighbours_as_little_as_padding(kind, value):
    whole = model(4)
    sampler = kind(LABELS, 8, share=4).eval()
    drawn(sampler, model(), torch.arange(11))
    three = Scorer(whole.input[:3], whole.weight, whole.bias)
    alone = drawn(sampler, three, torch.arange(3))
    whole.input[3] = value
    beside = drawn(sampler, whole, torch.arange(4))
    assert torch.equal(beside.ids[:3], alone.ids)
    # A product of four rows rounds differently in float32 than one of three.
    assert torch.allclose(beside.log_q[:3], alone.log_q, rtol=0, atol=1e-6)
    assert torch.allclose(beside.log_q_target[:3], alone.log_q_target, rtol=0, atol=1e-6)


@each_kind
@each_value
@pytest.mark.parametrize("bad", [[2], [0, 3], [4, 5, 6, 7], [8, 9, 10], list(range(11))], ids=str)
def test_a_group_draws_from_the_mean_q_of_its_finite_examples(kind, value, bad):
    scorer = model()
    label = torch.arange(11)
    sampler = kind(LABELS, 8, share=4).eval()
    drawn(sampler, scorer, label)
    each = kind(LABELS, 8, share=1).eval()
    each.load_state_dict(copy.deepcopy(sampler.state_dict()))
    own = claimed(each, scorer, label)
    scorer.input[bad] = value
    draw = drawn(sampler, scorer, label)
    q = claimed(sampler, scorer, label)
    assert torch.allclose(q.sum(1), torch.ones(11, dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.allclose(draw.log_q.exp(), q.gather(1, draw.ids), rtol=1e-5, atol=0)
    of_target = q.gather(1, label[:, None]).squeeze(1)
    assert torch.allclose(draw.log_q_target.exp(), of_target, rtol=1e-5, atol=0)
    for group in label.split(4):
        good = [row for row in group.tolist() if row not in bad]
        if good:
            assert torch.allclose(q[group[0]], own[good].mean(0), rtol=1e-5, atol=0)
    spoilt = ~losses(sampler, scorer, label, draw).isfinite()
    assert spoilt.nonzero().squeeze(1).tolist() == bad


@each_kind
@each_value
def test_labels_are_drawn_as_often_as_claimed_beside_an_example_that_is_not_finite(kind, value):
    scorer = model(4)
    label = torch.arange(4)
    sampler = kind(LABELS, 400, share=4).eval()
    drawn(sampler, model(), torch.arange(11))
    for bad in range(4):
        spoilt = Scorer(scorer.input.clone(), scorer.weight, scorer.bias)
        spoilt.input[bad] = value
        q = claimed(sampler, spoilt, label)[0]
        ids = torch.cat([drawn(sampler, spoilt, label, seed).ids[0] for seed in range(60)])
        share = torch.bincount(ids, minlength=LABELS).double() / len(ids)
        # With a draw's slots dealt out to few blocks, a share varies by about a tenth.
        likely = q > 0.02
        assert likely.any()
        assert torch.allclose(share[likely], q[likely], rtol=0.3, atol=0)


@each_kind
@each_value
@pytest.mark.parametrize("where", ["row", "bias"])
def test_a_label_that_is_not_finite_spoils_only_those_who_draw_it(kind, value, where):
    scorer = model()
    label = torch.arange(11)
    broken = 37
    sampler = kind(LABELS, 2, share=1)
    (scorer.weight if where == "row" else scorer.bias)[broken] = value
    for seed in range(40):  # the summary is taken again after 32 steps
        draw = drawn(sampler, scorer, label, seed)
        assert draw.log_q.isfinite().all()
        touched = (draw.ids == broken).any(1) | (label == broken)
        spoilt = ~losses(sampler, scorer, label, draw).isfinite()
        assert not (spoilt & ~touched).any()
    q = claimed(sampler, scorer, label)
    assert torch.allclose(q.sum(1), torch.ones(11, dtype=torch.float64), rtol=0, atol=1e-12)
    assert (q > 0).all()


@each_kind
def test_a_model_whose_every_number_is_not_finite_is_drawn_for_all_the_same(kind):
    scorer = Scorer(torch.full((3, 5), math.nan), torch.full((LABELS, 5), math.nan))
    sampler = kind(LABELS, 4, share=2)
    label = torch.arange(3)
    assert drawn(sampler, scorer, label).log_q.isfinite().all()
    assert torch.allclose(
        claimed(sampler, scorer, label).sum(1), torch.ones(3, dtype=torch.float64)
    )
