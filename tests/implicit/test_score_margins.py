"""What explain says of margins on the positive's score: which is a ρ, and which is not."""

from __future__ import annotations

import math

import pytest
import torch

import headtail as ht
from headtail.evaluation.samplers_on_model import SamplerSettings, measure_samplers
from headtail.evaluation.validation import implicit_loss_of
from headtail.implicit.implied import implied_margin_of
from headtail.implicit.sampling_errors import variance_of_sums
from headtail.samplers import Scorer

LABELS = ht.Labels.zipf(30)
EVEN = ht.Labels.from_counts([5] * 30)


def test_cosface_multiplies_rho_by_one_factor() -> None:
    loss = ht.scheme("cosface(0.25)/uniform:importance@8", LABELS)
    found = ht.explain(loss, LABELS)
    assert found.name == "CosFace (Wang et al. 2018)"
    assert found.rho == "e^16"
    assert found.equation == "log[1 + Σ_{y'≠y} e^16 · e^(f_y' − f_y)]"
    assert found.leans == "neither"
    assert any("CosFace is a pairwise margin" in note for note in found.notes)
    log_rho = found.margin.log_rho(torch.tensor([3]), torch.tensor([0, 9]))
    torch.testing.assert_close(log_rho, torch.full((1, 2), 16.0, dtype=torch.float64))


def test_arcface_is_called_no_rho() -> None:
    found = ht.explain(ht.scheme("arcface/uniform:importance@8", LABELS), LABELS)
    assert found.name == "ArcFace (Deng et al. 2019)"
    assert found.rho == "1"
    assert found.equation == "log[1 + Σ_{y'≠y} e^(f_y' − 64·cos(θ_y + 0.5))]"
    note = next(note for note in found.notes if "not a pairwise ρ" in note)
    assert f"{64 * math.sin(0.5):.3g} at 0" in note


def test_the_weights_decide_the_lean() -> None:
    tail = ht.explain(ht.scheme("arcface/uniform:tail@8", LABELS), LABELS)
    plain = ht.explain(ht.scheme("uniform:tail@8", LABELS), LABELS)
    assert tail.lean == plain.lean > 0
    assert tail.name == f"ArcFace (Deng et al. 2019) with negatives of: {plain.name}"


def test_partial_fc_leans_to_the_tail_where_counts_differ_and_nowhere_else() -> None:
    skewed = ht.explain(ht.scheme("arcface/partial-fc:infonce@4", LABELS), LABELS, batch_size=8)
    assert skewed.leans == "tail"
    even = ht.explain(ht.scheme("arcface/partial-fc:infonce@4", EVEN), EVEN, batch_size=8)
    assert even.leans == "neither"
    p = 1 - (1 - 1 / 30) ** 7 * (1 - 4 / 30)
    log_rho = even.margin.log_rho(torch.tensor([0]), torch.tensor([1]))
    assert float(log_rho) == pytest.approx(math.log(p))
    unbiased = ht.explain(ht.scheme("arcface/partial-fc:importance@4", LABELS), LABELS)
    assert (unbiased.leans, unbiased.rho) == ("neither", "1")


@pytest.mark.parametrize("name", ["arcface", "cosface"])
def test_examples_are_those_of_the_moved_score(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = 16 * (2 * torch.rand(3, 30, generator=generator, dtype=torch.float64) - 1)
    target = torch.tensor([2, 7, 29])
    loss = ht.scheme(f"{name}/uniform:importance@5", LABELS, temperature=1 / 16)
    found = ht.explain(loss, LABELS, scores=scores, target=target).examples
    moved = scores.clone()
    rows = torch.arange(3)
    cosine = scores[rows, target] / 16
    moved[rows, target] = 16 * loss.settings.score_margin.moved(cosine)
    plain = ht.explain(
        ht.scheme("uniform:importance@5", LABELS), LABELS, scores=moved, target=target
    ).examples
    for ours, usual, f in zip(found, plain, scores, strict=True):
        assert ours.implicit_loss == pytest.approx(usual.implicit_loss, rel=1e-12)
        assert ours.noise == pytest.approx(usual.noise, rel=1e-9)
        assert ours.needed_m == usual.needed_m
        exact = torch.logsumexp(f, 0) - f[ours.label]
        assert ours.unsampled_loss == pytest.approx(float(exact))


@pytest.mark.parametrize("name", ["arcface", "cosface"])
def test_the_implicit_loss_over_all_labels_has_the_margin_once(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    weight = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    target = torch.randint(30, (6,), generator=generator)
    sampled = implicit_loss_of(ht.scheme(f"{name}/uniform:tail@5", LABELS), batch_size=6)
    exact = ht.scheme(f"{name}/logit-adjusted", LABELS)
    torch.testing.assert_close(
        sampled(hidden, weight, target), exact(hidden, weight, target), rtol=1e-12, atol=0
    )


def test_the_variance_on_a_model_is_that_of_the_moved_score() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    weight = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    target = torch.randint(30, (6,), generator=generator)
    loss = ht.scheme("arcface/uniform:importance@5", LABELS, temperature=0.2)
    exact = ht.scheme("arcface", LABELS, temperature=0.2)
    losses = exact(hidden, weight, target, reduction="none")
    model = Scorer(hidden, weight, None, 0.2, "cosine")
    found = variance_of_sums(loss, model, target, losses, 6)
    draws = []
    for seed in range(4000):
        with torch.no_grad():
            draw = loss.sampler.draw(target, generator=torch.Generator().manual_seed(seed))
            each = loss(hidden, weight, target, draw=draw, reduction="none")
        draws.append(each.exp() * (-losses).exp())
    torch.testing.assert_close(torch.stack(draws).var(0), found, rtol=0.15, atol=1e-4)


def test_the_implied_margin_of_arcface_is_that_of_its_weights() -> None:
    margin = implied_margin_of(ht.scheme("arcface/uniform:importance@8", LABELS), 8)
    pairs = margin.log_rho(torch.arange(3), torch.arange(30))
    torch.testing.assert_close(pairs, torch.zeros_like(pairs), rtol=0, atol=1e-12)


def test_samplers_on_a_model_are_measured_with_its_own_margin() -> None:
    data = ht.load("synthetic:points=300,test=60,labels=20,features=80")
    name = "arcface(0.5,easy)/uniform:importance@8"
    model = ht.Trainer(ht.Run(scheme=name, epochs=1, dim=8, validation=0.0), data).fit().model
    settings = SamplerSettings(samplers=("uniform",), numbers=(4,), batch_size=32, repeats=2)
    found = measure_samplers(model, name, data.test, settings).results
    assert [one.scheme for one in found] == [
        "arcface(0.5, easy)/uniform:importance@4",
        "arcface(0.5, easy)",
    ]
    exact = ht.scheme("arcface(0.5, easy)", model.head.labels)
    assert exact.settings.score_margin == ht.ArcFace(0.5, easy=True)
