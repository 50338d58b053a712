"""Numbers in prose are tied to rows, and a wrong or an untied one is noticed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from prose_numbers import RESULTS, UNTIED, filled, untied, wrong

from headtail.errors import HeadtailError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("results*.md"))]
TAIL = "retrieval.csv value dataset=diginetica scheme=softmax metric=recall@10 slice=tail"


@pytest.fixture
def rows(tmp_path):
    (tmp_path / "study.csv").write_text(
        "scheme,seed,value,verdict\na,0,0.10,holds\na,1,0.20,holds\nb,0,-0.05,does not\n"
    )
    return tmp_path


def test_tied_numbers_are_those_of_the_rows(rows):
    page = (
        "The mean is 15.0<!-- =% study.csv value scheme=a -->, or 0.15<!-- = study.csv value"
        " scheme=a -->, over 2<!-- =count study.csv scheme=a --> seeds; b has −5.0<!-- =% study.csv"
        " value scheme=b -->. It **holds**<!-- =text study.csv verdict scheme=a -->."
        " With a sign: +15<!-- =%+ study.csv value scheme=a -->."
    )
    assert wrong(page, rows) == []
    assert filled(page, rows) == page
    assert untied(page) == Counter()


def test_a_number_that_differs_is_named_with_its_line_and_filled_in(rows):
    page = "First.\nThe mean is 15.1<!-- =% study.csv value scheme=a -->."
    [problem] = wrong(page, rows)
    assert problem.startswith("line 2: 15.1 should be 15.0")
    assert wrong(filled(page, rows), rows) == []


def test_numbers_have_a_minus_sign_and_zero_is_never_negative(rows):
    (rows / "small.csv").write_text("scheme,value\na,-0.0002\nb,-0.02\n")
    page = "-0.0<!-- =%+ small.csv value scheme=a --> and -2.0<!-- =%+ small.csv value scheme=b -->"
    assert len(wrong(page, rows)) == 2
    assert [text.split("<")[0] for text in filled(page, rows).split(" and ")] == ["+0.0", "−2.0"]


def test_a_verdict_that_differs_is_named(rows):
    page = "It **holds**<!-- =text study.csv verdict scheme=b -->."
    assert wrong(page, rows)[0].startswith("line 1: **holds** should be **does not**")


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("=% nowhere.csv value scheme=a", "There are no rows `nowhere.csv`"),
        ("=% study.csv value scheme=c", "has no row with"),
        ("=% study.csv other scheme=a", "has no column"),
        ("=text study.csv seed scheme=a", "has several values of seed"),
    ],
)
def test_a_source_that_is_not_there_is_refused(rows, query, sentence):
    with pytest.raises(HeadtailError, match=sentence):
        wrong(f"It is 1.0<!-- {query} -->.", rows)


def test_only_prose_must_be_tied():
    page = (
        "# Results 2\n\nRecall@10 is 12.5, of 1,000 points in `run 3` ([4](page5.md)).\n\n"
        "```\n99.9\n```\n\n<!-- table x -->\n| 77.7 |\n<!-- end -->\n\n"
        "| scheme | 66.6 |\n|---|---|\n| claim | here are seven words and then 55.5 |\n"
    )
    assert untied(page) == Counter({"2": 1, "12.5": 1, "1,000": 1, "4": 1, "55.5": 1})
    assert untied(page + "<!-- not from rows: 2, 4, 1,000 -->") == Counter({"12.5": 1, "55.5": 1})


def test_rows_of_the_first_edition_can_be_named():
    page = (
        f"The softmax has 19.5<!-- =% {TAIL} -->, and was chosen by 5.318<!-- = "
        "retrieval-tuning.csv implicit_loss dataset=diginetica scheme=softmax lr=0.02 -->."
    )
    assert wrong(page) == []
    assert wrong(page.replace("19.5", "19.6"))
    assert (RESULTS / "retrieval.csv").exists()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_page_has_a_wrong_number_or_more_untied_ones(path):
    page = path.read_text(encoding="utf-8")
    assert wrong(page) == []
    assert untied(page).total() <= UNTIED.get(path.name, 0)
