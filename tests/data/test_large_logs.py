"""Logs in shards: the same arrays whatever the number of processes, files and row groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headtail import HeadtailError
from headtail.data import processes
from headtail.data.load import load
from headtail.data.readers import log_scan, log_sort
from headtail.data.reading import Reading

ROWS = 600


def table(strings: bool) -> pa.Table:
    """A log whose times repeat, so that the order of rows counts."""
    rng = np.random.default_rng(0)
    user = (40 * rng.random(ROWS) ** 2).astype(np.int64)
    item = (60 * rng.random(ROWS) ** 2).astype(np.int64)
    names = [f"item {i}" for i in range(60)]
    return pa.table(
        {
            "user_id": [f"u{i}" for i in user] if strings else user,
            "item_id": pa.array(names).take(pa.array(item)) if strings else item,
            "timestamp": rng.integers(20, size=ROWS),
        }
    )


def shards(folder: Path, whole: pa.Table, sizes: list[int]) -> Path:
    """A folder of Parquet files with so many rows each."""
    folder.mkdir()
    ends = np.cumsum([0, *sizes])
    for number, size in enumerate(sizes):
        part = whole.slice(ends[number], size)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=50)
    return folder


def arrays(cache: Path) -> dict[str, bytes]:
    """All that is in the only entry of a cache."""
    (entry,) = [path for path in cache.iterdir() if path.name not in ("digests", "safe")]
    assert all(path.is_file() for path in entry.iterdir()), "no scratch files stay"
    files = (path for path in entry.iterdir() if path.name != "verified.json")
    return {path.name: path.read_bytes() for path in files}


def small(monkeypatch, number: int) -> None:
    """Make a small log a large one, read in so many processes."""
    monkeypatch.setattr(processes, "MANY", 1)
    monkeypatch.setenv("HEADTAIL_PROCESSES", str(number))
    monkeypatch.setattr(log_scan, "ROWS", 120)
    for module in (log_scan, log_sort):
        monkeypatch.setattr(module, "AT_ONCE", 100)


@pytest.mark.parametrize(
    ("number", "strings", "read_as"),
    [
        (1, True, "sequences"),
        (1, False, "interactions"),
        (2, True, "interactions"),
        (3, False, "sequences"),
    ],
)
def test_shards_in_any_number_of_processes_give_the_bytes_of_one_file_in_one_process(
    tmp_path, monkeypatch, number, strings, read_as
):
    whole = table(strings)
    reading = Reading(format=read_as)
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "one"))
    load(shards(tmp_path / "file", whole, [ROWS]), reading)
    small(monkeypatch, number)
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "several"))
    shares = []
    load(
        shards(tmp_path / "files", whole, [100, 7, 0, 293, 200]),
        reading,
        progress=lambda what, share: shares.append((what, share)),
    )
    assert arrays(tmp_path / "several") == arrays(tmp_path / "one")
    for what in ("reading files", "giving ids", "sorting"):
        assert shares.count((what, 1.0)), what


def test_a_row_that_is_bad_is_named_as_in_its_file_in_another_process_too(tmp_path, monkeypatch):
    whole = table(strings=True)
    users = whole["user_id"].to_pylist()
    users[333] = None
    whole = whole.set_column(0, "user_id", pa.array(users))
    small(monkeypatch, 2)
    folder = shards(tmp_path / "files", whole, [100, 500])
    with pytest.raises(HeadtailError, match=r"column `user_id`: row 233 \(from 0\) is null"):
        load(folder, Reading(format="sequences"))
    left = [
        path for path in (tmp_path / ".cache").iterdir() if path.name not in ("digests", "safe")
    ]
    assert not left, "a failed read leaves nothing behind"
