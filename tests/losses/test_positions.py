"""Hidden states `[B, T, d]` with ignored positions have the loss of the positions that count."""

from __future__ import annotations

import warnings

import pytest
import torch

from headtail import HeadtailError, LabelHead, Labels
from headtail.core.draw import Draw
from headtail.core.weightings import Importance
from headtail.functional import decoupled_loss, sampled_softmax_loss, softmax_loss
from headtail.losses import SampledLoss
from headtail.samplers import Uniform
from headtail.schemes import scheme
from headtail.schemes.table import SAMPLERS

f64 = torch.float64
LABELS = Labels.from_counts([40, 20, 12, 9, 7, 5, 4, 3, 2, 1])
B, T, D = 4, 6, 5
EXACT = ["softmax", "logit-adjusted", "contrastive", "hinge/equalised"]
SCHEMES = [
    *(f"{name}:importance@6" for name in SAMPLERS if name not in ("mixture", "hard", "resampled")),
    "mixture(uniform,within-batch):importance@6",
    "hard(uniform):importance@6",
    "resampled(uniform):importance@6",
    "within-batch:relative",
    "within-batch:infonce@7",
    "within-batch:tail@7",
    "uniform:constant@5",
    "hinge/within-batch:constant@7",
    "contrastive/uniform:importance@5",
]


def batch():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(B, T, D, dtype=f64, generator=generator)
    target = torch.multinomial(LABELS.counts.double(), B * T, True, generator=generator)
    ignored = torch.rand(B * T, generator=generator) < 0.4
    return hidden, target.masked_fill(ignored, -100).reshape(B, T)


def head_for(name, sparse=False):
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = scheme(name, LABELS)
    return LabelHead(LABELS, D, loss, bias=loss.settings.score == "dot", sparse=sparse, dtype=f64)


def of_counted(draw: Draw, counted: torch.Tensor) -> Draw:
    """The same draw for the positions that count alone."""
    per_example = draw.ids.dim() == 2
    rows = counted if per_example else slice(None)
    keep = draw.log_keep
    new_place = torch.full((B * T,), -1).scatter(0, counted, torch.arange(len(counted)))
    return Draw(
        draw.ids[rows],
        draw.log_q[rows],
        None if draw.log_q_target is None else draw.log_q_target[counted],
        draw.m,
        keep[counted] if isinstance(keep, torch.Tensor) else keep,
        None if draw.slots is None else new_place[draw.slots],
        draw.marginal,
    )


def gradients(head, hidden, target, **options):
    hidden = hidden.clone().requires_grad_()
    head.zero_grad()
    loss = head(hidden, target, **options)
    loss.backward()
    parameters = [p.grad.to_dense() for p in head.parameters()]
    return loss.detach(), hidden.grad, parameters


@pytest.mark.parametrize("name", [*EXACT, *SCHEMES])
def test_the_loss_and_its_gradients_are_those_of_the_positions_that_count(name):
    hidden, target = batch()
    head = head_for(name)
    counted = (target.flatten() >= 0).nonzero().squeeze(1)
    flat_hidden, flat_target = hidden.flatten(0, 1)[counted], target.flatten()[counted]
    drawn = alone = {}
    if isinstance(head.loss, SampledLoss):
        draw = head.loss.draw(hidden.flatten(0, 1), head.weight, target.flatten(), bias=head.bias)
        drawn, alone = {"draw": draw}, {"draw": of_counted(draw, counted)}
        expected = head.loss.sampler.expected_m(len(counted))
        if head.loss.sampler.claims.source != "past":
            assert draw.m == pytest.approx(expected), "what counts as the batch is what counts"
    loss, grad, tables = gradients(head, hidden, target, **drawn)
    loss_alone, grad_alone, tables_alone = gradients(head, flat_hidden, flat_target, **alone)
    torch.testing.assert_close(loss, loss_alone, rtol=1e-12, atol=1e-12)
    wanted = torch.zeros(B * T, D, dtype=f64)
    wanted[counted] = grad_alone
    torch.testing.assert_close(grad, wanted.reshape(B, T, D), rtol=1e-12, atol=1e-12)
    for table, table_alone in zip(tables, tables_alone, strict=True):
        torch.testing.assert_close(table, table_alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("name", ["within-batch:importance@7", "uniform:importance@6"])
def test_equal_seeds_draw_the_same_negatives_with_ignored_positions_and_without(name, sparse):
    hidden, target = batch()
    head = head_for(name, sparse)
    counted = target >= 0
    seeded = [torch.Generator().manual_seed(3) for _ in range(2)]
    loss, _, tables = gradients(head, hidden, target, generator=seeded[0])
    alone, _, tables_alone = gradients(head, hidden[counted], target[counted], generator=seeded[1])
    torch.testing.assert_close(loss, alone, rtol=1e-12, atol=1e-12)
    for table, table_alone in zip(tables, tables_alone, strict=True):
        torch.testing.assert_close(table, table_alone, rtol=1e-12, atol=1e-12)


def test_without_a_reduction_there_is_a_value_per_position():
    hidden, target = batch()
    head = head_for("softmax")
    losses = head(hidden, target, reduction="none")
    assert losses.shape == (B, T)
    assert torch.equal(losses == 0, target < 0)
    logits = (hidden @ head.weight.T + head.bias.T).flatten(0, 1)
    wanted = torch.nn.functional.cross_entropy(logits, target.flatten(), reduction="none")
    torch.testing.assert_close(losses.flatten(), wanted)


def test_positions_have_weights_and_known_positives_of_their_own():
    hidden, target = batch()
    table = torch.randn(10, D, dtype=f64)
    weight = torch.rand(B, T, dtype=f64)
    known = torch.stack([target, (target + 1).clamp(max=9)], 2)
    options = {"sample_weight": weight, "known_positives": known}
    flat = {name: value.flatten(0, 1) for name, value in options.items()}
    loss = decoupled_loss(hidden, table, target, **options)
    alone = decoupled_loss(hidden.flatten(0, 1), table, target.flatten(), **flat)
    torch.testing.assert_close(loss, alone)


def test_functions_take_positions_too():
    hidden, target = batch()
    table = torch.randn(10, D, dtype=f64)
    flat = hidden.flatten(0, 1), table, target.flatten()
    torch.testing.assert_close(softmax_loss(hidden, table, target), softmax_loss(*flat))
    draw = Uniform(10, 4).draw(target.flatten())
    torch.testing.assert_close(
        sampled_softmax_loss(hidden, table, target, draw, Importance()),
        sampled_softmax_loss(*flat, draw, Importance()),
    )


@pytest.mark.parametrize(
    ("wrong", "got"),
    [
        (torch.zeros(B, T + 1).long(), r"\[4, 7\]"),
        (torch.zeros(B * T).long(), r"\[24\]"),
    ],
)
def test_targets_of_another_shape_are_refused(wrong, got):
    hidden, _ = batch()
    with pytest.raises(
        HeadtailError, match=rf"`input` has 4 × 6 positions, so `target` must have.*got {got}"
    ):
        head_for("softmax")(hidden, wrong)
