"""Every command divides the same labels into the same head, torso and tail."""

from __future__ import annotations

import json

import pytest

from headtail.cli import main

COUNTS = {"a": 400, "b": 150, "c": 150, "d": 60, "e": 30, "f": 10}
"""By count 3 head, 2 torso and 1 tail label; by mass 1, 2 and 3."""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A data set with these labels, and a file of their counts."""
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")
    lines = [f"{label} {label}:1" for label, n in enumerate(COUNTS.values()) for _ in range(n)]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "test.txt").write_text("\n".join(lines[::50]) + "\n")
    (tmp_path / "counts.txt").write_text("\n".join(map(str, COUNTS.values())))
    return tmp_path


HERE = "head 1 label (50% of the examples), torso 2 labels (38%), tail 3 labels (12%)"


@pytest.mark.parametrize("command", [["explain", "within-batch:tail"], ["advise"]])
def test_data_and_counts_are_sliced_alike(files, command, capsys):
    for source in (["--data", str(files)], ["--counts", str(files / "counts.txt")]):
        assert main([*command, *source]) == 0
        assert HERE in capsys.readouterr().out
        assert main([*command, *source, "--slices", "count"]) == 0
        assert "head 3 labels (88% of the examples)" in capsys.readouterr().out


def test_audit_and_stats_slice_as_explain_does(files, capsys):
    counts = ["--counts", str(files / "counts.txt")]
    assert main(["audit", "uniform", *counts, "--draws", "500"]) == 0
    assert HERE in capsys.readouterr().out
    assert main(["stats", str(files), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slices"]["sizes"] == {
        "head": 1,
        "torso": 2,
        "tail": 3,
    }
    assert main(["stats", str(files)]) == 0
    out = capsys.readouterr().out
    assert [line.split()[3] for line in out.splitlines() if line.split()[:1] == ["torso"]] == [
        "38%"
    ]
    assert "labels of equal count together" in out


def test_a_comparison_explains_by_the_slices_it_measures_by(files, capsys):
    quick = ["--dim", "4", "--epochs", "1", "--batch", "32", "--negatives", "4"]
    quick += ["--validation", "0"]  # so that no point is held out, and counts are those of the file
    arguments = [str(files), "--schemes", "within-batch:tail", *quick]
    assert main(["compare", *arguments, "--out", str(files / "out"), "--workers", "1"]) == 0
    assert HERE in " ".join(capsys.readouterr().out.split())
    schemes = json.loads((files / "out" / "schemes.json").read_text())
    labels = ["--data", str(files), "--batch", "32", "--json"]
    assert main(["explain", "within-batch:tail", *labels]) == 0
    lean = json.loads(capsys.readouterr().out)["lean"]
    assert schemes["within-batch:tail"]["lean"] == pytest.approx(lean)
    assert main(["explain", "within-batch:tail", *labels, "--slices", "count"]) == 0
    assert json.loads(capsys.readouterr().out)["lean"] != pytest.approx(lean, abs=0.1)


def test_labels_of_data_and_of_counts_exclude_each_other(files, capsys):
    assert main(["explain", "--data", str(files), "--zipf", "10"]) == 2
    assert "`--zipf` would do nothing: the labels are those of `--data`" in capsys.readouterr().err
