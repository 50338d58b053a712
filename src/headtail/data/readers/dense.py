"""Dense features from arrays: `.safetensors` or `.npz`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from headtail.core.targets import Ragged
from headtail.data.cache import Entry, Store, cached
from headtail.data.packed import MAX_EXPANSION
from headtail.data.points import DataSet, Points, Progress
from headtail.data.readers.array_files import Part, parts_of, type_of
from headtail.data.readers.dense_labels import labels_of
from headtail.data.reading import DataFiles, Reading, data_name
from headtail.data.split import with_test_part
from headtail.errors import check_number

AT_ONCE = 1 << 22
"""Numbers checked or copied at once."""
SEED = 0


def read_files(files: DataFiles, reading: Reading, progress: Progress | None) -> DataSet:
    """Read files of arrays as `reading` says."""
    data = read_dense(
        files.train,
        files.test,
        holdout=reading.holdout,
        progress=progress,
        max_expansion=reading.max_expansion,
    )
    return replace(data, name=data_name(files.train, data.name))


def read_dense(
    train: Path,
    test: Path | None = None,
    *,
    holdout: float = 0.2,
    progress: Progress | None = None,
    at_once: int = AT_ONCE,
    max_expansion: float = MAX_EXPANSION,
) -> DataSet:
    """Read `features`, floats `[N, D]`, and `labels` in one of these forms.

    * `[N]` ids, or `[N, k]` ids padded with −100 or −1;
    * a boolean matrix `[N, L]`, true where a point has a label;
    * instead of `labels`, `label_values` and `label_offsets`: point i has
      `label_values[label_offsets[i]:label_offsets[i + 1]]`.

    One file may hold both parts, with `train_` and `test_` before every name. Features that are
    float32 in a safetensors file are memory-mapped; all else is copied into the cache. L is the
    width of a boolean matrix, else the largest label plus one. A label that repeats within a point
    counts once. Test points need no label (no array, or the id −1): those without are answered, but
    not measured.

    Args:
        train: `.safetensors` or `.npz` file.
        test: likewise, or None.
        holdout: share of the points that is kept for testing where there are no test points.
        progress: called with what is being done and the share of it that is done.
        at_once: numbers checked or copied at once.
        max_expansion: how many times the size of its file an array may have.

    >>> folder = getfixture("tmp_path")
    >>> getfixture("monkeypatch").setenv("HEADTAIL_CACHE", str(folder / "cache"))
    >>> import numpy as np
    >>> np.savez(folder / "all.npz", features=np.eye(10), labels=np.arange(10) % 3)
    >>> data = read_dense(folder / "all.npz")
    >>> len(data.train), len(data.test), data.train.num_labels
    (8, 2, 3)
    """
    check_number("holdout", holdout, low=0, high=1)
    parts = parts_of(train, test, max_expansion)
    recipe = {
        "reader": "dense",
        "parts": {name: [part.prefix, part.mapped] for name, part in parts.items()},
    }
    paths = [part.path for part in parts.values()]
    entry = cached(paths, recipe, partial(_build, parts, at_once, progress))
    points = {name: _points(entry, name, part) for name, part in parts.items()}
    points, whole, mark, held = with_test_part(points, holdout, seed=SEED)
    return DataSet(
        train.stem,
        points["train"],
        points["test"],
        notes=("Read as dense features.", *held),
        digest=entry.key + mark,
        whole=whole,
    )


def _build(parts: dict[str, Part], at_once: int, progress: Progress | None, store: Store) -> None:
    columns: dict[str, dict[str, int]] = {"features": {}, "labels": {}}
    store.facts["num_labels"] = 0
    for name, part in parts.items():
        features = part.features
        _write_features(name, part, features, store, at_once, progress)
        labels, width = labels_of(part, len(features), may_lack=name == "test")
        columns["features"][name] = features.shape[1]
        columns["labels"] |= {name: width} if width else {}
        if name == "train" and not len(labels.values):
            raise part.wrong("labels", " holds no label at all, so there is nothing to learn.")
        highest = int(labels.values.max()) if len(labels.values) else -1
        store.facts["num_labels"] = max(store.facts["num_labels"], highest + 1, width or 0)
        store.append(f"{name}_labels", labels.values.int().numpy())
        store.append(f"{name}_offsets", labels.offsets.numpy())
    for what, of_part in columns.items():
        if len(set(of_part.values())) > 1:
            raise parts["test"].wrong(
                what, f" has {of_part['test']:,} columns, but training has {of_part['train']:,}."
            )


def _write_features(
    name: str,
    part: Part,
    features: Tensor,
    store: Store,
    at_once: int,
    progress: Progress | None,
) -> None:
    """Check features, and copy those that cannot be mapped, a block at a time."""
    if not features.is_floating_point() or features.dim() != 2 or 0 in features.shape:
        raise part.wrong(
            "features",
            f" must be floats of shape [N, D], but is {type_of(features)} of shape "
            f"{list(features.shape)}.",
        )
    mapped = part.mapped
    rows = max(1, at_once // features.shape[1])
    for start in range(0, len(features), rows):
        block = features[start : start + rows].float()
        finite = block.isfinite().all(dim=1)
        if not bool(finite.all()):
            row = start + int(finite.int().argmin())
            raise part.wrong(
                "features",
                f": row {row:,} (from 0) has a value that is NaN or infinite in float32. Fix or "
                "drop it.",
            )
        if not mapped:
            store.append(f"{name}_features", block.numpy())
        if progress is not None:
            progress(f"reading {part.path.name}", min(start + rows, len(features)) / len(features))


def _points(entry: Entry, name: str, part: Part) -> Points:
    features = part.features if part.mapped else entry.arrays[f"{name}_features"]
    labels = Ragged(entry.arrays[f"{name}_labels"], entry.arrays[f"{name}_offsets"])
    return Points(features, labels, entry.facts["num_labels"])
