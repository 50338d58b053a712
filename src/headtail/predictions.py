"""Predictions on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from headtail.results import write_beside


def write_predictions(path: Path, top: Int[Tensor, "n k"], scores: Float[Tensor, "n k"], names: list[str] | None = None) -> None:
    """Write one row a (point, rank): point, rank from 1, label (by its name where it has one) and score; Parquet or CSV.

    Places without a label (−1) are left out.
    """
    import pyarrow as pa
    from pyarrow import csv, parquet

    n, k = top.shape
    flat = top.reshape(-1).numpy()
    kept = flat >= 0
    labels = flat[kept] if names is None else np.asarray(names, dtype=object)[flat[kept]]
    columns = {
        "point": np.repeat(np.arange(n), k)[kept],
        "rank": np.tile(np.arange(1, k + 1), n)[kept],
        "label": labels,
        "score": scores.reshape(-1).float().numpy()[kept],
    }
    table, write = pa.table(columns), parquet.write_table if path.suffix == ".parquet" else csv.write_csv
    write_beside(path, lambda beside: write(table, beside))
