"""The cost model, the negatives that are needed, and the choice."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headtail.core.labels import Labels
from headtail.errors import HeadtailError
from headtail.implicit.implied import median_labels
from headtail.machine import advise
from headtail.machine.advise import (
    REFERENCES,
    Candidate,
    Cost,
    Ideal,
    candidate,
    choose,
    costs,
    crossover,
    fit,
    ideal_of,
    predict,
)
from headtail.machine.measured import Machine, Timing
from headtail.machine.shape import METHODS, Shape, memory_of

GIB = 2**30
EMPTY = Machine(
    "planted",
    "cpu",
    "2026-01-31",
    "2.13",
    64 * GIB,
    bandwidth=1e10,
    rate=1e11,
    timings=(),
    answers={},
)
TRUTH = {
    "exact": Cost(0.002, 1.5, 2.0),
    "chunked": Cost(0.004, 1.2, 3.0),
    "sampled": Cost(0.001, 0.5, 4.0),
}


def planted(truth=TRUTH):
    """A machine whose steps take exactly what these lines say."""
    usual = [Shape(10**n, 512, 256, 256) for n in (4, 5, 6)]
    fewer_dims = Shape(10**5, 64, 256, 256)
    shapes = {
        "exact": [*usual, fewer_dims],
        "chunked": [*usual[:2], fewer_dims],
        "sampled": [*usual, fewer_dims, Shape(10**4, 512, 256, 4096)],
    }
    timings = [
        Timing(k, x, cost(ideal_of(k, x, EMPTY)), None)
        for k, cost in truth.items()
        for x in shapes[k]
    ]
    return replace(EMPTY, timings=tuple(timings))


def test_the_costs_of_a_planted_machine_are_found_again():
    found = costs(planted())
    for method, cost in TRUTH.items():
        assert found[method].overhead == pytest.approx(cost.overhead, rel=0.05)
        assert found[method].operations == pytest.approx(cost.operations, rel=0.02)
        assert found[method].bytes == pytest.approx(cost.bytes, rel=0.02)


def test_a_prediction_counts_operations_and_bytes():
    shape = Shape(labels=70_000, dim=32, batch=64, negatives=1000)
    whole = 6 * 64 * 70_000 * 32 / 1e11
    scores = 4 * 7 * 64 * 70_000 / 1e10
    table = 4 * 70_000 * 32 / 1e10
    expected = {
        "exact": 0.002 + 1.5 * whole + 2.0 * (scores + 8 * table),
        # eight chunks of eight examples
        "chunked": 0.004 + 1.2 * whole + 3.0 * (scores + 8 * table + 2 * 8 * table),
        "sampled": 0.001
        + 0.5 * 6 * 64 * 1000 * 32 / 1e11
        + 4.0 * 4 * (7 * 64 * 1000 + 8 * 1064 * 32) / 1e10,
    }
    for method, seconds in expected.items():
        assert predict(method, shape, planted(), GIB).seconds == pytest.approx(seconds, rel=0.02)


def test_memory_is_the_table_its_state_and_what_a_step_holds():
    shape = Shape(labels=1000, dim=8, batch=16, negatives=5)
    assert memory_of("exact", shape) == 4 * (3 * 8000 + 3 * 16_000 + 2 * 128)
    assert memory_of("chunked", shape) == 4 * (4 * 8000 + 2 * 2 * 1000 + 3 * 128)
    assert memory_of("sampled", shape) == 4 * (2 * 8000 + 4 * 21 * 8 + 3 * 80 + 4 * 1000)
    assert predict("exact", shape, planted(), memory_of("exact", shape)).fits
    assert not predict("exact", shape, planted(), memory_of("exact", shape) - 1).fits


@given(st.lists(st.tuples(*[st.floats(1e-6, 1e3)] * 3), min_size=1, max_size=6))
def test_no_step_is_ever_expected_to_take_less_than_nothing(points):
    cost = fit([Ideal(x, y) for x, y, _ in points], [t for *_, t in points])
    assert min(cost.overhead, cost.operations, cost.bytes) >= 0
    assert cost.overhead + cost.operations + cost.bytes > 0


def test_a_cost_has_the_least_relative_error_of_all_near_it():
    ideals = [
        Ideal(1.0, 2.0),
        Ideal(3.0, 1.0),
        Ideal(20.0, 4.0),
        Ideal(9.0, 90.0),
        Ideal(30.0, 1.0),
    ]
    seconds = [6.0, 8.0, 29.0, 101.0, 27.0]

    def error(cost):
        return sum((cost(ideal) / t - 1) ** 2 for ideal, t in zip(ideals, seconds, strict=True))

    found = fit(ideals, seconds)
    for name in ("overhead", "operations", "bytes"):
        assert getattr(found, name) > 0.1
        for by in (0.95, 1.05):
            assert error(found) < error(replace(found, **{name: by * getattr(found, name)}))


def test_steps_that_are_all_alike_tell_an_overhead_and_leave_the_rates_alone():
    found = fit([Ideal(0.01, 0.02)] * 3, [5.0, 5.0, 5.0])
    assert found.overhead == pytest.approx(4.97, rel=0.01)
    assert (found.operations, found.bytes) == (
        pytest.approx(1, rel=0.05),
        pytest.approx(1, rel=0.05),
    )


@pytest.mark.parametrize("device", REFERENCES)
def test_the_reference_figures_are_predicted_from_themselves(device):
    machine = REFERENCES[device]
    for one in machine.timings:
        assert 0.5 < predict(one.method, one.shape, machine, GIB).seconds / one.seconds < 2


def test_a_measurement_without_a_method_is_told():
    machine = planted()
    without = replace(
        machine, timings=tuple(one for one in machine.timings if one.method != "sampled")
    )
    with pytest.raises(
        HeadtailError, match=r"has no sampled step\. Run `headtail.machine.bench.measure`"
    ):
        costs(without)


def test_at_the_crossover_both_take_the_same():
    machine = planted(TRUTH | {"sampled": Cost(0.05, 0.5, 4.0)})
    shape = Shape(1, 512, 256, 256)
    labels = crossover(shape, machine)
    sampled = predict("sampled", shape, machine, GIB).seconds
    assert predict("exact", replace(shape, labels=labels), machine, GIB).seconds >= sampled
    assert predict("exact", replace(shape, labels=labels - 1), machine, GIB).seconds < sampled
    assert crossover(shape, planted({**TRUTH, "exact": Cost(1.0, 1.0, 1.0)})) == 1


# Negatives


def slowly_needed(q, scores, label, noise):
    """The m for which the standard deviation of Σ e^f/(m·q) over m draws, relative to the whole
    sum, is `noise`: label by label.
    """
    terms = [
        0.0 if y == label else math.exp(f - scores[label]) / p
        for y, (f, p) in enumerate(zip(scores, q, strict=True))
    ]
    mean = sum(p * t for p, t in zip(q, terms, strict=True))
    variance = sum(p * (t - mean) ** 2 for p, t in zip(q, terms, strict=True))
    return math.ceil(variance / (1 + mean) ** 2 / noise**2)


@pytest.mark.parametrize(
    ("name", "power"), [("uniform", 0.0), ("frequency(0.5)", 0.5), ("frequency(0.75)", 0.75)]
)
def test_the_needed_negatives_are_those_of_a_slow_sum(name, power):
    labels = Labels.zipf(200)
    shape = Shape(200, 8, 16, 8)
    found = candidate(f"{name}:importance", labels, shape, 0.05, planted(), GIB)
    pi = labels.prior.tolist()
    q = [p**power for p in pi]
    q = [p / sum(q) for p in q]
    known = ((labels.counts.double() + 0.5) / (labels.total + 100)).log().tolist()
    equal = [0.0] * 200
    cases = list(median_labels(labels).values())
    assert found.untrained == max(slowly_needed(q, equal, label, 0.05) for label in cases)
    assert found.informed == max(slowly_needed(q, known, label, 0.05) for label in cases)
    assert found.needed == max(found.untrained, found.informed)
    assert found.estimate is not None
    assert found.estimate.shape == replace(shape, negatives=found.needed)


def test_negatives_from_the_batch_suffice_where_the_batch_is_large_enough():
    labels = Labels.zipf(1000)
    small, large = (
        candidate("within-batch:importance", labels, Shape(1000, 8, b, 8), 0.2, planted(), GIB)
        for b in (16, 1024)
    )
    assert small.needed == large.needed
    assert 15 < large.needed < 1023
    assert (small.enough, large.enough) == (False, True)
    assert large.estimate.shape.negatives == 1024


def test_more_than_half_of_the_labels_is_not_sampling():
    labels = Labels.zipf(5000)
    found = candidate("uniform:importance", labels, Shape(5000, 8, 64, 8), 0.1, planted(), GIB)
    assert found.needed > 2500
    assert not found.enough


def test_no_m_keeps_a_loss_quiet_that_grows_with_m():
    found = candidate(
        "uniform:relative", Labels.zipf(100), Shape(100, 8, 16, 8), 0.1, planted(), GIB
    )
    assert (found.needed, found.estimate, found.enough) == (None, None, False)


def test_a_loss_over_all_labels_is_no_candidate():
    with pytest.raises(HeadtailError, match="`softmax` uses all labels and draws no negatives"):
        candidate("softmax", Labels.zipf(100), Shape(100, 8, 16, 8), 0.1, planted(), GIB)


def test_the_most_frequent_stand_for_very_many(monkeypatch):
    labels = Labels.from_counts([1, 50, 20, 2, 9, 30])
    shape = Shape(6, 8, 16, 8)
    monkeypatch.setattr(advise, "MOST_EXPLAINED", 4)
    found = candidate("uniform:importance", labels, shape, 0.5, planted(), GIB)
    alone = candidate(
        "uniform:importance", Labels.from_counts([50, 30, 20, 9]), shape, 0.5, planted(), GIB
    )
    assert (found.untrained, found.informed) == (alone.untrained, alone.informed)


# The choice


def of(shape, m, enough=True, machine=None, memory=64 * GIB):
    estimate = predict("sampled", replace(shape, negatives=m), machine or planted(), memory)
    return Candidate(f"planted@{m}", m, 1, estimate, enough)


def test_sampling_wins_among_many_labels_and_the_exact_loss_among_few():
    machine = planted(TRUTH | {"sampled": Cost(0.05, 0.5, 4.0)})
    many = Shape(10**6, 512, 256, 256)
    few = Shape(100, 512, 256, 256)
    for_many = choose(
        many, [of(many, 5000, machine=machine), of(many, 700, machine=machine)], machine, 64 * GIB
    )
    assert (for_many.choice, for_many.why, for_many.best.scheme, for_many.close) == (
        "sampled",
        "faster",
        "planted@700",
        False,
    )
    assert for_many.estimates["sampled"].shape.negatives == 700
    for_few = choose(few, [of(few, 50, machine=machine)], machine, 64 * GIB)
    assert (for_few.choice, for_few.why) == ("exact", "faster")


def test_where_no_sampler_is_quiet_enough_the_exact_loss_is_used():
    shape = Shape(10**6, 512, 256, 256)
    found = choose(
        shape,
        [of(shape, 10, enough=False), Candidate("x", None, None, None, False)],
        planted(),
        64 * GIB,
    )
    assert (found.choice, found.why, found.best) == ("exact", "noise", None)


def test_what_does_not_fit_is_not_chosen():
    shape = Shape(10**6, 512, 4096, 256)
    machine = planted()
    for method, why in (("chunked", "noise"), ("sampled", "memory"), (None, "memory")):
        memory = memory_of(method, shape) if method else 10**6
        candidates = [] if method == "chunked" else [of(shape, 256, memory=memory)]
        found = choose(shape, candidates, machine, memory)
        assert (found.choice, found.why) == (method, why)


def test_a_narrow_win_is_told_to_be_one():
    machine = planted()
    shape = Shape(10**5, 512, 256, 256)
    exact = predict("exact", shape, machine, GIB).seconds
    m = next(m for m in range(1000, 10**6, 1000) if of(shape, m).estimate.seconds > 0.6 * exact)
    assert choose(shape, [of(shape, m)], machine, 64 * GIB).close
    assert not choose(shape, [of(shape, m // 4)], machine, 64 * GIB).close


def test_an_old_torch_is_not_advised_to_chunk(monkeypatch):
    shape = Shape(10**6, 512, 4096, 256)
    monkeypatch.setattr(advise, "possible", lambda: ("exact", "sampled"))
    found = choose(shape, [], planted(), memory_of("chunked", shape))
    assert found.choice is None
    assert set(found.estimates) == set(METHODS) - {"chunked"}


def test_the_chunked_loss_is_used_where_it_is_clearly_quicker_or_the_exact_one_does_not_fit():
    shape = Shape(10**5, 512, 4096, 256)
    for chunked, choice in ((Cost(0.0, 1.4, 1.4), "exact"), (Cost(0.0, 0.3, 0.1), "chunked")):
        assert choose(shape, [], planted(TRUTH | {"chunked": chunked}), 64 * GIB).choice == choice
    assert choose(shape, [], planted(), memory_of("chunked", shape)).choice == "chunked"
