"""ArcFace and CosFace as functions of the positive's cosine."""

from __future__ import annotations

import math

import pytest
import torch

import headtail as ht
from headtail.core.score_margins import scaled

COSINES = torch.linspace(-1, 1, 2001, dtype=torch.float64)


@pytest.mark.parametrize("m", [0.1, 0.5, 1.2])
def test_arcface_adds_to_the_angle(m: float) -> None:
    theta = COSINES.acos()
    within = theta + m < math.pi
    moved = ht.ArcFace(m).moved(COSINES)
    torch.testing.assert_close(moved[within], (theta[within] + m).cos(), rtol=0, atol=1e-12)


def test_beyond_pi_arcface_follows_the_line_of_its_authors() -> None:
    m = 0.5
    beyond = COSINES[COSINES.acos() + m > math.pi + 1e-9]
    line = beyond - math.sin(math.pi - m) * m
    torch.testing.assert_close(ht.ArcFace(m).moved(beyond), line, rtol=0, atol=1e-12)


def test_the_easy_margin_leaves_obtuse_angles_as_they_are() -> None:
    moved = ht.ArcFace(0.5, easy=True).moved(COSINES)
    obtuse = COSINES <= 0
    assert torch.equal(moved[obtuse], COSINES[obtuse])
    assert torch.equal(moved[~obtuse], ht.ArcFace(0.5).moved(COSINES)[~obtuse])


def test_a_better_fit_is_never_worth_less() -> None:
    # Without the line beyond π, cos(θ + m) would rise again.
    for margin in (ht.ArcFace(0.5), ht.ArcFace(1.5), ht.ArcFace(0.3, 0.2), ht.CosFace()):
        assert bool((margin.moved(COSINES).diff() > 0).all())


def test_the_combined_margin_subtracts_from_the_cosine_too() -> None:
    both = ht.ArcFace(0.3, 0.2).moved(COSINES)
    torch.testing.assert_close(both, ht.ArcFace(0.3).moved(COSINES) - 0.2)


def test_the_margin_of_arcface_in_nats_is_its_formula() -> None:
    theta = torch.linspace(0.01, math.pi - 0.51, 50, dtype=torch.float64)
    nats = ht.ArcFace(0.5).log_rho(theta.cos(), 1 / 64)
    formula = 2 * 64 * math.sin(0.25) * (theta + 0.25).sin()
    torch.testing.assert_close(nats, formula)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cosine", [1.0, -1.0, 1.0 + 1e-6, -1.0 - 1e-6])
def test_slopes_are_finite_at_the_ends_and_where_rounding_goes_beyond(cosine, dtype) -> None:
    at = torch.tensor([cosine], dtype=dtype, requires_grad=True)
    moved = ht.ArcFace(0.5).moved(at)
    moved.sum().backward()
    assert bool(torch.isfinite(moved).all())
    assert bool(torch.isfinite(at.grad).all())


def test_only_cosface_is_constant() -> None:
    assert ht.CosFace(0.2).constant == 0.2
    assert ht.ArcFace(0.2).constant is None
    gaps = COSINES - ht.CosFace(0.2).moved(COSINES)
    torch.testing.assert_close(gaps, torch.full_like(gaps, 0.2))


@pytest.mark.parametrize("make", [lambda: ht.ArcFace(2.0), lambda: ht.CosFace(-0.1)])
def test_margins_out_of_range_are_refused(make) -> None:
    with pytest.raises(ht.HeadtailError, match="`margin` must be between 0 and"):
        make()


def test_a_scaled_margin_is_the_margin_times_its_factor() -> None:
    labels = ht.Labels.zipf(5)
    target = torch.tensor([1, 3])
    ids = torch.arange(5)
    apart = ht.Pairwise(lambda y, other: 0.1 * (y - other))
    for margin in (ht.LogitAdjusted(labels), apart):
        expected = margin.log_rho(target, ids) + 0.7
        torch.testing.assert_close(scaled(margin, 0.7).log_rho(target, ids), expected)
