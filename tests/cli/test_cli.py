"""The command line, as people type it."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from headtail.cli import main


def test_explain_without_a_scheme_shows_the_paper_s_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["explain", "--zipf", "500"]) == 0
    out = capsys.readouterr().out
    for text in (
        "uniform:constant",
        "within-batch:tail",
        "equalised loss",
        "logit-adjusted loss",
        "m · π_y",
        "500 labels",
    ):
        assert text in out


def test_explain_a_scheme_tells_the_whole_story(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["explain", "within-batch:constant", "--zipf", "10000"]) == 0
    out = capsys.readouterr().out
    for text in (
        "equalised loss",
        "log[1 + Σ",
        "to the tail by",
        "▁",
        "█",
        "m = 255",
        "Jensen gap",
        "importance: w =",
    ):
        assert text in out


def test_explain_speaks_json(capsys):
    assert main(["explain", "uniform:tail@64", "--zipf", "300", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scheme"] == "uniform:tail@64"
    assert found["m"] == 64
    assert found["leans"] == "tail"
    assert main(["explain", "--zipf", "300", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 8


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".npy"])
def test_counts_are_read_from_a_file(tmp_path, capsys, suffix):
    path = tmp_path / f"counts{suffix}"
    counts = [900, 300, 50, 7, 1]
    if suffix == ".npy":
        np.save(path, np.array(counts, dtype=np.int32))
    elif suffix == ".txt":
        path.write_text("\n".join(map(str, counts)))
    else:
        path.write_text(
            "label,count\n"
            + "\n".join(f"{i},{c}" for i, c in reversed(list(enumerate(counts))))
            + "\n\n"
        )
    assert main(["explain", "within-batch:tail", "--counts", str(path)]) == 0
    assert "5 labels" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "fragment"),
    [
        (b"", "holds no counts"),
        (b"3\nfour\n", "line 2: expected a count, but found 'four'"),
        (b"3\n-1\n", "label 1 has -1"),
        (b"3\nnan\n", "must be finite"),
        (b"0\n0\n", "all zero"),
        (b"1000,500,3\n", "line 1: expected a count, or a label and its count, but found 3 fields"),
        (b"1000,0\n500,1\n3,2\n", "each label id from 0 to 2 must occur once"),
        (b"\xff\xfe\x00\x80", "is not text"),
    ],
)
def test_a_bad_counts_file_gets_a_sentence_with_its_name(tmp_path, capsys, content, fragment):
    path = tmp_path / "counts.txt"
    path.write_bytes(content)
    assert main(["explain", "--counts", str(path)]) == 2
    error = capsys.readouterr().err
    assert fragment in error
    assert "counts.txt" in error
    assert len(error.strip().splitlines()) == 1


def test_a_pickle_in_npy_clothing_is_never_unpickled(tmp_path, capsys):
    path = tmp_path / "counts.npy"
    np.save(path, np.array([object()], dtype=object), allow_pickle=True)
    assert main(["explain", "--counts", str(path)]) == 2
    assert "not a readable" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["explain", "within-bach:tail"], "Did you mean `within-batch`?"),
        (["explain", "--zipf", "5", "--column", "x"], "there is no table of `--counts`"),
        (["explain", "--counts", "nowhere.npy"], "nowhere.npy"),
        (["explain", "--zipf", "0"], "--zipf"),
        (["explain", "--zipf", "5", "--counts", "x"], "exclude each other"),
        (["explain", "--batch", "0"], "--batch"),
        (["audit", "unifrom"], "Did you mean `uniform`"),
        (["audit", "uniform", "--draws", "0"], "draws"),
        (["train", "--learning-rate", "1"], "no option `--learning-rate`. Did you mean `--lr`?"),
        (["train", "--ephocs=3"], "no option `--ephocs`. Did you mean `--epochs`?"),
        (["train", "--seeds", "3"], "Did you mean `--seed`? `--seeds` is an option of `headtail c"),
        (
            ["train", "--workers", "2"],
            "`--workers` is an option of `headtail compare`. `headtail t",
        ),
        (["compare", "--seed", "3"], "Did you mean `--seeds`? `headtail compare --help` lists its"),
        (
            ["doctor", "--no-fix"],
            "no option `--no-fix`. `headtail doctor --help` lists its options",
        ),
        (["train", "--epochs", "three"], "`--epochs` must be a whole number, but got `three`."),
        (["train", "--lr", "fast"], "`--lr` must be a number, but got `fast`."),
        (["train", "--epochs"], "`--epochs` needs a value. `headtail train --help` shows which."),
        (["advise", "1000"], "`1000` is more than `headtail advise` takes. Write for example"),
        (["compare", "--schemes", "softmax,uniform:tail"], "spaces between schemes: `--schemes so"),
        (["evaluate", "nowhere", "synthetic"], "`nowhere` does not exist. Pass the folder of a ru"),
    ],
)
def test_bad_arguments_get_one_sentence_and_exit_code_2(arguments, fragment, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert fragment in captured.err
    assert captured.err.startswith("headtail: ")
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


def test_debug_shows_the_traceback():
    with pytest.raises(ValueError, match="within-batch"):
        main(["explain", "within-bach:tail", "--debug"])


def test_audit_passes_a_true_sampler(capsys):
    assert main(["audit", "mixture(uniform,within-batch)", "--zipf", "100", "--draws", "1500"]) == 0
    assert "true" in capsys.readouterr().out
    assert main(["audit", "uniform", "--zipf", "100", "--draws", "500", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True


def test_a_reader_who_leaves_early_is_no_error():
    command = f"{sys.executable} -m headtail explain --zipf 100 --json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("[")
    assert done.stderr == ""


def test_help_names_every_command():
    done = subprocess.run(
        [sys.executable, "-m", "headtail", "--help"], capture_output=True, text=True, check=True
    )
    assert "explain" in done.stdout
    assert "audit" in done.stdout


def test_labels_of_data_are_explained_as_training_takes_them(tmp_path, capsys):
    """With smoothing where some label never occurs, and with the batch of the data's kind."""
    # What comes first of all is never predicted: it has no training example.
    rows = ["u0,first,1", "u1,first,2", *(f"u{i % 40},i{i % 9},{3 + i}" for i in range(400))]
    (tmp_path / "log.csv").write_text("\n".join(["user,item,timestamp", *rows]))
    arguments = ["explain", "within-batch:tail", "--data", str(tmp_path / "log.csv"), "--json"]
    assert main(arguments) == 0
    usual = json.loads(capsys.readouterr().out)["m"]
    assert main([*arguments, "--batch", "256"]) == 0
    assert usual < json.loads(capsys.readouterr().out)["m"]


def test_labels_without_examples_cost_only_their_rows_of_the_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "counts.txt"
    path.write_text("900\n30\n4\n0\n")
    assert main(["explain", "--counts", str(path)]) == 0
    out = capsys.readouterr().out
    assert "within-batch:constant" in out
    assert "Left out: uniform:tail" in out
    assert "--smoothing 1" in out
    assert main(["explain", "--counts", str(path), "--json"]) == 0
    rows = {row["scheme"]: row for row in json.loads(capsys.readouterr().out)}
    assert len(rows) == 8
    assert "--smoothing 1" in rows["uniform:tail"]["left_out"]
    assert main(["explain", "--counts", str(path), "--smoothing", "1"]) == 0
    assert "Left out" not in capsys.readouterr().out
    assert main(["explain", "uniform:tail", "--counts", str(path)]) == 2
    assert "`--smoothing 1`" in capsys.readouterr().err


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headtail 0.")


def test_explain_counts_a_column_of_a_folder_of_shards(tmp_path, capsys):
    folder = tmp_path / "log"
    folder.mkdir()
    for name, items in (("a", ["red", "blue"]), ("b", ["red", "red"])):
        (folder / f"{name}.csv").write_text("\n".join(["user,colour", *(f"1,{i}" for i in items)]))
    command = ["explain", "within-batch:tail", "--counts", str(folder)]
    assert main([*command, "--column", "colour"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 labels" in printed
    assert "4 examples" in printed
    assert main(command) == 2
    assert "`--column`" in capsys.readouterr().err
