"""predict answers every row of one file, and only the test part where there is one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headtail.cli import main
from headtail.data.load import load
from headtail.evaluation.topk import top_labels
from headtail.training.saved_model import load_model
from tests.cli.test_image_commands import QUICK, painted

SMALL = ["--dim", "8", "--epochs", "1", "--scheme", "softmax", "--device", "cpu"]
LABELS = np.random.default_rng(0).integers(0, 4, 30)


def text(folder: Path) -> Path:
    (folder / "all.svm").write_text(
        "".join(f"{y} {y}:1 {4 + i % 7}:0.5\n" for i, y in enumerate(LABELS))
    )
    return folder / "all.svm"


def dense(folder: Path) -> Path:
    np.savez(
        folder / "all.npz",
        features=np.random.default_rng(1).normal(size=(30, 5)).astype(np.float32),
        labels=LABELS,
    )
    return folder / "all.npz"


def pictures(folder: Path) -> Path:
    pq.write_table(
        pa.table({"image": [painted(i) for i in range(30)], "label": LABELS}),
        folder / "all.parquet",
    )
    return folder / "all.parquet"


def listed(folder: Path) -> Path:
    for i in range(30):
        (folder / f"{i}.png").write_bytes(painted(i))
    (folder / "all.txt").write_text("".join(f"{i}.png {y}\n" for i, y in enumerate(LABELS)))
    return folder / "all.txt"


@pytest.mark.parametrize("write", [text, dense, pictures, listed])
def test_every_row_of_one_file_is_answered_in_its_order(tmp_path, write):
    path = write(tmp_path)
    run = tmp_path / "run"
    out = tmp_path / "best.parquet"
    assert (
        main(
            [
                "train",
                str(path),
                "--out",
                str(run),
                *(QUICK if write in (pictures, listed) else SMALL),
            ]
        )
        == 0
    )
    assert (
        main(["predict", str(run), str(path), "--k", "1", "--device", "cpu", "--out", str(out)])
        == 0
    )
    found = pq.read_table(out).to_pydict()
    data = load(path)
    model = load_model(run)[0]
    assert found["point"] == list(range(30))
    for part in (data.train, data.test):
        expected = dict(
            zip(part.rows.tolist(), top_labels(model, part, 1)[:, 0].tolist(), strict=True)
        )
        assert {row: found["label"][row] for row in expected} == expected
    if write is listed:
        assert found["path"] == [str(tmp_path / f"{i}.png") for i in range(30)]


def test_what_was_held_out_and_what_was_trained_on_can_still_be_asked_for(tmp_path):
    path = text(tmp_path)
    run = tmp_path / "run"
    out = tmp_path / "best.parquet"
    rows = {}
    assert main(["train", str(path), "--out", str(run), *SMALL]) == 0
    for points in ("test", "train"):
        assert (
            main(
                ["predict", str(run), str(path), "--k", "1", "--points", points, "--out", str(out)]
            )
            == 0
        )
        rows[points] = pq.read_table(out)["point"].to_pylist()
    assert rows == {"test": load(path).test.rows.tolist(), "train": load(path).train.rows.tolist()}


def test_bad_lines_that_are_skipped_keep_their_numbers(tmp_path):
    path = text(tmp_path)
    run = tmp_path / "run"
    out = tmp_path / "best.parquet"
    assert main(["train", str(path), "--out", str(run), *SMALL]) == 0
    bad = tmp_path / "new.svm"
    bad.write_text("0 0:1 4:1\nx 1:1\n2 2:1 10:1\n3 3:1\n")
    assert (
        main(["predict", str(run), str(bad), "--skip-bad-lines", "--k", "1", "--out", str(out)])
        == 0
    )
    assert pq.read_table(out)["point"].to_pylist() == [0, 2, 3]


def test_a_narrower_file_is_answered_whole(tmp_path):
    path = text(tmp_path)
    run = tmp_path / "run"
    out = tmp_path / "best.parquet"
    assert main(["train", str(path), "--out", str(run), *SMALL]) == 0
    (tmp_path / "new.svm").write_text("0 0:1 4:1\n1 1:1\n0 5:1\n")
    assert (
        main(["predict", str(run), str(tmp_path / "new.svm"), "--k", "4", "--out", str(out)]) == 0
    )
    assert pq.read_table(out)["point"].to_pylist() == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize("test", [True, False])
def test_where_there_is_a_test_part_it_alone_is_answered(tmp_path, test):
    path = dense(tmp_path)
    run = tmp_path / "run"
    out = tmp_path / "best.parquet"
    with np.load(path) as whole:
        np.savez(tmp_path / "few.npz", features=whole["features"][:7])
    given = ["--test", str(tmp_path / "few.npz")] if test else []
    assert main(["train", str(path), "--out", str(run), *SMALL]) == 0
    assert main(["predict", str(run), str(path), *given, "--k", "1", "--out", str(out)]) == 0
    assert pq.read_table(out)["point"].to_pylist() == list(range(7 if test else 30))
