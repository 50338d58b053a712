"""What is measured, what is expected, and what follows from both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headtail.core.labels import Labels
from headtail.machine import advise, step_cost
from headtail.machine.advise import (
    NEGATIVES,
    Costs,
    Plan,
    choose,
    costs_of,
    numbers,
    uses_all_labels,
)
from headtail.machine.expect import candidates_for, expected_of_scheme
from headtail.machine.fitted import LAW
from headtail.machine.measured import Timing
from headtail.machine.shape import Shape, memory_of
from headtail.machine.step_cost import StepCost
from headtail.machine.target import Target

STUDIED = json.loads((Path(__file__).parent / "studied_counts.json").read_text())
"""Of the studies' training data: pairs of a count and how many labels have it."""
GIB = 2**30


def studied(name: str) -> Labels:
    """The label counts of a study, most frequent first."""
    counts, labels = torch.tensor(STUDIED[name]).T
    return Labels.from_counts(counts.repeat_interleave(labels).flip(0))


def plan_for(labels: Labels, batch: int = 1024, **changes) -> Plan:
    shape = Shape(labels.num_labels, 512, batch, 1)
    plan = Plan(shape, int(labels.total), 20, 60.0, "cpu", 64 * GIB)
    return replace(plan, **changes)


def planted(plan: Plan, exact: float, sampled: float) -> Costs:
    """Steps of so many seconds."""

    def cost(method, m: int, seconds: float) -> StepCost:
        shape = replace(plan.shape, negatives=m)
        memory = memory_of(method, shape)
        known = seconds if plan.here else None
        return StepCost(method, shape, known, shape.labels, memory, memory <= plan.memory)

    few = numbers(NEGATIVES, plan.shape.labels, plan.shape.batch)
    return Costs(cost("exact", 1, exact), {m: cost("sampled", m, sampled * (1 + m)) for m in few})


def advised(plan: Plan, costs: Costs, tau: float = 0.0):
    shape = plan.shape
    return choose(plan, costs, candidates_for(Target(tau), shape.labels, shape.batch, costs))


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_on_the_counts_of_the_studies_the_advice_is_what_they_found(tau):
    """On Delicious all labels; on the others the whole batch, and never uniform negatives, the
    worst of ten schemes on the tail. Seconds are those of a CPU.
    """
    delicious = plan_for(studied("delicious"), 256)
    assert advised(delicious, planted(delicious, 0.011, 1e-5), tau).verdict == "all labels"
    for name in ("diginetica", "nowplaying"):
        plan = plan_for(studied(name))
        found = advised(plan, planted(plan, 3.2, 4e-5), tau)
        assert found.verdict == "sampled"
        assert (found.best.sampler, found.best.m) == ("within-batch", 1024)
        assert found.candidates[-1].sampler == "uniform"


def test_less_time_means_fewer_negatives_and_never_a_scheme_that_takes_longer():
    plan = plan_for(studied("diginetica"))
    costs = planted(plan, 3.2, 4e-5)
    for m in (1024, 256, 64):
        minutes = 1.01 * plan.minutes_of(costs.sampled[m])
        found = advised(replace(plan, minutes=minutes), costs)
        assert (found.verdict, found.best.m) == ("sampled", m)
    found = advised(replace(plan, minutes=0.01), costs)
    assert (found.verdict, found.best.m) == ("too slow", 64)


def test_all_labels_are_used_as_soon_as_time_and_memory_allow():
    plan = plan_for(studied("diginetica"))
    costs = planted(plan, 3.2, 4e-5)
    minutes = plan.minutes_of(costs.all_labels)
    assert minutes == pytest.approx(20 * 703 * 3.2 / 60, rel=0.01)
    assert advised(replace(plan, minutes=1.01 * minutes), costs).verdict == "all labels"
    assert advised(replace(plan, minutes=0.99 * minutes), costs).verdict == "sampled"
    little = replace(plan, minutes=1e9, memory=memory_of("exact", plan.shape) - 1)
    assert advised(little, planted(little, 3.2, 4e-5)).verdict == "sampled"
    nothing = replace(plan, memory=1000)
    assert advised(nothing, planted(nothing, 3.2, 4e-5)).verdict == "nothing fits"


def test_no_sampled_loss_is_recommended_that_is_slower_than_all_labels():
    plan = plan_for(studied("delicious"), 256, minutes=0.001)
    assert advised(plan, planted(plan, 1e-4, 1e-5)).verdict == "all labels"
    assert advised(plan, planted(plan, 1e-2, 1e-5)).verdict == "too slow"


@pytest.mark.parametrize(("labels_per_point", "points"), [(1.0, 256), (9.4, 27), (1000.0, 1)])
def test_a_loss_over_all_labels_takes_points_whole(monkeypatch, labels_per_point, points):
    monkeypatch.setattr(
        step_cost, "time_step", lambda method, shape, *_: Timing(method, shape, 0.1, None)
    )
    plan = Plan(Shape(5000, 16, 256, 1), 10_000, 2, 60.0, "cpu", GIB)
    costs = costs_of(replace(plan, labels_per_point=labels_per_point), [16])
    assert costs.all_labels.shape.batch == points
    assert costs.sampled[16].shape.batch == 256


def test_the_whole_batch_comes_before_more_negatives_from_elsewhere():
    """On data from elsewhere it ended closer to the target than the law's first choice."""
    plan = plan_for(studied("diginetica"), 256)
    found = advised(plan, planted(plan, 3.2, 4e-5))
    more = next(one for one in found.candidates if one.scheme == "frequency(0.5):importance@1024")
    assert more.gap.largest.high < found.candidates[0].gap.largest.high
    assert found.best.scheme == "within-batch:importance@256"


def test_where_nothing_can_be_measured_that_is_the_verdict():
    plan = plan_for(studied("nowplaying"), here=False)
    costs = planted(plan, 3.2, 4e-5)
    assert not uses_all_labels(plan, costs)
    found = advised(plan, costs)
    assert (found.verdict, found.best.m) == ("not measured", 1024)


def test_numbers_of_negatives_are_below_the_number_of_labels_and_some_fit_into_the_batch():
    assert numbers((64, 256, 1024), 43_097, 1024) == [64, 256, 1024]
    assert numbers((512,), 43_097, 128) == [128, 512]
    assert numbers((512,), 100, 128) == [50]


# Costs


def test_a_loss_over_many_labels_is_measured_over_fewer_and_scaled(monkeypatch):
    measured = []

    def time_step(method, shape, device, effort):
        measured.append((method, shape.labels))
        return Timing(method, shape, 0.1, None)

    monkeypatch.setattr(step_cost, "time_step", time_step)
    monkeypatch.setattr(step_cost, "MEASURED_LABELS", {"cpu": 500})
    shape = Shape(2000, 8, 4, 3)
    exact = step_cost.step_cost("exact", shape, "cpu", GIB)
    sampled = step_cost.step_cost("sampled", shape, "cpu", GIB)
    assert measured == [("exact", 500), ("sampled", 2000)]
    assert exact.seconds == pytest.approx(0.4)
    assert sampled.seconds == pytest.approx(0.1)


def test_what_does_not_fit_or_is_not_here_is_not_measured(monkeypatch):
    monkeypatch.setattr(step_cost, "time_step", None)
    shape = Shape(2000, 8, 4, 3)
    needed = memory_of("exact", shape)
    assert not step_cost.step_cost("exact", shape, "cpu", needed - 1).fits
    assert step_cost.step_cost("exact", shape, "cuda", needed, here=False).seconds is None


def test_the_chunked_loss_is_used_where_only_it_fits(monkeypatch):
    monkeypatch.setattr(
        step_cost, "time_step", lambda method, shape, *_: Timing(method, shape, 0.1, None)
    )
    monkeypatch.setattr(advise, "possible", lambda: ("exact", "chunked", "sampled"))
    shape = Shape(5000, 16, 4096, 1)
    plan = Plan(shape, 10_000, 2, 60.0, "cpu", memory_of("chunked", shape))
    assert memory_of("chunked", shape) < memory_of("exact", shape)
    assert costs_of(plan, [16]).all_labels.method == "chunked"
    assert costs_of(replace(plan, memory=GIB), [16]).all_labels.method == "exact"
    monkeypatch.setattr(advise, "possible", lambda: ("exact", "sampled"))
    assert not costs_of(plan, [16]).all_labels.fits


# Gaps


def test_gaps_shrink_with_more_negatives_and_uniform_ones_are_the_largest():
    for weighting in ("importance", "tail"):
        few, many = (expected_of_scheme(f"within-batch:{weighting}", 43_097, m) for m in (64, 1024))
        uniform = expected_of_scheme(f"uniform:{weighting}", 43_097, 1024)
        assert many.largest.middle < few.largest.middle
        assert many.largest.middle < uniform.largest.middle
        assert many.largest.low < many.largest.middle < many.largest.high


@pytest.mark.parametrize(
    "name",
    ["softmax", "block(1):tail", "uniform:constant", "contrastive/uniform:tail", "uniform:tail(2)"],
)
def test_nothing_is_expected_of_schemes_that_were_not_tested(name):
    assert expected_of_scheme(name, 5000, 64) is None


@pytest.mark.parametrize("name", ["uniform:tail", "within-batch:importance"])
def test_no_slice_is_expected_to_be_farther_than_the_largest_gap(name):
    gap = expected_of_scheme(name, 43_097, 64)
    ends = [abs(end) for interval in gap.by_slice.values() for end in interval]
    assert max(ends) <= gap.largest.high


def test_beyond_the_tau_that_was_tested_gaps_are_those_of_1():
    half, one, three = (LAW.expected("uniform", tau, 20.0) for tau in (0.5, 1.0, 3.0))
    assert half.largest.middle < one.largest.middle
    assert three == one


def test_labels_and_negatives_beyond_those_that_were_tested_are_said_to_be():
    assert expected_of_scheme("uniform:tail", 43_097, 256).inside
    assert not expected_of_scheme("uniform:tail", 10**7, 64).inside
