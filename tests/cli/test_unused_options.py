"""An option that would do nothing is refused, and one that does something is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headtail.cli import main
from tests.cli.test_commands import DATA, dense, interactions, sequences, svmlight, told, xc
from tests.cli.test_image_commands import zoo

WRITERS = {
    "text": svmlight,
    "split": xc,
    "sequences": sequences,
    "interactions": interactions,
    "dense": dense,
    "images": zoo,
}
MODEL = ["--model", "nowhere", "--data", DATA]


def sentence(capsys, arguments: list[str]) -> str:
    """The last line of what is said, which refuses; notes about the data may stand before it."""
    assert main(arguments) == 2
    return " ".join(capsys.readouterr().err.split()).partition("headtail: ")[2]


@pytest.mark.parametrize(
    ("kind", "options", "what_for"),
    [
        ("dense", ["--skip-bad-lines"], "it is for text"),
        ("text", ["--last", "3"], "it is for sequences"),
        ("interactions", ["--last", "3"], "it is for sequences"),
        ("text", ["--split-column", "1"], "it is for split files"),
        ("split", ["--holdout", "0.4"], "it is for data without a test part"),
        ("sequences", ["--holdout", "0.4"], "it is for data without a test part"),
        ("images", ["--holdout", "0.4"], "it is for data without a test part"),
        ("text", ["--root", "."], "it is for lists of images"),
        ("images", ["--root", "."], "it is for lists of images"),
        ("text", ["--skip-bad-images"], "it is for images"),
    ],
)
def test_how_data_are_read_must_suit_them(tmp_path, capsys, kind, options, what_for):
    data = WRITERS[kind](tmp_path / "shop")
    assert f"`{options[0]}` would do nothing to `{data}`: {what_for}" in sentence(
        capsys, ["stats", str(data), *options]
    )


@pytest.mark.parametrize("options", [["--test", "here"], ["--format", "xc"], ["--holdout", "0.4"]])
def test_generated_data_are_not_read(tmp_path, monkeypatch, capsys, options):
    monkeypatch.chdir(tmp_path)
    Path("here").touch()
    assert f"`{options[0]}` would do nothing to `{DATA}`" in told(capsys, ["stats", DATA, *options])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("text", ["--holdout", "0.4", "--skip-bad-lines"]),
        ("interactions", ["--holdout", "0.4"]),
        ("sequences", ["--last", "3"]),
        ("split", ["--split-column", "0", "--skip-bad-lines"]),
        ("images", ["--skip-bad-images", "--format", "images"]),
        ("dense", ["--format", "dense", "--holdout", "0.2", "--last", "10"]),
    ],
)
def test_what_suits_the_data_or_stands_there_anyway_is_taken(tmp_path, kind, options):
    assert main(["stats", str(WRITERS[kind](tmp_path / "shop")), *options]) == 0


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (
            ["train", DATA, "--scheme", "softmax", "--negatives", "8"],
            "`--negatives` would do nothing: softmax",
        ),
        (
            ["train", DATA, "--scheme", "uniform:tail@4", "--negatives=64"],
            "`--negatives` would do nothing: uniform:tail@4",
        ),
        (
            ["compare", DATA, "--schemes", "softmax", "uniform:tail@4", "--negatives", "8"],
            "all labels, uniform:tail@4 has its own m",
        ),
        (["train", DATA, "--validation", "0", "--patience", "5"], "`--patience` would do nothing"),
        (
            ["compare", DATA, "--validation", "0", "--stop_on", "recall@10"],
            "`--stop-on` would do nothing",
        ),
        (["train", DATA, "--no-augment"], "`--no-augment` would do nothing"),
        (["compare", DATA, "--augment"], "`--augment` would do nothing"),
        (["explain", "softmax", "--negatives", "8"], "`--negatives` would do nothing: softmax"),
        (
            ["explain", "uniform:tail@4", "--negatives", "8"],
            "`--negatives` would do nothing: uniform:tail@4",
        ),
        (
            ["explain", "uniform:tail@4", "--negatives", "8", *MODEL],
            "`--negatives` would do nothing: uniform:tail@4",
        ),
        (
            ["explain", "--target", "softmax", "--budget", "3"],
            "`--target`, `--budget` would do nothing: without `--model`",
        ),
        (["explain", "--device", "cpu"], "`--device` would do nothing: without `--model`"),
        (["explain", "--last", "3"], "`--last` would do nothing: without `--data`"),
        (["explain", "--zipf", "100", *MODEL], "`--zipf` would do nothing: with `--model`"),
        (
            ["advise", "--labels", "1000", "--samplers", "uniform"],
            "`--samplers` would do nothing: without `--model`",
        ),
        (
            ["advise", "--dim", "64", "--memory", "2", *MODEL],
            "`--dim`, `--memory` would do nothing: with `--model`",
        ),
        (["advise", "--smoothing", "1", *MODEL], "`--smoothing` would do nothing: with `--model`"),
    ],
)
def test_settings_that_would_do_nothing_are_refused_before_any_work(
    tmp_path, monkeypatch, capsys, arguments, refused
):
    monkeypatch.chdir(tmp_path)
    assert refused in told(capsys, arguments)
    assert list(tmp_path.iterdir()) == []


def test_counts_of_one_s_own_have_no_exponent(tmp_path, capsys):
    np.savetxt(tmp_path / "counts.txt", [5, 3, 2], fmt="%d")
    for command in ("explain", "advise"):
        arguments = [command, "--counts", str(tmp_path / "counts.txt"), "--exponent", "2"]
        assert "`--exponent` would do nothing: the labels of `--counts` are not generated" in told(
            capsys, arguments
        )


@pytest.mark.parametrize(
    "option", [["--dim", "16"], ["--no-normalise"], ["--feature-dropout", "0.1"]]
)
def test_what_only_rows_of_numbers_have_is_refused_for_images(tmp_path, capsys, option):
    data = zoo(tmp_path / "zoo")
    out = tmp_path / "run"
    for command in ("train", "compare"):
        said = sentence(
            capsys,
            [command, str(data), "--epochs", "1", "--device", "cpu", "--out", str(out), *option],
        )
        assert f"`{option[0]}` would do nothing" in said
    assert not out.exists()


def test_negatives_count_where_any_scheme_takes_them(tmp_path):
    schemes = ["--schemes", "softmax", "uniform:tail", "--negatives", "8"]
    assert (
        main(
            [
                "compare",
                DATA,
                "--dim",
                "8",
                "--epochs",
                "1",
                *schemes,
                "--out",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )


@pytest.mark.parametrize(
    ("options", "because"),
    [
        (["--length", "9"], "only gru and sasrec (`--encoder`) read sequences in order"),
        (["--encoder", "bag", "--no-tied"], "only gru and sasrec (`--encoder`) read sequences"),
        (["--encoder", "gru", "--heads", "2"], "only sasrec has attention heads"),
        (["--encoder", "sasrec", "--last", "3"], "sasrec reads up to `--length` items in order"),
        (["--encoder", "gru", "--feature-dropout", "0.1"], "gru reads up to `--length` items"),
    ],
)
@pytest.mark.parametrize("command", ["train", "compare"])
def test_options_of_other_encoders_are_refused(capsys, command, options, because):
    said = sentence(capsys, [command, DATA, *options])
    assert said.startswith(f"`{options[-2] if options[-1][0] != '-' else options[-1]}` would do")
    assert because in said
