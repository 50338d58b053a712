"""Verdicts on claims, and the sentences that state them, on rows written by hand."""

from __future__ import annotations

import pytest
from claim_sentences import claims_table, details, sentence, summary
from claims import LEAN, decided

LINE = {
    "dataset": "diginetica",
    "claim": "constant against softmax",
    "scheme": "within-batch:constant",
    "against": "softmax",
    "kind": "above",
    "slice": "tail",
    "difference": "0.018",
    "low": "0.012",
    "high": "0.024",
    "margin": "0.02",
    "small": "no",
    "part": "holds",
    "alone": "holds",
    "verdict": "holds",
}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {},
            "`within-batch:constant` beats `softmax` on the tail: +1.8 points (+1.2 to +2.4).",
        ),
        (
            {"small": "yes"},
            "`within-batch:constant` beats `softmax` on the tail: +1.8 points (+1.2 to +2.4), less "
            "than the margin of 2.0.",
        ),
        (
            {"part": "does not hold", "difference": "-0.05", "low": "-0.06", "high": "-0.04"},
            "`within-batch:constant` does not beat `softmax` on the tail: −5.0 points (−6.0 to "
            "−4.0).",
        ),
        (
            {"part": "inconclusive"},
            "Whether `within-batch:constant` beats `softmax` on the tail is open: +1.8 points "
            "(+1.2 to +2.4).",
        ),
        (
            {"kind": "follows", "slice": "full", "part": "does not hold"},
            "`within-batch:constant` does not match `softmax` over all labels within ±2.0: +1.8 "
            "points (+1.2 to +2.4).",
        ),
        (
            {"kind": "below", "slice": LEAN},
            "`within-batch:constant` leans to the head compared with `softmax` in tail minus head: "
            "+1.8 points (+1.2 to +2.4).",
        ),
    ],
)
def test_the_verdict_chooses_the_words(changed, text):
    assert sentence(LINE | changed) == text


def test_a_vacuous_claim_is_called_so():
    line = LINE | {"kind": "follows", "against": "logit-adjusted", "part": "vacuous"}
    assert sentence(line).endswith(
        "That says nothing: `logit-adjusted` is not shown to differ from the softmax there by more "
        "than 2.0."
    )
    assert summary([line, line | {"slice": "head", "part": "holds"}]) == (
        "**holds**: 1 of 2 parts, 1 vacuous"
    )


def test_what_holds_only_without_the_other_claims_is_called_so():
    text = "**inconclusive** (*holds*, uncorrected): +1.8"
    assert summary([LINE | {"verdict": "inconclusive"}]) == text


def test_a_claim_that_fails_shows_where():
    fails = LINE | {"slice": "head", "difference": "-0.031", "part": "does not hold"}
    fails |= {"p for": "0.9", "p against": "0.001"}
    small = LINE | {"p for": "0.01", "p against": "0.00001"}  # above 0 and below the margin
    lines = [LINE | {"p for": "0.01", "p against": "0.4"}, fails, small]
    fails_so = {"verdict": "does not hold", "alone": "does not hold"}
    lines = [line | fails_so for line in lines]
    assert summary(lines) == "**does not hold**: −3.1 on the head; 2 of 3 parts hold"
    other = lines[0] | {"scheme": "within-batch:tail"}
    assert summary([other, lines[1]]) == (
        "**does not hold**: `within-batch:constant` −3.1 on the head; 1 of 2 parts hold"
    )


def test_a_small_gain_is_called_so():
    small = LINE | {"small": "yes"}
    assert summary([small]) == "**holds**: +1.8, less than the margin"


def test_all_data_sets_of_a_table_are_corrected_together():
    line = LINE | {"p for": "0.02", "p against": "1", "seeds": "3", "apart": ""}
    [alone] = decided([line])
    assert alone["verdict"] == "holds"
    many = decided([line | {"dataset": name} for name in ("a", "b", "c")])
    assert {(x["verdict"], x["alone"]) for x in many} == {("inconclusive", "holds")}
    assert float(many[0]["claim p for"]) == pytest.approx(6 * 0.02)  # each may hold or fail
    # A claim with one seed decides nothing, and costs the others nothing.
    single = line | {"dataset": "b", "seeds": "1"}
    assert [x["verdict"] for x in decided([line, single])] == ["holds", "inconclusive"]


def test_the_table_has_a_column_per_data_set_and_a_dash_where_nothing_ran():
    other = LINE | {"dataset": "delicious", "claim": "constant against uniform"}
    head, _, first, second = claims_table([LINE, other]).splitlines()
    assert head == "| claim | Delicious | Diginetica |"
    assert first.endswith("| – | **holds**: +1.8 |")
    assert second.endswith("| **holds**: +1.8 | – |")
    title = "In-batch negatives with constant weights beat the full softmax on the tail"
    assert f"**{title}: holds on Diginetica.**\n- `within-batch:constant` beats" in details([LINE])
