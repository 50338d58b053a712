"""What is known of schemes before training."""

from __future__ import annotations

import pytest

from headtail.comparison.explained import explain_schemes
from headtail.comparison.rows import explain_rows
from headtail.training.config import SettledRun
from tests.longtail import longtail

WHOLE_POINTS = "Batches hold whole points"


@pytest.mark.parametrize(
    ("name", "draws_training_labels"),
    [
        ("within-batch:tail", True),
        ("queue:tail", True),
        ("mixture(uniform,within-batch):tail", True),
        ("resampled(64,within-batch):importance@8", True),
        ("mixture(uniform,log-uniform):tail", False),
        ("uniform:tail", False),
        ("softmax", False),
    ],
)
def test_whole_points_are_noted_where_negatives_are_labels_of_training_examples(
    name, draws_training_labels
):
    for batching in ("points", "pairs"):
        explained = explain_schemes([SettledRun(scheme=name, batching=batching)], longtail())[name]
        noted = any(note.startswith(WHOLE_POINTS) for note in explained["notes"])
        assert noted == (draws_training_labels and batching == "points")


def test_a_scheme_that_cannot_be_built_has_a_note_and_no_rows():
    data = longtail()
    runs = [SettledRun(scheme="hard(70,uniform):importance@64"), SettledRun(scheme="softmax")]
    explained = explain_schemes(runs, data)
    assert explained[runs[0].scheme]["m"] is None
    assert len(explained[runs[0].scheme]["notes"]) == 1
    assert {row.scheme for row in explain_rows(explained, data)} == {"softmax"}
