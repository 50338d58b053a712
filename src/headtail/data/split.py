"""Which points train and which test: two files, one file with split files, or points held out."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from headtail.data.cache import digest
from headtail.data.points import Bag, DataSet, Points, Progress
from headtail.data.readers.text import TextFile, existing, read_text
from headtail.errors import HeadtailError, check_number

_PACKED = re.compile(r"\.(gz|bz2|xz)$")
_ENDINGS = re.compile(r"\.(txt|svm|svmlight|libsvm)(\.(gz|bz2|xz))?$")
_NO_POINTS = re.compile(r"readme|licen[cs]e|filter_labels|inv_prop")
"""Other text that lies beside the points."""


@dataclass(frozen=True)
class TextFiles:
    """The text files of a data set.

    Attributes:
        train: the training points, or with `splits` all points.
        test: the test points, or None.
        splits: files with the rows of the training and of the test points, or None.
    """

    train: Path
    test: Path | None = None
    splits: tuple[Path, Path] | None = None


def find_text(folder: Path) -> TextFiles:
    """Find `train.txt` and `test.txt`, `NAME_train.txt` and `NAME_test.txt`, or one file, with
    `*trSplit*` and `*tstSplit*` if any.

    Names may end with .txt, .svm, .svmlight or .libsvm, and then with .gz, .bz2 or .xz.

    >>> folder = getfixture("tmp_path")
    >>> for name in ("bibtex_data.txt", "bibtex_trSplit.txt", "bibtex_tstSplit.txt"):
    ...     _ = (folder / name).write_text("")
    >>> found = find_text(folder)
    >>> found.train.name, found.test, [path.name for path in found.splits]
    ('bibtex_data.txt', None, ['bibtex_trSplit.txt', 'bibtex_tstSplit.txt'])
    """
    if not folder.is_dir():
        raise HeadtailError(f"`{folder}` is no folder.")
    # The longest names first, so that a file that lies there packed and unpacked is read unpacked.
    paths = sorted(
        (path for path in folder.iterdir() if _is_text(path)), key=lambda path: -len(path.name)
    )
    names = {_PACKED.sub("", path.name): path for path in paths}
    train_rows = _take(folder, names, r"trn?_?split")
    test_rows = _take(folder, names, r"te?st_?split")
    if (train_rows is None) != (test_rows is None):
        raise HeadtailError(
            f"`{folder}` has only one of the two split files, `*trSplit.txt` and `*tstSplit.txt`. "
            "Add the other."
        )
    train = _take(folder, names, r"(^|[_.-])(train|trn)$")
    test = _take(folder, names, r"(^|[_.-])(test|tst)$")
    if train is None:
        train = _take(folder, names, r"(^|[_.-])data$") or _take(folder, names, r"")
    if train is None:
        held = "only a test file" if test else "no text file"
        raise HeadtailError(
            f"`{folder}` holds {held}. Expected are `train.txt` and `test.txt`, or one file of "
            "points."
        )
    splits = (train_rows, test_rows) if train_rows and test_rows and test is None else None
    return TextFiles(train, test, splits)


def read_xc(
    train: Path,
    test: Path | None = None,
    *,
    splits: tuple[Path, Path] | None = None,
    split_column: int = 0,
    skip_bad_lines: bool = False,
    progress: Progress | None = None,
) -> DataSet:
    r"""Read training and test points, from two text files, or from one and the rows of each part.

    Args:
        train: the training points, or with `splits` all points.
        test: the test points.
        splits: files with the rows of the training and of the test points.
        split_column: which of the splits in those files, from 0.
        skip_bad_lines: as for `read_text`.
        progress: called after each block.

    >>> folder = getfixture("tmp_path")
    >>> getfixture("monkeypatch").setenv("HEADTAIL_CACHE", str(folder / "cache"))
    >>> _ = (folder / "all.txt").write_text("3 4 3\n0,2 1:0.5\n1 0:2\n2 3:1\n")
    >>> _, _ = (folder / "trSplit.txt").write_text("1\n3\n"), (folder / "tstSplit.txt").write_text("2\n")
    >>> data = read_xc(folder / "all.txt", splits=(folder / "trSplit.txt", folder / "tstSplit.txt"))
    >>> len(data.train), data.test.labels.values
    (2, tensor([1], dtype=torch.int32))
    """
    if (test is None) == (splits is None):
        found = "neither" if test is None else "both"
        raise HeadtailError(
            f"`read_xc` needs `test` or `splits`, but got {found}. Hold points of one file out "
            "with `hold_out`."
        )
    first = read_text(train, skip_bad_lines=skip_bad_lines, progress=progress)
    if test is not None:
        second = read_text(test, skip_bad_lines=skip_bad_lines, progress=progress)
        parts = _same_width(train, first, test, second)
        notes = first.notes + second.notes
        marks = [first.digest, second.digest]
    else:
        assert splits is not None
        parts = _parted(first, splits, split_column)
        notes = first.notes
        marks = [first.digest, *map(digest, splits), str(split_column)]
    mark = hashlib.blake2b(" ".join(marks).encode(), digest_size=16).hexdigest()
    return DataSet(_name(train), parts[0], parts[1], notes=notes, digest=mark)


def read_split(
    path: Path, column: int = 0, *, num_points: int | None = None
) -> Int64[Tensor, " k"]:
    r"""Rows of one part of a data set, counted from 0; the file counts from 1 and has a column a
    split.

    Args:
        path: a `*trSplit.txt` or `*tstSplit.txt`.
        column: which split, from 0.
        num_points: N, if known: rows must be in 1 … N.

    >>> path = getfixture("tmp_path") / "trSplit.txt"
    >>> _ = path.write_text("3 1\n1 2\n")
    >>> read_split(path, 1)
    tensor([0, 1])
    """
    rows: list[int] = []
    most = num_points or torch.iinfo(torch.int64).max
    try:
        lines = existing(path).read_text(encoding="utf-8", errors="backslashreplace").splitlines()
    except OSError as error:
        raise HeadtailError(f"`{path}` cannot be read: {error.strerror}.") from error
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields:
            continue
        if not 0 <= column < len(fields):
            splits = (
                "1 split, column 0"
                if len(fields) == 1
                else f"{len(fields)} splits, columns 0 to {len(fields) - 1}"
            )
            raise HeadtailError(
                f"{path}, line {number:,}: there is no column {column}, only {splits}."
            )
        text = fields[column]
        if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= most):
            bounds = f"from 1 to {num_points:,}" if num_points else "from 1"
            raise HeadtailError(
                f"{path}, line {number:,}: expected a row number {bounds}, but found `{text[:40]}`."
            )
        rows.append(int(text) - 1)
    if not rows:
        raise HeadtailError(f"`{path}` is empty. Write row numbers from 1, one a line.")
    ids = torch.tensor(rows)
    unique, count = ids.unique(return_counts=True)
    if len(unique) < len(ids):
        raise HeadtailError(
            f"{path}: row {int(unique[count > 1][0]) + 1:,} stands twice in column {column}."
        )
    return ids


def hold_out(points: Points, share: float, seed: int = 0) -> tuple[Points, Points]:
    """Keep a random share of the points for testing. Same points, share and seed: same parts, each
    in the old order.

    >>> from headtail.data.points import Points
    >>> points = Points(torch.arange(10.0)[:, None], Ragged.from_lists([[0]] * 10), 1)
    >>> train, test = hold_out(points, 0.2)
    >>> len(train), len(test)
    (8, 2)
    """
    if not 0 < check_number("share", share) < 1:
        raise HeadtailError(f"`share` must be between 0 and 1, both excluded, but got {share!r}.")
    if len(points) < 2:
        raise HeadtailError(
            f"To hold points out there must be at least 2, but there are {len(points)}. Pass a "
            "test file."
        )
    held = min(max(round(share * len(points)), 1), len(points) - 1)
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    return points.select(order[held:].sort().values), points.select(order[:held].sort().values)


def stem(path: Path) -> str:
    """The name without its endings, in small letters: `train` for `Train.txt.gz`."""
    return _ENDINGS.sub("", path.name.lower())


def _is_text(path: Path) -> bool:
    name = path.name.lower()
    return (
        path.is_file()
        and not name.startswith(".")
        and bool(_ENDINGS.search(name))
        and not _NO_POINTS.match(name)
    )


def _take(folder: Path, names: dict[str, Path], pattern: str) -> Path | None:
    """Take the one file out whose name fits."""
    found = [name for name, path in names.items() if re.search(pattern, stem(path))]
    if len(found) > 1:
        listed = ", ".join(sorted(names[name].name for name in found))
        raise HeadtailError(
            f"`{folder}` holds more than one candidate ({listed}). Name the files themselves."
        )
    return names.pop(found[0]) if found else None


def _parted(file: TextFile, splits: tuple[Path, Path], column: int) -> list[Points]:
    if file.bad_lines:
        raise HeadtailError(
            f"{file.notes[0]}, so the rows in `{splits[0]}` point elsewhere. Correct these lines."
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
            raise HeadtailError(
                f"`{path}` promises {sizes[i][0]:,} features and {sizes[i][1]:,} labels in its "
                f"header, but `{other}` has "
                f"{sizes[1 - i][0]:,} and {sizes[1 - i][1]:,}. Training and test file must be of "
                "the same data."
            )
    return [_widened(file.points, *wide) for file in (first, second)]


def _widened(points: Points, num_features: int, num_labels: int) -> Points:
    assert isinstance(points.features, Bag)
    return replace(
        points, features=replace(points.features, num_columns=num_features), num_labels=num_labels
    )


def _name(path: Path) -> str:
    """`delicious` for `delicious/train.txt` and for `Delicious_data.txt`."""
    name = re.sub(r"(^|[_.-])(train|trn|data)$", "", stem(path))
    return name or path.resolve().parent.name
