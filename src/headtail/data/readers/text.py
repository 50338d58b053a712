"""Text files of the Extreme Classification Repository and svmlight: `label,label feature:value
feature:value …`.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from headtail.core.targets import Ragged
from headtail.data.cache import Store, cached, key_of
from headtail.data.points import Bag, Points, Progress
from headtail.errors import HeadtailError, check_count, check_exists

if TYPE_CHECKING:
    from headtail.data.readers.parse_lines import Parsed

Header: TypeAlias = tuple[int, int, int]
"""Points, features, labels."""

BLOCK = 4 << 20
"""Bytes parsed at a time."""
LONGEST_LINE = 256 << 20
"""Bytes that are read in the hope of a newline."""

_CONTROL = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1a"))  # \x1a ends old DOS files


@dataclass(frozen=True, eq=False)
class TextFile:
    """A text file, read.

    Attributes:
        points: one a line; features and labels keep the order of the file.
        header: points, features and labels as the first line gives them, or None where the file
            begins with a point.
        bad_lines: number of lines that were skipped.
        notes: sentences about the file that a user should see.
        digest: changes with the content.
    """

    points: Points
    header: Header | None
    bad_lines: int
    notes: tuple[str, ...]
    digest: str


def read_text(
    path: Path,
    *,
    skip_bad_lines: bool = False,
    num_features: int | None = None,
    num_labels: int | None = None,
    progress: Progress | None = None,
) -> TextFile:
    r"""Read one text file, plain or compressed (gzip, bzip2, xz); the second time it comes from the
    cache.

    A first line of three whole numbers is a header: points, features, labels. In what follows, a
    line that begins with a blank or with a feature has no labels. Comments (`# …`) and query ids
    (`qid:…`) are left out.

    Args:
        path: the file.
        skip_bad_lines: leave bad lines out, and count them, instead of refusing the file.
        num_features: D. A file with a header must agree; without either, it is the largest id plus
            one.
        num_labels: L, likewise.
        progress: called after each block.

    >>> folder = getfixture("tmp_path")
    >>> getfixture("monkeypatch").setenv("HEADTAIL_CACHE", str(folder / "cache"))
    >>> _ = (folder / "train.txt").write_text("2 4 3\n0,2 1:0.5 3:1\n 0:2\n")
    >>> points = read_text(folder / "train.txt").points
    >>> points.features.to_dense()
    tensor([[0.0000, 0.5000, 0.0000, 1.0000],
            [2.0000, 0.0000, 0.0000, 0.0000]])
    >>> points.labels
    Ragged(values=tensor([0, 2], dtype=torch.int32), offsets=tensor([0, 2, 2]))
    """
    path = existing(path)
    asked = {"num_features": num_features, "num_labels": num_labels}
    for name, value in asked.items():
        if value is not None:
            check_count(name, value)

    def build(store: Store) -> None:
        lines = _Lines(path, store, skip_bad_lines, num_features, num_labels)
        for block, share in _blocks(path):
            lines.take(block)
            if progress is not None:
                progress(f"reading {path.name}", share)
        lines.finish()

    recipe = {"reader": "text", "skip_bad_lines": skip_bad_lines} | asked
    entry = cached([path], recipe | ({"with": "rows"} if skip_bad_lines else {}), build)
    arrays = entry.arrays
    facts = entry.facts
    features = Bag(
        arrays["features.offsets"],
        arrays["features.columns"],
        arrays["features.values"],
        facts["num_columns"],
    )
    points = Points(
        features,
        Ragged(arrays["labels.values"], arrays["labels.offsets"]),
        facts["num_labels"],
        rows=arrays.get("rows"),
    )
    header = facts["header"] and tuple(facts["header"])
    return TextFile(
        points,
        header,
        facts["bad_lines"],
        tuple(f"{path}: {note}" for note in facts["notes"]),
        key_of([path], recipe),
    )


def existing(path: Path) -> Path:
    """Refuse a path that is no file, and name the nearest that is."""
    path = Path(path)
    if path.is_dir():
        raise HeadtailError(
            f"`{path}` is a folder. Give a file in it, such as `{path / 'train.txt'}`."
        )
    return check_exists(path)


def _blocks(path: Path) -> Iterator[tuple[bytes, float]]:
    """Whole lines, about `BLOCK` bytes of them at a time, each ended by a newline; and the share of
    the file read so far.
    """
    try:
        size = max(path.stat().st_size, 1)
        with path.open("rb") as raw:
            file = _unpacked(path, raw)
            rest = b""
            while read := file.read(BLOCK):
                text = rest + read
                cut = text.rfind(b"\n") + 1
                rest = text[cut:]
                if len(rest) > LONGEST_LINE:
                    raise HeadtailError(
                        f"`{path}` has a line of more than {LONGEST_LINE >> 20} MiB. Write one "
                        "point a line."
                    )
                if cut:
                    yield text[:cut], raw.tell() / size
            if rest:
                yield rest + b"\n", 1.0
    except EOFError as error:
        raise HeadtailError(
            f"`{path}` is cut off: the archive ends too early. Fetch it again."
        ) from error
    except (zlib.error, lzma.LZMAError, OSError) as error:
        raise HeadtailError(
            f"`{path}` cannot be read: {getattr(error, 'strerror', None) or error}. Fetch it again."
        ) from error


def _unpacked(path: Path, raw: BufferedReader) -> BufferedIOBase:
    """What is inside, told by the first bytes, because names lie."""
    start = raw.peek(6)
    if start.startswith(b"PK\3\4"):
        raise HeadtailError(f"`{path}` is a zip archive. Unpack it, and give the text file inside.")
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw)
    if start.startswith(b"BZh"):
        return bz2.BZ2File(raw)
    return lzma.LZMAFile(raw) if start.startswith(b"\xfd7zXZ\0") else raw


class _Lines:
    """The lines of a file on their way into the cache."""

    def __init__(
        self, path: Path, store: Store, skip: bool, num_features: int | None, num_labels: int | None
    ) -> None:
        self.path = path
        self.store = store
        self.skip = skip
        self.asked = num_features, num_labels
        self.header: Header | None = None
        self.lines = self.points = self.features = self.labels = self.bad = 0
        # blank lines since the last point, held back: at the end of a file they may be no points
        self.blank = 0
        self.held = np.empty(0, np.int64)  # and their rows
        self.highest = [-1, -1]
        self.first_bad = ""
        self._append([0], [0], [])

    def take(self, block: bytes) -> None:
        """Parse whole lines, and append what they hold to the store."""
        # Imported here, so that a file that is in the cache does not wait for numba.
        from headtail.data.readers.parse_lines import MOST, Room, parse

        if self.lines == 0:
            block = self._begin(block, MOST)
        if not block:
            return
        if b"\0" in block:
            raise _not_text(self.path)
        limits = (
            self.header[1:]
            if self.header
            else tuple(MOST if size is None else size for size in self.asked)
        )
        room = Room.of(len(block))
        found = parse(np.frombuffer(block, np.uint8), *limits, room)
        if found.bad and not self.bad:
            self._complain(
                f"line {self.lines + found.bad_line:,}", _what_is_wrong(block, found, limits)
            )
        kept = found.points - found.blank
        rows = room.row[: found.points] + self.points + self.blank + self.bad
        if kept:
            self._append_blank(self.blank)
            self._append(
                room.features_end[:kept] + self.features,
                room.labels_end[:kept] + self.labels,
                rows[:kept],
            )
            self.blank = 0
            self.held = rows[:0]
        self.held = np.r_[self.held, rows[kept:]]
        columns = room.columns[: found.features]
        values = room.values[: found.features]
        labels = room.labels[: found.labels]
        for name, array in {
            "features.columns": columns,
            "features.values": values,
            "labels.values": labels,
        }.items():
            self.store.append(name, array)
        self.highest = [
            max(old, int(ids.max(initial=-1)))
            for old, ids in zip(self.highest, (columns, labels), strict=True)
        ]
        self.features = self.features + found.features
        self.labels = self.labels + found.labels
        self.blank = self.blank + found.blank
        self.bad = self.bad + found.bad
        self.lines = self.lines + found.lines

    def finish(self) -> None:
        """Settle blank lines at the end, compare with the header, and write down the facts."""
        notes = (
            [f"skipped {self.bad:,} bad line{'s'[: self.bad > 1]}, the first is {self.first_bad}"]
            if self.bad
            else []
        )
        if self.header:
            self._append_blank(max(min(self.blank, self.header[0] - self.points - self.bad), 0))
        if not self.points:
            found = (
                "is empty"
                if not self.lines
                else "holds a header but no points"
                if self.header
                else "holds no points"
            )
            found += f" ({notes[0]})" if notes else ""
            raise HeadtailError(
                f"`{self.path}` {found}. Write lines such as `3,17 0:0.5 8:1.2`: labels, then "
                "features."
            )
        if self.header and self.header[0] != self.points + self.bad:
            note = (
                f"header promises {self.header[0]:,} points but the file has "
                f"{self.points + self.bad:,}"
            )
            if not self.skip:
                raise HeadtailError(
                    f"{self.path}: {note}. Fetch the file again, or correct its first line."
                )
            notes.append(note)
        sizes = (
            self.header[1:]
            if self.header
            else [h + 1 if a is None else a for h, a in zip(self.highest, self.asked, strict=True)]
        )
        facts = {
            "num_columns": sizes[0],
            "num_labels": sizes[1],
            "header": self.header,
            "bad_lines": self.bad,
            "notes": notes,
        }
        self.store.facts |= facts

    def _begin(self, block: bytes, most: int) -> bytes:
        """Look at the first line; what follows it, if it is a header."""
        block = block.removeprefix(b"\xef\xbb\xbf")
        if any(byte in _CONTROL for byte in block[:4096]):
            raise _not_text(self.path)
        line = block[: block.index(b"\n")]
        fields = line.split()
        if len(fields) != 3 or not all(field.isdigit() and len(field) < 20 for field in fields):
            return block
        points, features, labels = (int(field) for field in fields)
        self.header = (points, features, labels)
        self.lines = 1
        for name, asked, size in zip(
            ("num_features", "num_labels"), self.asked, (features, labels), strict=True
        ):
            if size > most:
                raise HeadtailError(
                    f"{self.path}, line 1: `{name}` is {size:,}, but there can be at most {most:,}."
                )
            if asked not in (None, size):
                raise HeadtailError(
                    f"`{name}` is {asked:,}, but the header of `{self.path}` says {size:,}. Leave "
                    "it out."
                )
        return block[len(line) + 1 :]

    def _complain(self, line: str, why: str) -> None:
        if not self.skip:
            raise HeadtailError(
                f"{self.path}, {line}: {why}. Correct the line, or leave such lines out "
                "(`skip_bad_lines`)."
            )
        self.first_bad = f"{line} ({why})"

    def _append(
        self, feature_offsets: ArrayLike, label_offsets: ArrayLike, rows: ArrayLike
    ) -> None:
        if self.skip:  # else point i is row i
            self.store.append("rows", np.asarray(rows, np.int64))
        self.store.append("features.offsets", np.asarray(feature_offsets, np.int64))
        self.store.append("labels.offsets", np.asarray(label_offsets, np.int64))
        self.points = self.store.shapes["labels.offsets"][0] - 1

    def _append_blank(self, count: int) -> None:
        self._append(np.full(count, self.features), np.full(count, self.labels), self.held[:count])


def _what_is_wrong(block: bytes, found: Parsed, limits: tuple[int, ...]) -> str:
    """What is wrong with the first bad line, in words."""
    from headtail.data.readers import parse_lines as p

    code = found.bad_code
    at = found.bad_found
    if code in (p.LABEL_TWICE, p.FEATURE_TWICE):
        return f"{'label' if code == p.LABEL_TWICE else 'feature'} {at} stands twice"
    token = re.split(rb"\s", block[at : at + 80], maxsplit=1)[0].decode(
        "utf-8", "backslashreplace"
    )[:40]
    label = token.partition(",")[0]
    feature, _, value = token.partition(":")
    if code == p.LABEL:
        return (
            f"`{label}` is no label id, which is a whole number from 0"
            if label
            else "a label is missing beside a comma"
        )
    if code == p.LABEL_RANGE:
        return f"label {label} is out of range 0…{limits[1] - 1}"
    if code == p.FEATURE_RANGE:
        return f"feature {feature} is out of range 0…{limits[0] - 1}"
    if code == p.MISSING:
        return f"feature {feature} has no value"
    if code == p.VALUE:
        return f"feature {feature} has the value `{value}`, which is no finite number"
    return f"`{token}` is no feature and its value, as in `8:1.2`"


def _not_text(path: Path) -> HeadtailError:
    return HeadtailError(
        f"`{path}` is not a text file. Write lines such as `3,17 0:0.5 8:1.2`: labels, then "
        "features."
    )
