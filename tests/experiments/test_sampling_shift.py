"""What sampling does to the loss and to labels, by slice, against sums over all draws."""

from __future__ import annotations

import math

import pytest
import torch
from sampling_shift import Examples, sampling_shifts

from headtail import Labels, scheme
from headtail.core.slices import NAMES, Slices

LABELS = Labels.from_counts([60, 30, 20, 10, 5, 3])
SLICES = Slices.by_mass(LABELS.counts)


@pytest.fixture
def examples():
    generator = torch.Generator().manual_seed(3)
    target = torch.multinomial(LABELS.prior.float(), 400, replacement=True, generator=generator)
    hidden = torch.randn(400, 4, generator=generator)
    table = torch.randn(6, 4, generator=generator)
    return Examples(hidden, target, table, torch.zeros(6), 100)


def found(name, examples, repeats=300):
    torch.manual_seed(0)
    target = "logit-adjusted" if ":tail" in name else "softmax"
    losses = {"": scheme(name, LABELS)}
    [shift] = sampling_shifts(
        scheme(target, LABELS), losses, examples, SLICES, repeats=repeats
    ).values()
    return shift


@pytest.mark.parametrize("weighting", ["importance", "tail"])
def test_one_uniform_negative_has_the_gap_and_the_push_of_the_sum_over_all_draws(
    examples, weighting
):
    shift = found(f"uniform:{weighting}@1", examples)
    scores = (examples.hidden @ examples.weight.T).double()
    positive = examples.target[:, None]
    log_rho = torch.zeros(6, dtype=torch.float64)
    if weighting == "tail":
        log_rho = LABELS.prior.log()
    terms = scores + log_rho
    relative = (terms - terms.gather(1, positive)).exp().scatter(1, positive, 0.0)
    exact = relative.sum(1).log1p()
    each = (6 * relative).log1p()  # the loss with only this negative, w = L
    gap = exact - each.mean(1)
    share = relative / (1 + relative.sum(1, keepdim=True)) - each.neg().exp().neg().add(1) / 6
    # the positive is pushed up by as much as all negatives are pushed down
    share = share.scatter(1, positive, -share.sum(1, keepdim=True))
    of_label = SLICES.of_label.long()
    for number, name in enumerate(NAMES):
        inside = of_label[examples.target] == number
        assert shift.loss_gap[name] == pytest.approx(float(gap[inside].mean()), abs=0.05)
        push = share[:, of_label == number].sum() / inside.sum()
        assert shift.push[name] == pytest.approx(float(push), abs=0.05)


def test_more_negatives_leave_a_smaller_gap(examples):
    gaps = [found(f"uniform:importance@{m}", examples, 20).loss_gap for m in (1, 4, 64)]
    for name in NAMES:
        assert gaps[0][name] > gaps[1][name] > gaps[2][name] > -0.01


def test_a_slice_without_examples_has_no_gap(examples):
    none = Slices.by_count(torch.full((6,), 50))
    losses = {"": scheme("uniform:importance@2", LABELS)}
    [shift] = sampling_shifts(scheme("softmax", LABELS), losses, examples, none).values()
    assert math.isnan(shift.loss_gap["head"])
    assert shift.loss_gap["torso"] > 0
