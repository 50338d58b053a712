"""Figures of an untrained model carry that in their name, and never become advice."""

from __future__ import annotations

import json
import math

import pytest
import torch

from headtail import HeadtailError, Labels, explain, scheme
from headtail.cli import main
from headtail.comparison.explained import explain_schemes
from headtail.comparison.rows import explain_rows
from headtail.data.load import load
from headtail.training.config import SettledRun

LABELS = Labels.zipf(1000)


def trained_scores(number: int = 3, scale: float = 12.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores as training leaves them: a few labels far above all others."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(number, 1000, generator=generator)
    target = torch.randint(1000, (number,), generator=generator)
    rivals = torch.randint(1000, (number, 4), generator=generator)
    scores.scatter_(1, rivals, scale)
    scores[torch.arange(number), target] = scale
    return scores, target


@pytest.mark.parametrize(
    "name", ["uniform:importance@64", "within-batch:tail", "hinge/uniform:constant", "softmax"]
)
def test_without_scores_there_is_no_noise_of_a_trained_model_and_no_number_of_negatives(name):
    found = explain(scheme(name, LABELS), LABELS)
    assert found.scores == "untrained"
    assert all(example.noise is None and example.needed_m is None for example in found.examples)
    if name != "softmax":
        assert all(example.noise_untrained is not None for example in found.examples)


def test_with_scores_the_noise_is_that_of_these_scores_and_so_are_the_negatives_needed():
    scores, target = trained_scores()
    found = explain(scheme("uniform:importance@64", LABELS), LABELS, scores=scores, target=target)
    assert found.scores == "given"
    for example in found.examples:
        assert example.noise_untrained is None
        assert example.noise is not None
        assert example.squared_error is not None
        assert example.noise == pytest.approx(math.sqrt(example.squared_error))
        assert example.needed_m == math.ceil(64 * example.squared_error / 0.1**2 * (1 - 1e-12))


def test_an_untrained_model_says_nothing_about_the_negatives_that_a_trained_one_needs():
    """What made an untrained figure dangerous: it is hundreds of times too small."""
    scores, target = trained_scores()
    loss = scheme("uniform:importance@64", LABELS)
    untrained = explain(loss, LABELS).examples[0].noise_untrained
    assert untrained is not None
    trained = explain(loss, LABELS, scores=scores, target=target).examples
    assert 64 * untrained**2 / 0.1**2 < 1
    assert all(example.needed_m is not None and example.needed_m > 500 for example in trained)


def test_a_wish_for_less_noise_needs_scores():
    loss = scheme("uniform:importance@64", LABELS)
    with pytest.raises(HeadtailError, match="`scores`"):
        explain(loss, LABELS, noise=0.05)
    scores, target = trained_scores(1)
    fewer, more = (
        explain(loss, LABELS, scores=scores, target=target, noise=noise).examples[0].needed_m
        for noise in (0.2, 0.1)
    )
    assert fewer is not None
    assert more is not None
    assert more == pytest.approx(4 * fewer, rel=1e-3)


def test_json_names_the_untrained_figures(capsys):
    assert main(["explain", "uniform:importance", "--zipf", "100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scores"] == "untrained"
    for example in found["examples"]:
        assert example["noise"] is None
        assert example["needed_m"] is None
        assert example["noise_untrained"] > 0


@pytest.mark.parametrize(
    "scheme_", [[], ["uniform:importance"], ["within-batch:tail"], ["contrastive/uniform:constant"]]
)
def test_what_people_see_says_untrained_and_asks_for_no_number_of_negatives(
    capsys, monkeypatch, scheme_
):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["explain", *scheme_, "--zipf", "100"]) == 0
    out = capsys.readouterr().out
    assert "untrained" in out
    assert "m for" not in out
    assert "trained model" in out
    assert "--model" in out, "how to find out"


def test_the_command_has_no_option_for_a_wished_noise(capsys):
    assert main(["explain", "uniform:importance", "--zipf", "100", "--noise", "0.2"]) == 2
    assert "--noise" in capsys.readouterr().err


def test_a_comparison_calls_its_noise_untrained():
    data = load("synthetic:points=600,test=100,features=200,labels=60")
    runs = [SettledRun(scheme="uniform:importance", batch=8, negatives=4)]
    schemes = explain_schemes(runs, data)
    about = schemes["uniform:importance"]
    assert about["noise_untrained"] > 0
    assert "noise" not in about
    assert [row.metric for row in explain_rows(schemes, data)] == ["lean", "noise_untrained"]
