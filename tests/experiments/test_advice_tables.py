"""The law behind `headtail advise` is what the rows give, and is tested on what it has not seen."""

from __future__ import annotations

import math

import advice_tables
import numpy as np
import pytest
from advice_rows import Gap, gaps
from advice_tables import Case, cases, errors, fit, law, law_of, left_out

from headtail.machine.fitted import LAW

TRUTH = (-2.0, -0.5, 1.0, 0.4)
SAMPLERS = {"uniform": 0.0, "frequency(0.5)": 0.5, "within-batch": 1.0}


def case(source: str, target: str, sampler: str, x: float, factor: float = 1.0) -> Case:
    """A gap that follows the planted law, but for a factor; recall is 50%."""
    tau = float(target != "softmax")
    alpha = SAMPLERS[sampler]
    terms = (1, alpha, (1 - alpha) * tau, math.log(x))
    worst = factor * 50 * math.exp(float(np.dot(TRUTH, terms)))
    exact = dict.fromkeys(("head", "torso", "tail", "full"), 50.0)
    gap = {"head": worst, "torso": 0.1, "tail": -worst / 2, "full": 0.0}
    sampled = {name: exact[name] + gap[name] for name in exact}
    return Case(Gap(source, source, target, sampler, 64, exact, sampled, ""), alpha, x, 50.0)


def planted(factors: dict[str, float]) -> list[Case]:
    return [
        case(source, target, sampler, x, factor)
        for source, factor in factors.items()
        for target in ("softmax", "logit-adjusted")
        for sampler in SAMPLERS
        for x in (10.0, 100.0)
    ]


def test_a_planted_law_is_found_again():
    found = planted({"a": 1.0, "b": 1.0, "c": 1.0})
    np.testing.assert_allclose(fit(found), TRUTH, atol=1e-9)
    assert law_of(found).typical == 1.0
    expected = law_of(found).expected("uniform", 1.0, 100.0, 50.0)
    worst = case("a", "logit-adjusted", "uniform", 100.0).gap.worst
    assert expected.largest.middle == pytest.approx(worst, rel=0.01)
    assert expected.by_slice["tail"].middle == pytest.approx(-worst / 2, rel=0.01)


def test_a_source_is_predicted_from_the_others_alone():
    found = planted({"a": 1.0, "b": 1.0, "far": 8.0})
    predicted = left_out(found)
    for one, value in zip(found, predicted, strict=True):
        if one.gap.source == "far":
            assert one.gap.worst / value == pytest.approx(8.0)
    lines = {line["source"]: line for line in errors("law", found)}
    assert float(lines["far"]["factor"]) == pytest.approx(8.0, rel=0.01)
    assert float(lines["far"]["inside"]) == 0.0


def test_parts_are_left_out_with_the_data_set_that_they_are_parts_of():
    by_set = {gap.set: gap.source for gap in gaps()}
    assert by_set["nowplaying-part"] == by_set["nowplaying"] == "nowplaying"


def test_where_the_second_edition_has_a_whole_data_set_no_other_rows_of_it_count():
    for source in ("delicious", "diginetica"):
        assert {gap.study for gap in gaps() if gap.source == source} == {"evidence.csv"}
    assert len({gap.study for gap in gaps() if gap.source == "nowplaying"}) > 1


def test_the_law_that_ships_is_the_one_that_the_rows_give():
    assert law() == LAW


def test_the_order_of_schemes_is_right_where_sizes_are_rough():
    """What `advise` relies on: it would have chosen the best scheme, or one nearly as good, on
    every data set that was left out.
    """
    for line in errors("law", cases("law")):
        if int(line["choices"]):
            assert float(line["regret"]) <= 1.0


def test_the_law_chooses_the_most_negatives_from_the_batch_wherever_data_were_left_out():
    """So what is said of its choices holds for the whole batch, which `advise` recommends."""
    for line in errors("law", cases("law")):
        assert line["as_rule"] == line["choices"]


def test_gaps_below_what_seeds_do_count_as_that(monkeypatch):
    monkeypatch.setattr(advice_tables, "LEAST_GAP", 1.0)
    assert case("a", "softmax", "uniform", 10.0, factor=1e-9).size == pytest.approx(
        math.log(1.0 / 50)
    )
