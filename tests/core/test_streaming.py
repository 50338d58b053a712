"""StreamingLabels: frequencies from gaps, on data that stay and data that drift."""

from __future__ import annotations

import copy

import pytest
import torch

from headtail import (
    Frequency,
    HeadtailError,
    Importance,
    Labels,
    LogitAdjusted,
    SampledSoftmaxLoss,
    StreamingLabels,
    Tail,
    WithinBatch,
    audit,
    scheme,
)
from headtail.core.frequencies import LabelFrequencies
from headtail.core.streaming import SUMMED_EACH_TIME

TRUTH = torch.tensor([0.5, 0.3, 0.1, 0.06, 0.03, 0.01], dtype=torch.float64)


def stream(truth: torch.Tensor, steps: int, size: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return list(
        torch.multinomial(truth, steps * size, replacement=True, generator=generator).split(size)
    )


@pytest.mark.parametrize("size", [1, 16, 512])
def test_gaps_tell_the_frequencies_whatever_the_batch(size: int):
    """A label that fills half of every batch is not taken for one that comes once a batch."""
    labels = StreamingLabels(6, rate=0.002)
    for batch in stream(TRUTH, max(60, 20_000 // size), size):
        labels.observe(batch)
    assert torch.allclose(labels.log_prior(torch.arange(6)), TRUTH.log(), rtol=0, atol=0.2)
    assert float(labels.prior.sum()) == pytest.approx(1)


def test_while_little_was_seen_the_estimate_is_the_plain_mean_gap():
    labels = StreamingLabels(3, rate=0.001)
    for batch in ([0], [1], [1], [0], [2], [0]):
        labels.observe(torch.tensor(batch))
    assert labels.gap.tolist() == pytest.approx([2.0, 1.5, 5.0]), (
        "0 came at 1, 4, 6; 1 at 2, 3; 2 at 5"
    )


def test_it_follows_data_that_drift_and_forgets_labels_that_vanish():
    labels = StreamingLabels(6, rate=0.02)
    turned = TRUTH.flip(0)
    turned[5] = 0.51
    turned[0] = 0.0
    counted = torch.zeros(6)
    for batch in stream(TRUTH, 400, 32) + stream(turned, 400, 32, seed=1):
        labels.observe(batch)
        counted += torch.bincount(batch, minlength=6)
    truth = turned[1:].log()
    static = (counted / counted.sum())[1:].log()
    log_prior = labels.log_prior(torch.arange(1, 6))
    assert float((log_prior - truth).abs().max()) < 0.5 < float((static - truth).abs().max())
    assert float(labels.log_prior(torch.tensor([0])).exp()) < 0.02, "it was 0.5, and stayed away"


def test_a_label_that_never_came_is_rarer_the_longer_one_waits():
    labels = StreamingLabels(4)
    before = float(labels.log_prior(torch.tensor([3])))
    labels.observe(torch.tensor([0, 1, 2] * 50))
    assert float(labels.log_prior(torch.tensor([3]))) < before
    labels.require_positive_prior("anything")


def test_what_is_looked_up_is_a_distribution_and_within_batch_draws_follow_it():
    """Long waits of many rare labels would otherwise add up to more than what is left for them."""
    labels = StreamingLabels(500, rate=0.02)
    for batch in stream(Labels.zipf(500).prior, 50, 64):
        labels.observe(batch)
    every = torch.arange(500)
    assert float(labels.log_prior(every).exp().sum()) == pytest.approx(1)
    assert torch.allclose(labels.log_prior(every).exp(), labels.prior)
    assert audit(
        WithinBatch(labels), labels, draws=2000, generator=torch.Generator().manual_seed(0)
    ).passed


def test_of_very_many_labels_the_sum_is_refreshed_now_and_then():
    labels = StreamingLabels(SUMMED_EACH_TIME + 4)
    sums = [float(labels.observe(torch.tensor([0, 1])).sum) for _ in range(4)]
    assert sums[0] == pytest.approx(1)
    assert sums[1] == sums[2] != sums[0], "after four examples, and after eight"
    assert sums[3] != sums[2]


def test_saved_and_loaded_it_goes_on_the_same():
    batches = stream(TRUTH, 40, 8)
    labels = StreamingLabels(6)
    other = StreamingLabels(6)
    for batch in batches[:20]:
        labels.observe(batch)
    other.load_state_dict(copy.deepcopy(labels.state_dict()))
    for batch in batches[20:]:
        labels.observe(batch)
        other.observe(batch)
    assert torch.equal(labels.prior, other.prior)
    with pytest.raises(HeadtailError, match="shape"):
        StreamingLabels(5).load_state_dict(labels.state_dict())


def test_samplers_and_weights_follow_it_and_tables_stay_true_to_themselves():
    labels = StreamingLabels.starting_from(Labels.from_counts([6, 3, 1]), rate=0.1)
    batch = WithinBatch(labels)
    frequency = Frequency(labels, 4)
    before = batch.log_q(torch.tensor([2]))
    claimed = frequency.log_q(torch.arange(3))
    adjusted = LogitAdjusted(labels).log_negative(torch.tensor([2]))
    for _ in range(50):
        labels.observe(torch.tensor([2, 2, 2, 0]))
    assert float(batch.log_q(torch.tensor([2]))) > float(before) + 1
    assert float(LogitAdjusted(labels).log_negative(torch.tensor([2]))) > float(adjusted) + 1
    assert torch.equal(frequency.log_q(torch.arange(3)), claimed), "its table was laid out before"
    loss = SampledSoftmaxLoss(batch, Tail(labels))(
        torch.randn(4, 2), torch.randn(3, 2), torch.tensor([2, 2, 1, 0])
    )
    assert torch.isfinite(loss)
    assert torch.isfinite(
        scheme("within-batch:importance", labels)(
            torch.randn(2, 2), torch.randn(3, 2), torch.tensor([0, 1])
        )
    )
    assert SampledSoftmaxLoss(WithinBatch(labels), Importance()).sampler.labels is labels


def test_padding_and_ignored_targets_do_not_pass_by():
    labels = StreamingLabels(3).observe(torch.tensor([[0, 1], [2, -100]]))
    assert int(labels.clock) == 3
    assert labels.seen.tolist() == [1, 1, 1]


@pytest.mark.parametrize("more", [[5], [20], [3, 100]])
def test_new_labels_that_were_counted_get_the_share_that_counts_give(more):
    counted = Labels.from_counts([10, 6, 4])
    assert torch.allclose(
        StreamingLabels.starting_from(counted).grow(more).prior, counted.grow(more).prior
    )


def test_new_labels_grow_behind_the_old():
    labels = StreamingLabels(2, rate=0.1).observe(torch.tensor([0, 0, 1, 0]))
    grown = labels.grow([0, 0])
    assert grown.num_labels == 4
    old = torch.tensor([0, 1])
    assert torch.allclose(grown.log_prior(old).diff(), labels.log_prior(old).diff()), (
        "new labels take their share from all"
    )
    grown.observe(torch.tensor([3]))
    assert int(labels.clock) == 4, "the old ones stay as they are"
    assert int(grown.seen[3]) == 1


@pytest.mark.parametrize("rate", [0, -1, 1.5, float("nan"), "fast"])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(HeadtailError, match="`rate`"):
        StreamingLabels(3, rate)


def test_a_stream_offers_only_what_works_on_it():
    """Class methods of `Labels` build labels that stay: a stream has one way to begin from counts,
    and none that fails.
    """
    for name in ("from_counts", "from_targets", "from_batches", "zipf"):
        assert not hasattr(StreamingLabels, name)
    shared = {name for name in dir(LabelFrequencies) if not name.startswith("_")}
    labels = StreamingLabels.starting_from(Labels.from_counts([300, 60, 5]))
    for name in shared - {"require_positive_prior", "log_prior", "log_frequency", "grow", "to"}:
        value = getattr(labels, name)
        assert (value() if callable(value) else value) is not None
    assert labels.slices().sizes == {"head": 1, "torso": 1, "tail": 1}
    ids = torch.arange(3)
    assert torch.equal(labels.log_prior(ids), labels.log_frequency(ids))


def test_what_looks_like_update_of_labels_is_refused_because_a_stream_changes_in_place():
    labels = StreamingLabels(3)
    with pytest.raises(HeadtailError, match=r"labels\.observe\(target\)"):
        labels.update(torch.tensor([0]))
    assert int(labels.clock) == 0
    assert labels.observe(torch.tensor([0])) is labels
    fixed = Labels.from_counts([1, 1])
    assert fixed.update(torch.tensor([0])) is not fixed
    assert fixed.counts.tolist() == [1, 1]


def test_a_stream_and_labels_are_both_label_frequencies_and_neither_is_the_other():
    labels = Labels.from_counts([2, 1])
    stream_of_them = StreamingLabels.starting_from(labels)
    assert isinstance(stream_of_them, LabelFrequencies)
    assert not isinstance(stream_of_them, Labels)
    assert type(stream_of_them.fixed()) is Labels
    assert type(labels.grow([1])) is Labels
    assert type(stream_of_them.grow([1])) is StreamingLabels


def test_a_stream_that_starts_from_smoothed_labels_has_their_prior():
    labels = Labels.from_counts([6, 3, 0], smoothing=1)
    assert torch.allclose(
        StreamingLabels.starting_from(labels).prior, labels.prior, rtol=1e-12, atol=0
    )
