"""What holds of the paper is said as its latest studies decide it."""

from __future__ import annotations

from paper_claims import summary

CLAIM = "logit adjustment against softmax"
SENTENCE = "The logit-adjusted loss over all labels beats the softmax on the tail"


def verdict(
    dataset: str, answer: str, claim: str = CLAIM, part: str = "holds", seeds: int = 3
) -> dict[str, str]:
    line = {"dataset": dataset, "claim": claim, "verdict": answer, "part": part}
    return line | {"seeds": str(seeds)}


def test_the_second_edition_of_a_data_set_counts():
    first = [verdict("delicious", "does not hold"), verdict("nowplaying", "holds")]
    second = [verdict("delicious", "holds")]
    text = summary({"first": first, "second": second})
    assert f"{SENTENCE} (Delicious, Nowplaying)" in text
    assert "Does not hold" not in text


def test_data_sets_that_disagree_are_both_named():
    lines = [verdict("delicious", "holds"), verdict("beauty-part", "does not hold")]
    text = summary({"second": lines})
    assert f"{SENTENCE} (Delicious; not part of Beauty)" in text
    assert text.startswith("- **Holds on some data sets, and not on others:**")


def test_a_claim_that_was_tested_with_one_seed_is_not_called_undecided():
    once = summary({"one": [verdict("delicious", "inconclusive", seeds=1)]})
    several = summary({"one": [verdict("delicious", "inconclusive")]})
    assert SENTENCE in once.partition("**One seed only**")[2]
    assert SENTENCE in several.partition("**Undecided**")[2].partition("**One seed")[0]


def test_a_claim_that_fails_says_how_many_of_its_parts_hold():
    name = "importance follows softmax"
    parts = [verdict("delicious", "does not hold", name, part) for part in ("holds", "vacuous")]
    assert "match the full softmax (Delicious 1 of 2)" in summary({"second": parts})
