"""Features and labels as two sparse matrices in text: `trn_X_Xf.txt` and `trn_X_Y.txt`."""

from __future__ import annotations

from pathlib import Path

from headtail.core.targets import Ragged
from headtail.data.bag import Bag
from headtail.data.points import DataSet, Points, Progress
from headtail.data.readers.label_names import with_label_names
from headtail.data.readers.raw_text_folder import matrix_of_labels
from headtail.data.readers.text import read_text
from headtail.data.reading import DataFiles, Reading, data_name
from headtail.data.split import hold_out
from headtail.errors import HeadtailError


def read_files(files: DataFiles, reading: Reading, progress: Progress | None) -> DataSet:
    """Read the matrices of the training and of the test points."""
    train, mark = _points(files.train, reading, progress)
    notes = ["Read as sparse matrices: one of features, one of labels."]
    whole = None
    if files.test is None:
        whole = train
        train, test = hold_out(whole, reading.holdout)
        mark += f"-{reading.holdout:g}"
        notes.append(
            f"There is no test file: {reading.holdout:.0%} of the points are held out for testing."
        )
    else:
        test, other_mark = _points(files.test, reading, progress)
        mark += f"-{other_mark}"
        _check_sizes(files.train, train, files.test, test)
    name = data_name(files.train, "")
    data = DataSet(name, train, test, notes=tuple(notes), digest=mark, whole=whole)
    return with_label_names(data, files.train.parent, reading.max_expansion)


def _points(path: Path, reading: Reading, progress: Progress | None) -> tuple[Points, str]:
    """Points, and a digest of their content."""
    labels_path = matrix_of_labels(path)
    features, labels = (
        read_text(file, max_expansion=reading.max_expansion, progress=progress)
        for file in (path, labels_path)
    )
    rows, marks = features.points.features, labels.points.features
    assert isinstance(rows, Bag)
    assert isinstance(marks, Bag)
    if len(rows) != len(marks):
        raise HeadtailError(
            f"`{path}` has {len(rows):,} points, but `{labels_path}` has {len(marks):,}. Row i of "
            "one must belong to row i of the other."
        )
    points = Points(rows, Ragged(marks.columns, marks.offsets), marks.num_columns)
    return points, f"{features.digest}-{labels.digest}"


def _check_sizes(train: Path, first: Points, test: Path, second: Points) -> None:
    sizes = [(points.num_features, points.num_labels) for points in (first, second)]
    if sizes[0] != sizes[1]:
        (features, labels), (others, other_labels) = sizes
        raise HeadtailError(
            f"`{train}` has {features:,} features and {labels:,} labels, but `{test}` has "
            f"{others:,} and {other_labels:,}. Training and test files must be of the same data."
        )
