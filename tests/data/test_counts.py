"""Label counts from Parquet."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headtail import HeadtailError
from headtail.data.counts import read_counts


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    ("columns", "counts"),
    [
        ({"count": [5, 3, 1]}, [5, 3, 1]),
        ({"times": [5, 3, 1]}, [5, 3, 1]),
        ({"label": [2, 0, 1], "count": [5, 3, 1]}, [3, 1, 5]),
        ({"label": ["b", "a", "c"], "count": [5, 3, 1]}, [5, 3, 1]),
        ({"count": [0.5, 1.5]}, [0.5, 1.5]),
    ],
)
def test_counts_are_read_from_parquet_in_label_order(tmp_path, columns, counts):
    assert read_counts(write(tmp_path / "c.parquet", **columns)).counts.tolist() == counts


def test_labels_that_are_not_ids_are_names(tmp_path):
    table = write(tmp_path / "c.parquet", label=["b", "a"], count=[5, 3])
    assert read_counts(table).names == ["b", "a"]
    ids = write(tmp_path / "d.parquet", label=[1, 0], count=[5, 3])
    assert read_counts(ids).names is None
    (tmp_path / "c.csv").write_text("label,count\nb,5\na,3\n")
    assert read_counts(tmp_path / "c.csv").names == ["b", "a"]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (
            {"label": [0], "n": [1]},
            r"c.parquet holds label \(int64\), n \(int64\), but needs a column `count`",
        ),
        ({"count": ["5"]}, r"holds count \(string\), but needs a column `count` of numbers"),
        ({"count": [5, None]}, "has rows without a count"),
        ({"label": [0, 2], "count": [5, 1]}, "each label id from 0 to 1 must occur once"),
        ({"count": [5, -1]}, "c.parquet: .*must not be negative"),
    ],
)
def test_bad_counts_are_reported(tmp_path, columns, sentence):
    with pytest.raises(HeadtailError, match=sentence):
        read_counts(write(tmp_path / "c.parquet", **columns))


def test_a_damaged_file_is_reported(tmp_path):
    path = write(tmp_path / "c.parquet", count=[1, 2])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(HeadtailError, match="not a readable Parquet file"):
        read_counts(path)
