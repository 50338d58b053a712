"""Training and test points from text: two files, one file with split files, or points held out."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from headtail.data.bag import Bag
from headtail.data.catalogue import compare_counts, recognise
from headtail.data.digests import digest
from headtail.data.packed import MAX_EXPANSION
from headtail.data.points import DataSet, Points, Progress
from headtail.data.readers.label_names import with_label_names
from headtail.data.readers.text import TextFile, existing, read_text
from headtail.data.readers.text_folder import stem
from headtail.data.reading import DataFiles, Reading, data_name
from headtail.data.split import hold_out
from headtail.errors import HeadtailError


def read_files(files: DataFiles, reading: Reading, progress: Progress | None) -> DataSet:
    """Read text files as `reading` says."""
    if files.test is None and files.splits is None:
        data = _read_one_file(files.train, reading, progress)
    else:
        data = read_xc(
            files.train,
            files.test,
            splits=files.splits,
            split_column=reading.split_column,
            skip_bad_lines=reading.skip_bad_lines,
            max_expansion=reading.max_expansion,
            progress=progress,
        )
    if data.train.num_pairs == 0:
        raise HeadtailError(
            f"`{files.train}` has no label at all, so nothing can be learnt. Begin lines with "
            "labels, `3,17 0:0.5`; points without labels belong in a test file."
        )
    notes = ["Read as text: labels, then features with their values.", *data.notes]
    known = recognise(data.train.num_features, data.train.num_labels)
    if known is not None:
        notes.append(compare_counts(known, data.train, data.test))
    data = replace(data, notes=tuple(notes))
    return with_label_names(data, files.train.parent, reading.max_expansion)


def _read_one_file(path: Path, reading: Reading, progress: Progress | None) -> DataSet:
    holdout = reading.holdout
    file = read_text(
        path,
        skip_bad_lines=reading.skip_bad_lines,
        max_expansion=reading.max_expansion,
        progress=progress,
    )
    train, test = hold_out(file.points, holdout)
    note = f"There is no test file: {holdout:.0%} of the points are held out for testing."
    return DataSet(
        data_name(path, stem(path)),
        train,
        test,
        notes=(*file.notes, note),
        digest=f"{file.digest}-{holdout:g}",
        whole=file.points,
    )


def read_xc(
    train: Path,
    test: Path | None = None,
    *,
    splits: tuple[Path, Path] | None = None,
    split_column: int = 0,
    skip_bad_lines: bool = False,
    max_expansion: float = MAX_EXPANSION,
    progress: Progress | None = None,
) -> DataSet:
    r"""Read training and test points, from two text files, or from one and the rows of each part.

    Args:
        train: the training points, or with `splits` all points.
        test: the test points.
        splits: files with the rows of the training and of the test points.
        split_column: which of the splits in those files, from 0.
        skip_bad_lines: as for `read_text`.
        max_expansion: likewise.
        progress: called after each block.

    >>> folder = getfixture("tmp_path")
    >>> getfixture("monkeypatch").setenv("HEADTAIL_CACHE", str(folder / "cache"))
    >>> points, train, test = (folder / f"{name}.txt" for name in ("all", "trSplit", "tstSplit"))
    >>> _ = points.write_text("3 4 3\n0,2 1:0.5\n1 0:2\n2 3:1\n")
    >>> _, _ = train.write_text("1\n3\n"), test.write_text("2\n")
    >>> data = read_xc(points, splits=(train, test))
    >>> len(data.train), data.test.labels.values
    (2, tensor([1], dtype=torch.int32))
    """
    if (test is None) == (splits is None):
        passed = "neither" if test is None else "both"
        raise HeadtailError(
            f"`read_xc` needs `test` or `splits`, but got {passed}. To hold out points of one "
            "file, use `hold_out`."
        )
    options: dict[str, Any] = {
        "skip_bad_lines": skip_bad_lines,
        "max_expansion": max_expansion,
        "progress": progress,
    }
    first = read_text(train, **options)
    if test is not None:
        second = read_text(test, **options)
        parts = _same_width(train, first, test, second)
        notes = first.notes + second.notes
        marks = [first.digest, second.digest]
    else:
        assert splits is not None
        parts = _by_splits(first, splits, split_column)
        notes = first.notes
        marks = [first.digest, *map(digest, splits), str(split_column)]
    mark = hashlib.blake2b(" ".join(marks).encode(), digest_size=16).hexdigest()
    return DataSet(_name(train), parts[0], parts[1], notes=notes, digest=mark)


def read_split(
    path: Path, column: int = 0, *, num_points: int | None = None
) -> Int64[Tensor, " k"]:
    r"""Rows of one part of a data set, counted from 0.

    The file counts from 1 and has a column per split.

    Args:
        path: a `*trSplit.txt` or `*tstSplit.txt`.
        column: which split, from 0.
        num_points: N, if known: rows must be in 1 … N.

    >>> path = getfixture("tmp_path") / "trSplit.txt"
    >>> _ = path.write_text("3 1\n1 2\n")
    >>> read_split(path, 1)
    tensor([0, 1])
    """
    try:
        lines = existing(path).read_text(encoding="utf-8", errors="backslashreplace").splitlines()
    except OSError as error:
        raise HeadtailError(f"`{path}` cannot be read: {error.strerror}.") from error
    ids = torch.tensor(
        [
            _row_number(f"{path}, line {number:,}", line.split(), column, num_points)
            for number, line in enumerate(lines, start=1)
            if line.split()
        ],
        dtype=torch.int64,
    )
    if not len(ids):
        raise HeadtailError(f"`{path}` is empty. Write row numbers from 1, one per line.")
    unique, count = ids.unique(return_counts=True)
    if len(unique) < len(ids):
        row = int(unique[count > 1][0]) + 1
        raise HeadtailError(f"{path}: row {row:,} occurs twice in column {column}.")
    return ids


def _row_number(where: str, fields: list[str], column: int, num_points: int | None) -> int:
    """The row in a line of a split file, counted from 0."""
    if not 0 <= column < len(fields):
        last = len(fields) - 1
        splits = "1 split, column 0" if last == 0 else f"{last + 1} splits, columns 0 to {last}"
        raise HeadtailError(f"{where}: column {column} does not exist, only {splits}.")
    text = fields[column]
    most = num_points or torch.iinfo(torch.int64).max
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= most):
        bounds = f"from 1 to {num_points:,}" if num_points else "from 1"
        raise HeadtailError(f"{where}: expected a row number {bounds}, but found `{text[:40]}`.")
    return int(text) - 1


def _by_splits(file: TextFile, splits: tuple[Path, Path], column: int) -> list[Points]:
    if file.bad_lines:
        raise HeadtailError(
            f"{file.notes[0]}, so the rows in `{splits[0]}` no longer match. Correct these lines."
        )
    rows = [read_split(path, column, num_points=len(file.points)) for path in splits]
    both = np.intersect1d(rows[0], rows[1])
    if len(both):
        shared = f"{len(both):,} rows in column {column}, the first is {both[0] + 1:,}"
        raise HeadtailError(
            f"`{splits[0]}` and `{splits[1]}` share {shared}. A point either trains or tests."
        )
    return [file.points.select(ids) for ids in rows]


def _same_width(train: Path, first: TextFile, test: Path, second: TextFile) -> list[Points]:
    """Both files with one D and one L: those of a header, or else the larger."""
    sizes = [(file.points.num_features, file.points.num_labels) for file in (first, second)]
    wide = max(sizes[0][0], sizes[1][0]), max(sizes[0][1], sizes[1][1])
    for i, (path, other) in enumerate(((train, test), (test, train))):
        if (first, second)[i].header and sizes[i] != wide:
            features, labels = sizes[i]
            raise HeadtailError(
                f"`{path}` promises {features:,} features and {labels:,} labels in its header, but "
                f"`{other}` has {sizes[1 - i][0]:,} and {sizes[1 - i][1]:,}. Training and test "
                "file must be of the same data."
            )
    return [_widened(file.points, *wide) for file in (first, second)]


def _widened(points: Points, num_features: int, num_labels: int) -> Points:
    assert isinstance(points.features, Bag)
    features = replace(points.features, num_columns=num_features)
    return replace(points, features=features, num_labels=num_labels)


def _name(path: Path) -> str:
    """`delicious` for `delicious/train.txt` and for `Delicious_data.txt`."""
    name = re.sub(r"(^|[_.-])(train|trn|data)$", "", stem(path))
    return name or path.resolve().parent.name
