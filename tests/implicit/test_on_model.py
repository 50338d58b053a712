"""on_model: against slow and obvious recomputations."""

from __future__ import annotations

import math

import pytest
import torch

from headtail import (
    HeadtailError,
    Labels,
    SampledSoftmaxLoss,
    Tail,
    Uniform,
    WithinBatch,
    explain,
    scheme,
)
from headtail.functional import logistic
from headtail.implicit.quality import (
    Batch,
    Gradient,
    OnModel,
    best_within,
    exactly,
    frontier,
    on_model,
    quickest_with,
)
from headtail.implicit.sampling_errors import variance_of_sums
from headtail.samplers import Scorer

LABELS = Labels.zipf(30)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def examples(size: int = 64, probes: int = 6, scale: float = 2.0) -> Batch:
    hidden = torch.randn(size, 4, generator=seeded(0), dtype=torch.float64) * scale
    table = torch.randn(30, 4, generator=seeded(1), dtype=torch.float64)
    target = torch.multinomial(LABELS.prior, size, replacement=True, generator=seeded(2))
    return Batch(
        hidden,
        target,
        table,
        torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None],
        probes=probes,
        sets=1,
        size=32,
    )


def look(
    *names: str, target: str = "softmax", repeats: int = 4, batch: Batch | None = None
) -> dict[str, OnModel]:
    losses = {name: scheme(name, LABELS) for name in names}
    torch.manual_seed(0)
    results = on_model(
        scheme(target, LABELS), losses, batch or examples(), repeats=repeats, generator=seeded(3)
    )
    return {result.scheme: result for result in results}


@pytest.mark.parametrize(
    "name",
    [
        "uniform:importance@5",
        "uniform(excluded):tail@5",
        "within-batch:importance@9",
        "mixture(uniform,within-batch):tail@8",
    ],
)
def test_the_variance_is_that_of_explain_on_the_same_scores(name: str):
    batch = examples()
    target = "softmax" if "importance" in name else "logit-adjusted"
    scores = Scorer(batch.hidden[:6], batch.weight, batch.bias).logits(slice(0, 30))
    explained = explain(
        scheme(name, LABELS), LABELS, batch_size=32, scores=scores, target=batch.target[:6]
    ).examples
    mean = sum(example.squared_error for example in explained) / 6
    measured = look(name, target=target, batch=batch)[name]
    assert measured.squared_error == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        "model(masked):tail@3",
        "hard(2):tail@6",
        "mixture(model(masked),uniform):tail@6",
        "resampled(12):tail@3",
        "resampled(12,uniform(excluded)):tail@3",
        "resampled(12,frequency):importance@2",
        "logistic/resampled(6):tail@3",
    ],
)
def test_the_variance_of_a_model_sampler_is_that_of_its_draws(name: str):
    """Thousands of its draws show as much."""
    batch = examples(probes=1, scale=1.0)
    target = "logit-adjusted" if "tail" in name else "softmax"
    target = target.replace("logit", "logistic/logit") if "logistic" in name else target
    variance = look(name, target=target, batch=batch)[name].squared_error
    loss = scheme(name, LABELS)
    example = (batch.hidden[:1], batch.weight, batch.target[:1])
    generator = seeded(5)
    each = torch.stack([loss(*example, bias=batch.bias, generator=generator) for _ in range(2_000)])
    exact = scheme(target, LABELS)(*example, bias=batch.bias)
    assert variance == pytest.approx(
        float(each.var() if "logistic" in name else (each - exact).exp().var()), rel=0.2
    )


def test_what_has_no_formula_is_measured_and_agrees_with_one():
    """As if within-batch negatives had none."""

    class WithoutFormula(WithinBatch):
        def variance_of_sum(self, term, label, batch_size=None):
            return None

    batch = examples(size=4000, probes=8, scale=0.5)
    samplers = {"formula": WithinBatch(LABELS), "measured": WithoutFormula(LABELS)}
    losses = {name: SampledSoftmaxLoss(sampler, Tail(LABELS)) for name, sampler in samplers.items()}
    formula, measured = on_model(
        scheme("logit-adjusted", LABELS), losses, batch, repeats=300, generator=seeded(7)
    )
    # Seven of the 31 others are probes and stay the same.
    assert formula.squared_error * 0.5 < measured.squared_error < formula.squared_error * 1.1


@pytest.mark.parametrize("name", ["block(3):tail@8", "uniform:tail@8"])
def test_examples_that_share_a_draw_stay_together_however_many_labels_there_are(name: str):
    batch = examples()
    label = batch.target[:6]
    model = Scorer(batch.hidden[:6], batch.weight, batch.bias)
    exact = scheme("logit-adjusted", LABELS)(
        batch.hidden[:6], batch.weight, label, bias=batch.bias, reduction="none"
    )
    loss = scheme(name, LABELS)
    # Room for four examples at once, but groups of three.
    apart = variance_of_sums(loss, model, label, exact, batch.size, 4 * LABELS.num_labels)
    together = look(name, target="logit-adjusted", batch=batch)[name].squared_error
    assert float(apart.mean()) == pytest.approx(together, rel=1e-6)


def test_all_labels_drawn_once_have_no_error_at_all():
    everything = look("uniform(without-replacement):importance@30")[
        "uniform(without-replacement):importance@30"
    ]
    assert everything.bias == pytest.approx(0, abs=1e-12)
    for gradient in (everything.hidden, everything.table):
        assert gradient.error < 1e-7
        assert gradient.cosine == pytest.approx(1)
    assert everything.squared_error < 1e-20


def test_gradients_are_those_of_autograd_and_bias_is_separated_from_noise():
    """Constant weights are biased however many draws are averaged; importance weights are hardly
    so.
    """
    batch = examples(probes=32, scale=0.3)
    names = ("uniform:constant@20", "uniform:importance@20")
    constant, importance = look(*names, repeats=60, batch=batch).values()
    assert importance.table.bias < 0.2 * constant.table.bias
    assert importance.hidden.bias < 0.4 * constant.hidden.bias
    assert importance.table.error > importance.table.bias
    hidden = batch.hidden[:32].clone().requires_grad_()
    scheme("softmax", LABELS)(
        hidden, batch.weight, batch.target[:32], bias=batch.bias, reduction="sum"
    ).backward()
    length = hidden.grad.norm(dim=1)
    sampled = batch.hidden[:32].clone().requires_grad_()
    loss = scheme("uniform:importance@20", LABELS)
    draws = [
        loss(
            sampled,
            batch.weight,
            batch.target[:32],
            bias=batch.bias,
            reduction="sum",
            generator=seeded(s),
        )
        for s in range(60)
    ]
    errors = [torch.autograd.grad(value, sampled)[0] - hidden.grad for value in draws]
    error = (torch.stack(errors).pow(2).sum(2).mean(0).sqrt() / length).mean()
    assert importance.hidden.error == pytest.approx(float(error), rel=0.25)


def test_the_table_s_error_is_that_of_a_whole_batch_with_shared_draws():
    """For each example alone, shared draws and draws of its own are as noisy."""
    batch = examples(size=32, probes=2, scale=0.5)
    names = ("uniform:importance@6", "uniform(excluded):importance@6")
    shared, own = look(*names, repeats=150, batch=batch).values()
    assert shared.squared_error == pytest.approx(own.squared_error, rel=0.25)
    assert shared.table.error > 1.4 * own.table.error
    table = batch.weight.clone().requires_grad_()
    given = {"bias": batch.bias, "target": batch.target}
    exact = torch.autograd.grad(scheme("softmax", LABELS)(batch.hidden, table, **given), table)[0]
    for name, measured in zip(names, (shared, own), strict=True):
        loss = scheme(name, LABELS)
        each = [
            torch.autograd.grad(loss(batch.hidden, table, **given, generator=seeded(s)), table)[0]
            for s in range(150)
        ]
        error = (
            torch.stack([(grad - exact).square().sum() for grad in each]).mean().sqrt()
            / exact.norm()
        )
        assert measured.table.error == pytest.approx(float(error), rel=0.15)
        cosine = (
            torch.stack([(grad * exact).sum() / grad.norm() for grad in each]).mean() / exact.norm()
        )
        assert measured.table.cosine == pytest.approx(float(cosine), abs=0.03)


def test_what_noise_adds_to_the_length_of_a_mean_error_is_taken_off_its_bias():
    """The sampled decoupled loss has no bias; the mean of 40 errors would still be about a sixth of
    one long.
    """
    name = "logistic/uniform:importance@8"
    found = look(name, target="logistic", repeats=40, batch=examples(probes=32, scale=0.3))[name]
    assert found.hidden.bias < 0.75 * found.hidden.error / math.sqrt(40)


def test_the_effective_number_of_negatives_is_m_for_equal_terms_and_1_where_one_dominates():
    flat = examples(scale=0.0)
    steep = examples(scale=300.0)
    flat = Batch(flat.hidden, flat.target, flat.weight, None, probes=6, sets=1, size=32)
    assert look("uniform(excluded):importance@12", batch=flat)[
        "uniform(excluded):importance@12"
    ].effective == pytest.approx(12)
    name = "uniform(without-replacement):importance@25"
    assert look(name, batch=steep)[name].effective == pytest.approx(1, abs=0.3)


def test_tilted_has_no_error_in_the_loss_for_a_decoupled_target_either():
    name = "logistic/tilted:tail@3"
    found = look(name, "logistic/uniform:tail@3", target="logistic/logit-adjusted")
    assert abs(found[name].bias) < 1e-9
    assert found[name].squared_error < 1e-12 < found["logistic/uniform:tail@3"].squared_error
    assert scheme(name, LABELS).piece is logistic


def test_every_kind_of_sampler_can_be_measured():
    names = [
        "within-batch:importance",
        "queue(20):importance",
        "log-uniform:importance@8",
        "mixture(uniform,within-batch):importance@8",
    ]
    names += [
        "hard(3):importance@8",
        "resampled(16):importance@8",
        "tilted:importance@8",
        "model:constant@8",
    ]
    for one in look(*names, repeats=2).values():
        numbers = [
            one.bias,
            one.squared_error,
            one.effective,
            one.hidden.cosine,
            one.table.error,
            one.step_seconds,
        ]
        assert all(math.isfinite(number) for number in numbers), one
        assert one.step_seconds > one.draw_seconds > 0


def test_the_exact_loss_is_a_row_without_error():
    found = exactly("softmax", scheme("softmax", LABELS), examples())
    assert found.table == Gradient(0.0, 0.0, 1.0)
    assert found.m == 30
    assert found.step_seconds > 0


def test_the_best_within_a_budget_is_the_most_exact_that_is_quick_enough():
    def row(name: str, seconds: float, error: float) -> OnModel:
        gradient = Gradient(0.0, error, 1.0)
        return OnModel(name, 1.0, 0.0, 0.0, 0.0, 1.0, gradient, gradient, 0.0, seconds)

    found = [
        row("slow", 9.0, 0.1),
        row("quick", 1.0, 0.9),
        row("middle", 3.0, 0.4),
        row("worse", 4.0, 0.5),
    ]
    assert quickest_with(found, 0.5) is found[1]
    assert quickest_with(found, 1.1) is None
    assert [one.scheme for one in frontier(found)] == ["quick", "middle", "slow"]
    assert [getattr(best_within(found, t), "scheme", None) for t in (0.5, 1.0, 5.0, 10.0)] == [
        None,
        "quick",
        "middle",
        "slow",
    ]


def test_sets_of_probes_are_averaged_and_no_probe_is_its_own_company():
    names = ("uniform:importance@5", "model(masked):importance@5")
    batch = examples(probes=6)
    first, second, both = (
        Batch(
            batch.hidden[start:],
            batch.target[start:],
            batch.weight,
            batch.bias,
            probes=6,
            sets=sets,
            size=32,
        )
        for start, sets in ((0, 1), (6, 1), (0, 2))
    )
    one, two, mean = (
        [found.squared_error for found in look(*names, batch=part).values()]
        for part in (first, second, both)
    )
    assert mean == pytest.approx([(a + b) / 2 for a, b in zip(one, two, strict=True)], rel=1e-9)
    numbered = Batch(
        torch.arange(64.0)[:, None], torch.arange(64), torch.ones(64, 1), probes=6, sets=2, size=32
    )
    hidden, target = numbered.drawn(1, seeded(0))
    assert target[:6].tolist() == [6, 7, 8, 9, 10, 11]
    assert len(target.unique()) == 32
    assert torch.equal(hidden[:, 0].long(), target)


def test_too_few_examples_are_refused_with_a_sentence():
    with pytest.raises(HeadtailError, match="`size` is 32"):
        Batch(
            torch.ones(3, 2),
            torch.zeros(3, dtype=torch.int64),
            torch.ones(4, 2),
            probes=1,
            sets=1,
            size=32,
        )
    assert Uniform(4, 2).independent()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize(
    "name", ["uniform:tail@64", "model:tail@64", "block(1):tail@64", "adversarial(1):tail@64"]
)
def test_times_on_a_gpu_are_those_of_replayed_draws(name, monkeypatch):
    labels = Labels.zipf(5000)
    generator = seeded(0)
    numbers = (
        torch.randn(512, 64, generator=generator),
        torch.randint(5000, (512,), generator=generator),
    )
    batch = Batch(
        *(t.cuda() for t in numbers),
        torch.randn(5000, 64, generator=generator).cuda(),
        probes=8,
        sets=1,
        size=256,
    )
    found = []
    for replays in (4, 0):
        monkeypatch.setattr("headtail.device.timing.REPLAYS", replays)
        [one] = on_model(
            scheme("logit-adjusted", labels),
            {name: scheme(name, labels)},
            batch,
            generator=seeded(1),
        )
        found.append(one)
    assert 0 < found[0].draw_seconds < found[1].draw_seconds
    assert found[0].squared_error == pytest.approx(found[1].squared_error, rel=0.5), (
        "timing changes nothing else"
    )
