"""What sampling optimises: expectations over every outcome of every sampler, for every weighting
and margin.
"""

from __future__ import annotations

import math

import pytest
import torch

from headtail import SampledDecoupledLoss, SampledSoftmaxLoss
from headtail.core import Margin
from headtail.functional import (
    contrastive,
    hinge,
    logistic,
    sampled_decoupled,
    sampled_softmax,
    squared_hinge,
)

from .block_worlds import BLOCK_WORLDS
from .schemes import MARGINS, WEIGHTINGS
from .worlds import POOLS, SCORES, WORLDS, L, World

each_world = pytest.mark.parametrize("world", WORLDS + BLOCK_WORLDS, ids=repr)
each_unbiased_world = pytest.mark.parametrize("world", WORLDS + BLOCK_WORLDS + POOLS, ids=repr)
each_weighting = pytest.mark.parametrize("weighting", WEIGHTINGS)


def expectation(world: World, y: int, value) -> float:
    return sum(p * float(value(draw)) for p, draw in world.outcomes(y))


def single(draw):
    """The draw as the first example sees it."""
    of_target = None if draw.log_q_target is None else draw.log_q_target[:1]
    return type(draw)(
        draw.ids, draw.log_q, of_target, draw.m, draw.log_keep, marginal=draw.marginal
    )


def first_example(draw, y, weighting, loss, *args):
    """The loss of the example with positive y, from its logits."""
    target = torch.tensor([y])
    ids = draw.ids if draw.shared else draw.ids[:1]
    rest = draw if draw.log_q_target is None or len(draw.log_q_target) == 1 else single(draw)
    a, b = weighting.offsets(rest, target)
    return loss(SCORES[target], SCORES[ids].reshape(1, -1), a, b, (ids == y).reshape(1, -1), *args)


@each_world
@pytest.mark.parametrize("y", range(L))
def test_other_labels_are_drawn_as_often_as_the_draw_claims(world: World, y: int):
    for other in range(L):
        if other == y:
            continue
        count = expectation(world, y, lambda draw, other=other: (draw.ids == other).sum())
        draw = world.outcomes(y)[0][1]
        keep = draw.log_keep if isinstance(draw.log_keep, float) else float(draw.log_keep[0])
        claimed = draw.m * float(world.log_q(y, torch.tensor(other)).exp()) * math.exp(-keep)
        assert count == pytest.approx(claimed, rel=1e-12)


@each_world
def test_a_draw_carries_the_log_q_that_its_sampler_reports(world: World):
    for _, draw in world.outcomes(1):
        assert torch.allclose(draw.log_q, world.log_q(1, draw.ids), rtol=0, atol=1e-14)
        assert torch.allclose(
            draw.log_q_target[0], world.log_q(1, torch.tensor(1)), rtol=0, atol=1e-14
        )


@pytest.mark.parametrize("world", POOLS, ids=repr)
@pytest.mark.parametrize("y", range(L))
def test_draws_from_a_pool_count_once_on_average_when_each_is_divided_by_what_it_carries(
    world: World, y: int
):
    for other in set(range(L)) - {y}:
        mean = expectation(
            world,
            y,
            lambda draw, other=other: ((draw.ids == other) / (draw.m * draw.log_q.exp())).sum(),
        )
        assert mean == pytest.approx(1, rel=1e-12)


@each_world
@each_weighting
@pytest.mark.parametrize("piece", [logistic, squared_hinge], ids=lambda p: p.name)
def test_the_mean_decoupled_loss_is_the_implied_margin_loss(world: World, weighting: str, piece):
    w = WEIGHTINGS[weighting]
    margin = world.margin(w)
    for y in (0, 3):
        mean = expectation(
            world, y, lambda draw, y=y: first_example(draw, y, w, sampled_decoupled, piece)
        )
        assert mean == pytest.approx(decoupled_truth(margin, y, piece), rel=1e-11)


@each_world
@each_weighting
def test_inside_the_logarithm_the_mean_softmax_is_the_implied_margin_loss(
    world: World, weighting: str
):
    w = WEIGHTINGS[weighting]
    margin = world.margin(w)
    for y in (0, 3):
        inside = expectation(
            world, y, lambda draw, y=y: first_example(draw, y, w, sampled_softmax).exp()
        )
        assert inside == pytest.approx(softmax_truth(margin, y).exp().item(), rel=1e-11)


@each_world
@each_weighting
def test_after_the_logarithm_the_mean_softmax_lies_below_its_bound(world: World, weighting: str):
    w = WEIGHTINGS[weighting]
    bound = softmax_truth(world.margin(w), 2).item()
    mean = expectation(world, 2, lambda draw: first_example(draw, 2, w, sampled_softmax))
    assert mean <= bound + 1e-12


@each_unbiased_world
@pytest.mark.parametrize("name", MARGINS)
def test_from_margin_gives_its_margin_back_for_any_sampler(world: World, name: str):
    """Against the margin itself, not against what headtail thinks is implied."""
    w = WEIGHTINGS[f"from {name}"]
    margin = MARGINS[name]
    for y in (1, 3):
        mean = expectation(
            world, y, lambda draw, y=y: first_example(draw, y, w, sampled_decoupled, hinge)
        )
        assert mean == pytest.approx(decoupled_truth(margin, y, hinge), rel=1e-11)
        target = torch.tensor([y])
        ids = torch.arange(L)
        implied = world.margin(w).log_rho(target, ids)
        others = ids != y
        assert torch.allclose(
            implied[0, others], margin.log_rho(target, ids)[0, others], rtol=0, atol=1e-12
        )


@each_unbiased_world
def test_tail_weights_imitate_logit_adjustment_for_any_sampler(world: World):
    log_prior = torch.tensor([2, 12, 5, 1], dtype=torch.float64).div(20).log()
    y = 0
    inside = expectation(
        world, y, lambda draw: first_example(draw, y, WEIGHTINGS["tail"], sampled_softmax).exp()
    )
    adjusted = SCORES + log_prior
    assert inside == pytest.approx(1 / adjusted.softmax(0)[y].item(), rel=1e-11)


@each_unbiased_world
def test_through_the_whole_library_importance_is_the_plain_softmax_in_expectation(world: World):
    """From hidden states and a table to the number, for both losses, instead of from logits."""
    table = SCORES[:, None]
    hidden = torch.ones(1, 1, dtype=torch.float64)
    y = torch.tensor([3])
    softmax = SampledSoftmaxLoss(world.sampler, WEIGHTINGS["importance"])
    decoupled = SampledDecoupledLoss(
        world.sampler, WEIGHTINGS["importance"], contrastive(0.5), score="cosine"
    )

    inside = expectation(world, 3, lambda draw: softmax(hidden, table, y, draw=single(draw)).exp())
    assert inside == pytest.approx(1 / SCORES.softmax(0)[3].item(), rel=1e-11)
    # cosines of one-dimensional vectors are their signs: +1, −1, +1, +1
    mean = expectation(world, 3, lambda draw: decoupled(hidden, table, y, draw=single(draw)))
    assert mean == pytest.approx(0 + 0.5**2 / 2 + 0 + 0.5**2 / 2, rel=1e-11)


def softmax_truth(margin: Margin, y: int) -> torch.Tensor:
    ids = torch.arange(L)
    rho = margin.log_rho(torch.tensor([y]), ids)[0].exp()
    terms = rho * (SCORES - SCORES[y]).exp()
    return (1 + terms[ids != y].sum()).log()


def decoupled_truth(margin: Margin, y: int, piece) -> float:
    ids = torch.arange(L)
    rho = margin.log_rho(torch.tensor([y]), ids)[0].exp()
    return float(piece.positive(SCORES[y]) + (rho * piece.negative(-SCORES))[ids != y].sum())
