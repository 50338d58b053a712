"""How data are read: the options, the files of a data set, and the name it gets."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from headtail.data.packed import MAX_EXPANSION
from headtail.errors import Sentence, Setting

Format: TypeAlias = Literal[
    "auto",
    "xc",
    "svmlight",
    "fasttext",
    "raw-text",
    "sequences",
    "interactions",
    "triples",
    "dense",
    "images",
    "cifar",
]


@dataclass(frozen=True)
class Reading:
    """How data are read."""

    test: Path | None = None
    """File to test on. By default the test file in DATA, where that is a folder; else a part of the
    points is held out.
    """
    format: Format = "auto"
    """What the files hold; auto recognises it by their names, columns and first line."""
    skip_bad_lines: bool = False
    """Leave bad lines of text files out, and count them, instead of refusing the file."""
    user: str | None = None
    """Column that names the user; found by its name if left out, as the other columns are. Columns
    without names are numbered from 1.
    """
    item: str | None = None
    """Column of items: one per row, or a list of them."""
    time: str | None = None
    """Column of times: seconds or milliseconds, or dates."""
    session: str | None = None
    """Column that names the session of each row."""
    rating: str | None = None
    """Column of ratings."""
    min_rating: float | None = None
    """Drop interactions with a rating below this."""
    label: str | None = None
    """Column of labels, one per row or a list."""
    label_separator: str | None = None
    """What separates the labels of a text within one value of its label column; by default a value
    is one label, and lists have several.
    """
    text: str | None = None
    """Column of raw text."""
    features: tuple[str, ...] = ()
    """Columns of numbers to predict labels from, or one column of lists of numbers."""
    item_features: Path | None = None
    """File with a row per item (or label): its words and numbers become features, so that items
    that training never saw get scores too.
    """
    split: Literal["auto", "time", "last", "session", "random"] = "auto"
    """What is tested without a test file: the last share of all interactions (time), the last item
    of each user (last), whole sessions (session), or a random share. auto follows the data.
    """
    split_column: int = 0
    """Which column of split files (*trSplit.txt, *tstSplit.txt) to use, from 0."""
    last: int = 10
    """For sequences: how many items before the next are looked at."""
    holdout: float = 0.2
    """Share kept for testing without a test file: of the points, interactions or sessions."""
    profile: Literal["as-is", "exp", "step"] = "as-is"
    """For images: thin the training part so that label i keeps fewer the larger i is (exp), or the
    second half of the labels does (step).
    """
    imbalance: float = 100
    """For a profile: images of the most frequent label over those of the rarest."""
    root: Path | None = None
    """For lists of images: folder that their paths start from. By default the folder of the list.
    """
    skip_bad_images: bool = False
    """Leave missing and damaged images out, and count them, instead of refusing them; every file is
    decoded once for that.
    """
    text_features: Literal["tfidf", "hashing"] = "tfidf"
    """For raw text: a column per term that training texts share, weighted by how rare it is
    (tfidf), or a column per hash of a term, which keeps no list of terms (hashing).
    """
    max_terms: int = 131_072
    """For raw text: the most terms, or the number of hashes."""
    ngrams: int = 2
    """For raw text: the most words in a row that are one term."""
    max_memory: float | None = None
    """For Parquet, Arrow, Feather, .npz and zstd files, which a process of its own reads first: GiB
    that it may take. By default 3, and 64 times the size of the files.
    """
    max_seconds: float | None = None
    """For the same files: seconds that reading them may take. By default 20, and 8 per MiB of the
    files.
    """
    max_expansion: float = MAX_EXPANSION
    """For compressed files: how many times its own size a file may become, where it becomes more
    than 4 MiB (an array in an `.npz` file: 64 MiB).
    """
    max_labels: int | None = None
    """The most labels. By default a file may claim 100,000 labels, and 100 more for each label
    that is really there; names of labels count as labels that are there.
    """
    max_features: int | None = None
    """The most features. By default a file may claim 100,000 features, and 100 more for each
    value that is really there.
    """


DEFAULTS = Reading()
LIMITS = ("max_memory", "max_seconds")
"""Options that do not change what is read."""
LONGEST_SEQUENCE = 10_000
"""Items of a sequence that an encoder may look at: a state is computed for each of them, so that a
number in a file of settings could ask for all memory.
"""
SIZES = ("max_expansion", "max_labels", "max_features")
"""Options that only refuse data, and do not change what is read."""


class DataFiles(NamedTuple):
    """The files of a data set.

    Attributes:
        kind: the name of their kind (`FileKind`).
        train: the training points, or with `splits` all points; of several shards, any.
        test: the test points, or None.
        splits: files with the rows of the training and of the test points, or None.
        validation: the validation points, or None.
        unused: names of files beside them that are not read.
    """

    kind: str
    train: Path
    test: Path | None = None
    splits: tuple[Path, Path] | None = None
    validation: Path | None = None
    unused: tuple[str, ...] = ()

    def tested_on_validation(self) -> DataFiles:
        """With the validation part as the test part, unless there is another."""
        if self.test is not None:
            return self
        return self._replace(test=self.validation, validation=None)


def data_name(path: Path, name: str) -> str:
    """The short name of a data set: that of its training file, or of its folder where the name of
    the file says nothing.

    `beauty` for `beauty/train.parquet`, `beauty/data/train.parquet`, `beauty/sequences.parquet`,
    `beauty_train.npz` and `beauty.csv`.

    >>> paths = [Path("shop/may.csv"), Path("ml-100k/u.data"), Path("ml/ratings.csv")]
    >>> [data_name(path, path.stem) for path in paths]
    ['may', 'ml-100k', 'ml']
    """
    says_nothing = "train|trn|data|sequences?|interactions?|ratings?|events?|clicks?|log|u"
    role = rf"(^|[_.-])({says_nothing})(20\d\d)?$"
    if own := re.sub(role, "", name.lower()):
        return own
    folder = path.resolve().parent
    return folder.parent.name if folder.name == "data" else folder.name


def told_apart(before: dict[str, Any], now: dict[str, Any]) -> tuple[Sentence, Sentence]:
    """The paths of two data sets (`DataSet.read_as`), each with the options that differ.

    >>> told_apart({"path": "shop", "last": 10}, {"path": "shop", "last": 5})
    ('`shop` `last=10`', '`shop` `last=5`')
    """
    options = [field.name for field in fields(Reading)]
    names = [name for name in options if before.get(name) != now.get(name)]
    return _read_with(before, names), _read_with(now, names)


def what_changed(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Why data that were read with equal options (`DataSet.read_as`) differ, where it is known.

    >>> what_changed({"content": "a1"}, {"content": "b2"})
    'their content has changed'
    """
    another_way = "this version of headtail reads"
    contents = {before.get("content"), now.get("content")}
    if None in contents:
        return f"their content has changed, or {another_way} them in another way"
    if len(contents) > 1:
        return "their content has changed"
    return f"{another_way} the same files in another way"


def _read_with(how: dict[str, Any], names: list[str]) -> Sentence:
    parts: list[str | Setting] = [f"`{how.get('path')}`"]
    for name in names:
        value = how.get(name)
        parts += [" without " if value is None else " ", Setting(name, value)]
    return Sentence(*parts)
