"""The cost model, what schemes approximate, and what follows from both."""

from __future__ import annotations

import json
import warnings
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headtail.core.labels import Labels
from headtail.errors import HeadtailError
from headtail.machine import advise
from headtail.machine.advise import (
    NEGATIVES,
    REFERENCES,
    Approximation,
    Cost,
    Ideal,
    approximation,
    choose,
    costs,
    crossover,
    fit,
    ideal_of,
    predict,
)
from headtail.machine.measured import Machine, Timing
from headtail.machine.shape import METHODS, Shape, memory_of

STUDIED = json.loads((Path(__file__).parent / "studied_counts.json").read_text())
"""Of the studies' training data: pairs of a count and how many labels have it."""


def studied(name: str) -> Labels:
    """The label counts of a study, most frequent first."""
    counts, labels = torch.tensor(STUDIED[name]).T
    return Labels.from_counts(counts.repeat_interleave(labels).flip(0))


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


def test_a_measurement_without_a_method_is_reported():
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


# Schemes


def test_a_scheme_is_described_by_the_loss_it_approximates():
    labels = Labels.zipf(300)
    known = {
        name: approximation(name, labels, 64)
        for name in ("uniform:importance", "within-batch:tail", "within-batch:relative@8")
    }
    assert [one.loss for one in known.values()] == [
        "softmax cross-entropy",
        "logit-adjusted loss (Menon et al. 2020)",
        "softmax with upweighted head labels",
    ]
    assert [one.leans for one in known.values()] == ["neither", "tail", "head"]


def test_nothing_that_is_said_about_a_scheme_depends_on_an_untrained_model():
    names = {field.name for field in fields(Approximation)}
    assert names == {"scheme", "loss", "equation", "lean", "leans", "never_drawn"}


def test_a_loss_over_all_labels_approximates_nothing():
    with pytest.raises(HeadtailError, match="`softmax` uses all labels and draws no negatives"):
        approximation("softmax", Labels.zipf(100), 16)


def test_very_many_labels_are_explained_by_the_most_frequent(monkeypatch):
    labels = Labels.from_counts([1, 50, 20, 2, 9, 30])
    monkeypatch.setattr(advise, "MOST_EXPLAINED", 4)
    assert approximation("uniform:tail", labels, 16) == approximation(
        "uniform:tail", Labels.from_counts([50, 30, 20, 9]), 16
    )


# The verdict


@pytest.mark.parametrize("name", STUDIED)
@pytest.mark.parametrize("device", REFERENCES)
@pytest.mark.parametrize("batch", [256, 1024])
def test_on_the_counts_of_the_studies_nothing_is_recommended_that_they_contradict(
    name, device, batch
):
    """Uniform negatives were the worst of ten schemes on Diginetica's tail; for Delicious the study
    says to use all labels.
    """
    labels = studied(name)
    shape = Shape(labels.num_labels, 512, batch, 256)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some labels of Diginetica never occur in training
        schemes = [
            approximation(one, labels, batch)
            for one in ("uniform:importance", "within-batch:importance")
        ]
    found = choose(shape, NEGATIVES, schemes, REFERENCES[device], 64 * GIB)
    assert found.verdict in ("open", "all labels")
    assert found.all_labels is not None
    assert [one.shape.negatives for one in found.estimates if one.method == "sampled"] == list(
        NEGATIVES
    )


def test_advice_does_not_depend_on_the_shape_of_the_counts():
    """Time and memory follow from L alone, and nothing else decides."""
    zipf = Labels.zipf(5000)
    flat = Labels.from_counts([10] * 5000)
    shape = Shape(5000, 512, 256, 256)
    for memory in (64 * GIB, memory_of("sampled", shape)):
        verdicts = [
            choose(
                shape, NEGATIVES, [approximation("uniform:tail", labels, 256)], planted(), memory
            ).verdict
            for labels in (zipf, flat)
        ]
        assert verdicts[0] == verdicts[1]


def test_few_labels_are_all_used_and_many_leave_the_question_open():
    machine = planted(TRUTH | {"sampled": Cost(0.05, 0.5, 4.0)})
    few = choose(Shape(100, 512, 256, 256), [32, 64], [], machine, 64 * GIB)
    assert (few.verdict, few.all_labels.method) == ("all labels", "exact")
    many = choose(Shape(10**6, 512, 256, 256), [64, 256], [], machine, 64 * GIB)
    assert (many.verdict, many.all_labels.method) == ("open", "exact")
    assert [one.shape.negatives for one in many.sampled] == [64, 256]


def test_a_saving_below_the_error_of_the_prediction_is_none():
    machine = planted()
    shape = Shape(10**5, 512, 256, 256)
    exact = predict("exact", shape, machine, GIB).seconds

    def saves(m: int) -> float:
        return exact / predict("sampled", replace(shape, negatives=m), machine, GIB).seconds

    just = next(m for m in range(1000, 10**6, 1000) if saves(m) < advise.MODEL_ERROR)
    assert choose(shape, [just], [], machine, 64 * GIB).verdict == "all labels"
    assert choose(shape, [just // 4], [], machine, 64 * GIB).verdict == "open"


def test_what_does_not_fit_is_not_recommended():
    shape = Shape(10**6, 512, 4096, 256)
    machine = planted()
    for method, verdict in (("chunked", "open"), ("sampled", "sampled"), (None, "nothing fits")):
        memory = memory_of(method, shape) if method else 10**6
        found = choose(shape, [256], [], machine, memory)
        assert found.verdict == verdict
        assert (found.all_labels.method if found.all_labels else None) == (
            "chunked" if method == "chunked" else None
        )


def test_an_old_torch_is_not_advised_to_chunk(monkeypatch):
    shape = Shape(10**6, 512, 4096, 256)
    monkeypatch.setattr(advise, "possible", lambda: ("exact", "sampled"))
    found = choose(shape, [256], [], planted(), memory_of("chunked", shape))
    assert found.all_labels is None
    assert {one.method for one in found.estimates} == set(METHODS) - {"chunked"}


def test_the_chunked_loss_is_used_where_it_is_clearly_quicker_or_the_exact_one_does_not_fit():
    shape = Shape(10**5, 512, 4096, 256)
    for chunked, choice in ((Cost(0.0, 1.4, 1.4), "exact"), (Cost(0.0, 0.3, 0.1), "chunked")):
        assert (
            choose(
                shape, [256], [], planted(TRUTH | {"chunked": chunked}), 64 * GIB
            ).all_labels.method
            == choice
        )
    assert (
        choose(shape, [256], [], planted(), memory_of("chunked", shape)).all_labels.method
        == "chunked"
    )
