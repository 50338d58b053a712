"""The page on long-tailed images shows what its rows say."""

from __future__ import annotations

from dataclasses import replace

import longtail_page as page
import pytest
from longtail_claims import ON_IMAGES, cell, values_of, verdicts_of
from study_tables import read_table, rows_in

from headtail.comparison.results import Row
from headtail.errors import HeadtailError


@pytest.fixture(scope="module")
def rows():
    return rows_in(page.RESULTS / "longtail.csv")


@pytest.fixture(scope="module")
def verdicts(rows):
    return verdicts_of(values_of(rows))


def test_committed_verdicts_and_leans_are_those_of_the_rows(rows, verdicts):
    assert read_table(page.RESULTS / "longtail-claims.csv") == verdicts
    classes = read_table(page.RESULTS / "longtail-classes.csv")
    assert read_table(page.RESULTS / "longtail-leans.csv") == page.leans_of(rows, classes)


def test_every_claim_is_judged_somewhere_and_one_seed_shows_nothing(verdicts):
    assert {line["claim"] for line in verdicts} == {claimed.name for claimed in ON_IMAGES}
    single = [line for line in verdicts if line["seeds"] == "1"]
    assert single
    assert {line[kind] for line in single for kind in ("verdict", "alone")} == {"inconclusive"}


def row(scheme: str, seed: int, slice_: str, value: float) -> Row:
    return Row(
        "r",
        "tiny-exp",
        "test",
        "softmax",
        scheme,
        None,
        seed,
        1,
        10,
        slice_,
        "balanced-error",
        value,
    )


def of_seeds(scheme: str, slice_: str, *errors: float) -> list[Row]:
    return [row(scheme, seed, slice_, error) for seed, error in enumerate(errors)]


def small(tail: tuple[float, ...]) -> list[Row]:
    """Rows of the softmax and of logit adjustment, with errors on the tail."""
    found = [*of_seeds("softmax", "tail", *(0.9,) * len(tail))]
    found += of_seeds("logit-adjusted", "tail", *tail)
    for slice_ in ("head", "torso", "full"):
        for name in ("softmax", "logit-adjusted"):
            found += of_seeds(name, slice_, *(0.5,) * len(tail))
    return found


@pytest.mark.parametrize(
    ("tail", "text"),
    [
        ((0.8, 0.81, 0.79), "**holds**, +10.0 (+7.5 to +12.5)"),
        ((0.99, 1.0, 0.98), "**does not hold**, −9.0 (−11.5 to −6.5)"),
        ((0.8, 0.95, 0.9), "inconclusive, +1.7 (−17.3 to +20.6)"),
        ((0.8,), "inconclusive, +10.0 (one seed)"),
    ],
)
def test_a_lower_error_is_a_gain_and_the_cell_has_its_verdict(tail, text):
    lines = [
        line
        for line in verdicts_of(values_of(small(tail)))
        if line["claim"] == "logit adjustment against softmax"
    ]
    assert cell(lines) == text


def test_a_cell_shows_the_part_that_decides_and_what_holds_only_alone():
    [line] = [
        line
        for line in verdicts_of(values_of(small((0.8, 0.81, 0.79))))
        if line["claim"] == "logit adjustment against softmax"
    ]
    alone = line | {"verdict": "inconclusive"}
    assert cell([alone]).startswith("*holds* (uncorrected), +10.0")
    open_ = alone | {"alone": "inconclusive"}
    weak = open_ | {"difference": "0.001", "slice": "head", "part": "inconclusive"}
    assert cell([open_, weak]).startswith("inconclusive, at worst +0.1")
    assert cell([open_, weak]).endswith("on the head")
    assert cell([]) == "–"


def test_studies_stand_side_by_side_with_their_rarest_slice():
    errors = {"head": 0.1, "torso": 0.2, "tail": 0.3, "full": 0.4}
    rows = [row("softmax", 0, slice_, error) for slice_, error in errors.items()]
    prior = [replace(rows[-1], metric="class-weighted-error", value=0.5)]
    step = [replace(one, dataset="tiny-step") for one in [*rows, *prior]]
    named = [replace(one, dataset="tiny-exp-contrastive", scheme="contrastive") for one in step]
    few = [replace(one, dataset="cifar10-step") for one in step if one.slice != "tail"]
    empty = replace(few[0], slice="tail", value=float("nan"))
    *_, line = page.side_by_side([*step, *named, *few, empty]).splitlines()
    known = "10.0 / 30.0 / 40.0 / 50.0"
    cells = [known, "–", "–", "10.0 / 20.0 / 40.0 / 50.0", known]
    assert line == "| softmax | " + " | ".join(cells) + " |"


def test_differences_are_paired_by_seed_so_a_missing_seed_is_refused():
    rows = small((0.8, 0.81, 0.79))
    missing = [one for one in rows if (one.scheme, one.seed) != ("logit-adjusted", 1)]
    with pytest.raises(HeadtailError, match="must count from 0"):
        values_of(missing)


def test_a_lean_that_orders_the_shifts_correlates_with_them(rows):
    classes = read_table(page.RESULTS / "longtail-classes.csv")
    base = [one for one in rows if one.dataset == "cifar10-step" and one.metric == "balanced-error"]
    errors = {"softmax": 0.5, "uniform:tail": 0.1, "within-batch:constant": 0.3}
    errors |= {"within-batch:relative": 0.8, "logit-adjusted": 0.1}
    chosen = [one for one in base if one.scheme in errors and one.slice in ("head", "torso")]
    ordered = [
        replace(one, value=errors[one.scheme] if one.slice == "torso" else 0.1) for one in chosen
    ]
    [line] = page.leans_of(ordered, classes)
    assert float(line["correlation"]) > 0.97
    turned = [replace(one, value=1 - one.value) for one in ordered]
    [line] = page.leans_of(turned, classes)
    assert float(line["correlation"]) < -0.97
