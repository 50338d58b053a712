"""audit: true claims pass, false ones do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headtail import Frequency, Labels, LogUniform, Mixture, Queue, Uniform, WithinBatch, audit
from headtail.implicit.audit import _judge

LABELS = Labels.zipf(200)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_sampler_that_claims_another_q_is_caught():
    found = audit(
        Uniform(LABELS, 8), LABELS, log_q=LABELS.prior.log(), generator=seeded(), draws=3000
    )
    assert not found.passed
    assert found.p_value < 1e-10


def test_keeping_the_low_ids_of_a_sorted_set_is_caught():
    """`unique()[:m]`: rare labels are never drawn while q claims they are."""
    data = Frequency(LABELS, 64)

    def transformers4rec() -> torch.Tensor:
        return data.draw(torch.tensor([0])).ids.unique()[:16]

    assert not audit(transformers4rec, log_q=LABELS.prior.log(), draws=2000).passed


def test_a_set_instead_of_a_multiset_is_caught():
    data = Frequency(LABELS, 64)
    as_set = lambda: torch.unique(data.draw(torch.tensor([0])).ids)  # noqa: E731
    assert not audit(as_set, log_q=LABELS.prior.log(), draws=4000).passed
    assert audit(
        lambda: data.draw(torch.tensor([0])).ids, log_q=LABELS.prior.log(), draws=4000
    ).passed


def test_any_callable_of_arrays_can_be_audited():
    rng = np.random.default_rng(0)
    assert audit(
        lambda: rng.integers(0, 50, 4), log_q=torch.full((50,), 1 / 50).log(), draws=3000
    ).passed


def test_a_wrong_log_q_beside_right_draws_is_caught():
    class Liar(Uniform):
        def pick(self, step):
            draw = super().pick(step)
            return type(draw)(draw.ids, -draw.log_q, draw.log_q_target, draw.m)

    found = audit(Liar(LABELS, 8), LABELS, draws=500)
    assert not found.passed
    assert found.log_q_error > 1


def test_drawing_what_cannot_be_drawn_is_caught_at_once():
    claimed = torch.full((4,), 1 / 3).log()
    claimed[3] = -torch.inf
    found = audit(lambda: torch.randint(4, (2,)), log_q=claimed, draws=200)
    assert found.impossible > 0
    assert not found.passed


@pytest.mark.parametrize("size", [2, 30, 100_000])
def test_true_claims_pass_at_any_number_of_labels(size):
    labels = Labels.zipf(size)
    for sampler in (Uniform(size, 8), Frequency(labels, 8, 0.5), LogUniform(labels, 8)):
        assert audit(sampler, labels, draws=2000, generator=seeded(2)).passed


def test_p_values_of_true_claims_are_spread_evenly():
    """A test that always passes would crowd them near one."""
    values = [
        audit(WithinBatch(LABELS), LABELS, draws=400, batch_size=8, generator=seeded(s)).p_value
        for s in range(40)
    ]
    assert 5 <= sum(v < 0.5 for v in values) <= 35
    assert min(values) < 0.2 < 0.8 < max(values)


@pytest.mark.parametrize("target", [None, 0, 20])
def test_true_samplers_pass_in_small_batches_whoever_looks(target):
    """In a batch of four, an example's own slot is a quarter of all: it must not be counted as a
    draw.
    """
    for sampler in (
        Mixture([Uniform(LABELS, 4), WithinBatch(LABELS)]),
        WithinBatch(LABELS, 2),
        Queue(LABELS, 9, 3),
    ):
        found = audit(sampler, LABELS, batch_size=4, draws=4000, target=target, generator=seeded(3))
        assert found.passed, (sampler, found)


def test_a_wrong_number_of_negatives_is_caught():
    class Greedy(WithinBatch):
        def expected_m(self, batch_size=None):
            return float(batch_size)  # forgets the own slot

    assert not audit(Greedy(LABELS), LABELS, batch_size=4, draws=4000, generator=seeded()).passed


@pytest.mark.parametrize("nonsense", [float("nan"), -float("inf")])
def test_a_log_q_that_is_no_number_is_caught(nonsense):
    class Broken(Uniform):
        def pick(self, step):
            draw = super().pick(step)
            return type(draw)(
                draw.ids, torch.full_like(draw.log_q, nonsense), draw.log_q_target, draw.m
            )

    assert not audit(Broken(LABELS, 8), LABELS, draws=300).passed


def test_pooling_loses_no_draw():
    """Counts that are exactly as expected have χ² = 0, whatever is pooled."""
    expected = torch.tensor([950.0, 30.0, 6.0, 4.0, 3.0, 3.0, 2.0, 1.0, 1.0], dtype=torch.float64)
    found = _judge(expected.long(), expected, 0.0)
    assert found.statistic == 0
    assert found.freedom >= 3
    shifted = expected.long() + torch.tensor([-9, 0, 0, 0, 0, 0, 0, 0, 9])
    assert _judge(shifted, expected, 0.0).statistic > 5


def test_an_audit_leaves_a_queue_in_use_as_it_was():
    queue = Queue(LABELS, 4)
    queue.draw(torch.tensor([5, 6, 7]))
    audit(Mixture([queue, Uniform(LABELS, 2)]), LABELS, draws=400, generator=seeded())
    assert queue.draw(torch.tensor([0])).ids.tolist() == [5, 6, 7]
