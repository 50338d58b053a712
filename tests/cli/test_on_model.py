"""`headtail explain --model` and `headtail advise --model`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headtail.cli import main

DATA = "synthetic:points=600,test=100,features=200,labels=60"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    settings = ["--scheme", "within-batch:tail", "--dim", "8", "--epochs", "1", "--device", "cpu"]
    assert main(["train", DATA, "--out", str(folder), *settings]) == 0
    return folder


def printed(capsys: pytest.CaptureFixture, *words: str) -> str:
    capsys.readouterr()
    assert main([*words, "--device", "cpu", "--batch", "64", "--repeats", "2"]) == 0
    return capsys.readouterr().out


def test_explain_measures_each_sampler_and_the_exact_loss(run: Path, capsys: pytest.CaptureFixture):
    words = [
        "explain",
        "--model",
        str(run),
        "--data",
        DATA,
        "--target",
        "logit-adjusted",
        "--negatives",
        "8",
        "--json",
    ]
    found = json.loads(printed(capsys, *words))
    names = [one["scheme"] for one in found["samplers"]]
    assert names[0] == "uniform:tail@8"
    assert "tilted:tail@8" in names
    assert names[-1] == "logit-adjusted"
    tilted = next(one for one in found["samplers"] if one["scheme"] == "tilted:tail@8")
    uniform = found["samplers"][0]
    assert tilted["squared_error"] < 1e-10 < uniform["squared_error"]
    assert tilted["table"]["error"] < uniform["table"]["error"]
    assert set(found["frontier"]) <= set(names)


def test_explain_prints_a_table_that_fits_and_names_the_best_for_a_budget(
    run: Path, capsys: pytest.CaptureFixture, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "90")
    out = printed(
        capsys,
        "explain",
        "--model",
        str(run),
        "--data",
        DATA,
        "--budget",
        "100000",
        "--samplers",
        "uniform",
        "hard(2)",
    )
    assert max(map(len, out.splitlines())) <= 100
    assert "hard(2):tail@16" in out, "the run's own weights"
    assert "frequency" not in out
    assert "use logit-adjusted: its gradient errs least" in out, "there is time for the exact loss"
    out = printed(
        capsys,
        "explain",
        "uniform:importance@4",
        "--model",
        str(run),
        "--data",
        DATA,
        "--budget",
        "1e-4",
    )
    assert "Nothing takes 0.0001 ms or less" in out
    assert "uniform:importance@4" in out


def test_advise_names_a_scheme_that_can_be_built(run: Path, capsys: pytest.CaptureFixture):
    found = json.loads(printed(capsys, "advise", "--model", str(run), "--data", DATA, "--json"))
    best = next(one for one in found["samplers"] if one["scheme"] == found["best"])
    assert best["table"]["cosine"] >= 0.9
    out = printed(capsys, "advise", "--model", str(run), "--data", DATA, "--samplers", "model")
    assert "points the right way" in out
    assert 'ht.scheme("' in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["explain", "--model", "RUN"], "`--model` needs `--data DATA`"),
        (["explain", "softmax", "--model", "RUN", "--data", DATA], "uses all labels"),
        (
            ["explain", "--model", "RUN", "--data", DATA, "--samplers", "unifrom"],
            "Did you mean `uniform`",
        ),
        (
            ["explain", "--model", "RUN", "--data", DATA, "--budget", "-3"],
            "`--budget` must be at least",
        ),
        (
            ["explain", "--model", "RUN", "--data", DATA.replace("labels=60", "labels=61")],
            "Pass the data it was trained on",
        ),
        (["advise", "--labels", "100", "--model", "RUN", "--data", DATA], "labels of its own"),
        (["explain", "--model", "nowhere", "--data", DATA], "holds no trained model"),
        (
            ["explain", "--model", "RUN", "--data", DATA, "--samplers", "block:tail@8"],
            "only a sampler is wanted. Write `block`.",
        ),
        (
            ["explain", "block:constant", "--model", "RUN", "--data", DATA],
            "The weights of `block:constant` approximate none of",
        ),
    ],
)
def test_options_without_meaning_are_refused_in_a_sentence(
    run: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture
):
    assert main([str(run) if word == "RUN" else word for word in words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("width", [80, 100, 125, 160])
def test_no_column_of_the_table_is_cut_off(
    run: Path, capsys: pytest.CaptureFixture, monkeypatch, width: int
):
    monkeypatch.setenv("COLUMNS", str(width))
    options = ["--target", "softmax", "--negatives", "8", "--samplers"]
    sampler = "resampled(32,frequency(0.5))"
    out = printed(capsys, "explain", "--model", str(run), "--data", DATA, *options, sampler)
    assert "…" not in out
    for word in ("resampled(32,", "frequency(0.5)):", "importance@8"):
        assert word in out, "no name is broken inside a word"
    assert ("draw ms" in out) == (width > 130)


def test_advise_says_what_it_left_out_and_explains_no_bold_that_is_not_there(
    run: Path, capsys: pytest.CaptureFixture, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    out = printed(
        capsys,
        "advise",
        "--model",
        str(run),
        "--data",
        DATA,
        "--samplers",
        "uniform",
        "frequency",
        "hard",
    )
    assert (
        "of the 10 losses that were measured are left out: another is quicker and more exact."
        in out
    )
    assert "bold:" not in out
    out = printed(
        capsys,
        "explain",
        "--model",
        str(run),
        "--data",
        DATA,
        "--samplers",
        "uniform",
        "frequency",
        "hard",
    )
    assert "bold:" in out
    assert out.count("Δ loss") == 2, "a column, and what it is"


def test_the_target_is_that_of_the_scheme_else_of_the_run_unless_it_is_named(
    run: Path, capsys: pytest.CaptureFixture
):
    words = ["--model", str(run), "--data", DATA, "--negatives", "8", "--json"]

    def names(*more: str) -> list[str]:
        return [
            one["scheme"]
            for one in json.loads(printed(capsys, "explain", *more, *words))["samplers"]
        ]

    assert names("--samplers", "uniform") == ["uniform:tail@8", "logit-adjusted"]
    assert names("uniform:importance") == ["uniform:importance@8", "softmax"]
    assert names("uniform:constant", "--target", "equalised") == [
        "uniform:equalised@8",
        "equalised",
    ]
    assert names("block:tail", "--samplers", "uniform") == [
        "block:tail@8",
        "uniform:tail@8",
        "logit-adjusted",
    ]


def test_numbers_of_negatives_that_do_not_suit_a_sampler_are_left_out_alone(
    run: Path, capsys: pytest.CaptureFixture
):
    words = [
        "explain",
        "--model",
        str(run),
        "--data",
        DATA,
        "--samplers",
        "within-batch",
        "hard(32)",
        "tilted",
    ]
    assert main([*words, "--device", "cpu", "--batch", "64", "--repeats", "2"]) == 0
    out = capsys.readouterr().out
    assert all(
        name in out for name in ("within-batch:tail@64", "hard(32):tail@256", "tilted:tail@16")
    )
    shown = {
        line.split()[0]: line.split()[1:3]
        for line in out.splitlines()
        if line.startswith((" tilted", "tilted"))
    }
    assert shown["tilted:tail@16"] == ["0", "0"], "rounding is no noise"
    assert "`@256` in `within-batch:tail@256` is more than the 64 labels of a batch." in " ".join(
        out.split()
    )
    assert "takes 32 nearest labels of 16 negatives" in " ".join(out.split())
    assert main([*words[:-3], "hard(300)", "--device", "cpu"]) == 2, (
        "nothing is left of what was asked for"
    )


def test_a_loss_without_a_gradient_at_scores_of_0_has_no_best_q(capsys: pytest.CaptureFixture):
    for name, known in (("contrastive/uniform:tail", False), ("uniform:tail", True)):
        assert main(["explain", name, "--zipf", "200"]) == 0
        assert ("untrained q*" in capsys.readouterr().out) == known
