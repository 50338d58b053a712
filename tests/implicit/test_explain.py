"""explain: every row of the paper's two tables, read off ρ, and the lean."""

from __future__ import annotations

import json
import math
import warnings

import pytest
import torch

from headtail import (
    Constant,
    CustomSeparable,
    FromMargin,
    Given,
    HeadtailError,
    Importance,
    LabelHead,
    Labels,
    LogitAdjusted,
    Pairwise,
    Relative,
    SampledDecoupledLoss,
    SampledSoftmaxLoss,
    Tail,
    Uniform,
    WithinBatch,
    explain,
    scheme,
)
from headtail.core import Weighting
from headtail.functional import hinge
from headtail.implicit import implied_margin, lean_of, optimal_q, recognise

LABELS = Labels.zipf(3000)

TABLE = [
    # scheme, softmax name, decoupled name, ρ, lean
    (
        "uniform:constant",
        "softmax with downweighted negatives",
        "scaled decoupled loss",
        "1/L",
        "neither",
    ),
    ("uniform:importance", "softmax cross-entropy", "decoupled loss", "1", "neither"),
    (
        "uniform:relative",
        "softmax with downweighted negatives",
        "scaled decoupled loss",
        "m/L",
        "neither",
    ),
    (
        "uniform:tail",
        "logit-adjusted loss (Menon et al. 2020)",
        "tail-heavy decoupled loss",
        "π_y'/π_y",
        "tail",
    ),
    (
        "within-batch:constant",
        "equalised loss (Tan et al. 2020)",
        "tail-heavy decoupled loss",
        "π_y'",
        "tail",
    ),
    ("within-batch:importance", "softmax cross-entropy", "decoupled loss", "1", "neither"),
    (
        "within-batch:relative",
        "softmax with upweighted head labels",
        "head-heavy decoupled loss",
        "m · π_y",
        "head",
    ),
    (
        "within-batch:tail",
        "logit-adjusted loss (Menon et al. 2020)",
        "tail-heavy decoupled loss",
        "π_y'/π_y",
        "tail",
    ),
]


@pytest.mark.parametrize(
    ("name", "softmax", "decoupled", "rho", "leans"), TABLE, ids=[row[0] for row in TABLE]
)
@pytest.mark.parametrize("seen", ["all labels", "some labels never seen"])
def test_every_row_of_the_paper_s_tables_is_recognised(name, softmax, decoupled, rho, leans, seen):
    labels = LABELS
    if seen != "all labels":
        labels = Labels.from_counts(
            torch.cat([LABELS.counts, torch.zeros(20, dtype=torch.int64)]), smoothing=0.5
        )
    for family, expected in (("", softmax), ("hinge/", decoupled)):
        with warnings.catch_warnings():
            # importance and tail weights ask for labels that are never in a batch
            warnings.simplefilter("ignore")
            loss = scheme(family + name, labels, 64)
        found = explain(loss, labels, batch_size=64)
        assert (found.name, found.rho, found.leans) == (expected, rho, leans)
        assert rho in found.equation or rho == "1"


@pytest.mark.parametrize(
    ("name", "expected", "rho"),
    [
        ("uniform(excluded):constant", "softmax with downweighted negatives", "1/(L−1)"),
        (
            "frequency(excluded):constant",
            "equalised loss (Tan et al. 2020), positive excluded",
            "π_y'/(1 − π_y)",
        ),
        ("frequency(0.5):constant", "equalised loss (Tan et al. 2020)", None),
        (
            "frequency(0.5):tail(0.25)",
            "logit-adjusted loss (Menon et al. 2020), strength 0.25",
            "(π_y'/π_y)^0.25",
        ),
        (
            "uniform(without-replacement):tail",
            "logit-adjusted loss (Menon et al. 2020)",
            "π_y'/π_y",
        ),
        ("queue(64):constant", "equalised loss (Tan et al. 2020)", "π_y'"),
        ("mixture(uniform,within-batch):importance", "softmax cross-entropy", "1"),
        ("log-uniform:adaptive", "adaptive loss (LDAM, Cao et al. 2019)", None),
        ("softmax", "softmax cross-entropy", "1"),
        ("logit-adjusted(-1)", "logit adjustment reversed", None),
        ("equalised(2)", "equalised loss (Tan et al. 2020)", "π_y'^2"),
        ("adaptive", "adaptive loss (LDAM, Cao et al. 2019)", None),
    ],
)
def test_other_schemes_are_recognised_too(name, expected, rho):
    found = explain(scheme(name, LABELS), LABELS, batch_size=64)
    assert found.name == expected
    assert rho is None or found.rho == rho


def test_a_margin_is_recognised_by_itself_and_not_by_who_implied_it():
    """A weighting that headtail has never seen, whose ρ happens to be logit adjustment."""

    class Unheard(Weighting):
        def offsets(self, draw, target):
            a = 5.0 - LABELS.log_prior(target)
            return a, LABELS.log_prior(draw.ids) - draw.log_q - draw.log_m - 5.0

    found = explain(SampledSoftmaxLoss(Uniform(LABELS, 7), Unheard()), LABELS)
    assert found.name == "logit-adjusted loss (Menon et al. 2020)"


def test_an_increasing_function_of_the_prior_is_an_equalised_loss():
    from headtail import Equalised

    margin = Equalised(LABELS, lambda prior: (prior > 1e-4).double() * 0.9 + 0.1)
    assert recognise(margin, LABELS).softmax == "equalised loss (Tan et al. 2020)"
    assert recognise(margin, LABELS).rho == "F(π_y')"


def test_a_margin_without_a_name_is_given_none():
    noise = torch.rand(3000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = explain(scheme("uniform:constant", LABELS), LABELS)
    assert found.name is not None
    nameless = SampledSoftmaxLoss(Uniform(LABELS, 4), FromMargin(CustomSeparable(noise, -noise)))
    assert explain(nameless, LABELS).name is None


def test_lean_is_the_difference_of_log_margins_between_median_tail_and_head():
    labels = Labels.from_counts([1000, 500, 200, 50, 10, 5, 1])
    assert lean_of(LogitAdjusted(labels), labels) == pytest.approx(2 * math.log(500 / 5))
    margin = implied_margin(WithinBatch(labels), Relative(), 32)
    assert lean_of(margin, labels) == pytest.approx(-math.log(500 / 5))


def test_equal_counts_lean_nowhere():
    labels = Labels.from_counts([7] * 5)
    for name in ("within-batch:constant", "within-batch:relative", "uniform:tail"):
        assert explain(scheme(name, labels), labels).leans == "neither"


def test_bias_is_the_implicit_minus_the_unsampled_loss():
    found = explain(SampledSoftmaxLoss(Uniform(LABELS, 8), Constant()), LABELS).examples[0]
    assert found.unsampled_loss == pytest.approx(math.log(3000))
    assert found.implicit_loss == pytest.approx(math.log(1 + 2999 / 3000))
    assert found.bias == pytest.approx(found.implicit_loss - found.unsampled_loss)
    assert explain(SampledSoftmaxLoss(Uniform(LABELS, 8), Importance()), LABELS).examples[
        0
    ].bias == pytest.approx(0, abs=1e-12)


def test_given_scores_of_a_model_are_explained_one_by_one():
    head = LabelHead(LABELS, 8, scheme("within-batch:tail", LABELS))
    target = torch.tensor([1, 2999])
    scores = head.logits(torch.randn(2, 8))
    found = explain(head.loss, LABELS, batch_size=128, scores=scores, target=target)
    assert [x.label for x in found.examples] == [1, 2999]
    assert all(x.slice == "given" and math.isfinite(x.noise) for x in found.examples)


def test_scores_of_ten_thousand_do_not_overflow():
    scores = torch.full((1, 3000), -1e4)
    scores[0, 5] = 1e4
    found = explain(
        SampledSoftmaxLoss(Uniform(LABELS, 8), Tail(LABELS)),
        LABELS,
        scores=scores,
        target=torch.tensor([0]),
    ).examples[0]
    assert found.implicit_loss == pytest.approx(2e4, rel=1e-3)
    assert found.squared_error == pytest.approx(3000 / 8 - 1 / 8, rel=1e-6), (
        "one label of L is all: σ²/μ² = L − 1"
    )


def test_labels_that_are_never_drawn_are_counted_and_warned_about():
    labels = Labels.from_counts([50, 30, 0, 1])
    with pytest.warns(UserWarning, match="never draws 1 of 4 labels"):
        loss = SampledSoftmaxLoss(WithinBatch(labels), Importance())
    assert explain(loss, labels).never_drawn == 1
    with pytest.raises(HeadtailError, match="never draws 1 of 4 labels"):
        scheme("frequency:importance", labels)
    assert (
        explain(scheme("within-batch:constant", labels), labels).name
        == "equalised loss (Tan et al. 2020)"
    )


def test_a_pairwise_margin_is_explained_without_vectors():
    margin = Pairwise(lambda y, other: 0.001 * (y - other))
    found = explain(SampledSoftmaxLoss(Uniform(LABELS, 8), FromMargin(margin)), LABELS)
    assert found.name is None
    assert found.leans == "tail"
    assert found.examples[0].variance is not None


def test_a_caller_s_own_negatives_have_no_variance_formula():
    q = torch.full((3000,), 1 / 3000, dtype=torch.float64)
    sampler = Given(3000, torch.arange(5), log_q=lambda ids: q.log()[ids])
    found = explain(SampledDecoupledLoss(sampler, Constant(), hinge), LABELS)
    assert found.examples[0].variance is None
    assert any("no formula" in note for note in found.notes)


def test_the_json_form_is_json():
    found = explain(scheme("within-batch:tail", LABELS), LABELS).to_dict()
    assert json.loads(json.dumps(found))["name"] == "logit-adjusted loss (Menon et al. 2020)"


def test_q_star_of_an_untrained_logit_adjusted_softmax_is_the_prior_of_the_other_labels():
    y = 7
    q = optimal_q(LogitAdjusted(LABELS), y, torch.zeros(3000))
    others = LABELS.prior.clone()
    others[y] = 0
    assert torch.allclose(q, others / others.sum(), rtol=1e-12)
    found = explain(scheme("within-batch:tail", LABELS), LABELS, batch_size=64)
    assert sum(found.optimal_share.values()) == pytest.approx(1)


def test_two_counts_are_enough_to_tell_the_adaptive_margin():
    """CIFAR-100-LT Step: 500 or 5 examples a class. Any two points lie on a line, but only one has
    no intercept.
    """
    step = Labels.from_counts([500] * 50 + [5] * 50)
    assert explain(scheme("adaptive", step), step).name == "adaptive loss (LDAM, Cao et al. 2019)"
    for name, expected in (
        ("within-batch:constant", "equalised"),
        ("within-batch:relative", "softmax with upweighted head"),
    ):
        assert explain(scheme(name, step), step, batch_size=32).name.startswith(expected)


def test_labels_without_examples_do_not_make_the_lean_infinite():
    labels = Labels.from_counts([900, 300, 40, 30, 4, 0, 0, 0, 0], smoothing=1)
    with pytest.warns(UserWarning, match="never draws 4 of 9"):
        loss = SampledSoftmaxLoss(WithinBatch(labels), Importance())
    found = explain(loss, labels)
    assert (found.lean, found.leans) == (0.0, "neither")
    assert any("4 labels are never drawn" in note for note in found.notes)


def test_no_m_is_promised_where_the_variance_does_not_fall_with_it():
    given = {"scores": torch.zeros(1, 3000), "target": torch.tensor([7]), "batch_size": 16}

    def needed(name: str) -> int | None:
        return explain(scheme(name, LABELS), LABELS, **given).examples[0].needed_m

    assert needed("within-batch:tail@4") is None
    assert needed("within-batch:tail") is not None
    assert needed("mixture(uniform(without-replacement),within-batch):tail") is None


def test_the_advice_for_excluded_positives_has_its_factor():
    found = explain(scheme("uniform(excluded):constant", LABELS), LABELS)
    assert found.unbiased_with == "importance: w = (1 − q_y)/(m · q_y')"
    assert explain(scheme("softmax", LABELS), LABELS).unbiased_with is None
    # whose draws carry no q of a label
    pool = explain(scheme("resampled:importance@8", LABELS), LABELS)
    assert pool.unbiased_with == "importance: w = 1/(m · q̂_y')"


def test_what_explain_leaves_out_it_says():
    loss = SampledSoftmaxLoss(
        Uniform(LABELS, 4), Importance(), collisions="none", label_smoothing=0.1
    )
    notes = " ".join(explain(loss, LABELS).notes)
    assert "Collisions are kept" in notes
    assert "Label smoothing" in notes
    assert "adjusted afterwards" in " ".join(
        explain(scheme("softmax+post-hoc", LABELS), LABELS).notes
    )


def test_a_head_can_be_explained_itself():
    head = LabelHead(LABELS, 8, scheme("within-batch:tail", LABELS))
    assert explain(head, LABELS).leans == "tail"


def test_a_piece_that_can_be_negative_keeps_its_sign():
    from headtail.functional import Piece

    linear = Piece("linear", lambda z: -z, lambda z: -z)
    scores = torch.zeros(1, 3000)
    scores[0, :1500] = -1.0
    found = explain(
        SampledDecoupledLoss(Uniform(LABELS, 4), Importance(), linear),
        LABELS,
        scores=scores,
        target=torch.tensor([2999]),
    )
    assert found.examples[0].implicit_loss == pytest.approx(-1500)


def test_two_parts_that_see_the_same_batch_have_no_variance_formula():
    from headtail import Mixture, Queue

    twice = Mixture([WithinBatch(LABELS, 4), WithinBatch(LABELS, 4)])
    assert explain(SampledSoftmaxLoss(twice, Tail(LABELS)), LABELS).examples[0].variance is None
    both = Mixture([WithinBatch(LABELS), Queue(LABELS, 16)])
    assert explain(SampledSoftmaxLoss(both, Tail(LABELS)), LABELS).examples[0].variance is not None


def test_a_margin_without_a_formula_is_written_by_what_it_depends_on():
    labels = Labels.zipf(20)
    vary = torch.tensor([0.3, -1.0] * 10, dtype=torch.float64)
    flat = torch.zeros(20, dtype=torch.float64)
    never = torch.full((20,), -math.inf, dtype=torch.float64)
    for positive, negative, rho in (
        (vary, flat, "ρ₁(y)"),
        (flat, vary, "ρ₂(y')"),
        (vary, vary, "ρ₁(y) · ρ₂(y')"),
        (vary, never, "ρ₁(y)"),
    ):
        assert recognise(CustomSeparable(positive, negative), labels).rho == rho
