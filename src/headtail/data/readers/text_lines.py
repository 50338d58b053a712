"""From blocks of lines to arrays in the cache, and sentences about bad lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from headtail.data.cache import Store
from headtail.errors import HeadtailError, Setting

if TYPE_CHECKING:
    from headtail.data.readers.parsed import Parsed, Room

Header: TypeAlias = tuple[int, int, int]
"""Points, features, labels."""

_CONTROL = bytes(set(range(32)) - set(b"\t\n\v\f\r\x1a"))  # \x1a ends old DOS files
_EXAMPLE = "Write lines such as `3,17 0:0.5 8:1.2`: labels, then features."


class LineStore:
    """The lines of a file on their way into the cache.

    Args:
        path: the file.
        store: takes the arrays.
        skip: leave bad lines out, and count them.
        num_features: D, if known.
        num_labels: L, if known.
    """

    def __init__(
        self, path: Path, store: Store, skip: bool, num_features: int | None, num_labels: int | None
    ) -> None:
        self.path = path
        self.store = store
        self.skip = skip
        self.expected = num_features, num_labels
        self.header: Header | None = None
        self.lines = self.points = self.features = self.labels = self.bad = 0
        # Blank lines since the last point, held back: at the end of a file they may not be points.
        self.blank = 0
        self.blank_rows: list[np.ndarray] = []
        self.highest = [-1, -1]
        self.first_bad = ""
        self._append([0], [0], [])

    def take(self, block: bytes) -> None:
        """Parse whole lines, and append what they hold to the store."""
        # Imported here, so that a file that is in the cache does not wait for numba.
        from headtail.data.readers.parse_lines import parse_block
        from headtail.data.readers.parsed import MOST, Room

        if self.lines == 0:
            block = self._begin(block, MOST)
        if not block:
            return
        if b"\0" in block:
            raise _not_text(self.path)
        limits = self.header[1:] if self.header else self._expected_or(MOST, MOST)
        room = Room.of(len(block))
        parsed = parse_block(block, *limits, room)
        if parsed.bad and not self.bad:
            why = _what_is_wrong(block, parsed, limits)
            self._refuse_or_note(f"line {self.lines + parsed.bad_line:,}", why)
        self._append_points(parsed, room)
        columns = room.columns[: parsed.features]
        labels = room.labels[: parsed.labels]
        self.store.append("features.columns", columns)
        self.store.append("features.values", room.values[: parsed.features])
        self.store.append("labels.values", labels)
        self.highest = [
            max(before, int(ids.max(initial=-1)))
            for before, ids in zip(self.highest, (columns, labels), strict=True)
        ]
        self.features += parsed.features
        self.labels += parsed.labels
        self.blank += parsed.blank
        self.bad += parsed.bad
        self.lines += parsed.lines

    def _append_points(self, parsed: Parsed, room: Room) -> None:
        """Offsets and rows of the points of a block, but of blank lines at its end."""
        kept = parsed.points - parsed.blank
        rows = room.row[: parsed.points] + self.points + self.blank + self.bad
        if kept:
            self._append_blank(self.blank)
            features_end = room.features_end[:kept] + self.features
            labels_end = room.labels_end[:kept] + self.labels
            self._append(features_end, labels_end, rows[:kept])
            self.blank = 0
            self.blank_rows = []
        if self.skip:  # else point i is row i
            self.blank_rows.append(rows[kept:])

    def finish(self) -> None:
        """Decide about blank lines at the end, compare with the header, write down the facts."""
        notes = []
        if self.bad:
            lines = "bad line" if self.bad == 1 else "bad lines"
            notes.append(f"skipped {self.bad:,} {lines}, the first is {self.first_bad}")
        if self.header:
            self._append_blank(max(min(self.blank, self.header[0] - self.points - self.bad), 0))
        if not self.points:
            raise self._no_points(notes)
        if self.header and self.header[0] != self.points + self.bad:
            held = f"{self.points + self.bad:,}"
            note = f"header promises {self.header[0]:,} points but the file has {held}"
            if not self.skip:
                raise HeadtailError(
                    f"{self.path}: {note}. Fetch the file again, or correct its first line."
                )
            notes.append(note)
        highest = (self.highest[0] + 1, self.highest[1] + 1)
        sizes = self.header[1:] if self.header else self._expected_or(*highest)
        self.store.facts |= {
            "num_columns": sizes[0],
            "num_labels": sizes[1],
            "header": self.header,
            "bad_lines": self.bad,
            "notes": notes,
        }

    def _expected_or(self, num_features: int, num_labels: int) -> tuple[int, int]:
        """D and L as expected, or else these."""
        expected = self.expected
        return (
            num_features if expected[0] is None else expected[0],
            num_labels if expected[1] is None else expected[1],
        )

    def _no_points(self, notes: list[str]) -> HeadtailError:
        problem = "holds a header but no points" if self.header else "holds no points"
        problem = problem if self.lines else "is empty"
        details = f" ({notes[0]})" if notes else ""
        return HeadtailError(f"`{self.path}` {problem}{details}. {_EXAMPLE}")

    def _begin(self, block: bytes, most: int) -> bytes:
        """Look at the first line; return what follows it, if it is a header."""
        block = block.removeprefix(b"\xef\xbb\xbf")
        if any(byte in _CONTROL for byte in block[:4096]):
            raise _not_text(self.path)
        line = block[: block.index(b"\n")]
        fields = line.split()
        numbers = all(field.isdigit() and len(field) < 20 for field in fields)
        if len(fields) not in (2, 3) or not numbers:
            return block
        # A sparse matrix, such as `trn_X_Xf.txt`, has points and features alone.
        points, features, labels = (int(field) for field in (*fields, b"0")[:3])
        self.header = (points, features, labels)
        self.lines = 1
        names = ("num_features", "num_labels")
        for name, expected, size in zip(names, self.expected, (features, labels), strict=True):
            if size > most:
                raise HeadtailError(
                    f"{self.path}, line 1: `{name}` is {size:,}, but there can be at most {most:,}."
                )
            if expected not in (None, size):
                raise HeadtailError(
                    f"`{name}` is {expected:,}, but {size:,} in the header of `{self.path}`. Leave "
                    "it out."
                )
        return block[len(line) + 1 :]

    def _refuse_or_note(self, line: str, why: str) -> None:
        if not self.skip:
            raise HeadtailError(
                f"{self.path}, {line}: {why}. Correct the line, or leave such lines out (",
                Setting("skip_bad_lines"),
                ").",
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
        features_end = np.full(count, self.features)
        labels_end = np.full(count, self.labels)
        rows = np.concatenate([np.empty(0, np.int64), *self.blank_rows])[:count]
        self._append(features_end, labels_end, rows)


def _what_is_wrong(block: bytes, parsed: Parsed, limits: tuple[int, int]) -> str:
    """What is wrong with the first bad line, in words."""
    from headtail.data.readers import parse_lines as codes

    code = parsed.bad_code
    at = parsed.bad_place
    if code in (codes.LABEL_TWICE, codes.FEATURE_TWICE):
        return f"{'label' if code == codes.LABEL_TWICE else 'feature'} {at} occurs twice"
    token = re.split(rb"\s", block[at : at + 80], maxsplit=1)[0]
    token = token.decode("utf-8", "backslashreplace")[:40]
    label = token.partition(",")[0]
    feature, _, value = token.partition(":")
    if code == codes.LABEL and not label:
        return "a label is missing next to a comma"
    if code == codes.LABEL:
        return f"`{label}` is not a label id, which is a whole number from 0"
    if code == codes.LABEL_RANGE:
        return f"label {label} is out of range 0…{limits[1] - 1}"
    if code == codes.FEATURE_RANGE:
        return f"feature {feature} is out of range 0…{limits[0] - 1}"
    if code == codes.MISSING:
        return f"feature {feature} has no value"
    if code == codes.VALUE:
        return f"feature {feature} has the value `{value}`, which is not a finite number"
    return f"`{token}` is not a feature and its value, as in `8:1.2`"


def _not_text(path: Path) -> HeadtailError:
    return HeadtailError(f"`{path}` is not a text file. {_EXAMPLE}")
