"""Label counts from Parquet: given, or of a column of examples."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headtail import HeadtailError
from headtail.data import counts as label_counts
from headtail.data import processes
from headtail.data.counts import count_labels, read_counts


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


def write_shards(folder: Path, values: list, shards: int) -> Path:
    """A folder of Parquet files with a column of labels and another one."""
    folder.mkdir()
    for number, part in enumerate(np.array_split(np.arange(len(values)), shards)):
        labels = pa.array([values[i] for i in part])
        table = pa.table({"colour": labels, "size": pa.array(part)})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=40)
    return folder


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("kind", ["strings", "numbers", "lists"])
def test_labels_in_shards_are_counted_as_one_by_one(tmp_path, monkeypatch, number, kind):
    monkeypatch.setattr(processes, "MANY", 1)
    monkeypatch.setattr(label_counts, "ROWS", 60)
    monkeypatch.setenv("HEADTAIL_PROCESSES", str(number))
    drawn = (30 * np.random.default_rng(0).random(500) ** 3).astype(int).tolist()
    values = [f"c{i}" for i in drawn] if kind == "strings" else drawn
    column = [values[i : i + 3] for i in range(0, 500, 3)] if kind == "lists" else values
    shares = []
    folder = write_shards(tmp_path / "shards", column, shards=4)
    labels = count_labels(
        folder, "colour", smoothing=1, progress=lambda what, share: shares.append(share)
    )
    wanted = Counter(values)
    assert labels.names == sorted(wanted)
    assert labels.counts.tolist() == [wanted[name] for name in sorted(wanted)]
    assert (labels.smoothing, shares[-1]) == (1, 1)
    assert not list((tmp_path / ".cache").glob(".counts.*")), "nothing stays behind"


def test_the_column_of_labels_is_found_by_its_name_or_asked_for(tmp_path):
    folder = write_shards(tmp_path / "shards", ["a", "b", "b"], shards=1)
    with pytest.raises(HeadtailError, match=r"`colour`, `size`, and none .* labels. Name .*column"):
        count_labels(folder)
    with pytest.raises(HeadtailError, match="none is called `color`"):
        count_labels(folder, "color")
    named = write(tmp_path / "c.parquet", item_id=["x", "y", "x"], size=[1, 2, 3])
    assert count_labels(named).counts.tolist() == [2, 1]
    empty = write(tmp_path / "e.parquet", label=pa.array([[], []], pa.list_(pa.string())))
    with pytest.raises(HeadtailError, match="column `label` holds no label"):
        count_labels(empty)
