"""Samplers, beyond the laws: seeds, extremes, state, and the χ² of real draws."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

from headtail import (
    Frequency,
    Given,
    HeadtailError,
    Labels,
    LogUniform,
    Mixture,
    PartialFC,
    Queue,
    Uniform,
    WithinBatch,
    audit,
)

LABELS = Labels.zipf(40)
SAMPLERS = {
    "uniform": lambda: Uniform(LABELS, 8),
    "uniform, excluded": lambda: Uniform(LABELS, 8, exclude_target=True),
    "uniform, without replacement": lambda: Uniform(LABELS, 8, replacement=False),
    "frequency": lambda: Frequency(LABELS, 8),
    "frequency 0.5, excluded": lambda: Frequency(LABELS, 8, 0.5, exclude_target=True),
    "frequency 0.75, without replacement": lambda: Frequency(LABELS, 8, 0.75, replacement=False),
    "frequency 0": lambda: Frequency(LABELS, 8, 0.0),
    "log-uniform": lambda: LogUniform(LABELS, 8),
    "log-uniform, excluded": lambda: LogUniform(LABELS, 8, exclude_target=True),
    "within-batch": lambda: WithinBatch(LABELS),
    "within-batch, some": lambda: WithinBatch(LABELS, 5),
    "partial-fc": lambda: PartialFC(LABELS, 8),
    "queue": lambda: Queue(LABELS, 30),
    "queue, some": lambda: Queue(LABELS, 30, 5),
    "mixture": lambda: Mixture(
        [Uniform(LABELS, 4), WithinBatch(LABELS, 6), Frequency(LABELS, 3, 0.5)]
    ),
}
each_sampler = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


@each_sampler
def test_real_draws_follow_the_claimed_q(make):
    generator = torch.Generator().manual_seed(1)
    report = audit(make(), LABELS, draws=4_000, batch_size=16, generator=generator)
    assert report.passed, report


@each_sampler
def test_equal_seeds_give_equal_draws_and_other_seeds_others(make):
    target = torch.arange(16)

    def ids(seed: int) -> list:
        sampler = make()
        sampler.refresh(torch.arange(30) % 40)
        return sampler.draw(target, generator=torch.Generator().manual_seed(seed)).ids.tolist()

    assert ids(3) == ids(3)
    if not isinstance(make(), WithinBatch | Queue) or make().num_negatives:
        assert any(ids(3) != ids(seed) for seed in range(4, 9))


@each_sampler
def test_q_sums_to_one(make):
    assert float(make().log_q(torch.arange(40), batch_size=16).exp().sum()) == pytest.approx(
        1, abs=1e-12
    )


@each_sampler
def test_nothing_in_a_draw_carries_a_gradient(make):
    sampler = make()
    hidden = torch.randn(3, 4, requires_grad=True)
    draw = sampler.draw(
        torch.tensor([1, 2, 3]), input=hidden, weight=torch.randn(40, 4, requires_grad=True)
    )
    assert not draw.log_q.requires_grad
    assert not list(sampler.parameters())


@each_sampler
def test_tables_keep_their_digits_when_the_model_is_halved(make):
    sampler = make()
    before = sampler.log_q(torch.arange(40), batch_size=16)
    assert torch.equal(sampler.half().log_q(torch.arange(40), batch_size=16), before)
    assert all(not b.is_floating_point() or b.dtype == torch.float64 for b in sampler.buffers())


@each_sampler
def test_growing_the_labels_keeps_a_true_q(make):
    grown = LABELS.grow([7, 3])
    sampler = make().for_labels(grown)
    assert sampler.num_labels == 42
    assert float(sampler.log_q(torch.arange(42), batch_size=16).exp().sum()) == pytest.approx(
        1, abs=1e-12
    )


@pytest.mark.parametrize(
    "make",
    [SAMPLERS[k] for k in SAMPLERS if "excluded" in k],
    ids=[k for k in SAMPLERS if "excluded" in k],
)
def test_an_excluded_positive_is_never_drawn(make):
    target = torch.arange(40).repeat(50)
    draw = make().draw(target)
    assert draw.ids.shape == (2000, 8)
    assert not (draw.ids == target[:, None]).any()


def test_the_intervals_of_inverse_samplers_meet_without_gap_or_overlap():
    """Drawing by pointing is exact if every label's interval starts where the last one ended, and
    maps back to it.
    """
    unsorted = Labels.from_counts([3, 0, 9, 1, 5])
    for sampler in (Uniform(5, 2), Frequency(unsorted, 2, 0.7), LogUniform(unsorted, 2)):
        ids = torch.arange(5)
        start = sampler.below(ids)
        mass = sampler.mass(ids)
        seen = mass > 0
        order = start[seen].argsort()
        starts = start[seen][order]
        widths = mass[seen][order]
        assert torch.allclose(starts[1:], (starts + widths)[:-1], rtol=0, atol=1e-15)
        assert float(starts[0]) == 0
        assert float((starts + widths)[-1]) == pytest.approx(sampler.total, rel=1e-15)
        # Where an interval starts belongs to it; the logarithm and its inverse are not exact enough
        # to ask that of ranks.
        for share in (
            (0.001, 0.5, 0.999) if isinstance(sampler, LogUniform) else (0.0, 0.001, 0.5, 0.999)
        ):
            assert torch.equal(sampler.label_at((start + share * mass)[seen]), ids[seen])


def test_without_replacement_all_labels_are_drawn_when_m_is_l():
    for sampler in (Uniform(40, 40, replacement=False), Frequency(LABELS, 40, replacement=False)):
        draw = sampler.draw(torch.tensor([0]))
        assert sorted(draw.ids.tolist()) == list(range(40))
        assert torch.allclose(draw.log_q.exp() * 40, torch.ones(40, dtype=torch.float64))


def test_inclusion_probabilities_are_capped_at_one_and_sum_to_m():
    labels = Labels.from_counts([1000, 500, 10, 10, 10, 1])
    sampler = Frequency(labels, 4, replacement=False)
    inclusion = sampler.log_q(torch.arange(6)).exp() * 4
    assert float(inclusion.sum()) == pytest.approx(4, rel=1e-12)
    assert inclusion[:2].tolist() == [1.0, 1.0]
    assert float(inclusion.max()) <= 1
    rest = inclusion[2:] / torch.tensor([10, 10, 10, 1])
    assert torch.allclose(rest, rest[0].expand(4)), "below the cap they stay proportional"
    assert sampler.certain.tolist() == [0, 1]


def test_m_may_exceed_l_with_replacement():
    assert Uniform(2, 50).draw(torch.tensor([0])).ids.shape == (50,)
    assert Frequency(Labels.from_counts([1, 1]), 50).draw(torch.tensor([0])).ids.shape == (50,)
    assert LogUniform(2, 50).draw(torch.tensor([0])).ids.shape == (50,)


def test_one_label_can_only_be_drawn_itself():
    single = Labels.from_counts([5])
    for sampler in (
        Uniform(1, 3),
        Frequency(single, 3),
        LogUniform(single, 3),
        WithinBatch(single),
        Uniform(1, 1, replacement=False),
    ):
        assert sampler.draw(torch.tensor([0, 0])).ids.unique().tolist() == [0]


def test_labels_never_seen_are_never_drawn_by_frequency():
    sampler = Frequency(Labels.from_counts([0, 5, 0, 5, 0]), 2000)
    assert sampler.draw(torch.tensor([1])).ids.unique().tolist() == [1, 3]
    assert Frequency(Labels.from_counts([0, 1]), 500, power=0.0).draw(
        torch.tensor([1])
    ).ids.unique().tolist() == [0, 1]


def test_q_is_not_clipped_in_the_tail():
    """A library in use clips q at 1e-6: wrong by nats."""
    labels = Labels.from_counts([10**12 - 1, 1])
    for sampler in (Frequency(labels, 4), WithinBatch(labels), Queue(labels, 4)):
        assert sampler.log_q(torch.tensor(1)).item() == pytest.approx(
            -27.631021115928547, rel=1e-14
        )


def test_the_upper_half_of_17_million_labels_is_drawn():
    """`torch.multinomial` refuses more than 2^24 categories, and near that size never draws the
    upper half.
    """
    size = 2**24 + 9
    draw = Frequency(Labels(torch.ones(size, dtype=torch.int64)), 1000).draw(
        torch.tensor([size - 1])
    )
    assert 400 < int((draw.ids > size // 2).sum()) < 600
    assert Uniform(size, 1000).draw(torch.tensor([size - 1])).ids.max() > size * 0.99


def test_a_batch_s_labels_are_kept_as_a_multiset():
    """`unique()[:m]` of sorted ids never draws rare labels while q claims it (a real bug)."""
    target = torch.tensor([3, 3, 3, 39, 0])
    assert WithinBatch(LABELS).draw(target).ids.tolist() == [3, 3, 3, 39, 0]
    last = [int(WithinBatch(LABELS, 1).draw(target).ids) for _ in range(300)]
    assert last.count(3) > 100
    assert 39 in last


def test_within_batch_counts_its_own_slot_out_of_m():
    target = torch.arange(8)
    assert WithinBatch(LABELS).draw(target).m == 7
    assert WithinBatch(LABELS, 4).draw(target).m == 4 * (1 - 1 / 8)
    assert WithinBatch(LABELS, 100).draw(target).m == 7
    assert WithinBatch(LABELS).draw(target[:1]).m == 0


def test_ignored_targets_are_no_part_of_the_batch():
    draw = WithinBatch(LABELS).draw(torch.tensor([4, -100, 7]))
    assert draw.ids.tolist() == [4, 7]
    assert draw.m == 1
    queue = Queue(LABELS, 4)
    queue.draw(torch.tensor([-100, 9]))
    assert queue.draw(torch.tensor([1])).ids.tolist() == [9]


def test_a_queue_stays_where_it_is_and_what_was_drawn_stays_as_it_was():
    queue = Queue(LABELS, 4)
    where = queue.past.data_ptr()
    queue.draw(torch.tensor([1, 2, 3, 4]))
    drawn = queue.draw(torch.tensor([5, 6, 7, 8])).ids
    queue.draw(torch.tensor([9, 9, 9, 9]))
    assert drawn.tolist() == [1, 2, 3, 4]
    assert queue.past.data_ptr() == where, (
        "memory that is freed may be overwritten while another stream reads it"
    )


def test_whole_multi_label_points_break_within_batch_s_q_and_it_says_so():
    with pytest.warns(UserWarning, match="multi-label"):
        WithinBatch(LABELS).draw(torch.tensor([[1, 2], [3, -100]]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        WithinBatch(LABELS).draw(torch.tensor([[1], [3]]))  # a single label per point is fine


def test_a_label_that_the_counts_never_saw_is_refused_in_a_batch():
    with pytest.raises(HeadtailError, match="label 1, which has no training example"):
        WithinBatch(Labels.from_counts([5, 0])).draw(torch.tensor([0, 1]))


def test_the_queue_s_state_is_saved_and_restored():
    queue = Queue(LABELS, 5)
    for batch in torch.arange(14).split(2):
        queue.draw(batch)
    other = Queue(LABELS, 5)
    other.load_state_dict(copy.deepcopy(queue.state_dict()))
    target = torch.tensor([1])
    assert (
        sorted(other.draw(target).ids.tolist())
        == sorted(queue.draw(target).ids.tolist())
        == [9, 10, 11, 12, 13]
    )


def test_a_mixture_s_q_is_the_weighted_sum_of_its_parts():
    """q of each part alone would be wrong."""
    mixture = Mixture([Uniform(LABELS, 6), Frequency(LABELS, 2)])
    expected = 0.75 / 40 + 0.25 * LABELS.prior
    assert torch.allclose(mixture.log_q(torch.arange(40)).exp(), expected, rtol=1e-13)
    nested = Mixture([mixture, Uniform(LABELS, 8)])
    assert len(nested.samplers) == 3
    assert torch.allclose(
        nested.log_q(torch.arange(40)).exp(), 14 / 16 / 40 + 2 / 16 * LABELS.prior, rtol=1e-13
    )


def test_a_mixture_with_a_part_of_rows_repeats_the_shared_part():
    rows = Given(
        40, torch.tensor([[1, 2], [3, 4]]), log_q=lambda ids: torch.full(ids.shape, 1 / 40).log()
    )
    draw = Mixture([rows, Uniform(LABELS, 3)]).draw(torch.tensor([0, 5]))
    assert draw.ids.shape == (2, 5)
    assert torch.equal(draw.ids[0, 2:], draw.ids[1, 2:])
