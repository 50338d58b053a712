"""InfoNCE: each other slot of the batch is a negative of weight 1, as in
MultipleNegativesRankingLoss.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from headtail import (
    Constant,
    HeadtailError,
    Importance,
    InfoNCE,
    LabelHead,
    Labels,
    Mixture,
    Queue,
    SampledSoftmaxLoss,
    Tail,
    Uniform,
    WithinBatch,
    explain,
    scheme,
)
from headtail.functional import (
    logistic,
    sampled_decoupled_loss,
    sampled_softmax_loss,
    softmax_loss,
    two_tower_decoupled_loss,
    two_tower_softmax_loss,
)
from headtail.implicit import implied_margin
from headtail.samplers import Draw

f64 = torch.float64
LABELS = Labels.from_counts([40, 25, 10, 5, 3, 1])
TARGET = torch.tensor([0, 1, 0, 2, 1, 0, 5, 3])  # 0 three times, 1 twice


def embeddings(dtype=f64):
    generator = torch.Generator().manual_seed(4)
    queries = torch.randn(8, 5, generator=generator, dtype=dtype).requires_grad_()
    table = torch.randn(6, 5, generator=generator, dtype=dtype).requires_grad_()
    return queries, table


def mnrl(queries, items, scale=1.0, *, cosine=False):
    """MultipleNegativesRankingLoss of sentence-transformers: cross-entropy over the scores of the
    batch, target = own slot.
    """
    if cosine:
        queries = F.normalize(queries, dim=1)
        items = F.normalize(items, dim=1)
    return F.cross_entropy(scale * queries @ items.T, torch.arange(len(queries)))


@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_two_towers_with_infonce_are_multiple_negatives_ranking(score, temperature):
    queries, _ = embeddings()
    # items with the same label may differ, as with features of their own
    items = torch.randn(8, 5, dtype=f64).requires_grad_()
    draw = WithinBatch(LABELS).draw(TARGET)
    ours = two_tower_softmax_loss(
        queries, items, items, TARGET, draw, InfoNCE(), score=score, temperature=temperature
    )
    truth = mnrl(queries, items, 1 / temperature, cosine=score == "cosine")
    assert ours.item() == pytest.approx(truth.item(), rel=1e-12)
    for grad, true_grad in zip(
        torch.autograd.grad(ours, [queries, items]),
        torch.autograd.grad(truth, [queries, items]),
        strict=True,
    ):
        assert torch.allclose(grad, true_grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize("temperature", [1.0, 0.05])
@pytest.mark.parametrize("sparse", [False, True], ids=["plain", "kernel"])
def test_the_scheme_on_a_label_table_is_multiple_negatives_ranking(score, temperature, sparse):
    queries, table = embeddings()
    truth = mnrl(queries, table[TARGET], 1 / temperature, cosine=score == "cosine")
    of_queries, of_table = torch.autograd.grad(truth, [queries, table])
    loss = scheme("within-batch:infonce", LABELS, score=score, temperature=temperature)
    head = LabelHead(LABELS, 5, loss, sparse=sparse)
    with torch.no_grad():
        head.weight.copy_(table)
    hidden = queries.detach().float().requires_grad_()
    value = head(hidden, TARGET)
    value.backward()
    grad = head.weight.grad.to_dense() if sparse else head.weight.grad
    assert value.item() == pytest.approx(truth.item(), rel=1e-5)
    assert torch.allclose(hidden.grad.double(), of_queries, rtol=1e-4, atol=1e-5)
    assert torch.allclose(grad.double(), of_table, rtol=1e-4, atol=1e-5)


def test_without_repeated_labels_masking_by_slot_is_masking_by_label():
    queries, table = embeddings()
    target = torch.tensor([3, 0, 5, 1])
    draw = WithinBatch(LABELS).draw(target)
    slot, label = (
        sampled_softmax_loss(
            queries[:4], table, target, draw, Tail(LABELS), collisions=mode, reduction="none"
        )
        for mode in ("slot", "target")
    )
    assert torch.equal(slot, label)


@pytest.mark.parametrize(
    "weighting", [Constant(), Importance(), Tail(LABELS)], ids=lambda w: type(w).__name__
)
@pytest.mark.parametrize("piece", [None, logistic], ids=["softmax", "logistic"])
@pytest.mark.parametrize("taken", [None, 5], ids=["the whole batch", "a part of it"])
def test_only_the_own_slot_is_masked_whatever_the_weighting(weighting, piece, taken):
    queries, table = embeddings()
    draw = WithinBatch(LABELS, taken).draw(TARGET, generator=torch.Generator().manual_seed(0))
    a, b = weighting.offsets(draw, TARGET)
    f = queries @ table[draw.ids].T
    f_y = (queries * table[TARGET]).sum(1)
    own = draw.slots == torch.arange(8)[:, None]
    log_w = (a[:, None] + b).masked_fill(own, -torch.inf)
    if piece is None:
        truth = torch.log1p((log_w + f - f_y[:, None]).exp().sum(1))
    else:
        truth = F.softplus(-f_y) + (log_w.exp() * F.softplus(f)).sum(1)
    function, extra = (
        (sampled_softmax_loss, ()) if piece is None else (sampled_decoupled_loss, (piece,))
    )
    plain = function(
        queries, table, TARGET, draw, weighting, *extra, collisions="slot", reduction="none"
    )
    assert torch.allclose(plain, truth, rtol=1e-12)
    few = queries.detach().float(), table.detach().float()
    kernel = function(*few, TARGET, draw, weighting, *extra, collisions="slot", sparse=True)
    assert kernel.item() == pytest.approx(truth.mean().item(), rel=1e-5)


@pytest.mark.parametrize("sparse", [False, True], ids=["plain", "kernel"])
def test_ignored_targets_are_neither_examples_nor_negatives_of_infonce(sparse):
    queries, table = embeddings(torch.float32)
    target = TARGET.clone()
    target[[2, 4]] = -100
    draw = WithinBatch(LABELS).draw(target)
    seen = target >= 0
    truth = mnrl(queries[seen], table[target[seen]])
    ours = sampled_softmax_loss(queries, table, target, draw, InfoNCE(), sparse=sparse)
    assert ours.item() == pytest.approx(truth.item(), rel=1e-5)


def test_what_the_loss_says_about_collisions_takes_precedence_over_the_weighting():
    queries, table = embeddings()
    draw = WithinBatch(LABELS).draw(TARGET)

    def loss(weighting, **options):
        return sampled_softmax_loss(
            queries, table, TARGET, draw, weighting, reduction="none", **options
        )

    # its places in the batch are unknown
    plain = Draw(draw.ids, draw.log_q, draw.log_q_target, draw.m)
    by_label = sampled_softmax_loss(queries, table, TARGET, plain, InfoNCE(), reduction="none")
    assert torch.equal(loss(InfoNCE(), collisions="target"), by_label)
    assert torch.equal(loss(InfoNCE(), collisions="slot"), loss(InfoNCE()))
    assert (loss(InfoNCE(), collisions="none") > loss(InfoNCE())).all()
    assert (loss(InfoNCE()) > by_label)[[0, 1, 2, 4, 5]].all(), (
        "copies of the positive cost something"
    )
    known = TARGET[:, None]
    assert torch.equal(loss(InfoNCE(), known_positives=known), by_label)


@pytest.mark.parametrize(
    "sampler",
    [Uniform(6, 20), Queue(LABELS, 8), Mixture([WithinBatch(LABELS), Uniform(6, 4)])],
    ids=repr,
)
def test_negatives_that_are_not_the_batch_s_own_are_masked_by_label(sampler):
    queries, table = embeddings()
    sampler.draw(TARGET)  # fills a queue
    draw = sampler.draw(TARGET)
    assert draw.slots is None
    assert (draw.ids == TARGET[:, None]).any()
    ours = sampled_softmax_loss(queries, table, TARGET, draw, InfoNCE())
    assert torch.equal(
        ours, sampled_softmax_loss(queries, table, TARGET, draw, InfoNCE(), collisions="target")
    )


def test_masking_by_slot_needs_negatives_that_know_their_slot():
    queries, table = embeddings()
    with pytest.raises(HeadtailError, match=r'`collisions="slot"` needs .* `WithinBatch`'):
        sampled_softmax_loss(
            queries, table, TARGET, Uniform(6, 4).draw(TARGET), InfoNCE(), collisions="slot"
        )
    with pytest.raises(HeadtailError, match='`collisions="slot"` needs'):
        softmax_loss(queries, table, TARGET, collisions="slot")
    with pytest.raises(HeadtailError, match='`collisions="slot"` needs'):
        sampled_softmax_loss(
            queries,
            table,
            TARGET,
            Uniform(6, 4).draw(TARGET),
            InfoNCE(),
            collisions="slot",
            sparse=True,
        )
    draw = WithinBatch(LABELS).draw(TARGET)
    with pytest.raises(HeadtailError, match="Drop one"):
        sampled_softmax_loss(
            queries,
            table,
            TARGET,
            draw,
            InfoNCE(),
            known_positives=TARGET[:, None],
            collisions="slot",
        )


def test_two_decoupled_towers_take_infonce_too():
    queries, table = embeddings()
    items = table[TARGET]
    draw = WithinBatch(LABELS).draw(TARGET)
    ours = two_tower_decoupled_loss(queries, items, items, TARGET, draw, InfoNCE(), reduction="sum")
    f = queries @ items.T
    truth = F.binary_cross_entropy_with_logits(f, torch.eye(8, dtype=f64), reduction="sum")
    assert ours.item() == pytest.approx(truth.item(), rel=1e-12)


def test_the_implied_margin_is_m_pi_for_others_and_copies_of_the_positive_add_m_pi_more():
    """By enumeration: the expected sum over the batch's other slots, for every positive."""
    labels = Labels.from_counts([5, 3, 2])
    prior = labels.prior.tolist()
    scores = torch.tensor([[0.3, -0.7, 1.1]], dtype=f64)
    size = 4
    margin = implied_margin(WithinBatch(labels), InfoNCE(), batch_size=size)
    for y in range(3):
        mean = 0.0
        for others in itertools.product(range(3), repeat=size - 1):
            target = torch.tensor([y, *others])
            table = scores.T.contiguous()
            draw = WithinBatch(labels).draw(target)
            value = sampled_softmax_loss(
                torch.ones(size, 1, dtype=f64), table, target, draw, InfoNCE(), reduction="none"
            )[0]
            mean += math.prod(prior[other] for other in others) * (value.exp().item() - 1)
        rho = margin.log_rho(torch.tensor([y]), torch.arange(3))[0].exp()
        assert torch.allclose(rho, (size - 1) * labels.prior, rtol=1e-12)
        terms = rho * (scores[0] - scores[0, y]).exp()
        # y' = y included: its copies count
        assert mean == pytest.approx(terms.sum().item(), rel=1e-12)
        assert terms[y].item() == pytest.approx((size - 1) * prior[y], rel=1e-12)


def test_infonce_is_explained_as_the_equalised_loss_times_m():
    labels = Labels.zipf(1000)
    explanation = explain(scheme("within-batch:infonce", labels), labels, batch_size=128)
    equalised = explain(scheme("within-batch:constant", labels), labels, batch_size=128)
    assert (
        explanation.name
        == "InfoNCE: the equalised loss (Tan et al. 2020) with negatives upweighted m times"
    )
    assert explanation.rho == "m · π_y'"
    assert explanation.leans == "tail"
    assert explanation.lean == pytest.approx(equalised.lean)
    assert any("copies of the positive" in note for note in explanation.notes)
    assert any("1 + m · π_y, which leans further to the tail" in note for note in explanation.notes)
    assert any("grows like log m" in note for note in explanation.notes)
    by_label = SampledSoftmaxLoss(WithinBatch(labels), InfoNCE(), collisions="target")
    assert not any(
        "copies of the positive" in note for note in explain(by_label, labels, batch_size=128).notes
    )
    kept = SampledSoftmaxLoss(WithinBatch(labels), Tail(labels), collisions="slot")
    notes = explain(kept, labels, batch_size=128).notes
    assert any("copies of the positive" in note for note in notes)
    assert not any("further to the tail" in note for note in notes), "ρ(y, y) = 1 for every label"
    pushed = explain(scheme("logistic/within-batch:infonce", labels), labels, batch_size=128).notes
    assert any("push its own label down" in note for note in pushed)


def test_infonce_needs_a_q_that_is_known():
    with pytest.raises(HeadtailError, match="from a pool"):
        scheme("resampled:infonce@4", LABELS)
    uniform = explain(scheme("uniform:infonce@4", LABELS), LABELS)
    assert (uniform.rho, uniform.leans) == ("m/L", "neither")
