"""The tables of the retrieval study: what is run again replaces its rows, and nothing else."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headtail.comparison.results import Row, read_rows
from headtail.files.records import to_csv
from tests.experiments.test_longtail import script


def row(scheme: str, value: float) -> Row:
    return Row("r", "x", "test", "softmax", scheme, 64, 0, 8, 10, "full", "recall@10", value)


def test_schemes_that_were_not_run_again_stay_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tables = script("retrieval_tables")
    folder = tmp_path / "runs"
    (tmp_path / "retrieval.csv").write_text(
        to_csv([row("softmax", 0.1), row("contrastive", 0.2)], Row)
    )
    columns = "dataset,scheme,lr,implicit_loss,chosen"
    (tmp_path / "retrieval-tuning.csv").write_text(
        f"{columns}\nx,softmax,0.1,3,True\nx,contrastive,0.1,3,True\n"
    )
    (folder / "x" / "runs").mkdir(parents=True)
    (folder / "x" / "runs" / "one.csv").write_text(
        to_csv([replace(row("contrastive", 0.5), run="contrastive-lr0.02-seed0")], Row)
    )
    (folder / "x" / "contrastive.json").write_text(
        '{"scheme": "contrastive", "lr": 0.02, "tried": {"0.02": 1.5, "0.04": 2.5}}'
    )
    monkeypatch.setattr(sys, "argv", ["retrieval_tables.py", str(folder)])
    tables.main()
    assert {one.scheme: one.value for one in read_rows(tmp_path / "retrieval.csv")} == {
        "contrastive": 0.5,
        "softmax": 0.1,
    }
    lines = (tmp_path / "retrieval-tuning.csv").read_text().splitlines()
    assert lines == [
        columns,
        "x,contrastive,0.02,1.5,True",
        "x,contrastive,0.04,2.5,False",
        "x,softmax,0.1,3,True",
    ]
