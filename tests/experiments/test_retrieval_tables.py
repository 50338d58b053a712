"""The tables of the retrieval study: what is run again replaces what was there, and nothing else."""

from __future__ import annotations

import csv
from pathlib import Path

from headtail.results import Row, to_csv
from tests.experiments.test_longtail import script


def row(scheme: str, value: float) -> Row:
    return Row("r", "x", "test", "softmax", scheme, 64, 0, 8, 10, "full", "recall@10", value)


def test_schemes_that_were_not_run_again_stay_as_they_were(tmp_path: Path):
    script("longtail_tables")
    tables = script("retrieval_tables")
    (tmp_path / "retrieval.csv").write_text(to_csv([row("softmax", 0.1), row("contrastive", 0.2)]))
    with (tmp_path / "retrieval-tuning.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["dataset", "scheme", "lr", "implicit_loss", "chosen"])
        writer.writeheader()
        writer.writerows({"dataset": "x", "scheme": name, "lr": "0.1"} for name in ("softmax", "contrastive"))
    rows, tuning = tables.with_known([row("contrastive", 0.5)], [{"dataset": "x", "scheme": "contrastive", "lr": 0.02}], tmp_path)
    assert {one.scheme: one.value for one in rows} == {"contrastive": 0.5, "softmax": 0.1}
    assert [(one["scheme"], float(one["lr"])) for one in tuning] == [("contrastive", 0.02), ("softmax", 0.1)]
