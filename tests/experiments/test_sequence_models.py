"""The study of sequence models runs through, is resumed, and follows the published protocol."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headtail.data.load import load
from tests.experiments.test_longtail import script


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    sequences = [rng.permutation(30)[: rng.integers(5, 12)].tolist() for _ in range(80)]
    (tmp_path / "shop").mkdir()
    pq.write_table(pa.table({"items": sequences}), tmp_path / "shop" / "sequences.parquet")
    return tmp_path / "shop"


def test_rows_are_written_once_per_run(folder, tmp_path, monkeypatch, capsys):
    study = script("sequence_models")
    words = "--epochs 2 --batch 64 --dim 8 --seeds 2 --schemes softmax within-batch:importance@16"
    typed = ["sequence_models.py", str(folder), "--out", str(tmp_path / "out"), *words.split()]
    monkeypatch.setattr(sys, "argv", typed)
    study.main()
    lines = study.read_table(tmp_path / "out" / "shop.csv")
    assert [line["seed"] for line in lines] == ["0", "0", "1", "1"]
    assert {line["scheme"] for line in lines} == {"softmax", "within-batch:importance@16"}
    for line in lines:
        assert 0 <= float(line["ndcg@10 all"]) <= float(line["recall@10 full"]) <= 1
        assert float(line["seconds per epoch"]) > 0
        assert line["epochs"] == "2"
    assert "softmax, seed 1: validation" in capsys.readouterr().err
    monkeypatch.setattr(study.Timed, "fit", None)  # nothing is run again
    study.main()
    assert study.read_table(tmp_path / "out" / "shop.csv") == lines


def test_what_a_user_has_is_not_recommended_and_a_trial_takes_few(folder):
    study = script("sequence_models")
    data = study.read(folder, users=10)
    assert int(data.train.features.row.max()) == 9
    sequences = load(folder).test.features
    begin = sequences.offsets.tolist()
    seen = data.test.seen
    for i, row in enumerate(data.test.features.row.tolist()):
        before = sequences.items[begin[row] : begin[row + 1] - 1].tolist()
        assert seen.values[seen.offsets[i] : seen.offsets[i + 1]].tolist() == before
