"""Cautions about settings: the edge of what tuning tried, and epochs that differ by scheme."""

from __future__ import annotations

from dataclasses import replace

from headtail.comparison.cautions import cautions_of
from headtail.comparison.results import Comparison, Row, Try


def tries(scheme: str, chosen: int) -> list[Try]:
    settings = [(0.01, 5), (0.02, 5), (0.04, 5), (0.02, 10), (0.02, 20)]
    made = [Try(scheme, *setting, 3, "implicit-loss", 1.0) for setting in settings]
    made[chosen] = replace(made[chosen], chosen="yes")
    return made


def comparison(**settings) -> Comparison:
    schemes = {"a": {"leans": "neither"}, "b": {"leans": "neither"}}
    return Comparison([], {"task": "retrieval"}, schemes, settings, {}, {})


def test_a_choice_in_the_middle_of_what_was_tried_is_not_doubted():
    found = comparison(lr=0.02, epochs=10)
    assert cautions_of(replace(found, tries=tries("a", 3))) == []


def test_a_choice_at_the_edge_of_what_was_tried_is_named_with_its_schemes():
    found = comparison(lr={"a": 0.04, "b": 0.02}, epochs={"a": 5, "b": 20})
    assert cautions_of(replace(found, tries=[*tries("a", 2), *tries("b", 4)])) == [
        "The learning rate that tuning chose for a is the largest that was tried: a larger one may "
        "give better numbers.",
        "The number of epochs that tuning chose for b is the largest that was tried: a larger one "
        "may give better numbers.",
        "The number of epochs that tuning chose for a is the smallest that was tried: a smaller "
        "one may give better numbers.",
    ]


def test_tries_of_another_call_say_nothing():
    found = comparison(lr=0.3, epochs=5)
    assert cautions_of(replace(found, tries=tries("a", 2))) == []


def test_the_last_epoch_is_that_of_each_scheme():
    def rows(scheme: str, epoch: int) -> list[Row]:
        where = ("d", "softmax", scheme, None, 0, epoch, 1, "full")
        dataset, loss, *others = where
        return [
            Row("r", dataset, split, loss, *others, metric, 0.9)
            for split, metric in (("validation", "implicit-loss"), ("test", "recall@10"))
        ]

    found = comparison(lr=0.1, epochs={"a": 5, "b": 9})
    found = replace(found, rows=[*rows("a", 5), *rows("b", 5)])
    assert cautions_of(found) == [
        "The best epoch of a is the last one, epoch 5: more epochs may give better numbers."
    ]
