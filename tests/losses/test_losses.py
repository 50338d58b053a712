"""Losses: agreement with what others compute where they are right, and every option."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from headtail import (
    Adaptive,
    Constant,
    Equalised,
    FromMargin,
    Given,
    HeadtailError,
    Importance,
    Labels,
    LogitAdjusted,
    Mixture,
    Pairwise,
    Ragged,
    Relative,
    SampledSoftmaxLoss,
    Tail,
    Uniform,
    Unit,
    WithinBatch,
    scheme,
)
from headtail.core.margins import Separable
from headtail.core.targets import Pairs
from headtail.functional import (
    contrastive,
    decoupled_loss,
    hinge,
    logistic,
    sampled_decoupled_loss,
    sampled_softmax_loss,
    softmax_loss,
    squared_hinge,
    two_tower_decoupled_loss,
    two_tower_softmax_loss,
)
from headtail.samplers import Draw, every_label

L = 30
D = 8
B = 6
LABELS = Labels.zipf(L)
f64 = torch.float64
PIECES = [logistic, hinge, squared_hinge]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(B, D, dtype=f64, generator=generator)
    table = torch.randn(L, D, dtype=f64, generator=generator)
    return hidden, table, torch.tensor([0, 3, 3, 29, 12, 7])


def test_the_exact_softmax_is_torch_s_cross_entropy(batch):
    hidden, table, target = batch
    bias = torch.randn(L, dtype=f64)
    ours = softmax_loss(hidden, table, target, bias=bias, temperature=0.3, reduction="none")
    assert torch.allclose(
        ours, F.cross_entropy((hidden @ table.T + bias) / 0.3, target, reduction="none"), rtol=1e-13
    )


@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_label_smoothing_with_all_labels_is_torch_s(batch, smoothing):
    hidden, table, target = batch
    ours = softmax_loss(hidden, table, target, label_smoothing=smoothing)
    assert ours == pytest.approx(
        F.cross_entropy(hidden @ table.T, target, label_smoothing=smoothing).item(), rel=1e-13
    )


def test_uniform_without_replacement_at_m_equal_l_is_the_exact_softmax(batch):
    hidden, table, target = batch
    draw = Uniform(L, L, replacement=False).draw(target)
    ours = sampled_softmax_loss(hidden, table, target, draw, Importance(), label_smoothing=0.2)
    assert ours == pytest.approx(
        F.cross_entropy(hidden @ table.T, target, label_smoothing=0.2).item(), rel=1e-13
    )


def test_logit_adjustment_is_a_bias_of_log_prior_on_the_logits(batch):
    hidden, table, target = batch
    for tau in (1.0, 0.5, -1.0):
        ours = softmax_loss(hidden, table, target, LogitAdjusted(LABELS, tau))
        assert ours == pytest.approx(
            F.cross_entropy(hidden @ table.T + tau * LABELS.prior.log(), target).item(), rel=1e-13
        )


def test_the_adaptive_margin_is_ldam_s(batch):
    """LDAM subtracts C·n^(−1/4) from the positive logit, the largest being 0.5."""
    hidden, table, target = batch
    margins = LABELS.counts.double() ** -0.25
    margins = 0.5 * margins / margins.max()
    logits = hidden @ table.T - F.one_hot(target, L) * margins[target, None]
    assert softmax_loss(hidden, table, target, Adaptive(LABELS)) == pytest.approx(
        F.cross_entropy(logits, target).item(), rel=1e-13
    )


def test_the_equalised_margin_scales_each_negative_by_its_prior(batch):
    hidden, table, target = batch
    logits = hidden @ table.T
    scaled = logits + LABELS.prior.log() * (1 - F.one_hot(target, L))
    assert softmax_loss(hidden, table, target, Equalised(LABELS)) == pytest.approx(
        F.cross_entropy(scaled, target).item(), rel=1e-13
    )


def tensorflow_sampled_softmax(positive, negatives, log_q_target, log_q, target, ids, m):
    """TensorFlow's formula with remove_accidental_hits: log(expected count) off true and sampled
    logits, hits to −float max.
    """
    true = positive - (log_q_target.exp() * m).log()
    sampled = negatives - (log_q.exp() * m).log()
    sampled = torch.where(target[:, None] == ids, torch.finfo(f64).min, sampled)
    return F.cross_entropy(
        torch.cat([true[:, None], sampled], 1),
        torch.zeros(len(true), dtype=torch.int64),
        reduction="none",
    )


def test_relative_weights_are_tensorflow_s_sampled_softmax(batch):
    hidden, table, target = batch
    sampler = Mixture([Uniform(L, 15), WithinBatch(LABELS)])
    draw = sampler.draw(target)
    assert (draw.ids == target[:, None]).any(), "there must be hits to remove"
    f = hidden @ table[draw.ids].T
    theirs = tensorflow_sampled_softmax(
        (hidden * table[target]).sum(1), f, draw.log_q_target, draw.log_q, target, draw.ids, draw.m
    )
    ours = sampled_softmax_loss(hidden, table, target, draw, Relative(), reduction="none")
    assert torch.allclose(ours, theirs, rtol=1e-12)


def test_the_contrastive_loss_is_hadsell_s_at_the_distance_of_cosines(batch):
    """½ D² if alike, ½ max(0, their margin − D)² if not (equation 4 of the paper), D = 1 − cos."""
    hidden, table, target = batch
    for margin in (0.0, 0.3):
        ours = decoupled_loss(
            hidden, table, target, piece=contrastive(margin), score="cosine", reduction="sum"
        )
        distance = 1 - F.cosine_similarity(hidden[:, None], table[None], dim=2)
        alike = F.one_hot(target, L) == 1
        theirs = torch.where(
            alike, distance**2 / 2, (1 - margin - distance).clamp(min=0) ** 2 / 2
        ).sum()
        assert ours == pytest.approx(theirs.item(), rel=1e-12)


def test_the_logistic_loss_is_binary_cross_entropy(batch):
    hidden, table, target = batch
    theirs = F.binary_cross_entropy_with_logits(
        hidden @ table.T, F.one_hot(target, L).double(), reduction="sum"
    )
    assert decoupled_loss(hidden, table, target, reduction="sum") == pytest.approx(
        theirs.item(), rel=1e-13
    )


@pytest.mark.parametrize(
    "weighting",
    [Constant(), Importance(), Relative(), Tail(LABELS)],
    ids=lambda w: type(w).__name__,
)
@pytest.mark.parametrize(
    "sampler",
    [Uniform(L, 9), Uniform(L, 9, exclude_target=True), WithinBatch(LABELS)],
    ids=lambda s: type(s).__name__,
)
def test_losses_equal_the_slow_obvious_sum(batch, weighting, sampler):
    hidden, table, target = batch
    bias = torch.randn(L, dtype=f64)
    draw = sampler.draw(target)
    keep = draw.log_keep if isinstance(draw.log_keep, torch.Tensor) else torch.zeros(B, dtype=f64)
    softmax = []
    decoupled = []
    for i, y in enumerate(target.tolist()):
        score = lambda label, i=i: float(hidden[i] @ table[label] + bias[label]) / 0.7  # noqa: E731
        ids = draw.ids if draw.shared else draw.ids[i]
        inside = 1.0
        outside = math.log1p(math.exp(-score(y)))
        for other in ids.tolist():
            q, q_y, pi = (float(sampler.log_q(torch.tensor(v)).exp()) for v in (other, y, y))
            pi = float(LABELS.prior[other])
            pi_y = float(LABELS.prior[y])
            w = {
                "Constant": 1 / draw.m,
                "Importance": float(keep[i].exp()) / (draw.m * q),
                "Relative": q_y / q,
                "Tail": float(keep[i].exp()) * pi / (pi_y * draw.m * q),
            }[type(weighting).__name__]
            if other != y:
                inside += w * math.exp(score(other) - score(y))
                outside += w * math.log1p(math.exp(score(other)))
        softmax.append(math.log(inside))
        decoupled.append(outside)
    options = {"bias": bias, "temperature": 0.7, "reduction": "none"}
    ours = sampled_softmax_loss(hidden, table, target, draw, weighting, **options)
    assert ours.tolist() == pytest.approx(softmax, rel=1e-11)
    ours = sampled_decoupled_loss(hidden, table, target, draw, weighting, logistic, **options)
    assert ours.tolist() == pytest.approx(decoupled, rel=1e-11)


def test_temperature_scales_the_scores_and_not_the_correction(batch):
    """A library in use divides the corrected logits."""
    hidden, table, target = batch
    draw = Uniform(L, 9).draw(target)
    ours = sampled_softmax_loss(hidden, table, target, draw, Tail(LABELS), temperature=0.2)
    scaled = sampled_softmax_loss(hidden / 0.2, table, target, draw, Tail(LABELS))
    assert ours == pytest.approx(scaled.item(), rel=1e-12)


def test_two_towers_give_what_the_table_gives(batch):
    hidden, table, target = batch
    for sampler in (Uniform(L, 9), Uniform(L, 9, exclude_target=True)):
        draw = sampler.draw(target)
        rows = table[target], table[draw.ids]
        table_loss = sampled_softmax_loss(
            hidden, table, target, draw, Tail(LABELS), label_smoothing=0.1
        )
        towers = two_tower_softmax_loss(
            hidden, *rows, target, draw, Tail(LABELS), label_smoothing=0.1, num_labels=L
        )
        assert towers == pytest.approx(table_loss.item(), rel=1e-13)
        table_loss = sampled_decoupled_loss(hidden, table, target, draw, Constant(), hinge)
        assert two_tower_decoupled_loss(
            hidden, *rows, target, draw, Constant(), hinge
        ) == pytest.approx(table_loss.item(), rel=1e-13)


def test_collisions_are_found_by_id_and_never_by_position(batch):
    """After a gather across devices, positives stand at other offsets: the order of the negatives
    must not matter.
    """
    hidden, table, target = batch
    draw = WithinBatch(LABELS).draw(target)
    shuffled = torch.randperm(len(draw.ids))
    moved = Draw(draw.ids[shuffled], draw.log_q[shuffled], draw.log_q_target, draw.m)
    for loss in (sampled_softmax_loss, sampled_decoupled_loss):
        one, other = (
            loss(hidden, table, target, d, Importance(), reduction="none") for d in (draw, moved)
        )
        assert torch.allclose(one, other, rtol=1e-12)


def test_the_positive_never_counts_as_its_own_negative(batch):
    """Removing a hit by adding 1e-40 is a no-op that a library shipped."""
    hidden, table, target = batch
    draw = Uniform(L, 9).draw(target)
    hits = Draw(
        torch.cat([draw.ids, target]),
        torch.cat([draw.log_q, draw.log_q_target]),
        draw.log_q_target,
        draw.m,
    )
    alone = [
        Draw(
            torch.cat([draw.ids, target[target != y]]),
            torch.cat([draw.log_q, draw.log_q_target[target != y]]),
            None,
            draw.m,
        )
        for y in target
    ]
    ours = sampled_softmax_loss(hidden, table, target, hits, Importance(), reduction="none")
    for i, clean in enumerate(alone):
        expected = sampled_softmax_loss(hidden[[i]], table, target[[i]], clean, Importance())
        assert ours[i].item() == pytest.approx(expected.item(), rel=1e-12)
    kept = sampled_softmax_loss(
        hidden, table, target, hits, Importance(), reduction="none", collisions="none"
    )
    assert (kept > ours).all()


def test_ids_above_float32_s_integers_do_not_collide():
    big = 2**24
    target = torch.tensor([big + 1])
    ids = torch.tensor([big])
    embedding = torch.ones(1, 1)
    draw = Draw(ids, torch.zeros(1, dtype=f64), torch.zeros(1, dtype=f64), 1.0)
    assert two_tower_softmax_loss(
        embedding, embedding, embedding, target, draw, Importance()
    ).item() == pytest.approx(math.log(2))
    assert (
        two_tower_softmax_loss(embedding, embedding, embedding, ids, draw, Importance()).item() == 0
    )


@pytest.mark.parametrize("form", ["padded", "ragged"])
def test_known_positives_do_not_count_as_negatives(batch, form):
    hidden, table, target = batch
    lists = [[0, 5], [3], [], [29, 1, 2], [12], [7, 5]]
    known = Ragged.from_lists(lists)
    if form == "padded":
        known = torch.tensor([row + [-100] * (3 - len(row)) for row in lists])
    draw = every_label(L)
    ours = sampled_softmax_loss(
        hidden, table, target, draw, Importance(), known_positives=known, reduction="none"
    )
    logits = hidden @ table.T
    for i, row in enumerate(lists):
        kept = [y for y in range(L) if y == target[i] or y not in row]
        expected = torch.logsumexp(logits[i, kept], 0) - logits[i, target[i]]
        assert ours[i].item() == pytest.approx(expected.item(), rel=1e-12)


def test_multi_label_targets_are_one_example_a_positive(batch):
    hidden, table, _ = batch
    lists = [[0, 5], [3], [], [29, 1, 2], [12], [7]]
    ragged = Ragged.from_lists(lists)
    padded = torch.tensor([row + [-100] * (3 - len(row)) for row in lists])
    nested = torch.nested.nested_tensor(
        [torch.tensor(r, dtype=torch.int64) for r in lists], layout=torch.jagged
    )
    rows = torch.tensor([i for i, row in enumerate(lists) for _ in row])
    expected = F.cross_entropy((hidden @ table.T)[rows], ragged.values)
    for target in (ragged, padded, nested):
        assert softmax_loss(hidden, table, target) == pytest.approx(expected.item(), rel=1e-13), (
            "the mean is over pairs"
        )
        draw = Uniform(L, 5).draw(target)
        assert sampled_softmax_loss(hidden, table, target, draw, Importance()).isfinite()
    draw = Uniform(L, 5, exclude_target=True).draw(ragged)
    assert draw.ids.shape == (8, 5)
    assert sampled_softmax_loss(hidden, table, ragged, draw, Importance()).isfinite()
    all_known = softmax_loss(hidden, table, ragged, collisions="known", reduction="none")
    logits = hidden @ table.T
    kept = [y for y in range(L) if y not in (29, 2)]
    assert all_known[4].item() == pytest.approx(
        (torch.logsumexp(logits[3, kept], 0) - logits[3, 1]).item(), rel=1e-12
    )


def test_ignored_targets_count_nowhere(batch):
    hidden, table, target = batch
    ignored = target.clone()
    ignored[[1, 4]] = -100
    keep = ignored != -100
    hidden.requires_grad_()
    draw = Uniform(L, 9).draw(ignored)
    ours = sampled_softmax_loss(hidden, table, ignored, draw, Tail(LABELS), label_smoothing=0.1)
    ours.backward()
    clean = Draw(draw.ids, draw.log_q, draw.log_q_target[keep], draw.m)
    expected = sampled_softmax_loss(
        hidden[keep], table, target[keep], clean, Tail(LABELS), label_smoothing=0.1
    )
    assert ours.item() == pytest.approx(expected.item(), rel=1e-13)
    assert hidden.grad is not None
    assert (hidden.grad[~keep] == 0).all()


def test_a_batch_in_which_nothing_counts_has_loss_zero(batch):
    hidden, table, target = batch
    nothing = torch.full_like(target, -100)
    for loss in (softmax_loss(hidden, table, nothing), decoupled_loss(hidden, table, nothing)):
        assert loss.item() == 0
    assert SampledSoftmaxLoss(WithinBatch(LABELS), Tail(LABELS))(hidden, table, nothing).item() == 0


def test_example_weights_give_a_weighted_mean(batch):
    hidden, table, target = batch
    weight = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0, 3.0])
    each = softmax_loss(hidden, table, target, reduction="none")
    mean = softmax_loss(hidden, table, target, sample_weight=weight)
    assert mean.item() == pytest.approx(((each * weight).sum() / weight.sum()).item(), rel=1e-13)
    assert softmax_loss(hidden, table, target, reduction="sum").item() == pytest.approx(
        each.sum().item(), rel=1e-13
    )


@pytest.mark.parametrize("m", [1, 7])
def test_when_every_draw_collides_the_softmax_is_zero_and_a_decoupled_loss_its_positive_part(m):
    hidden = torch.randn(1, 4, requires_grad=True)
    table = torch.randn(5, 4, requires_grad=True)
    target = torch.tensor([2])
    for log_q in (-1.0, -math.inf):
        draw = Draw(
            torch.full((m,), 2),
            torch.full((m,), log_q, dtype=f64),
            torch.tensor([log_q], dtype=f64),
            float(m),
        )
        for weighting in (Constant(), Importance(), Tail(Labels.zipf(5))):
            loss = sampled_softmax_loss(hidden, table, target, draw, weighting)
            grads = torch.autograd.grad(loss, (hidden, table))
            assert loss.item() == 0
            assert all((g == 0).all() for g in grads)
            for piece in PIECES:
                loss = sampled_decoupled_loss(hidden, table, target, draw, weighting, piece)
                score = (hidden * table[target]).sum()
                assert loss.item() == piece.positive(score).item()
                assert all(g.isfinite().all() for g in torch.autograd.grad(loss, (hidden, table)))


def test_a_batch_of_one_has_no_within_batch_negatives_and_loss_zero():
    loss = SampledSoftmaxLoss(WithinBatch(LABELS), Tail(LABELS))
    hidden = torch.randn(1, D, requires_grad=True)
    value = loss(hidden, torch.randn(L, D), torch.tensor([3]))
    value.backward()
    assert value.item() == 0
    assert hidden.grad is not None
    assert (hidden.grad == 0).all()


@pytest.mark.parametrize("count", [1, 2])
def test_one_and_two_labels_work(count):
    labels = Labels.zipf(count)
    target = torch.zeros(3, dtype=torch.int64)
    hidden = torch.randn(3, 4)
    table = torch.randn(count, 4)
    for sampler in (Uniform(labels, 5), WithinBatch(labels)):
        for weighting in (Constant(), Importance(), Relative(), Tail(labels)):
            draw = sampler.draw(target)
            assert sampled_softmax_loss(hidden, table, target, draw, weighting).isfinite()
            assert sampled_decoupled_loss(hidden, table, target, draw, weighting).isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_of_ten_thousand_neither_overflow_nor_lose_the_gradient(dtype):
    table = torch.tensor([[1.0], [-1.0], [0.5]], dtype=dtype)
    labels = Labels.from_counts([10**12, 10, 1])
    for sign in (1.0, -1.0):
        hidden = torch.tensor([[sign * 1e4]], dtype=dtype, requires_grad=True)
        for margin in (None, LogitAdjusted(labels)):
            loss = softmax_loss(hidden, table, torch.tensor([0]), margin)
            loss.backward()
            assert loss.isfinite()
            assert hidden.grad is not None
            assert hidden.grad.isfinite().all()
        expected = 0.0 if sign == 1 else 2e4
        assert softmax_loss(hidden, table, torch.tensor([0])).item() == pytest.approx(
            expected, rel=1e-6
        )
        for piece in PIECES:
            assert decoupled_loss(hidden, table, torch.tensor([0]), piece=piece).isfinite()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("rows", [False, True], ids=["shared", "per example"])
def test_gradients_are_right(batch, reduction, rows):
    hidden, table, target = batch
    draw = Uniform(L, 5, exclude_target=rows).draw(target)
    hidden, table, bias = (t.requires_grad_() for t in (hidden, table, torch.randn(L, dtype=f64)))
    for weighting in (
        Tail(LABELS),
        Relative(),
        FromMargin(Pairwise(lambda y, o: 0.01 * (y - o).abs())),
    ):

        def softmax(h, w, b, weighting=weighting):
            options = {
                "bias": b,
                "label_smoothing": 0.1,
                "temperature": 0.5,
                "reduction": reduction,
            }
            return sampled_softmax_loss(h, w, target, draw, weighting, **options)

        def cosine(h, w, b, weighting=weighting):
            return sampled_decoupled_loss(
                h,
                w,
                target,
                draw,
                weighting,
                squared_hinge,
                bias=b,
                score="cosine",
                reduction=reduction,
            )

        assert gradcheck(softmax, (hidden, table, bias))
        assert gradcheck(cosine, (hidden, table, bias))
    assert gradcheck(
        lambda h, w: softmax_loss(h, w, target, Adaptive(LABELS), reduction=reduction),
        (hidden, table),
    )


def test_sparse_gradients_equal_dense_ones(batch):
    hidden, table, target = batch
    draw = Uniform(L, 40).draw(target)
    bias = torch.zeros(L, 1, dtype=f64)
    grads = []
    for sparse in (False, True):
        weight = table.clone().requires_grad_()
        column = bias.clone().requires_grad_()
        sampled_softmax_loss(
            hidden, weight, target, draw, Tail(LABELS), bias=column, sparse=sparse
        ).backward()
        assert weight.grad is not None
        assert column.grad is not None
        assert weight.grad.is_sparse == column.grad.is_sparse == sparse
        grads.append(
            (
                weight.grad.to_dense() if sparse else weight.grad,
                column.grad.to_dense() if sparse else column.grad,
            )
        )
    for dense, sparse in zip(*grads, strict=True):
        assert torch.allclose(dense, sparse, rtol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_lose_only_what_the_inputs_lost(dtype):
    """Rounding belongs to the matrix product: weights and log-sum-exp are in float32."""
    hidden = torch.randn(B, 64).to(dtype) / 4
    table = torch.randn(L, 64).to(dtype)
    target = torch.tensor([0, 3, 3, 29, 12, 7])
    rare = Labels.from_counts([10**12] + [1] * (L - 1))
    draw = Uniform(L, 50).draw(target)
    truth = sampled_softmax_loss(hidden.double(), table.double(), target, draw, Tail(rare))
    ours = sampled_softmax_loss(hidden, table, target, draw, Tail(rare))
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(
        truth.item(),
        abs=4 * torch.finfo(dtype).eps * float((hidden.double() @ table.double().T).abs().max()),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masked_draws_are_no_nan_in_half_precision(dtype):
    hidden = torch.randn(3, 4).to(dtype).requires_grad_()
    table = torch.randn(5, 4).to(dtype).requires_grad_()
    target = torch.tensor([0, 1, 1])
    draw = WithinBatch(Labels.zipf(5)).draw(target)
    for loss in (
        sampled_softmax_loss(hidden, table, target, draw, Importance(), label_smoothing=0.1),
        sampled_decoupled_loss(hidden, table, target, draw, Importance(), hinge),
    ):
        loss.backward()
        assert loss.isfinite()
        assert hidden.grad is not None
        assert hidden.grad.isfinite().all()
        assert table.grad is not None
        assert table.grad.isfinite().all()


def test_autocast_works_and_keeps_the_loss_in_float32(batch):
    hidden, table, target = (t.float() if t.is_floating_point() else t for t in batch)
    table.requires_grad_()
    draw = Uniform(L, 9).draw(target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = sampled_softmax_loss(hidden, table, target, draw, Tail(LABELS))
        mixed = sampled_softmax_loss(hidden.bfloat16(), table, target, draw, Tail(LABELS))
    assert ours.dtype == torch.float32
    ours.backward()
    truth = sampled_softmax_loss(hidden, table, target, draw, Tail(LABELS)).item()
    assert ours.item() == pytest.approx(truth, rel=0.02)
    assert mixed.item() == pytest.approx(truth, rel=0.02)


def test_label_smoothing_is_unbiased_for_the_mean_logit(batch):
    """Averaged over all outcomes of one uniform draw, the smoothing term is the exact one."""
    hidden, table, target = batch
    exact, without = (
        softmax_loss(hidden, table, target, label_smoothing=e, reduction="none") for e in (0.3, 0.0)
    )
    terms = []
    for label in range(L):
        draw = Given(L, torch.tensor([label]), torch.tensor([1 / L], dtype=f64).log()).draw(target)
        options = {"reduction": "none"}
        smooth, plain = (
            sampled_softmax_loss(
                hidden, table, target, draw, Constant(), label_smoothing=e, **options
            )
            for e in (0.3, 0.0)
        )
        terms.append(smooth - plain)
    assert torch.allclose(torch.stack(terms).mean(0), exact - without, rtol=1e-11)


def test_accumulated_gradients_equal_the_whole_batch_when_summed(batch):
    hidden, table, target = batch
    draw = Uniform(L, 9).draw(target)
    whole = table.clone().requires_grad_()
    (
        sampled_softmax_loss(hidden, whole, target, draw, Tail(LABELS), reduction="sum") / B
    ).backward()
    parts = table.clone().requires_grad_()
    for rows in torch.arange(B).split([1, 3, 2]):
        part = Draw(draw.ids, draw.log_q, draw.log_q_target[rows], draw.m)
        (
            sampled_softmax_loss(
                hidden[rows], parts, target[rows], part, Tail(LABELS), reduction="sum"
            )
            / B
        ).backward()
    assert whole.grad is not None
    assert parts.grad is not None
    assert torch.allclose(whole.grad, parts.grad, rtol=1e-12)


def test_within_batch_sees_the_micro_batch():
    assert WithinBatch(LABELS).draw(torch.arange(4)).m == 3
    assert WithinBatch(LABELS).draw(torch.arange(8)).m == 7


def test_contrastive_pieces_refuse_dot_products(batch):
    with pytest.raises(HeadtailError, match='score="cosine"'):
        decoupled_loss(*batch, piece=contrastive())


def test_label_smoothing_is_unbiased_when_the_positive_is_excluded(batch):
    hidden, table, target = batch
    exact, without = (
        softmax_loss(hidden, table, target, label_smoothing=e, reduction="none") for e in (0.3, 0.0)
    )
    sampler = Uniform(L, 1, exclude_target=True)
    terms = torch.zeros(B, dtype=f64)
    for step in range(1, L):
        ids = ((target + step) % L)[:, None]  # every other label once
        draw = sampler.describe(ids, target, 1.0)
        smooth, plain = (
            sampled_softmax_loss(
                hidden, table, target, draw, Constant(), label_smoothing=e, reduction="none"
            )
            for e in (0.3, 0.0)
        )
        terms += (smooth - plain) / (L - 1)
    assert torch.allclose(terms, exact - without, rtol=1e-11)


def test_no_loss_moves_when_all_logits_move_together(batch):
    hidden, table, target = batch
    draw = Uniform(L, 9).draw(target)
    known = torch.tensor([[1], [2], [3], [4], [5], [6]])
    for options in ({}, {"known_positives": known}):
        one, other = (
            sampled_softmax_loss(
                hidden,
                table,
                target,
                draw,
                Tail(LABELS),
                bias=torch.full((L,), shift, dtype=f64),
                label_smoothing=0.2,
                **options,
            )
            for shift in (0.0, 100.0)
        )
        assert one.item() == pytest.approx(other.item(), rel=1e-9)


def test_the_slots_of_within_batch_negatives_tell_their_embeddings(batch):
    hidden, table, _ = batch
    target = torch.tensor([0, -100, 3, 29, 12, 7])
    items = table[target.clamp(min=0)]
    draw = WithinBatch(LABELS, 3).draw(target)
    assert torch.equal(target[draw.slots], draw.ids)
    towers = two_tower_softmax_loss(hidden, items, items[draw.slots], target, draw, Tail(LABELS))
    assert towers.item() == pytest.approx(
        sampled_softmax_loss(hidden, table, target, draw, Tail(LABELS)).item(), rel=1e-13
    )


def test_a_boolean_matrix_is_a_multi_label_target(batch):
    hidden, table, _ = batch
    many = torch.zeros(B, L, dtype=torch.bool)
    lists = [[0, 5], [3], [], [1, 2, 29], [12], [7]]
    for row, labels in zip(many, lists, strict=True):
        row[labels] = True
    assert softmax_loss(hidden, table, many).item() == pytest.approx(
        softmax_loss(hidden, table, Ragged.from_lists(lists)).item()
    )


def test_zero_vectors_are_no_nan_as_cosines_in_half_precision():
    table = torch.randn(5, 4)
    table[0] = 0
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        hidden = torch.randn(3, 4).to(dtype).requires_grad_()
        loss = softmax_loss(hidden, table.to(dtype), torch.tensor([1, 2, 3]), score="cosine")
        loss.backward()
        assert loss.isfinite()
        assert hidden.grad is not None
        assert hidden.grad.isfinite().all()


def test_a_weight_that_is_no_number_on_an_ignored_example_does_not_matter(batch):
    hidden, table, target = batch
    ignored = target.clone()
    ignored[2] = -100
    weight = torch.ones(B)
    weight[2] = float("nan")
    assert softmax_loss(hidden, table, ignored, sample_weight=weight).item() == pytest.approx(
        softmax_loss(hidden, table, ignored).item()
    )


def test_small_integer_types_are_ids_too():
    table = torch.randn(200, 4)
    hidden = torch.randn(3, 4)
    target = torch.tensor([156, 3, 156])
    for dtype in (torch.uint8, torch.int16, torch.int32):
        assert (
            softmax_loss(hidden, table, target.to(dtype)).item()
            == softmax_loss(hidden, table, target).item()
        )
    assert Labels.from_targets(target.to(torch.uint8), num_labels=200).counts[156] == 2


NEUTRAL = {
    "unit": None,
    "logit-adjusted": LogitAdjusted(LABELS),
    "half": LogitAdjusted(LABELS, 0.5),
}
TARGETS = {
    "ids": torch.tensor([0, 3, 3, 29, 12, 7]),
    "ids, some ignored": torch.tensor([0, -100, 3, 29, -100, 7]),
    "padded": torch.tensor(
        [[0, 4, 9], [3, -100, -100], [3, 1, -100], [-100, -100, -100], [12, 29, 2], [7, 8, -100]]
    ),
    "ragged": Ragged.from_lists([[0, 4, 9], [3], [3, 1], [], [12, 29, 2], [7, 8]]),
    "all ignored": torch.full((6,), -100),
}
OPTIONS = {
    "plain": {},
    "everything": {
        "temperature": 0.3,
        "sample_weight": torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0, 3.0], dtype=f64),
        "score": "cosine",
    },
    "sum": {"reduction": "sum", "collisions": "target"},
    "none": {"reduction": "none"},
}


class Watched(Separable):
    """A margin that may be neutral or not, and knows whether ρ₁ was asked for: the general path
    does, the fast one does not.
    """

    neutral = False

    def __init__(self, inner: Separable, neutral: bool) -> None:
        self.inner = inner
        self.neutral = neutral
        self.asked_for_positives = False

    def log_positive(self, ids):
        self.asked_for_positives = True
        return self.inner.log_positive(ids)

    def log_negative(self, ids):
        return self.inner.log_negative(ids)


@pytest.mark.parametrize("margin", NEUTRAL.values(), ids=NEUTRAL)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no bias"])
def test_one_sum_per_point_gives_the_loss_and_gradients_of_one_sum_per_pair(
    batch, margin, target, options, with_bias
):
    """The fast path for margins with ρ(y, y) = 1 and the general one; and it is the fast path that
    runs.
    """
    results = []
    for neutral in (True, False):
        watched = Watched(margin or Unit(), neutral)
        hidden, table = (tensor.clone().requires_grad_() for tensor in batch[:2])
        bias = torch.linspace(-1, 1, L, dtype=f64).requires_grad_() if with_bias else None
        loss = softmax_loss(hidden, table, target, watched, bias=bias, **options)
        assert watched.asked_for_positives != neutral
        tensors = [tensor for tensor in (hidden, table, bias) if tensor is not None]
        results.append([loss.detach(), *torch.autograd.grad(loss.sum(), tensors)])
    for fast, general in zip(*results, strict=True):
        assert torch.allclose(fast, general, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    "options",
    [
        {"collisions": "none"},
        {"known_positives": torch.tensor([[1]] * B)},
        {"label_smoothing": 0.1},
    ],
)
def test_what_changes_the_sum_does_not_take_the_fast_path(batch, options):
    margin = Watched(Unit(), neutral=True)
    assert softmax_loss(*batch, margin, **options).isfinite()
    assert margin.asked_for_positives


@pytest.mark.parametrize(
    ("margin", "neutral"),
    [
        (Unit(), True),
        (LogitAdjusted(LABELS), True),
        (Equalised(LABELS), False),
        (Adaptive(LABELS), False),
    ],
    ids=["unit", "logit-adjusted", "equalised", "adaptive"],
)
def test_a_margin_is_neutral_if_no_label_weighs_against_itself(margin, neutral):
    every = torch.arange(L)
    assert margin.neutral == neutral
    assert (
        torch.allclose(
            margin.log_rho(every, every).diagonal(), torch.zeros(L, dtype=f64), atol=1e-12
        )
        == neutral
    )


def test_promising_that_nothing_is_ignored_changes_no_loss_and_is_checked(batch):
    hidden, table, target = batch
    draw = Uniform(L, 5).draw(target)
    for promised in (None, -100):
        pairs = Pairs.of(target, num_labels=L, ignore_index=promised)
        assert pairs.all_count  # promised, or seen
        assert torch.equal(pairs.label, target)
        assert not pairs.ignored.any()
    assert not Pairs.of(target.index_fill(0, torch.tensor([1]), -100)).all_count
    losses = [
        sampled_softmax_loss(hidden, table, target, draw, Relative(), ignore_index=index)
        for index in (None, -100)
    ]
    assert torch.equal(*losses)
    with pytest.raises(HeadtailError, match="from 0 to 29, but got -100"):
        softmax_loss(hidden, table, torch.tensor([0, -100, 3, 29, 12, 7]), ignore_index=None)


@pytest.mark.parametrize("value", [0.0, -0.5, math.nan])
@pytest.mark.parametrize("loss", ["softmax", "uniform:tail@7", "logistic/within-batch:tail"])
def test_a_learnable_temperature_that_is_not_above_zero_is_refused(batch, value, loss):
    temperature = torch.nn.Parameter(torch.tensor(value, dtype=f64))
    with pytest.raises(HeadtailError, match="`temperature` must be above 0"):
        scheme(loss, LABELS, temperature=temperature)
    fine = torch.nn.Parameter(torch.tensor(0.5, dtype=f64))
    module = scheme(loss, LABELS, temperature=fine)
    assert module(*batch).isfinite()
    with torch.no_grad():
        fine.fill_(value)  # as a step of an optimiser may
    with pytest.raises(HeadtailError, match=r"`temperature` must be above 0.*clamp_"):
        module(*batch)


def test_the_functions_refuse_a_learnable_temperature_below_zero(batch):
    hidden, table, target = batch
    below = torch.tensor(-1.0, requires_grad=True)
    draw = Uniform(L, 5).draw(target)
    calls = [
        lambda: softmax_loss(hidden, table, target, temperature=below),
        lambda: decoupled_loss(hidden, table, target, temperature=below),
        lambda: sampled_softmax_loss(hidden, table, target, draw, Importance(), temperature=below),
        lambda: sampled_decoupled_loss(
            hidden, table, target, draw, Importance(), temperature=below, sparse=True
        ),
        lambda: two_tower_softmax_loss(
            hidden, hidden, table[draw.ids], target, draw, Importance(), temperature=below
        ),
    ]
    for call in calls:
        with pytest.raises(HeadtailError, match="`temperature` must be above 0"):
            call()
