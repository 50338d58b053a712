"""Odd paths get one sentence, before any work is done."""

from __future__ import annotations

import os

import pytest

from headtail.cli import main
from headtail.comparison.kept_json import SHAPES
from headtail.files.checksums import OTHER_SUMS, write_sums

DATA = "synthetic:points=120,test=30,features=80,labels=12"
SMALL = ["--dim", "4", "--epochs", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run, a comparison, a file and a pipe."""
    place = tmp_path_factory.mktemp("odd")
    assert main(["train", DATA, "--out", str(place / "run"), *SMALL]) == 0
    both = ["--schemes", "softmax", "uniform:tail", "--workers", "1"]
    assert main(["compare", DATA, "--out", str(place / "both"), *both, *SMALL]) == 0
    (place / "file").write_text("x")
    os.mkfifo(place / "pipe")
    return place


def sentence(capsys, *words):
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("headtail: ")
    assert error.count("\n") == 1
    return error


def commands(made, out):
    yield ["train", DATA, "--out", out, *SMALL]
    yield ["compare", DATA, "--out", out, "--schemes", "softmax", *SMALL]
    yield ["evaluate", made / "run", DATA, "--out", out]
    yield ["export", made / "run", "--to", "safetensors", "--out", out]
    yield ["report", made / "both", "--out", out]


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("x" * 300, "File name too long"),
        ("nul\0", "holds a NUL character"),
        ("", "is empty"),
        ("pipe", "pipe"),
        ("/dev/null", "/dev/null"),
        ("file/inside", "file` cannot be written: it is not a folder"),
        ("name\udce9", "must be a name in UTF-8"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_first(made, monkeypatch, capsys, out, says):
    monkeypatch.chdir(made)
    for command in commands(made, out):
        assert says in sentence(capsys, *command)
    best = out if out in ("", "pipe", "/dev/null") else f"{out}.csv"
    sentence(capsys, "predict", made / "run", DATA, "--out", best)


@pytest.mark.parametrize("model", ["pipe", "file", "/dev/null", "x" * 300, "", "no\udce9"])
def test_what_is_not_a_run_is_refused(made, monkeypatch, capsys, model):
    monkeypatch.chdir(made)
    sentence(capsys, "evaluate", model, DATA)
    sentence(capsys, "predict", model, DATA, "--out", "best.csv")
    sentence(capsys, "export", model, "--to", "safetensors", "--out", "out")
    sentence(capsys, "report", model)
    sentence(capsys, "explain", "uniform:tail", "--model", model, "--data", DATA)


WRONG = ["[]", "null", "3", '"x"', "[" * 50_000, '{"softmax": 3}', '{"softmax": [3]}']
WRONG += ['{"softmax": [{"a": 1}]}', '{"times": 3}', '{"slices": 3}', '{"softmax": {"name": 5}}']


@pytest.mark.parametrize("name", sorted(SHAPES.keys() - {"unfinished.json", "times.json"}))
def test_a_file_of_a_comparison_with_other_values_is_refused_by_name(made, capsys, name):
    path = made / "both" / name
    whole = path.read_bytes()
    refused = 0
    for text in WRONG:
        path.write_text(text)
        (path.parent / OTHER_SUMS).unlink(missing_ok=True)
        write_sums(path.parent, [file.name for file in path.parent.glob("*.json")])
        capsys.readouterr()
        code = main(["report", str(path.parent)])
        error = capsys.readouterr().err
        assert (code, error) == (0, "") or (code == 2 and name in error and error.count("\n") == 1)
        refused += code == 2
    path.write_bytes(whole)
    write_sums(path.parent, [name])
    assert refused >= 5
    assert main(["report", str(path.parent)]) == 0


@pytest.mark.parametrize("text", ["[]", "null", "3", "["])
def test_a_run_whose_about_json_holds_something_else_is_run_again(made, capsys, text):
    about = made / "run" / "about.json"
    whole = about.read_text()
    about.write_text(text)
    assert main(["train", DATA, "--out", str(about.parent), *SMALL]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "is damaged (`about.json` does not match its checksum), so it is run again." in said
    assert about.read_text() == whole


def test_a_device_is_not_replaced_by_a_file(made):
    assert main(["evaluate", str(made / "run"), DATA, "--out", "/dev/full"]) == 2
    assert not os.path.isfile("/dev/full")
