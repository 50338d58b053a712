"""The top of the page: which scheme to use, its cost and its tail, and never a winner by chance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headtail.comparison.cautions import cautions_of
from headtail.comparison.results import Comparison
from headtail.report.answer import Answer, answer_table
from headtail.report.measured import Measured
from tests.report.example import comparison, row, small

ERRORS: dict[str, Any] = {"metric": "balanced-error", "data": {"task": "classification"}}
IMPORTANCE = "within-batch:importance"
TAIL = "within-batch:tail"


def by_slice(
    numbers: dict[str, tuple[float, float, float]], spread: float = 0.008, **changed: Any
) -> Comparison:
    """Scheme: Recall@10 on the head, the tail and all labels."""
    rows = [
        row("test", name, 0, slice_, "recall@10", value, spread=spread)
        for name, values in numbers.items()
        for slice_, value in zip(("head", "tail", "full"), values, strict=True)
    ]
    return small({}, rows=rows, **changed)


def sentences(found: Comparison) -> list[str]:
    return Answer.of(found, Measured(found)).sentences


def test_the_best_sampled_scheme_leads_with_its_gap_to_the_full_softmax_and_its_cost():
    times = {
        IMPORTANCE: {"training_seconds": 42.0, "step_seconds": 0.0013},
        "softmax": {"training_seconds": 300.0, "step_seconds": 0.009},
    }
    found = by_slice(
        {"softmax": (0.52, 0.2, 0.42), IMPORTANCE: (0.5, 0.18, 0.4), TAIL: (0.4, 0.3, 0.35)},
        made_by={"times": times},
    )
    assert sentences(found) == [
        "Use within-batch:importance: of 2 sampled schemes it has the best Recall@10 over all "
        "labels (40.0%), 2.0 points below the full softmax.",
        "It trained in 42 s (1.3 ms per step); the full softmax took 5.0 min (9.0 ms per step).",
        "For the tail, use within-batch:tail: its tail Recall@10 is 30.0% against 18.0%, and it "
        "costs 10.0 points on the head.",
    ]
    measured = Measured(found)
    table = answer_table(Answer.of(found, measured), measured, times)
    assert [(r[0].text, r[0].detail) for r in table.rows] == [
        (IMPORTANCE, "best sampled"),
        (TAIL, "best on the tail"),
        ("softmax", "full softmax"),
    ]
    assert [cell.text for cell in table.rows[0][1:]] == ["50.0%", "18.0%", "40.0%", "42 s"]
    assert table.rows[1][-1].text == "–"


def test_numbers_near_zero_have_no_winner():
    """A headline once named 0.01% the best, where another scheme had 0.04%."""
    found = by_slice({IMPORTANCE: (0.16, 0.0001, 0.06), TAIL: (0.1, 0.0004, 0.04)}, spread=0.0001)
    *_, tail = sentences(found)
    assert tail == (
        "Nothing was learnt on the tail: no Recall@10 there is better than 0.04%, so the tail does "
        "not decide between schemes."
    )
    assert "best on the tail" not in Answer.of(found, Measured(found)).schemes


def test_small_numbers_that_differ_have_the_larger_one_as_winner():
    found = by_slice({IMPORTANCE: (0.16, 0.01, 0.06), TAIL: (0.1, 0.04, 0.04)})
    assert sentences(found)[-1].startswith("For the tail, use within-batch:tail: ")
    assert "4.0% against 1.0%" in sentences(found)[-1]


def test_where_nothing_was_learnt_at_all_no_scheme_is_recommended():
    found = by_slice({IMPORTANCE: (0.002, 0.0, 0.001), TAIL: (0.001, 0.0, 0.0005)})
    assert sentences(found)[0] == (
        "Nothing was learnt: the best Recall@10 over all labels of 2 sampled schemes is 0.10% "
        "(within-batch:importance). Do not choose by these numbers."
    )


def test_overlapping_error_bars_are_reported():
    found = by_slice({IMPORTANCE: (0.5, 0.2, 0.4), TAIL: (0.4, 0.21, 0.395)})
    first, tail = sentences(found)
    assert first.endswith(
        "Its error bar overlaps with that of within-batch:tail, which may be as good."
    )
    assert tail == (
        "On the tail no sampled scheme is clearly better: within-batch:tail has 21.0% against "
        "20.0%, and their error bars overlap."
    )


def test_one_scheme_may_be_best_everywhere():
    found = by_slice(
        {IMPORTANCE: (0.5, 0.3, 0.4), TAIL: (0.4, 0.2, 0.3), "softmax": (0.5, 0.3, 0.4)}
    )
    first, tail = sentences(found)
    assert first.endswith("(40.0%), as good as the full softmax.")
    assert tail == "It also has the best tail Recall@10 of them (30.0%)."


def test_a_single_scheme_and_none_are_described():
    alone = by_slice({"softmax": (0.5, 0.3, 0.4)})
    assert sentences(alone) == [
        "softmax, the only scheme here, has a Recall@10 over all labels of 40.0%."
    ]
    assert sentences(small({})) == ["No scheme was measured."]


def test_of_errors_the_lowest_is_best():
    found = small(
        {"softmax": [(0.2, 0.9)], TAIL: [(0.35, 0.6)], IMPORTANCE: [(0.2, 0.8)]}, **ERRORS
    )
    first, *_ = sentences(found)
    assert first == (
        "Use within-batch:tail: of 2 sampled schemes it has the lowest tail error (60.0%), 30.0 "
        "points below the full softmax."
    )


LEANS = {IMPORTANCE: {"leans": "neither"}, TAIL: {"leans": "tail"}}


def test_schemes_that_barely_beat_most_popular_are_named():
    found = by_slice(
        {
            IMPORTANCE: (0.083, 0.0, 0.025),
            TAIL: (0.02, 0.05, 0.02),
            "most-popular": (0.2, 0.0, 0.021),
        },
        schemes=LEANS,
    )
    assert cautions_of(found) == [
        "within-batch:importance barely beats most-popular, which learns nothing (Recall@10 2.50% "
        "at best, against 2.10%). Try a larger learning rate or more epochs."
    ]


def test_schemes_below_most_popular_are_not_said_to_beat_it():
    found = by_slice(
        {IMPORTANCE: (0.1, 0.0, 0.02), "most-popular": (0.2, 0.0, 0.021)}, schemes=LEANS
    )
    (caution,) = cautions_of(found)
    assert caution.startswith("within-batch:importance does not beat most-popular")


def test_a_scheme_that_leans_to_the_tail_is_judged_by_the_tail():
    numbers = {IMPORTANCE: (0.4, 0.1, 0.3), "most-popular": (0.2, 0.0, 0.1)}
    good = by_slice(numbers | {TAIL: (0.01, 0.2, 0.05)}, schemes=LEANS)
    assert cautions_of(good) == [], "its head and all labels are not what it is for"
    bad = by_slice(numbers | {TAIL: (0.3, 0.0001, 0.2)}, schemes=LEANS)
    assert cautions_of(bad) == [
        "within-batch:tail leans to the tail, but learnt nothing there (Recall@10 0.01% at best). "
        "Try a larger learning rate or more epochs."
    ]


@pytest.mark.parametrize(("best", "warned"), [(12, True), (9, False)])
def test_a_best_epoch_that_is_the_last_is_reported(best: int, warned: bool):
    example = comparison(("softmax", TAIL), seeds=1)
    rows = [replace(r, epoch=best) if r.split == "test" and r.run else r for r in example.rows]
    found = cautions_of(replace(example, rows=rows))
    expected = "The best epoch of every scheme is the last one, epoch 12: more epochs may give"
    assert any(sentence.startswith(expected) for sentence in found) is warned


def test_without_validation_the_last_epoch_is_no_reason_for_doubt():
    example = comparison(("softmax", TAIL), seeds=1)
    rows = [r for r in example.rows if r.split != "validation"]
    assert cautions_of(replace(example, rows=rows)) == []


def test_items_that_never_occur_in_training_are_a_slice_of_the_answer_and_of_the_small_table():
    found = by_slice({IMPORTANCE: (0.5, 0.18, 0.4), TAIL: (0.4, 0.17, 0.35)})
    cold = [
        row("test", name, 0, "cold", "recall@10", value)
        for name, value in ((IMPORTANCE, 0.07), (TAIL, 0.11))
    ]
    found = replace(found, rows=[*found.rows, *cold])
    assert sentences(found)[-1] == (
        "On items that never occur in training (cold), within-batch:tail has the best Recall@10, "
        "11.0%."
    )
    measured = Measured(found)
    table = answer_table(Answer.of(found, measured), measured, {})
    assert [column.text for column in table.columns] == ["scheme", "Head", "Tail", "Cold", "Full"]
    assert table.rows[0][3].text == "7.0%"


def test_cold_items_that_no_scheme_finds_are_no_reason_to_choose_one():
    found = by_slice({IMPORTANCE: (0.5, 0.18, 0.4)})
    none = row("test", IMPORTANCE, 0, "cold", "recall@10", 0.0)
    assert sentences(replace(found, rows=[*found.rows, none]))[-1] == (
        "Items that never occur in training (cold) are not found: no Recall@10 there is better "
        "than 0.0%."
    )
