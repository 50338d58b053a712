"""Parts of data sets, with few enough labels for the loss over all of them on a CPU.

A part is a neighbourhood: items that occur together, with all that happened among them. So it keeps
what a random choice of items would break, the order of items in a session.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headtail.data.load import load
from headtail.data.points import DataSet


def neighbours(rows: Sequence[Sequence[int]], size: int, seed: int = 0) -> set[int]:
    """About so many items that occur together: from a random row, its items, then the items of
    rows with one of those, and so on.
    """
    rng = np.random.default_rng(seed)
    rows_with = defaultdict(list)
    for number, items in enumerate(rows):
        for item in items:
            rows_with[item].append(number)
    chosen: dict[int, None] = {}
    waiting: list[int] = []
    while len(chosen) < size:
        if not waiting:
            waiting.append(int(rng.choice(rows[int(rng.integers(len(rows)))])))
        item = waiting.pop(0)
        if item in chosen:
            continue
        chosen[item] = None
        near = Counter(other for row in rows_with[item][:50] for other in rows[row][:50])
        waiting += [other for other, _ in near.most_common(10) if other not in chosen]
    return set(chosen)


def write_part(source: Path, size: int, folder: Path) -> None:
    """A part of a data set with so many items, in the same files."""
    tables = {path.name: pq.read_table(path) for path in sorted(source.glob("*.parquet"))}
    first = tables.get("train.parquet", tables.get("sequences.parquet"))
    assert first is not None, "sequences or a training part"
    kept = neighbours(first["items"].to_pylist(), size)
    for name, table in tables.items():
        rows = []
        for row in table.to_pylist():
            row["items"] = [item for item in row["items"] if item in kept]
            if "target" in row:
                keeps = row["items"] and row["target"] in kept
            else:
                keeps = len(row["items"]) >= (2 if len(tables) > 1 else 3)
            if keeps:
                rows.append(row)
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / name)


def read_part(source: Path, size: int) -> DataSet:
    """A part of a data set with so many items."""
    with tempfile.TemporaryDirectory(prefix="headtail-part-") as folder:
        write_part(source, size, Path(folder))
        return load(folder)  # what was read is in the cache
