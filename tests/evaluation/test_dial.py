"""The dial: adjusted answers of one trained model are those of `+post-hoc`, for every τ."""

from __future__ import annotations

import pytest

from headtail.cli.options import with_options
from headtail.cli.predict import Predict
from headtail.comparison.compare import run_grid
from headtail.comparison.grid import cells
from headtail.comparison.results import Row
from headtail.data.slices import data_slices
from headtail.errors import HeadtailError
from headtail.evaluation import dial
from headtail.evaluation.dial import dial_of, leans_nowhere, taus_for
from headtail.evaluation.predictions import predict
from headtail.training.config import Training
from headtail.training.saved_model import load_model
from tests.longtail import longtail

TRAINING = Training(dim=8, batch=32, epochs=2, lr=0.1, dropout=0.0, negatives=8, validation=0.1)
NOWHERE = ("softmax", "within-batch:importance")
LEANING = ("softmax+post-hoc", "within-batch:tail", "logit-adjusted")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    grid = cells(TRAINING, (*NOWHERE, *LEANING), 1, longtail(), folder)
    return grid, run_grid(grid, longtail(), folder)


def values(rows: list[Row], scheme: str, split: str) -> dict[tuple[str, str], float]:
    return {
        (row.metric, row.slice): row.value
        for row in rows
        if (row.scheme, row.split) == (scheme, split)
    }


def test_models_that_lean_nowhere_have_a_row_for_each_tau_and_others_none(compared):
    grid, found = compared
    turned = {(row.scheme, row.split) for row in found.rows if row.split.startswith("post-hoc")}
    splits = [f"post-hoc({tau / 8:g})" for tau in range(1, 11)]
    assert turned == {(name, split) for name in NOWHERE for split in splits}
    heads = {cell.run.scheme: load_model(cell.folder)[0].head for cell in grid}
    assert [name for name in heads if leans_nowhere(heads[name])] == list(NOWHERE)


def test_tau_of_1_is_what_the_scheme_with_post_hoc_measures(compared):
    _, found = compared
    turned = values(found.rows, "softmax", "post-hoc(1)")
    test = values(found.rows, "softmax+post-hoc", "test")
    assert turned == {key: test[key] for key in turned}
    assert ("balanced-error", "tail") in turned
    plain = values(found.rows, "softmax", "test")
    assert turned["balanced-error", "tail"] < plain["balanced-error", "tail"]


def test_predict_delivers_what_the_dial_measured(compared):
    grid, _ = compared
    plain, adjusted = (load_model(cell.folder)[0] for cell in grid if "softmax" in cell.run.scheme)
    points = longtail().test
    turned = predict(plain, points, 3, post_hoc=1.0).labels
    assert turned.tolist() == predict(adjusted, points, 3).labels.tolist()
    assert turned.tolist() != predict(plain, points, 3).labels.tolist()
    assert (
        predict(adjusted, points, 3, post_hoc=0.0).labels.tolist()
        == predict(plain, points, 3).labels.tolist()
    )


def test_a_model_that_leans_to_the_tail_is_not_adjusted_again(compared):
    grid, _ = compared
    tail = next(cell for cell in grid if cell.run.scheme == "within-batch:tail")
    model = load_model(tail.folder)[0]
    assert dial_of(model, longtail(), data_slices(longtail())) == []
    with pytest.raises(HeadtailError, match="`post_hoc` would correct twice") as refused:
        predict(model, longtail().test, 3, post_hoc=0.5)
    advice = "Drop `--post-hoc`, or train with a loss that leans to neither side"
    assert advice in with_options(refused.value, Predict)


def test_answers_that_do_not_fit_in_memory_at_once_are_measured_in_turn(compared, monkeypatch):
    grid, _ = compared
    model = load_model(grid[0].folder)[0]
    data = longtail()
    at_once = dial_of(model, data, data_slices(data))
    monkeypatch.setattr(dial, "ANSWERS_AT_ONCE", 1)
    assert dial_of(model, data, data_slices(data)) == at_once


def test_many_scores_are_measured_in_coarser_steps():
    assert taus_for(2**30) == [tau / 8 for tau in range(1, 11)]
    assert taus_for(2**30 + 1) == [0.25, 0.5, 0.75, 1.0, 1.25]
