"""Samplers that follow the model, beyond the laws: extremes, changing tables, real draws, names."""

from __future__ import annotations

import pytest
import torch

from headtail import (
    Constant,
    Frequency,
    FromMargin,
    Hard,
    HeadtailError,
    Importance,
    Labels,
    LogitAdjusted,
    Mixture,
    ModelSoftmax,
    Queue,
    Relative,
    Resampled,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    Tail,
    Tilted,
    Uniform,
    WithinBatch,
    audit,
    scheme,
)
from headtail.functional import decoupled_loss, hinge, logistic, softmax_loss
from headtail.samplers import Scorer
from headtail.samplers.fixed.mixture import ModelMixture
from tests.samplers.steps import step_of

LABELS = Labels.zipf(40)
KNOWN = {
    "model": ModelSoftmax,
    "model, masked": lambda labels, m: ModelSoftmax(labels, m, exclude_target=False),
    "tilted": lambda labels, m: Tilted(labels, m, LogitAdjusted(labels)),
    "tilted, decoupled": lambda labels, m: Tilted(labels, m, LogitAdjusted(labels), logistic),
    "tilted, hinge, masked": lambda labels, m: Tilted(
        labels, m, LogitAdjusted(labels), hinge, exclude_target=False
    ),
    "hard": lambda labels, m: Hard(Uniform(labels, m), 3),
    "hard, within the batch": lambda labels, m: Hard(WithinBatch(labels, m), 3),
    "mixture": lambda labels, m: Mixture(
        [ModelSoftmax(labels, m, exclude_target=False), Uniform(labels, 2)]
    ),
}
POOLED = {
    "resampled": lambda labels, m: Resampled(Uniform(labels, 16), m),
    "resampled, excluded": lambda labels, m: Resampled(Uniform(labels, 16, exclude_target=True), m),
    "resampled from frequency": lambda labels, m: Resampled(Frequency(labels, 16, 0.5), m),
    "resampled within the batch": lambda labels, m: Resampled(WithinBatch(labels), m),
    "resampled from a queue": lambda labels, m: Resampled(Queue(labels, 30), m),
}
each_known = pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
each_pooled = pytest.mark.parametrize("make", POOLED.values(), ids=POOLED)
each = pytest.mark.parametrize("make", [*KNOWN.values(), *POOLED.values()], ids=[*KNOWN, *POOLED])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def a_model(rows: int, labels: int = 40, dim: int = 4) -> dict[str, torch.Tensor]:
    return {
        "input": torch.randn(rows, dim, generator=seeded(1)),
        "weight": torch.randn(labels, dim, generator=seeded(2)),
    }


@each_known
def test_real_draws_follow_the_claimed_q(make):
    report = audit(
        make(LABELS, 6), LABELS, draws=800, batch_size=3, generator=seeded(3), **a_model(3)
    )
    assert report.passed, report


@each_pooled
def test_real_draws_from_a_pool_count_once_on_average(make):
    report = audit(
        make(LABELS, 6), LABELS, draws=600, batch_size=8, generator=seeded(4), **a_model(8)
    )
    assert report.passed, report


def test_a_pool_that_forgets_its_q_or_its_size_is_caught():
    class Forgets(Resampled):
        def pick(self, step):
            draw = super().pick(step)
            return type(draw)(draw.ids, draw.log_q + 0.1, None, draw.m, marginal=False)

    class TakesScoresForQ(Resampled):
        def pick(self, step):
            draw = super().pick(step)
            log_q = step.model.logits(draw.ids).double()
            return type(draw)(
                draw.ids, log_q - log_q.logsumexp(1, keepdim=True), None, draw.m, marginal=False
            )

    for wrong in (Forgets, TakesScoresForQ):
        sampler = wrong(Frequency(LABELS, 16, 0.5), 6)
        assert not audit(
            sampler, LABELS, draws=1_000, batch_size=4, generator=seeded(), **a_model(4)
        ).passed


@each_known
def test_q_sums_to_one_for_every_example(make):
    label = torch.tensor([0, 7, 39])
    log_q = make(LABELS, 6).log_q_given(step_of(Scorer(**a_model(3)), label), torch.arange(40))
    assert torch.allclose(log_q.exp().sum(1), torch.ones(3).double(), rtol=0, atol=1e-12)


@each_known
def test_a_draw_carries_the_q_of_the_table_as_it_is_now(make):
    """The table changes between draws, and hidden states, biases, temperature and cosines all
    count.
    """
    sampler = make(LABELS, 6)
    label = torch.tensor([0, 7, 39, 7])
    options = {"bias": torch.linspace(-2, 2, 40), "temperature": 0.3, "score": "cosine"}
    for change in range(3):
        model = a_model(4)
        model["weight"] = model["weight"] * 2**change
        model["weight"][5] += change
        scorer = Scorer(**model, **options)
        draw = sampler.draw(label, generator=seeded(change), model=scorer)
        claimed = sampler.log_q_given(step_of(scorer, label), draw.ids)
        of_target = sampler.log_q_given(step_of(scorer, label), label[:, None])
        assert torch.allclose(draw.log_q, claimed, rtol=0, atol=1e-5)
        assert torch.allclose(draw.log_q_target, of_target.squeeze(1), rtol=0, atol=1e-5)


@each
@pytest.mark.parametrize(
    "case", ["equal", "one dominates", "the positive dominates", "two labels", "one example"]
)
def test_extreme_scores_give_finite_draws_and_losses(make, case: str):
    labels = Labels.from_counts([5, 2]) if case == "two labels" else LABELS
    label = torch.tensor([1]) if case == "one example" else torch.tensor([1, 0, 1, 1])
    hidden = torch.ones(len(label), 1)
    table = torch.zeros(labels.num_labels, 1)
    if "dominates" in case:
        table[1 if "positive" in case else 0] = 1e4
    sampler = make(labels, 50)
    sampler.refresh(torch.zeros(30, dtype=torch.int64))
    draw = sampler.draw(label, input=hidden, weight=table, generator=seeded())
    assert torch.isfinite(draw.log_q).all()
    assert not draw.log_q.isnan().any()
    if sampler.claims.excludes_target and sampler.claims.marginal:
        assert not bool((draw.ids == label[:, None]).any())
    for loss in (
        SampledSoftmaxLoss(sampler, Importance()),
        SampledDecoupledLoss(sampler, Tail(labels), logistic),
    ):
        value = loss(hidden.requires_grad_(), table.requires_grad_(), label, draw=draw)
        value.backward()
        assert torch.isfinite(value), value
        assert torch.isfinite(table.grad).all()


@each
def test_equal_seeds_give_equal_draws_and_other_seeds_others(make):
    label = torch.arange(8)

    def ids(seed: int) -> list:
        return make(LABELS, 6).draw(label, generator=seeded(seed), **a_model(8)).ids.tolist()

    assert ids(3) == ids(3)
    if make(LABELS, 6).__class__ is not Resampled or not isinstance(make(LABELS, 6).pool, Queue):
        assert ids(3) != ids(4)


@each_known
def test_no_block_holds_scores_of_the_whole_batch_and_table(make):
    sizes = []

    class Watched(Scorer):
        def logits(self, rows):
            logits = super().logits(rows)
            sizes.append(logits.numel())
            return logits

    sampler = make(LABELS, 6)
    pick = sampler.pick
    small = Watched(**a_model(8), logits_at_once=8 * 7)
    sampler.pick = lambda step: pick(step._replace(model=small))
    draw = sampler.draw(torch.arange(8), generator=seeded(), **a_model(8))
    assert len(sizes) > 5
    assert max(sizes) <= 8 * max(7, draw.ids.shape[1] + 1)
    report = audit(sampler, LABELS, draws=500, batch_size=8, generator=seeded(5), **a_model(8))
    assert report.passed, report


@pytest.mark.parametrize("margin", ["unit", "adjusted"])
@pytest.mark.parametrize("piece", [None, logistic], ids=["softmax", "logistic"])
def test_tilted_gives_the_exact_loss_in_every_single_draw(margin: str, piece):
    margin = LogitAdjusted(LABELS) if margin == "adjusted" else Importance().margin
    model = {name: tensor.double() for name, tensor in a_model(16).items()}
    label = torch.arange(16)
    sampler = Tilted(LABELS, 1, margin, piece)
    kind = (
        SampledSoftmaxLoss(sampler, FromMargin(margin))
        if piece is None
        else SampledDecoupledLoss(sampler, FromMargin(margin), piece)
    )
    exact = (softmax_loss if piece is None else decoupled_loss)(
        model["input"], model["weight"], label, margin, reduction="none"
    )
    for seed in range(5):
        sampled = kind(
            model["input"], model["weight"], label, generator=seeded(seed), reduction="none"
        )
        assert torch.allclose(sampled, exact, rtol=1e-12)


def test_a_hinge_that_is_satisfied_everywhere_is_sampled_uniformly_and_costs_nothing():
    hidden = torch.ones(1, 1)
    table = torch.full((4, 1), -5.0)
    sampler = Tilted(4, 2000, Importance().margin, hinge)
    draw = sampler.draw(torch.tensor([1]), input=hidden, weight=table, generator=seeded())
    assert torch.bincount(draw.ids[0], minlength=4).tolist() == pytest.approx(
        [667, 0, 667, 667], abs=70
    )
    assert draw.log_q.exp().unique().tolist() == [0.25]
    assert float(draw.log_keep.exp()) == pytest.approx(0.75)
    loss = SampledDecoupledLoss(sampler, Importance(), hinge)(
        hidden, table, torch.tensor([1]), draw=draw
    )
    assert loss.item() == pytest.approx(6.0), "the positive's own term"


def test_weights_that_need_a_q_are_refused_for_draws_from_a_pool():
    sampler = Resampled(Uniform(40, 16), 6)
    for weighting in (Constant(), Relative()):
        with pytest.raises(HeadtailError, match="from a pool"):
            SampledSoftmaxLoss(sampler, weighting)
        with pytest.raises(HeadtailError, match="from a pool"):
            weighting.offsets(sampler.draw(torch.tensor([1]), **a_model(1)), torch.tensor([1]))
    for wrap in (
        lambda: Mixture([sampler, Uniform(40, 2)]),
        lambda: Hard(sampler, 2),
        lambda: Resampled(sampler, 2),
    ):
        with pytest.raises(HeadtailError, match="Resampled"):
            wrap()


def test_a_margin_that_needs_labels_tilted_never_draws_is_refused():
    labels = Labels.from_counts([3, 2, 0])
    sampler = scheme("tilted:equalised@4", labels).sampler
    with pytest.raises(HeadtailError, match="never draws 1 of 3"):
        SampledSoftmaxLoss(sampler, Importance())


@each
def test_growing_the_labels_keeps_the_sampler_right(make):
    grown = LABELS.grow([7, 3])
    sampler = make(LABELS, 6).for_labels(grown)
    assert sampler.num_labels == 42
    report = audit(sampler, grown, draws=400, batch_size=4, generator=seeded(6), **a_model(4, 42))
    assert report.passed, report


@each
def test_nothing_in_a_draw_carries_a_gradient(make):
    model = {name: tensor.requires_grad_() for name, tensor in a_model(3).items()}
    draw = make(LABELS, 6).draw(torch.tensor([1, 2, 3]), **model)
    assert not draw.log_q.requires_grad
    assert not list(make(LABELS, 6).parameters())


NAMES = {
    "model:importance@8": ModelSoftmax,
    "model(masked):tail@8": ModelSoftmax,
    "tilted:tail@8": Tilted,
    "hinge/tilted(equalised(0.5)):importance@8": Tilted,
    "tilted(unit,masked):tail@8": Tilted,
    "hard(3):importance@8": Hard,
    "hard(3,within-batch):tail@8": Hard,
    "resampled(64):tail@8": Resampled,
    "resampled(64,frequency(0.5)):importance@8": Resampled,
    "mixture(model(masked),uniform):importance@8": ModelMixture,
}


@pytest.mark.parametrize("name", NAMES)
def test_each_has_a_name_and_trains(name: str):
    loss = scheme(name, LABELS)
    assert type(loss.sampler) is NAMES[name]
    model = {key: tensor.requires_grad_() for key, tensor in a_model(8).items()}
    value = loss(model["input"], model["weight"], torch.arange(8), generator=seeded())
    value.backward()
    assert torch.isfinite(value)
    assert float(model["weight"].grad.abs().sum()) > 0


def test_a_tilted_scheme_takes_the_margin_of_its_weights_and_the_piece_of_its_loss():
    tilted = scheme("logistic/tilted:tail(0.5)@8", LABELS).sampler
    assert tilted.margin.strength == 0.5
    assert tilted.piece is logistic
    assert type(scheme("tilted(unit):tail@8", LABELS).sampler.margin).__name__ == "Unit"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("hard(300):importance@8", "300 nearest labels of 8 negatives"),
        ("hard(1.5):importance@8", "one whole number"),
        ("resampled(0):importance@8", "one whole number"),
        ("resampled(64,unifrom):importance@8", "Did you mean `uniform`"),
        ("tilted(0.5):tail@8", "takes one margin"),
        ("tilted(adjusted):tail@8", "is not a margin"),
        ("model(3):tail@8", "takes no number"),
        ("resampled(64):constant@8", "from a pool"),
    ],
)
def test_a_wrong_name_gets_a_sentence(name: str, sentence: str):
    with pytest.raises(HeadtailError, match=sentence):
        scheme(name, LABELS)
