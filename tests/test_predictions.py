"""Predictions on disk are what the model answered, under the labels' own names."""

from __future__ import annotations

import errno

import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from headtail import HeadtailError
from headtail.predictions import write_predictions

TOP = torch.tensor([[2, 0], [1, -1], [-1, -1]])
SCORES = torch.tensor([[0.5, 0.25], [-1.0, 9.0], [9.0, 9.0]])


def read(path):
    return (pyarrow.parquet.read_table(path) if path.suffix == ".parquet" else pyarrow.csv.read_csv(path)).to_pydict()


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_one_row_a_point_and_rank_without_empty_places(tmp_path, ending):
    path = tmp_path / "new" / f"top.{ending}"
    write_predictions(path, TOP, SCORES)
    assert read(path) == {"point": [0, 0, 1], "rank": [1, 2, 1], "label": [2, 0, 1], "score": [0.5, 0.25, -1.0]}
    write_predictions(path, TOP, SCORES, ["a, b", 'say "c"', "é"])
    assert read(path)["label"] == ["é", "a, b", 'say "c"']
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, ending):
    path = tmp_path / f"top.{ending}"
    path.write_text("before")

    def full(_, beside):
        beside.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.write_table", full)
    monkeypatch.setattr("pyarrow.csv.write_csv", full)
    with pytest.raises(HeadtailError, match=r"cannot be written: No space left on device"):
        write_predictions(path, TOP, SCORES)
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
