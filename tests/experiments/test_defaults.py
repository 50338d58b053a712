"""The sweep over default settings, and its tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headtail.training import recipes
from headtail.training.recipes import DEFAULTS
from tests.experiments.test_longtail import script

TEXT = DEFAULTS["text"]


def line(**values) -> dict[str, str]:
    usual = {
        "dataset": "delicious",
        "scheme": "within-batch:tail",
        "lr": f"{TEXT.lr:g}",
        "epochs": TEXT.epochs,
        "batch": 256,
        "negatives": TEXT.negatives,
        "dropout": f"{TEXT.dropout:g}",
        "implicit_loss": 2.0,
        "validation_full": 0.1,
        "validation_tail": 0.3,
        "test_full": 0.1,
        "test_tail": 0.3,
        "curve": "3 2",
    }
    return {name: str(value) for name, value in (usual | values).items()}


def table(lines) -> list[str]:
    return script("defaults_tables").claim_table(lines).splitlines()[2:]


def test_a_default_that_was_not_run_is_said_to_be_missing():
    rows = table([line(lr="0.9")])
    assert rows[1] == "| Delicious | within-batch:tail | 1 | not run yet | | | | |"


def test_a_default_is_held_against_the_best_run_with_its_batch_and_negatives():
    others = [
        line(lr="0.9", implicit_loss=1.99, validation_tail=0.31, test_tail=0.25),
        line(lr="0.9", implicit_loss=1.0, negatives=9),
        line(lr="0.9", implicit_loss=1.0, dataset="beauty"),
    ]
    assert table([line(), *others])[1] == (
        f"| Delicious | within-batch:tail | 2 | 2.000 | 1.990 (0.9, {TEXT.epochs}) | 0.5% | "
        "30.0 of 31.0 = 97% | 30.0 of 30.0 = 100% |"
    )


def test_what_misses_the_claim_is_bold():
    better = line(lr="0.9", implicit_loss=1.9, validation_tail=0.4)
    row = table([line(), better])[1]
    assert "**5.3%**" in row
    assert "**30.0 of 40.0 = 75%**" in row
    assert "**30.0 of 30.0" not in row


@pytest.mark.parametrize(("data", "pairs"), [("delicious", 246_088), ("beauty", 233_284)])
def test_the_tables_assume_the_batch_that_the_size_of_the_data_leads_to(data, pairs):
    [study] = [one for one in script("defaults_tables").STUDIES if one.data == data]
    usual = recipes.DEFAULTS[study.kind]
    assert recipes.batch_for(usual, pairs) == study.batch


def test_every_run_of_the_sweep_has_a_key_and_few_share_one():
    sweep = script("defaults")
    tasks = [task for each in sweep.SWEEPS for task in sweep.tasks_of(each)]
    assert len({task.key for task in tasks}) > 450
    first = tasks[0]
    assert replace(first, run=replace(first.run, lr=0.7)).key != first.key
