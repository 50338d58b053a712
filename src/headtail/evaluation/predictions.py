"""Predictions: the best labels of points, and their scores, in memory and on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from headtail.data.histories import Histories
from headtail.data.image_files import ImageFiles
from headtail.data.points import DataSet, Points
from headtail.encoders import Model
from headtail.errors import HeadtailError, Setting, check_choice, check_count, need
from headtail.evaluation.topk import scores_of, top_labels
from headtail.files.atomic import replace_file
from headtail.files.names import csv_cell, encodable

if TYPE_CHECKING:
    import pyarrow as pa

Part = Literal["auto", "test", "train"]


class Predictions(NamedTuple):
    """The best labels of points, best first.

    Attributes:
        points: n points.
        labels: `[n, k]` ids; −1 where there are no more.
        scores: `[n, k]` their logits; adjusted, f − τ·log π, where τ was asked for.
    """

    points: Points
    labels: Int[Tensor, "n k"]
    scores: Float[Tensor, "n k"]


def points_of(data: DataSet, part: Part = "auto") -> Points:
    """The points of a data set that a model is asked about.

    Args:
        data: the data set.
        part: "test": all rows of the test part, with or without a label; "train": those trained
            on; "auto": the test part where the data have one, otherwise all rows there are.
    """
    check_choice("part", part, ("auto", "test", "train"))
    if part == "train":
        return data.train
    return data.whole if part == "auto" and data.whole is not None else data.asked


def predict(
    model: Model, points: Points, k: int | None = None, *, post_hoc: float | None = None
) -> Predictions:
    """The k best labels of each point over all labels; by default 10, or all if there are fewer.

    Args:
        model: scores the labels.
        points: what it is asked about.
        k: labels per point.
        post_hoc: τ of post-hoc logit adjustment: 0 ranks by score, larger values move answers to
            rare labels. By default the model's own. Refused for a loss that leans to the tail.
    """
    num_labels = points.num_labels
    k = min(10, num_labels) if k is None else check_count("k", k)
    if k > num_labels:
        raise HeadtailError(Setting("k", k), f" is more than the {num_labels} labels there are.")
    top = top_labels(model, points, k, post_hoc=post_hoc)
    scores = scores_of(model, points, top)
    if post_hoc:
        log_prior = model.head.labels.log_prior(top.clamp(min=0))
        scores = scores - post_hoc * log_prior.to(scores)
    return Predictions(points, top, scores)


def write_predictions(
    path: Path, predictions: Predictions, names: list[str] | list[int] | None = None
) -> None:
    """Write one row per (point, rank), as Parquet or CSV.

    Its columns are point (the row of its source, from 0), where the points have them position (how
    many items of the row's sequence are before it, if a row has several points), user, time and
    path, then rank from 1, label (by its name where it has one) and score. Places without a label
    (−1) are left out. Names are written so that UTF-8 can hold them, and in CSV so that no
    spreadsheet runs them as a formula; `headtail.files.names.original` restores them.

    Args:
        path: file to write, .parquet or .csv.
        predictions: what `predict` returned.
        names: of the labels in the source, or None if they are named by their ids.
    """
    check_predictions_file(path)
    need("pyarrow", extra="data", to="Writing predictions")
    import pyarrow as pa
    from pyarrow import csv, parquet

    points, top, scores = predictions
    k = top.shape[1]
    place = np.flatnonzero(top.reshape(-1).numpy() >= 0)
    label = top.reshape(-1).numpy()[place]
    as_csv = path.suffix == ".csv"
    write_name = csv_cell if as_csv else encodable
    sources = _sources(points, write_name)
    columns = {name: values.take(place // k) for name, values in sources.items()} | {
        "rank": place % k + 1,
        "label": label if names is None else _written(names, write_name).take(label),
        "score": scores.reshape(-1).float().numpy()[place],
    }
    table = pa.table(columns)
    write = csv.write_csv if as_csv else parquet.write_table
    replace_file(path, lambda temporary: write(table, temporary))


def check_predictions_file(path: Path) -> None:
    """Refuse a file that is neither Parquet nor CSV by its name."""
    if path.suffix not in (".parquet", ".csv"):
        raise HeadtailError(
            Setting("out", str(path)),
            f" must end in .parquet or .csv: write for example `{path.stem}.parquet`.",
        )


def _sources(points: Points, write_name: Callable[[str], str]) -> dict[str, Any]:
    """What identifies each point in its source, by column."""
    columns = {"point": np.arange(len(points)) if points.rows is None else points.rows.numpy()}
    if isinstance(points.features, Histories) and len(np.unique(columns["point"])) < len(points):
        columns["position"] = points.features.end.numpy()
    if points.users is not None:
        columns["user"] = _users(points.users, write_name)
    if points.times is not None:
        columns["time"] = points.times
    if isinstance(points.features, ImageFiles):
        columns["path"] = _written(points.features.paths, write_name)
    return columns


def _users(users: pa.Array, write_name: Callable[[str], str]) -> pa.Array:
    """The users as they are written; each different name is looked at once."""
    import pyarrow as pa

    coded = users if isinstance(users, pa.DictionaryArray) else users.dictionary_encode()
    if not pa.types.is_string(kind := coded.dictionary.type) and not pa.types.is_large_string(kind):
        return coded.dictionary_decode()
    return _written(coded.dictionary.to_pylist(), write_name).cast(kind).take(coded.indices)


def _written(names: Sequence[str | int | None], write_name: Callable[[str], str]) -> pa.Array:
    """Names as they are written; numbers stay numbers."""
    import pyarrow as pa

    return pa.array([write_name(name) if isinstance(name, str) else name for name in names])
