"""Predictions on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from headtail.comparison.results import write_beside
from headtail.data.image_files import ImageFiles
from headtail.data.points import Points


def write_predictions(
    path: Path,
    points: Points,
    top: Int[Tensor, "n k"],
    scores: Float[Tensor, "n k"],
    names: list[str] | list[int] | None = None,
) -> None:
    """Write one row a (point, rank), as Parquet or CSV.

    Its columns are point (the row of its source, from 0), user and path where the points have them,
    rank from 1, label (by its name where it has one) and score. Places without a label (−1) are
    left out.

    Args:
        path: file to write, .parquet or .csv.
        points: what was asked.
        top: the best labels of each, best first.
        scores: theirs.
        names: what each label is called in the source, or None if ids are its names.
    """
    import pyarrow as pa
    from pyarrow import csv, parquet

    k = top.shape[1]
    place = np.flatnonzero(top.reshape(-1).numpy() >= 0)
    label = top.reshape(-1).numpy()[place]
    columns = {name: values.take(place // k) for name, values in _sources(points).items()} | {
        "rank": place % k + 1,
        "label": label if names is None else pa.array(names).take(label),
        "score": scores.reshape(-1).float().numpy()[place],
    }
    table = pa.table(columns)
    write = parquet.write_table if path.suffix == ".parquet" else csv.write_csv
    write_beside(path, lambda beside: write(table, beside))


def _sources(points: Points) -> dict[str, Any]:
    """What tells each point in its source, by column."""
    import pyarrow as pa

    found = {"point": np.arange(len(points)) if points.rows is None else points.rows.numpy()}
    if points.users is not None:
        found["user"] = points.users
    if isinstance(points.features, ImageFiles):
        found["path"] = pa.array(points.features.paths)
    return found
