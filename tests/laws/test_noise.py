"""How noisy sampling is: variances over every outcome, and the limits that the paper's theorem
promises.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy.stats import binom

from headtail import (
    Constant,
    FromMargin,
    Given,
    Importance,
    Labels,
    LogitAdjusted,
    PartialFC,
    Relative,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    Tail,
    Uniform,
    Unit,
    explain,
)
from headtail.functional import hinge, logistic, sampled_decoupled, sampled_softmax
from headtail.implicit import Example, optimal_q

from .schemes import WEIGHTINGS
from .test_means import each_weighting, first_example, softmax_truth
from .worlds import FIXED, LABELS, SCORES, WORLDS, L, World

each_fixed_world = pytest.mark.parametrize("world", FIXED, ids=repr)


@each_fixed_world
@each_weighting
def test_explain_reports_the_true_variance_or_none(world: World, weighting: str):
    w = WEIGHTINGS[weighting]
    y = 2
    found = explain(
        SampledDecoupledLoss(world.sampler, w, logistic),
        LABELS,
        batch_size=world.batch_size,
        scores=SCORES[None],
        target=torch.tensor([y]),
    ).examples[0]
    outcomes = [
        (p, float(first_example(draw, y, w, sampled_decoupled, logistic)))
        for p, draw in world.outcomes(y)
    ]
    mean = sum(p * x for p, x in outcomes)
    variance = sum(p * (x - mean) ** 2 for p, x in outcomes)
    assert found.implicit_loss == pytest.approx(mean, rel=1e-11)
    if isinstance(world.sampler, Given | PartialFC):
        assert found.variance is None
    else:
        assert found.variance == pytest.approx(variance, rel=1e-9, abs=1e-12)


@each_fixed_world
def test_explain_reports_the_true_variance_of_the_softmax_sum(world: World):
    y = 3
    w = WEIGHTINGS["tail"]
    found = explain(
        SampledSoftmaxLoss(world.sampler, w),
        LABELS,
        batch_size=world.batch_size,
        scores=SCORES[None],
        target=torch.tensor([y]),
    ).examples[0]
    outcomes = [
        (p, float(first_example(draw, y, w, sampled_softmax).expm1()))
        for p, draw in world.outcomes(y)
    ]
    mean = sum(p * x for p, x in outcomes)
    variance = sum(p * (x - mean) ** 2 for p, x in outcomes)
    if found.variance is not None:
        assert found.variance == pytest.approx(variance, rel=1e-9, abs=1e-12)
        assert found.squared_error == pytest.approx(variance / (1 + mean) ** 2, rel=1e-9, abs=1e-12)
        assert found.noise == pytest.approx(math.sqrt(found.squared_error))
    else:
        assert isinstance(world.sampler, Given | PartialFC)


@pytest.mark.parametrize("excluded", [True, False])
def test_the_lemma_s_variance_is_the_paper_s_formula(excluded: bool):
    """Σ w ρ φ² − (1/m)(Σ ρ φ)², written out."""
    m = 7
    y = 1
    w = Tail(LABELS)
    sampler = Uniform(L, m, exclude_target=excluded)
    q = torch.full((L,), 1 / (L - 1) if excluded else 1 / L, dtype=torch.float64)
    rho = LogitAdjusted(LABELS).log_rho(torch.tensor([y]), torch.arange(L))[0].exp()
    phi = hinge.negative(-SCORES)
    others = torch.arange(L) != y
    formula = ((rho / (m * q)) * rho * phi**2)[others].sum() - (rho * phi)[others].sum() ** 2 / m
    found = explain(
        SampledDecoupledLoss(sampler, w, hinge),
        LABELS,
        scores=SCORES[None],
        target=torch.tensor([y]),
    ).examples[0]
    assert found.variance == pytest.approx(float(formula), rel=1e-12)


TWO = Labels.from_counts([3, 2, 1])
PAIR = torch.tensor([0.2, 1.0, -0.5], dtype=torch.float64)


def binomial_softmax(m: int, weighting) -> tuple[float, float, float, float]:
    """E[(loss − bound)²], bound − E[loss], and explain's noise and gap, over all outcomes of m
    draws from two other labels.
    """
    sampler = Uniform(3, m, exclude_target=True)
    found = explain(
        SampledSoftmaxLoss(sampler, weighting), TWO, scores=PAIR[None], target=torch.tensor([0])
    ).examples[0]
    counts = torch.arange(m + 1, dtype=torch.float64)
    chance = torch.from_numpy(binom.pmf(counts.numpy(), m, 0.5))
    draw = sampler.describe(torch.tensor([[1, 2]]), torch.tensor([0]), float(m))
    a, b = weighting.offsets(draw, torch.tensor([0]))
    term = (a[:, None] + b + PAIR[1:] - PAIR[0]).exp()[0]
    loss = torch.log1p(counts * term[0] + (m - counts) * term[1])
    bound = found.implicit_loss
    return (
        float((chance * (loss - bound) ** 2).sum()),
        bound - float((chance * loss).sum()),
        found.squared_error,
        found.jensen_gap,
    )


@pytest.mark.parametrize(
    "weighting", [Importance(), Tail(TWO), Constant()], ids=lambda w: type(w).__name__
)
def test_the_squared_error_times_m_tends_to_the_theorem_s_limit(weighting):
    errors = []
    for m in (100, 1_000, 10_000):
        squared, gap, noise, jensen = binomial_softmax(m, weighting)
        errors.append((abs(squared / noise - 1), abs(gap / jensen - 1)))
    # The remainder is o(1/m): ten times the negatives, about a tenth of the relative error.
    for one, ten in itertools.pairwise(errors):
        assert ten[0] < one[0] / 5
        assert ten[1] < one[1] / 5
    assert errors[-1][0] < 2e-3


def test_the_theorem_s_limit_is_sigma_squared_over_mu_squared():
    m = 50
    q = 0.5
    *_, noise, gap = binomial_softmax(m, Importance())
    eta = PAIR[1:].exp() / q
    mu = PAIR[0].exp() + PAIR[1:].exp().sum()
    sigma2 = (q * eta**2).sum() - (q * eta).sum() ** 2
    assert noise == pytest.approx(float(sigma2 / (m * mu**2)), rel=1e-12)
    assert gap == pytest.approx(noise / 2)


def test_relative_weights_are_outside_the_theorem_and_explain_says_so():
    losses = []
    for m in (10, 100, 1000):
        found = explain(SampledSoftmaxLoss(Uniform(TWO, m), Relative()), TWO)
        assert found.examples[0].needed_m is None
        assert any("η/m" in note for note in found.notes)
        losses.append(found.examples[0].implicit_loss)
    assert losses[2] - losses[1] == pytest.approx(math.log(10), abs=0.02), "it grows like log m"


def test_the_needed_m_brings_the_noise_to_the_wished_level():
    wished = 0.05

    def example(m: int) -> Example:
        loss = SampledSoftmaxLoss(Uniform(LABELS, m), Tail(LABELS))
        return explain(
            loss, LABELS, scores=SCORES[None], target=torch.tensor([1]), noise=wished
        ).examples[0]

    needed = example(10).needed_m
    assert needed is not None
    assert needed > 10
    assert example(needed).noise <= wished < example(needed - 1).noise


@pytest.mark.parametrize(
    "margin", [Unit(), LogitAdjusted(LABELS)], ids=lambda margin: type(margin).__name__
)
@pytest.mark.parametrize("piece", [None, logistic, hinge], ids=["softmax", "logistic", "hinge"])
def test_the_optimal_q_has_no_variance(margin, piece):
    """Every single draw from q*, with weights from the margin, gives the same value."""
    y = 1
    # hinge: label 3 costs nothing
    scores = torch.tensor([0.3, -1.2, 0.7, -1.9], dtype=torch.float64)
    q = optimal_q(margin, y, scores, piece)
    assert q[y] == 0
    assert float(q.sum()) == pytest.approx(1)
    values = []
    for drawn in range(L):
        if q[drawn] > 0:
            given = Given(L, torch.tensor([[drawn]]), q[drawn].log().reshape(1, 1)).draw(
                torch.tensor([y])
            )
            a, b = FromMargin(margin).offsets(given, torch.tensor([y]))
            args = (
                scores[y].reshape(1),
                scores[drawn].reshape(1, 1),
                a,
                b,
                torch.zeros(1, 1, dtype=torch.bool),
            )
            values.append(
                float(sampled_softmax(*args) if piece is None else sampled_decoupled(*args, piece))
            )
    assert len(values) >= 2
    assert max(values) - min(values) < 1e-12


def test_a_hinge_that_is_satisfied_everywhere_has_no_optimal_q_and_no_negative_term():
    scores = torch.tensor([5.0, -2.0, -3.0, -4.0])
    assert optimal_q(Unit(), 0, scores, hinge).sum() == 0


def values_of(name: str, weighting, y: int, *piece) -> set[float]:
    """The loss of every outcome that can happen to an example with positive y."""
    world = next(world for world in WORLDS if world.name == name)
    kind = sampled_decoupled if piece else sampled_softmax
    return {float(first_example(draw, y, weighting, kind, *piece)) for _, draw in world.outcomes(y)}


@pytest.mark.parametrize("y", range(L))
def test_the_softmax_lemma_is_an_equality_for_model_draws_with_importance_weights(y: int):
    """And only where the positive is excluded: with draws that may hit it, the loss varies and its
    mean lies below.
    """
    exact = softmax_truth(Unit(), y).item()
    assert all(
        value == pytest.approx(exact, rel=1e-13) for value in values_of("model", Importance(), y)
    )
    assert (
        max(values_of("model, masked", Importance(), y))
        - min(values_of("model, masked", Importance(), y))
        > 0.1
    )


@pytest.mark.parametrize("y", range(L))
def test_tilted_draws_have_no_variance_on_their_own_target_and_some_on_another(y: int):
    world = next(world for world in WORLDS if world.name == "tilted")
    exact = softmax_truth(world.sampler.margin, y).item()
    assert all(
        value == pytest.approx(exact, rel=1e-13)
        for value in values_of("tilted", FromMargin(world.sampler.margin), y)
    )
    assert (
        max(values_of("tilted", Importance(), y)) - min(values_of("tilted", Importance(), y)) > 0.01
    )
