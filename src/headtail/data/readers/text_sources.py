"""Files of raw texts with their labels, as they are read: block by block, as often as needed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from headtail.data.bag import Bag
from headtail.data.cache import Keyed
from headtail.data.packed import MAX_EXPANSION, line_blocks
from headtail.data.readers.npz_files import matrix_rows
from headtail.data.readers.text import read_text
from headtail.errors import HeadtailError

MARK = "__label__"
"""What fastText's labels begin with."""
TEXT_KEYS = ("title", "content", "text")
LABEL_KEY = "target_ind"


class Texts(NamedTuple):
    """A block of texts.

    Attributes:
        texts: as they were written.
        labels: the labels of each text: names, or ids as numbers.
        share: the share of the source that is read so far.
    """

    texts: list[str]
    labels: Sequence[list[str] | list[int]]
    share: float


@dataclass(frozen=True)
class TextSource:
    """Texts with labels that can be read more than once.

    Attributes:
        name: for people.
        files: what decides the content.
        blocks: reads it.
    """

    name: str
    files: tuple[Path | Keyed, ...]
    blocks: Callable[[], Iterator[Texts]]


def fasttext_source(path: Path, max_expansion: float = MAX_EXPANSION) -> TextSource:
    r"""Lines of words, among them labels: `__label__cat __label__pet my cat sleeps`.

    Blank lines are no texts.

    >>> path = getfixture("tmp_path") / "train.txt"
    >>> _ = path.write_text("__label__cat __label__pet my cat sleeps\n")
    >>> next(fasttext_source(path).blocks())
    Texts(texts=['my cat sleeps'], labels=[['cat', 'pet']], share=1.0)
    """

    def blocks() -> Iterator[Texts]:
        for lines, share in lines_of(path, max_expansion):
            texts, labels = [], []
            for line in lines:
                words = line.split()
                if not words:
                    continue
                named = [word.removeprefix(MARK) for word in words if word.startswith(MARK)]
                labels.append(list(dict.fromkeys(named)))
                texts.append(" ".join(word for word in words if not word.startswith(MARK)))
            if texts:
                yield Texts(texts, labels, share)

    return TextSource(path.name, (path,), blocks)


def json_source(path: Path, max_expansion: float = MAX_EXPANSION) -> TextSource:
    """JSON lines of the Extreme Classification Repository, with `title`, `content` and
    `target_ind`.
    """

    def blocks() -> Iterator[Texts]:
        before = 0
        for lines, share in lines_of(path, max_expansion):
            records = [
                _record(path, before + number, line) for number, line in enumerate(lines, start=1)
            ]
            before += len(lines)
            labels = [list(dict.fromkeys(record.get(LABEL_KEY, []))) for record in records]
            yield Texts([text_of(record) for record in records], labels, share)

    return TextSource(path.name, (path,), blocks)


def lines_source(
    path: Path, labels: Path | None, max_expansion: float = MAX_EXPANSION
) -> TextSource:
    """One text per line; line i of a second file holds the labels of text i."""
    if labels is None:
        return TextSource(path.name, (path,), lambda: _unlabelled(path, max_expansion))

    def blocks() -> Iterator[Texts]:
        rows = label_lists(labels, max_expansion)
        number = 0
        for lines, share in lines_of(path, max_expansion):
            taken = [row for _, row in zip(lines, rows, strict=False)]
            number += len(taken)
            if len(taken) < len(lines):
                texts = sum(len(block) for block, _ in lines_of(path, max_expansion))
                raise _unequal(path, texts, labels, number)
            yield Texts(lines, taken, share)
        if more := sum(1 for _ in rows):
            raise _unequal(path, number, labels, number + more)

    return TextSource(path.name, (path, labels), blocks)


def label_lists(
    path: Path, max_expansion: float = MAX_EXPANSION
) -> Iterator[list[str] | list[int]]:
    """The labels of each line: of a sparse matrix (`3:1 17:1`, `.npz`) the columns; otherwise what
    commas separate, or blanks where the file's first lines have no comma.
    """
    if path.suffix.lower() == ".npz":
        yield from _columns(*matrix_rows(path, max_expansion))
        return
    separator = None
    for lines, _ in lines_of(path, max_expansion):
        if separator is None:
            if any(re.match(r"\d+:\S", line) for line in lines):
                bag = read_text(path, max_expansion=max_expansion).points.features
                assert isinstance(bag, Bag)
                yield from _columns(bag.offsets.tolist(), bag.columns.tolist())
                return
            separator = r"\t|," if any("," in line or "\t" in line for line in lines) else r"\s"
        for line in lines:
            labels = (label.strip() for label in re.split(separator, line))
            yield list(dict.fromkeys(label for label in labels if label))


def read_names(path: Path, max_expansion: float = MAX_EXPANSION) -> list[str]:
    """The name of each label: a line, or the `title` of a JSON line, `uid` where that is empty."""
    if re.search(r"\.jsonl?(\.\w+)?$", path.name.lower()):
        records = read_records(path, max_expansion)
        return [str(record.get("title") or record.get("uid", "")) for record in records]
    return [line for lines, _ in lines_of(path, max_expansion) for line in lines]


def read_records(path: Path, max_expansion: float = MAX_EXPANSION) -> Iterator[dict[str, Any]]:
    """The records of JSON lines."""
    number = 0
    for lines, _ in lines_of(path, max_expansion):
        for line in lines:
            number += 1
            yield _record(path, number, line)


def text_of(record: dict[str, Any]) -> str:
    """Title and content of a record, one after the other."""
    return " ".join(str(record[key]) for key in TEXT_KEYS if record.get(key))


def _unlabelled(path: Path, max_expansion: float) -> Iterator[Texts]:
    for lines, share in lines_of(path, max_expansion):
        yield Texts(lines, [[] for _ in lines], share)


def lines_of(path: Path, max_expansion: float = MAX_EXPANSION) -> Iterator[tuple[list[str], float]]:
    """Blocks of lines as text."""
    before = 0
    for block, share in line_blocks(path, max_expansion=max_expansion):
        try:
            # Not `splitlines`, which also splits at other characters than line ends.
            lines = block.decode().split("\n")[:-1]
        except UnicodeDecodeError as error:
            number = before + block.count(b"\n", 0, error.start) + 1
            raise HeadtailError(
                f"`{path}`, line {number:,} is not UTF-8 text. Convert the file, for example with "
                "`iconv -f latin1 -t utf-8`."
            ) from error
        if b"\r" in block:
            lines = [line.rstrip("\r") for line in lines]
        if not before:
            lines[0] = lines[0].removeprefix("\ufeff")
        before += len(lines)
        yield lines, share


def _record(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    labels = record.get(LABEL_KEY, []) if isinstance(record, dict) else None
    whole = isinstance(labels, list) and all(type(label) is int for label in labels)
    if not isinstance(record, dict) or not whole:
        raise HeadtailError(
            f"`{path}`, line {number:,} is not a record. Write one JSON object per line, such as "
            f'`{{"title": "red shoes", "{LABEL_KEY}": [3, 17]}}`.'
        )
    return record


def _columns(offsets: list[int], columns: list[int]) -> Iterator[list[int]]:
    for start, end in pairwise(offsets):
        yield columns[start:end]


def _unequal(path: Path, texts: int, labels: Path, rows: int) -> HeadtailError:
    return HeadtailError(
        f"`{path}` has {texts:,} texts, but `{labels}` has labels of {rows:,}. Line i of "
        "one must belong to line i of the other."
    )
