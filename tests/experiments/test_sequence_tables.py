"""The tables of the page on models of sequences."""

from __future__ import annotations

from tests.experiments.test_longtail import script


def row(scheme: str, validation: float, value: float, **others: str) -> dict[str, str]:
    usual = {"data": "beauty", "encoder": "sasrec", "scheme": scheme, "dim": "8", "lr": "0.1"}
    usual |= {"batch": "4", "dropout": "0", "best epoch": "3", "seconds per epoch": "2.0"}
    numbers = {"validation": validation, "ndcg@10 all": value}
    numbers |= {f"ndcg@10 {slice_}": value for slice_ in ("full", "head", "torso", "tail")}
    return usual | {name: str(number) for name, number in numbers.items()} | others


def seeds(scheme: str, validation: float, *values: float) -> list[dict[str, str]]:
    return [row(scheme, validation, value) for value in values]


def test_a_line_has_the_mean_and_the_deviation_of_its_seeds():
    several, one = seeds("uniform", 0.2, 0.1, 0.2), seeds("softmax", 0.1, 0.3)
    found = script("sequence_tables").table("beauty", [*one, *several]).splitlines()[2:]
    start = "| sasrec | {} | 8 | 4 | 0.1 | 0 | {} |"
    assert found[0].startswith(start.format("uniform", "3, 3") + " 20.00 ± 0.00 | 15.00 ± 7.07 |")
    assert found[1].startswith(start.format("softmax", "3") + " 10.00 | 30.00 |")


def test_the_sampled_scheme_is_chosen_on_validation_and_among_those_with_several_seeds():
    tables = script("sequence_tables")
    good, better = seeds("uniform", 0.2, 0.5, 0.5), seeds("block", 0.3, 0.1, 0.1)
    lucky = [row("frequency", 0.9, 0.9)]
    softmax, sampled = tables.chosen(
        "beauty", [*lucky, *good, *better, *seeds("softmax", 0.1, 0.2, 0.2)]
    )
    assert [line["scheme"] for line in (softmax[0], sampled[0])] == ["softmax", "block"]


def test_a_time_is_held_against_the_softmax_of_its_own_batch():
    alone = [
        row("softmax", 0, 0, batch="4"),
        row("uniform", 0, 0, batch="4", **{"seconds per epoch": "0.5"}),
        row("softmax", 0, 0, batch="8", **{"seconds per epoch": "3.0"}),
    ]
    assert script("sequence_tables").times_table(alone).splitlines()[2:] == [
        "| Amazon Beauty | 4 | softmax | 2.00 | 1.00 |",
        "| Amazon Beauty | 4 | uniform | 0.50 | 4.00 |",
        "| Amazon Beauty | 8 | softmax | 3.00 | 1.00 |",
    ]
