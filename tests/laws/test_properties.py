"""Properties that hold for any label counts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headtail import (
    Constant,
    Frequency,
    FromMargin,
    Importance,
    Labels,
    LogitAdjusted,
    LogUniform,
    Mixture,
    Relative,
    Tail,
    Uniform,
)
from headtail.functional import sampled_softmax_loss, softmax_loss
from headtail.implicit import implied_margin, lean_of, recognise
from headtail.samplers import every_label

counts = st.lists(st.integers(1, 10**9), min_size=2, max_size=30)
some_zero = st.lists(st.integers(0, 10**6), min_size=2, max_size=30).filter(
    lambda c: sum(x > 0 for x in c) >= 2
)


@given(some_zero, st.floats(0, 1), st.data())
@settings(deadline=None, max_examples=60)
def test_inclusion_without_replacement_sums_to_m_and_never_repeats(numbers, power, data):
    labels = Labels.from_counts(numbers)
    support = len(numbers) if power == 0 else sum(x > 0 for x in numbers)
    m = data.draw(st.integers(1, support))
    sampler = Frequency(labels, m, power, replacement=False)
    inclusion = sampler.log_q(torch.arange(len(numbers))).exp() * m
    assert float(inclusion.sum()) == pytest.approx(m, rel=1e-9)
    assert float(inclusion.max()) <= 1 + 1e-9
    ids = sampler.draw(torch.tensor([0])).ids
    assert len(ids) == len(ids.unique()) == m
    assert bool((inclusion[ids] > 0).all())


@given(counts, st.floats(0, 1), st.floats(-2, 2))
@settings(deadline=None, max_examples=60)
def test_tail_weights_imply_logit_adjustment_whatever_the_sampler(numbers, power, strength):
    labels = Labels.from_counts(numbers)
    ids = torch.arange(len(numbers))
    want = LogitAdjusted(labels, strength)
    for sampler in (
        Frequency(labels, 5, power),
        Frequency(labels, 5, power, exclude_target=True),
        LogUniform(labels, 3),
        Mixture([Uniform(labels, 2), Frequency(labels, 4, power)]),
    ):
        found = implied_margin(sampler, Tail(labels, strength))
        assert torch.allclose(found.log_rho(ids, ids), want.log_rho(ids, ids), rtol=0, atol=1e-9)


@given(counts)
@settings(deadline=None, max_examples=40)
def test_the_lean_is_odd_in_the_strength_and_zero_for_importance(numbers):
    labels = Labels.from_counts(numbers)
    one, other = (lean_of(LogitAdjusted(labels, s), labels) for s in (0.7, -0.7))
    assert one == pytest.approx(-other)
    assert one >= 0
    assert lean_of(implied_margin(Frequency(labels, 3), Importance()), labels) == pytest.approx(
        0, abs=1e-9
    )
    assert lean_of(implied_margin(Frequency(labels, 3), Relative()), labels) == pytest.approx(
        -lean_of(implied_margin(Frequency(labels, 3), Constant()), labels)
    )


@given(counts, st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=40)
def test_drawing_every_label_once_is_the_exact_loss(numbers, seed):
    labels = Labels.from_counts(numbers)
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    table = torch.randn(len(numbers), 4, dtype=torch.float64, generator=generator)
    target = torch.randint(len(numbers), (3,), generator=generator)
    margin = LogitAdjusted(labels)
    sampled = sampled_softmax_loss(
        hidden, table, target, every_label(len(numbers)), FromMargin(margin)
    )
    assert sampled.item() == pytest.approx(
        softmax_loss(hidden, table, target, margin).item(), rel=1e-11, abs=1e-12
    )


@given(counts, st.sampled_from([0.25, 0.5, 1.0, 2.0]))
@settings(deadline=None, max_examples=40)
def test_logit_adjustment_is_recognised_for_any_counts(numbers, strength):
    # a margin of next to nothing is none
    assume(len(set(numbers)) == 1 or max(numbers) > 1.001 * min(numbers))
    labels = Labels.from_counts(numbers)
    name = recognise(LogitAdjusted(labels, strength), labels).softmax
    if len(set(numbers)) == 1:
        assert name == "softmax cross-entropy", "equal counts leave nothing to adjust"
    else:
        assert name is not None
        assert name.startswith("logit-adjusted")
