"""Whole numbers that no float holds exactly: rounded where they are quantities."""

from __future__ import annotations

import json
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from headtail import HeadtailError
from headtail.data.load import load

LARGE = {"2^53": 2**53 + 1, "2^63": 2**63 - 1, "-2^63": -(2**63), "2^64": 2**64 - 1}
each_number = pytest.mark.parametrize("number", LARGE.values(), ids=LARGE)
ROWS = [
    {"user": row % 6, "item": row % 9, "rating": 4, "time": 1_600_000_000 + row}
    for row in range(60)
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))


def written(folder, name, rows):
    """The same rows as a file of each format that holds such numbers."""
    for ending in ("csv", "jsonl", "parquet"):
        path = folder / f"{name}.{ending}"
        if ending == "parquet":
            values = {name: [row[name] for row in rows] for name in rows[0]}
            large = {name for name in values if max(values[name]) >= 2**63}
            kinds = {name: pa.uint64() if name in large else pa.int64() for name in values}
            arrays = {name: pa.array(held, kinds[name]) for name, held in values.items()}
            pq.write_table(pa.table(arrays), path)
        elif ending == "jsonl":
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        else:
            lines = [rows[0], *(row.values() for row in rows)]
            path.write_text("".join(f"{','.join(map(str, line))}\n" for line in lines))
        yield path


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1])
def test_large_ratings_are_compared_with_the_least(tmp_path, number):
    rows = [row | {"rating": number if place == 7 else 4} for place, row in enumerate(ROWS)]
    for path in written(tmp_path, "log", rows):
        assert load(path, min_rating=4).train.num_labels == 9
        with pytest.raises(HeadtailError, match="the largest is"):
            load(path, min_rating=1e30)


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1, -(2**63)])
def test_large_features_of_items_are_rounded(tmp_path, number):
    log = tmp_path / "log.csv"
    log.write_text("user,item\n" + "".join(f"{row['user']},{row['item']}\n" for row in ROWS))
    rows = [{"item": item, "size": item} for item in range(9)]
    plain = load(log, item_features=next(written(tmp_path, "plain", rows))).train.num_labels
    rows[7]["size"] = number
    for path in written(tmp_path, "items", rows):
        assert load(log, item_features=path).train.num_labels == plain


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1, -(2**63)])
def test_large_numbers_in_lists_of_features_are_rounded(tmp_path, number):
    path = tmp_path / "train.jsonl"
    rows = [
        {"label": "abc"[row % 3], "features": [row, number if row == 7 else 3, 2]}
        for row in range(40)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    features = load(path, features="features").train.features
    assert isinstance(features, torch.Tensor)
    assert float(number) in {float(value) for value in features[:, 1]}


@each_number
@pytest.mark.parametrize("column", list(ROWS[0]))
def test_a_large_number_in_any_column_is_read_or_refused_in_a_sentence(tmp_path, column, number):
    rows = [row | ({column: number} if place == 7 else {}) for place, row in enumerate(ROWS)]
    for path in written(tmp_path, "log", rows):
        with suppress(HeadtailError):
            assert load(path, min_rating=4).train.num_pairs > 0
