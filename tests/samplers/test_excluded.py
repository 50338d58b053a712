"""Draws that exclude the positive, where the positive has nearly all of the mass."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headtail import Frequency, Labels, LogUniform, Uniform
from headtail.samplers.fixed.inverse import InverseSampler
from tests.laws.worlds import scripted

EXTREME = {
    "at the start": [10**12, 3, 2, 1],
    "at the end": [3, 2, 1, 10**12],
    "in the middle": [3, 10**12, 2, 1],
    "between labels without mass": [3, 0, 10**12, 0, 2, 1],
    "behind labels without mass": [0, 0, 10**12, 3, 0, 1, 0],
    "before labels without mass": [3, 0, 1, 10**12, 0, 0],
    "beyond float64": [1, 0, 10**18, 0, 2],
    "beyond float64, first": [10**18, 5, 1],
    "two labels": [10**18, 1],
    "just above half": [51, 20, 29],
    "none above half": [40, 20, 0, 29],
}
each_extreme = pytest.mark.parametrize("counts", EXTREME.values(), ids=EXTREME)
LAST = 1 - 2.0**-53
"""The largest number that `torch.rand` returns in float64."""
SHARES = [0.0, 2.0**-53, 1e-9, 1 / 3, 0.5, 1 - 1e-9, 1 - 2.0**-52, LAST]


def line(counts: list[int], positive: int) -> list[tuple[int, Fraction, Fraction]]:
    """Label, start and end of each interval without the positive; one with over half lies last."""
    order = sorted(range(len(counts)), key=lambda label: (2 * counts[label] > sum(counts), label))
    rest = sum(counts) - counts[positive]
    intervals = []
    start = Fraction(0)
    for label in order:
        if label != positive and counts[label]:
            intervals.append((label, start, start + Fraction(counts[label], rest)))
            start = intervals[-1][2]
    return intervals


def drawn(sampler: InverseSampler, positive: int, shares: list[float]) -> list[int]:
    with scripted(shares):
        return sampler.draw(torch.tensor([positive])).ids[0].tolist()


@each_extreme
def test_every_other_label_has_exactly_its_share_of_the_line(counts):
    for positive in range(len(counts)):
        for label, start, end in line(counts, positive):
            # Just inside both ends, as exactly as float64 points at them.
            parts = [Fraction(part, 10**6) for part in (1, 500_000, 999_999)]
            inside = [float(start + (end - start) * part) for part in parts]
            sampler = Frequency(Labels.from_counts(counts), len(inside), exclude_target=True)
            assert drawn(sampler, positive, inside) == [label] * len(inside)


@each_extreme
@pytest.mark.parametrize("power", [1.0, 0.75, 0.0])
def test_no_point_of_the_line_hits_the_positive_or_a_label_without_mass(counts, power):
    labels = Labels.from_counts(counts)
    kinds = (
        Frequency(labels, len(SHARES), power, exclude_target=True),
        LogUniform(labels, len(SHARES), exclude_target=True),
        Uniform(labels, len(SHARES), exclude_target=True),
    )
    for sampler in kinds:
        for positive in range(len(counts)):
            ids = drawn(sampler, positive, SHARES)
            assert positive not in ids, sampler
            if isinstance(sampler, Frequency) and power:
                assert all(counts[label] for label in ids), sampler


@each_extreme
def test_the_claimed_q_of_the_others_is_exact_however_little_is_left_to_them(counts):
    labels = Labels.from_counts(counts)
    every = torch.arange(len(counts))
    sampler = Frequency(labels, 2, exclude_target=True)
    for positive in range(len(counts)):
        log_keep = sampler.draw(torch.tensor([positive])).log_keep
        claimed = (sampler.log_q(every) - log_keep).exp()
        for label, start, end in line(counts, positive):
            assert float(claimed[label]) == pytest.approx(float(end - start), rel=1e-14)


@given(st.lists(st.integers(0, 10**18), min_size=2, max_size=12), st.floats(0.05, 1), st.data())
@settings(deadline=None, max_examples=150)
def test_for_any_counts_only_other_labels_with_mass_are_drawn(counts, power, data):
    mixed = [count if data.draw(st.booleans()) else count % 10 for count in counts]
    if sum(count > 0 for count in mixed) < 2 or sum(mixed) >= 2**62:
        return
    points = data.draw(st.lists(st.floats(0, LAST), min_size=1, max_size=8))
    sampler = Frequency(Labels.from_counts(mixed), len(points), power, exclude_target=True)
    for positive in range(len(mixed)):
        ids = drawn(sampler, positive, points)
        assert positive not in ids
        assert all(mixed[label] for label in ids)


@pytest.mark.parametrize("number", [2, 3, 1000, 10**7])
def test_ranks_next_to_the_positive_are_hit_at_the_ends_of_its_interval(number):
    sampler = LogUniform(number, 4, exclude_target=True)
    for positive in {0, 1, number // 2, number - 2, number - 1}:
        mass = math.log1p(1 / (positive + 1))
        where = math.log1p(positive) / (math.log1p(number) - mass)
        near = [min(max(0.0, where * (1 + off)), LAST) for off in (-1e-15, 0.0, 1e-15, 1e-12)]
        ids = drawn(sampler, positive, near)
        assert positive not in ids
        assert all(abs(label - positive) <= 1 for label in ids)
