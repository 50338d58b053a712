"""Tuning: the same tries for every scheme, on held-out training points, all kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from headtail import compare, load, tune
from headtail.cli import main
from headtail.comparison.compare import Execution
from headtail.comparison.results import Comparison, Try, read_rows
from headtail.comparison.tune import best_of, number_of_tries
from headtail.errors import HeadtailError
from headtail.files.records import read_csv
from headtail.training import recipes
from headtail.training.config import Training
from tests.training.test_train import Calls

DATA = "synthetic:points=80,test=20,features=80,labels=12"
QUICK = Training(dim=4, batch=16, negatives=4, validation=0.2, dropout=0.0)
SCHEMES = ["softmax", "within-batch:tail", "softmax+post-hoc"]


@pytest.fixture(scope="module", autouse=True)
def few_epochs():
    """The default length, two epochs: tests must be fast."""
    patch = pytest.MonkeyPatch()
    short = {kind: replace(usual, epochs=2) for kind, usual in recipes.DEFAULTS.items()}
    patch.setattr(recipes, "DEFAULTS", short)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    return folder, tune(DATA, SCHEMES, out=folder, training=QUICK, device="cpu")


def test_every_scheme_gets_the_same_tries_and_the_best_is_chosen(tuned):
    folder, chosen = tuned
    tries = read_csv(folder / "tries.csv", Try)
    assert Counter(one.scheme for one in tries) == {"softmax": 7, "within-batch:tail": 7}
    assert number_of_tries(QUICK, SCHEMES) == len(tries)
    for name in ("softmax", "within-batch:tail"):
        mine = [one for one in tries if one.scheme == name]
        best = min(mine, key=lambda one: one.value)
        assert [one for one in mine if one.chosen == "yes"] == [best]
        assert (chosen[name].lr, chosen[name].epochs) == (best.lr, best.epochs)
        assert sorted(one.epochs for one in mine) == [1] * 5 + [2, 4]
    assert chosen["softmax+post-hoc"] == chosen["softmax"]


def test_the_test_points_are_not_looked_at_and_no_model_is_kept(tuned):
    folder, _ = tuned
    files = list(folder.glob("tuning/*/results.csv"))
    assert len(files) == 14
    assert {row.split for path in files for row in read_rows(path)} == {"train", "validation"}
    assert not list(folder.glob("tuning/*/*.safetensors"))


def test_finished_tries_are_not_run_again(tuned):
    folder, chosen = tuned
    calls = Calls()
    watched = Execution(callbacks=lambda _: [calls])
    again = tune(DATA, SCHEMES, out=folder, training=QUICK, device="cpu", execution=watched)
    assert again == chosen
    assert not calls.made


def test_a_comparison_trains_each_scheme_as_chosen_and_keeps_the_tries(tuned):
    folder, chosen = tuned
    found = compare(DATA, SCHEMES, out=folder, training=chosen, device="cpu")
    assert len(found.tries) == 14
    lr = found.settings["lr"]
    of_scheme = {name: lr[name] if isinstance(lr, dict) else lr for name in SCHEMES}
    assert of_scheme == {name: one.lr for name, one in chosen.items()}
    assert not found.failures
    assert Comparison.read(folder).settings == found.settings


def test_what_is_given_is_not_tuned(tmp_path):
    given = replace(QUICK, lr=0.07)
    chosen = tune(DATA, ["softmax"], out=tmp_path, training=given, device="cpu")
    assert chosen["softmax"].lr == 0.07
    assert len(read_csv(tmp_path / "tries.csv", Try)) == 3 == number_of_tries(given, ["softmax"])


@pytest.mark.parametrize(
    ("training", "fragment"),
    [
        (replace(QUICK, lr=0.1, epochs=2), "Nothing is left to tune: `lr` and `epochs` are given"),
        (replace(QUICK, validation=0.0), "needs held-out training points, but `validation` is 0"),
    ],
)
def test_where_nothing_can_be_tuned_it_says_why(training, fragment, tmp_path):
    with pytest.raises(HeadtailError, match=fragment):
        tune(DATA, ["softmax"], out=tmp_path, training=training)


def test_data_with_too_few_points_to_hold_out_are_refused(tmp_path):
    data = load("synthetic:points=20,test=5,features=80,labels=12")
    with pytest.raises(HeadtailError, match="too few training points to hold some out"):
        tune(data, ["softmax"], out=tmp_path, training=replace(QUICK, validation=0.01))


def test_a_rate_that_diverges_is_not_chosen_and_all_that_do_are_named():
    good = Try("softmax", 0.1, 2, 1, "implicit-loss", 3.0)
    lost = Try("softmax", 9.0, 2, 0, "implicit-loss", float("nan"))
    assert best_of([lost, good]) == good
    recall = replace(good, metric="recall@10", value=0.2)
    assert best_of([recall, replace(recall, lr=0.2, value=0.3)]).lr == 0.2
    with pytest.raises(HeadtailError, match=r"diverged\. Choose a smaller `lr` than 9"):
        best_of([lost])


@pytest.mark.parametrize("command", ["train", "compare"])
def test_the_command_line_shows_the_tries_and_uses_the_chosen(command, tmp_path, capsys):
    scheme = ["--scheme" if command == "train" else "--schemes", "within-batch:tail"]
    quick = ["--dim", "4", "--batch", "16", "--negatives", "4", "--validation", "0.2", "--epochs"]
    words = [command, DATA, "--tune", *scheme, *quick, "1", "--device", "cpu"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr()
    assert "Tuning: short runs on held-out training points" in shown.err
    [chosen] = [one for one in read_csv(tmp_path / "out/tries.csv", Try) if one.chosen == "yes"]
    assert f"lr = {chosen.lr}" in (tmp_path / "out/run.toml").read_text()
