"""Counts in every form that people hold them in: the right prior, or one plain sentence."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from headtail import Frequency, HeadtailError, Labels, LogUniform, StreamingLabels, Uniform

INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
FLOATS = [np.float32, np.float64, np.longdouble]
TENSORS = [
    *(
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    ),
    *(torch.float32, torch.float64),
]
PRIOR = [5 / 8, 3 / 8, 0.0]


def check(labels: Labels, prior: list[float]) -> None:
    """All that is derived from counts agrees with a prior."""
    assert labels.counts.dtype in (torch.int64, torch.float64)
    assert labels.prior.tolist() == pytest.approx(prior, rel=1e-15)
    ids = torch.arange(len(prior))
    assert labels.log_prior(ids).exp().tolist() == pytest.approx(prior, rel=1e-14)
    assert labels.rarest == pytest.approx(min(prior), rel=1e-15)
    assert labels.never_seen == prior.count(0.0)
    assert Frequency(labels, 2).log_q(ids).exp().tolist() == pytest.approx(prior, rel=1e-12)


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=lambda dtype: dtype.__name__)
def test_arrays_of_every_dtype_give_the_same_prior(dtype):
    check(Labels.from_counts(np.array([5, 3, 0], dtype=dtype)), PRIOR)


@pytest.mark.parametrize("dtype", TENSORS, ids=str)
def test_tensors_of_every_dtype_give_the_same_prior_however_they_come(dtype):
    counts = torch.tensor([5, 3, 0]).to(dtype)
    check(Labels.from_counts(counts), PRIOR)
    check(Labels(counts), PRIOR)


@pytest.mark.parametrize(
    "counts",
    [
        [5, 3, 0],
        (5, 3, 0),
        [5.0, 3, 0],
        [Fraction(5), 3, 0],
        [np.uint32(5), np.uint32(3), np.uint32(0)],
        np.array([5, 3, 0], dtype=object),
        np.array([0, 3, 5], dtype=np.uint16)[::-1],
        np.array([5, 3, 0], dtype=">i4"),
    ],
    ids=[
        "list",
        "tuple",
        "mixed",
        "fractions",
        "numpy scalars",
        "objects",
        "negative stride",
        "big-endian",
    ],
)
def test_lists_and_odd_arrays_give_the_same_prior(counts):
    check(Labels.from_counts(counts), PRIOR)


@pytest.mark.parametrize(
    ("counts", "prior"),
    [
        ([2**62] * 3, [1 / 3] * 3),
        ([2**63 - 1, 2**63 - 1], [0.5, 0.5]),
        ([2**64, 2**64, 0], [0.5, 0.5, 0.0]),
        ([2**64, 1], [1.0, 2.0**-64]),
        ([10**30, 3 * 10**30], [0.25, 0.75]),
        (np.array([2**63, 2**63], dtype=np.uint64), [0.5, 0.5]),
        (np.array([2**64 - 1, 2**62], dtype=np.uint64), [0.8, 0.2]),
        (torch.tensor([2**62] * 4), [0.25] * 4),
        ([1e308, 1e307], [10 / 11, 1 / 11]),
    ],
)
def test_sums_that_no_int64_holds_are_taken_in_float64(counts, prior):
    check(Labels.from_counts(counts), prior)


def test_sums_that_an_int64_holds_stay_exact():
    counts = [2**60 + 1, 2**60 - 1, 1]
    assert Labels.from_counts(counts).total == float(2**61 + 1)
    assert Labels.from_counts(counts).counts.tolist() == counts


def test_a_list_of_floats_keeps_their_digits():
    assert Labels.from_counts([2.0**24 + 1, 0.1]).counts.tolist() == [2.0**24 + 1, 0.1]


def test_counts_of_int64_and_float64_are_never_copied():
    for counts in (torch.tensor([5, 3]), torch.tensor([5.0, 3.0], dtype=torch.float64)):
        assert Labels.from_counts(counts).counts.data_ptr() == counts.data_ptr()


def test_examples_are_added_to_counts_that_no_int64_could_hold_with_them():
    labels = Labels.from_counts([2**63 - 1, 1]).update(torch.tensor([0, 0, 1]))
    assert labels.prior.tolist() == pytest.approx([1.0, 2.0**-62])
    assert Labels.from_counts([2**62] * 2).grow([2**64]).prior.tolist() == pytest.approx(
        [1 / 6, 1 / 6, 4 / 6]
    )
    assert Labels.from_counts([5, 3]).grow(np.array([8], dtype=np.uint32)).counts.tolist() == [
        5,
        3,
        8,
    ]


def test_unsigned_counts_out_of_order_are_ranked_by_frequency():
    sampler = LogUniform(Labels.from_counts(np.array([1, 9, 5], dtype=np.uint8)), 2)
    assert torch.equal(
        sampler.log_q(torch.arange(3)).argsort(descending=True), torch.tensor([1, 2, 0])
    )


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"cat": 3, "dog": 1}, "dict"),
        ({3, 1}, "set"),
        ("31", "str"),
        (["3", "1"], "'3'"),
        ([3, None], "None"),
        ([[2**64, 1]], "shape"),
        (7, "shape"),
        ([True, False], "bool"),
        (np.array([True]), "bool"),
        (torch.tensor([1.0, 2.0], dtype=torch.float16), "float16"),
        (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), "bfloat16"),
        (torch.tensor([1 + 1j]), "complex"),
        (torch.eye(2).to_sparse()[0], "sparse"),
        ([10**400, 1], "float64"),
        ([1.7e308, 1.7e308], "float64"),
        ([3, -(2**64)], "negative"),
        (np.array([5, -3], dtype=np.int8), "label 1 has -3"),
        (iter([3, 1]), "list"),
    ],
)
def test_what_is_not_one_number_per_label_gets_a_sentence(counts, words):
    with pytest.raises(HeadtailError) as error:
        Labels.from_counts(counts)
    assert "`counts`" in str(error.value)
    assert words in str(error.value)


def test_a_list_with_a_word_names_it():
    with pytest.raises(HeadtailError, match="but label 1 has 'many'"):
        Labels.from_counts([2**64, "many"])


def test_uniform_needs_no_counts_at_all():
    assert Uniform(Labels.from_counts(np.array([5, 3], dtype=np.uint64)), 2).num_labels == 2


def test_a_stream_that_starts_from_more_examples_than_it_can_count_is_refused():
    with pytest.raises(HeadtailError, match="examples"):
        StreamingLabels.starting_from(Labels.from_counts([2**62] * 3))
