"""Images without labels, in Parquet or in folders, answered by a model that was trained before."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headtail.cli import main
from headtail.data.answers import rows_to_answer
from headtail.data.known import Known
from headtail.data.reading import DEFAULTS
from headtail.errors import HeadtailError
from tests.cli.test_image_commands import QUICK, painted, zoo

KNOWN = Known("images", 3 * 8 * 8, 3, image_size=(8, 8))


def write(path: Path, column: str = "image") -> Path:
    pq.write_table(pa.table({column: [painted(seed) for seed in (900, 901)]}), path)
    return path


def test_images_in_parquet_need_no_labels_and_no_data_of_training(tmp_path):
    data = zoo(tmp_path / "zoo")
    run = tmp_path / "run"
    assert main(["train", str(data), *QUICK, "--out", str(run)]) == 0
    shutil.rmtree(data)
    out = tmp_path / "best.csv"
    new = write(tmp_path / "new.parquet")
    command = ["predict", str(run), str(new), "--k", "1", "--device", "cpu", "--out", str(out)]
    assert main(command) == 0
    with out.open() as file:
        assert [row["point"] for row in csv.DictReader(file)] == ["0", "1"]


def test_images_of_another_size_than_in_training_are_refused(tmp_path):
    path = write(tmp_path / "new.parquet")
    known = Known("images", 3 * 16 * 16, 3, image_size=(16, 16))
    with pytest.raises(HeadtailError, match=r"8 × 8 pixels, but the model was trained on 16 × 16"):
        rows_to_answer(path, known, DEFAULTS)


def test_a_table_without_images_is_refused(tmp_path):
    path = write(tmp_path / "new.parquet", column="scan")
    with pytest.raises(HeadtailError, match=r"has the columns `scan`"):
        rows_to_answer(path, KNOWN, DEFAULTS)


@pytest.mark.parametrize("names", [["1.png", "2.png"], ["cat/1.png", "other/2.png"]])
def test_images_in_folders_are_all_answered_whatever_the_folders_are_called(tmp_path, names):
    for seed, name in enumerate(names):
        path = tmp_path / "new" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(painted(seed))
    answered = rows_to_answer(tmp_path / "new", KNOWN, DEFAULTS)
    assert answered is not None
    points, _ = answered
    assert points.num_pairs == 0
    assert [Path(path).name for path in points.features.paths] == ["1.png", "2.png"]
    assert points.rows is not None
    assert np.array_equal(points.rows, [0, 1])


def test_folders_with_parts_of_their_own_are_data_and_not_rows(tmp_path):
    for part in ("train", "test"):
        path = tmp_path / "data" / part / "cat"
        path.mkdir(parents=True)
        (path / "1.png").write_bytes(painted(0))
    assert rows_to_answer(tmp_path / "data", KNOWN, DEFAULTS) is None
