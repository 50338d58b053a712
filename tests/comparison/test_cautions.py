"""Cautions about settings: the edge of what tuning tried, and epochs that differ by scheme."""

from __future__ import annotations

from dataclasses import replace

import pytest

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


def batched(labels: float, *names: str, batching: str = "auto") -> list[str]:
    schemes = {name: {"leans": "neither"} for name in names}
    data = {"task": "retrieval", "labels_per_point": labels}
    return cautions_of(Comparison([], data, schemes, {"batching": batching}, {}, {}))


def test_losses_over_all_labels_that_take_whole_points_are_named():
    names = ("softmax", "uniform:tail")
    [sentence] = batched(26.7, *names)
    assert sentence.startswith("softmax takes all labels of a point in one batch, 27 on average,")
    assert batched(1.5, *names) == []
    assert batched(26.7, *names, batching="pairs") == []
    assert batched(26.7, *names[1:]) == []
    assert batched(26.7, *names[:1]) == []


def curve(scheme: str, best: int, last: int) -> list[Row]:
    """A run that learnt nothing, was best in one epoch and trained until another."""

    def row(split: str, metric: str, epoch: int) -> Row:
        return Row("r", "d", split, "softmax", scheme, None, 0, epoch, 1, "full", metric, 0.0)

    validated = [row("validation", "implicit-loss", epoch) for epoch in range(1, last + 1)]
    return [*validated, row("test", "recall@10", best)]


@pytest.mark.parametrize(
    ("scheme", "best", "last", "advice"),
    [
        ("uniform:importance", 1, 4, "best after epoch 1 and then got worse: more epochs will not"),
        ("uniform:importance", 1, 9, "Try more negatives or a smaller learning rate."),
        ("uniform:importance", 3, 6, "best after epoch 3 and then got worse"),
        ("softmax", 1, 4, "will not help. Try a smaller learning rate."),
        ("softmax", 9, 9, "Try a larger learning rate or more epochs."),
        ("softmax", 8, 9, "Try a larger learning rate or more epochs."),
    ],
)
def test_more_epochs_are_not_advised_where_held_out_results_got_worse(scheme, best, last, advice):
    found = replace(comparison(lr=0.1, epochs=9), schemes={scheme: {"leans": "neither"}})
    sentence = cautions_of(replace(found, rows=curve(scheme, best, last)))[0]
    assert advice in sentence
    assert ("larger learning rate" in sentence) == ("larger" in advice)


def test_schemes_that_got_worse_and_others_get_different_advice():
    schemes = {name: {"leans": "neither"} for name in ("softmax", "uniform:importance")}
    rows = [*curve("softmax", 8, 9), *curve("uniform:importance", 1, 4)]
    found = replace(comparison(lr=0.1, epochs=9), schemes=schemes, rows=rows)
    one, other = cautions_of(found)
    assert one.startswith("softmax ")
    assert one.endswith("more epochs.")
    assert other.startswith("uniform:importance ")
    assert other.endswith("smaller learning rate.")


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
