"""Finding the text files of a data set in a folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from headtail.data.file_kinds import FileKind
from headtail.data.packed import PACKED
from headtail.data.readers.image_kinds import is_bare
from headtail.data.readers.raw_text_folder import is_name_file
from headtail.data.reading import DataFiles
from headtail.errors import HeadtailError

_ENDINGS = re.compile(r"\.(txt|svm|svmlight|libsvm)(\.(gz|bz2|xz|zst))?$")
_NO_POINTS = re.compile(r"readme|licen[cs]e|filter_labels|inv_prop")
"""Other text that comes with data sets."""


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

    Names may end with .txt, .svm, .svmlight or .libsvm, and then with .gz, .bz2, .xz or .zst.

    >>> folder = getfixture("tmp_path")
    >>> for name in ("bibtex_data.txt", "bibtex_trSplit.txt", "bibtex_tstSplit.txt"):
    ...     _ = (folder / name).write_text("")
    >>> files = find_text(folder)
    >>> files.train.name, files.test, [path.name for path in files.splits]
    ('bibtex_data.txt', None, ['bibtex_trSplit.txt', 'bibtex_tstSplit.txt'])
    """
    if not folder.is_dir():
        raise HeadtailError(f"`{folder}` is not a folder.")
    # The longest names first, so that a file that is there packed and unpacked is read unpacked.
    paths = [path for path in folder.iterdir() if _may_hold_points(path)]
    paths.sort(key=lambda path: -len(path.name))
    names = {PACKED.sub("", path.name): path for path in paths}
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


def stem(path: Path) -> str:
    """The name without its endings, in small letters: `train` for `Train.txt.gz`."""
    return _ENDINGS.sub("", path.name.lower())


def _has_text_ending(path: Path) -> bool:
    return path.is_file() and bool(_ENDINGS.search(path.name.lower()))


def _may_hold_points(path: Path) -> bool:
    name = path.name.lower()
    if name.startswith(".") or _NO_POINTS.match(name) or is_name_file(path):
        return False
    return _has_text_ending(path)


def _take(folder: Path, names: dict[str, Path], pattern: str) -> Path | None:
    """Remove the one file with a name that fits, and return it."""
    matches = [name for name, path in names.items() if re.search(pattern, stem(path))]
    if len(matches) > 1:
        listed = ", ".join(sorted(names[name].name for name in matches))
        raise HeadtailError(
            f"`{folder}` holds more than one candidate ({listed}). Name the files themselves."
        )
    return names.pop(matches[0]) if matches else None


def _holds_text(path: Path, requested: bool) -> bool:
    return requested or (_has_text_ending(path) and not is_bare(path))


def _find_text_files(path: Path, requested: bool) -> DataFiles | None:
    if path.is_file():
        return DataFiles("text", path) if _holds_text(path, requested) else None
    if not requested and not any(_has_text_ending(file) for file in path.iterdir()):
        return None
    files = find_text(path)
    return DataFiles("text", files.train, files.test, files.splits)


TEXT = FileKind("text", _holds_text, _find_text_files)
