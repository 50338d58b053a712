"""Losses with a margin on the positive's score, against formulas written out in float64."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import headtail as ht
from headtail.functional import (
    sampled_softmax_loss,
    softmax_loss,
    two_tower_softmax_loss,
)

L, B, D, S = 23, 17, 7, 16.0
LABELS = ht.Labels.zipf(L)
MARGINS = {
    "arcface": ht.ArcFace(0.5),
    "easy": ht.ArcFace(0.5, easy=True),
    "combined": ht.ArcFace(0.3, 0.2),
    "cosface": ht.CosFace(0.35),
}
each_margin = pytest.mark.parametrize("name", MARGINS)


def moved_as_insightface(cosine: Tensor, name: str) -> Tensor:
    """The margins as their authors write them."""
    if name == "cosface":
        return cosine - 0.35
    m, m3 = (0.3, 0.2) if name == "combined" else (0.5, 0.0)
    sine = (1 - cosine**2).sqrt()
    angular = cosine * math.cos(m) - sine * math.sin(m)
    if name == "easy":
        return torch.where(cosine > 0, angular, cosine)
    beyond = cosine - math.sin(math.pi - m) * m
    return torch.where(cosine > math.cos(math.pi - m), angular, beyond) - m3


def problem(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(B, D, generator=generator)
    weight = torch.randn(L, D, generator=generator)
    target = torch.randint(L, (B,), generator=generator)
    hidden[0] = 2 * weight[target[0]]  # a perfect fit
    hidden[1] = -3 * weight[target[1]] + 0.01  # an angle close to π
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), target


def reference(hidden: Tensor, weight: Tensor, target: Tensor, name: str) -> Tensor:
    """Logits of insightface: scaled cosines, the positive's moved."""
    cosines = F.normalize(hidden) @ F.normalize(weight).T
    rows = torch.arange(len(target))
    positive = cosines[rows, target].clamp(-1 + 1e-15, 1 - 1e-15)
    return S * cosines.index_put((rows, target), moved_as_insightface(positive, name))


def options(name: str) -> dict:
    return {"score": "cosine", "temperature": 1 / S, "score_margin": MARGINS[name]}


def gradients(loss: Tensor, *of: Tensor) -> list[Tensor]:
    return [g.to_dense().double() for g in torch.autograd.grad(loss, of)]


@each_margin
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_over_all_labels_it_is_the_cross_entropy_of_moved_logits(name: str, smoothing: float):
    hidden, weight, target = problem()
    hidden = hidden[1:]  # at a perfect fit the reference has no gradient
    ours = softmax_loss(hidden, weight, target[1:], label_smoothing=smoothing, **options(name))
    logits = reference(hidden, weight, target[1:], name)
    theirs = F.cross_entropy(logits, target[1:], label_smoothing=smoothing)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    for a, b in zip(
        gradients(ours, hidden, weight), gradients(theirs, hidden, weight), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@each_margin
def test_a_sample_that_holds_all_labels_gives_the_same(name: str) -> None:
    hidden, weight, target = problem()
    draw = ht.Uniform(L, L, replacement=False).draw(target)
    sampled = sampled_softmax_loss(hidden, weight, target, draw, ht.Importance(), **options(name))
    exact = softmax_loss(hidden, weight, target, **options(name))
    torch.testing.assert_close(sampled, exact, rtol=1e-12, atol=0)


@each_margin
@pytest.mark.parametrize("bias", [False, True])
def test_kernels_err_no_more_than_plain_code(name: str, bias: bool) -> None:
    results = {}
    for kernels, dtype in itertools.product((True, False), (torch.float32, torch.float64)):
        hidden, weight, target = problem(dtype)
        target = target.where(target != target[3], -100)
        column = torch.linspace(-0.2, 0.3, L, dtype=dtype)[:, None].requires_grad_()
        draw = ht.Frequency(LABELS, 40, 0.5).draw(
            target, generator=torch.Generator().manual_seed(0)
        )
        asked = options(name) | ({"temperature": 1.0} if bias else {})
        with ht.use_kernels(kernels):
            loss = sampled_softmax_loss(
                hidden, weight, target, draw, ht.Tail(LABELS), sparse=True,
                bias=column if bias else None, **asked,
            )  # fmt: skip
        tables = [hidden, weight, *([column] if bias else [])]
        fused = "LossOfRows" in loss.grad_fn.name()
        assert fused == (kernels and dtype == torch.float32)
        # Close to a perfect fit the slope of ArcFace grows without bound in any finite precision.
        grads = [g[1:] if g.shape == hidden.shape else g for g in gradients(3 * loss, *tables)]
        results[kernels, dtype] = [loss.detach().double(), grads[0], *grads[2:]]
    truth = results[False, torch.float64]
    by_kernel, plain = results[True, torch.float32], results[False, torch.float32]
    for ours, usual, exact in zip(by_kernel, plain, truth, strict=True):
        assert (ours - exact).norm() <= 2 * (usual - exact).norm() + 1e-5 * exact.norm()


@each_margin
def test_two_towers_move_the_positive_too(name: str) -> None:
    hidden, weight, target = problem()
    draw = ht.WithinBatch(LABELS).draw(target)
    items = weight[target]
    ours = two_tower_softmax_loss(
        hidden, items, items, target, draw, ht.Tail(LABELS), **options(name)
    )
    table = sampled_softmax_loss(hidden, weight, target, draw, ht.Tail(LABELS), **options(name))
    torch.testing.assert_close(ours, table, rtol=1e-12, atol=0)


def test_a_learnable_temperature_gets_its_gradient() -> None:
    hidden, weight, target = problem()
    temperature = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)

    def loss(t: Tensor, exact: bool) -> Tensor:
        asked = {"score": "cosine", "temperature": t, "score_margin": ht.ArcFace(0.5)}
        if exact:
            return softmax_loss(hidden.detach(), weight.detach(), target, **asked)
        draw = ht.Uniform(L, L, replacement=False).draw(target)
        return sampled_softmax_loss(
            hidden.detach(), weight.detach(), target, draw, ht.Importance(), **asked
        )

    for exact in (True, False):
        assert torch.autograd.gradcheck(lambda t, exact=exact: loss(t, exact), temperature)


@pytest.mark.parametrize("kernels", [True, False])
def test_gradients_are_finite_at_a_perfect_fit_and_at_its_opposite(kernels: bool) -> None:
    weight = torch.eye(L, D + L).requires_grad_()
    hidden = torch.stack([weight[3] * 4, -weight[5]]).detach().requires_grad_()
    target = torch.tensor([3, 5])
    draw = ht.Uniform(L, 8).draw(target)
    with ht.use_kernels(kernels):
        loss = sampled_softmax_loss(
            hidden, weight, target, draw, ht.Importance(), sparse=True, **options("arcface")
        )
    assert all(bool(torch.isfinite(g).all()) for g in gradients(loss, hidden, weight))


def test_cosface_is_a_pairwise_margin_and_arcface_is_none() -> None:
    """For every outcome of a draw, CosFace is the loss with ρ = e^(s·m); no ρ gives ArcFace."""
    hidden, weight, target = problem()
    with_rho = ht.CustomSeparable(torch.full((L,), S * 0.35, dtype=torch.float64), torch.zeros(L))
    plain = {"score": "cosine", "temperature": 1 / S, "reduction": "none"}
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        draw = ht.Frequency(LABELS, 5).draw(target, generator=generator)
        cosface = plain | {"score_margin": ht.CosFace(0.35)}
        ours = sampled_softmax_loss(hidden, weight, target, draw, ht.Importance(), **cosface)
        rho = sampled_softmax_loss(hidden, weight, target, draw, ht.FromMargin(with_rho), **plain)
        torch.testing.assert_close(ours, rho, rtol=1e-12, atol=1e-15)
    # Two examples of one label: a pairwise ρ would be the same for both.
    twice = hidden[:2].detach()
    same = torch.tensor([4, 4])
    gap = ht.ArcFace(0.5).log_rho(F.cosine_similarity(twice, weight[same].detach()), 1 / S)
    assert abs(float(gap[0] - gap[1])) > 0.1


def test_partial_fc_with_weights_of_one_is_the_softmax_over_its_sample() -> None:
    hidden, weight, target = problem()
    sampler = ht.PartialFC(LABELS, 6)
    draw = sampler.draw(target)
    ours = sampled_softmax_loss(hidden, weight, target, draw, ht.InfoNCE(), **options("arcface"))
    places = torch.searchsorted(draw.ids.sort().values, target)
    logits = reference(hidden, weight[draw.ids.sort().values], places, "arcface")
    torch.testing.assert_close(ours, F.cross_entropy(logits, places), rtol=1e-10, atol=0)


def test_a_sample_of_fixed_size_is_the_same_loss() -> None:
    hidden, weight, target = problem()
    target[2:5] = -100
    sampler = ht.PartialFC(LABELS, 6)
    losses = []
    for fixed_size in (True, False):
        draw = sampler.draw(
            target, generator=torch.Generator().manual_seed(0), fixed_size=fixed_size
        )
        assert (len(draw.ids) == B + 6) == fixed_size
        losses += [
            sampled_softmax_loss(hidden, weight, target, draw, weighting, **options("arcface"))
            for weighting in (ht.InfoNCE(), ht.Importance(), ht.Constant(), ht.Relative())
        ]
    torch.testing.assert_close(losses[:4], losses[4:], rtol=1e-12, atol=0)


def test_dot_products_are_refused() -> None:
    with pytest.raises(ht.HeadtailError, match='moves the cosine of the positive: write `score="c'):
        ht.SampledSoftmaxLoss(ht.Uniform(L, 4), ht.Importance(), score_margin=ht.ArcFace(0.5))


def test_decoupled_losses_are_refused() -> None:
    with pytest.raises(ht.HeadtailError, match="is for softmax losses"):
        ht.DecoupledLoss(score="cosine", score_margin=ht.ArcFace(0.5))


def test_what_is_not_a_score_margin_is_refused() -> None:
    with pytest.raises(ht.HeadtailError, match="`score_margin` must be a ScoreMargin"):
        ht.SoftmaxLoss(score="cosine", score_margin=0.5)


def test_partial_fc_in_a_mixture_is_refused() -> None:
    with pytest.raises(ht.HeadtailError, match="so it cannot be a part of `Mixture`"):
        ht.Mixture([ht.PartialFC(LABELS, 4), ht.Uniform(L, 4)])


def test_partial_fc_needs_the_batch_size() -> None:
    with pytest.raises(ht.HeadtailError, match="decides how likely `PartialFC` draws a label"):
        ht.PartialFC(LABELS, 4).log_q(torch.tensor([1]))


def test_a_head_trains_with_arcface_on_a_part_of_its_labels() -> None:
    torch.manual_seed(0)
    loss = ht.scheme("arcface/partial-fc:importance@8", LABELS, temperature=1 / S)
    head = ht.LabelHead(LABELS, D, loss, sparse=True)
    hidden, _, target = problem(torch.float32)
    hidden = hidden.detach()
    optimizer = ht.RowAdagrad(head.parameters(), lr=0.1)
    first = last = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(60):
            value = head(hidden, target)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            first = value.item() if first is None else first
            last = value.item()
    assert last < first / 2


def test_partial_fc_says_how_many_negatives_there_are():
    with pytest.raises(ht.HeadtailError, match=r"drawn once at most.*`num_negatives=5`"):
        ht.PartialFC(ht.Labels.zipf(5), 6)
