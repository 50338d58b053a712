"""From bytes to arrays: lines of `label,label feature:value feature:value …`, compiled with numba."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

MOST = 2**31 - 1
"""Most columns or labels that int32 ids can name."""

# What a line turned out to be; from LABEL on it is bad.
(
    POINT,
    BLANK,
    COMMENT,
    LABEL,
    LABEL_RANGE,
    LABEL_TWICE,
    PAIR,
    FEATURE_RANGE,
    FEATURE_TWICE,
    MISSING,
    VALUE,
) = range(11)

_NEWLINE, _SPACE, _HASH, _PLUS, _COMMA, _MINUS, _DOT, _COLON, _E, _Q = (
    ord(c) for c in "\n #+,-.:eq"
)
_POWERS = 10.0 ** np.arange(23)  # exact in float64
_DIGITS = 10**17


def _compiled(function: Callable[..., Any]) -> Any:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    function = inspect.unwrap(function)  # from under `pytest --shapes`, which numba cannot compile
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder that it may write: compile anew in every process
        return numba.njit(**options)(function)


class Parsed(NamedTuple):
    """What a block of lines held.

    Attributes:
        points: number of points written.
        features: number of feature entries written.
        labels: number of labels written.
        lines: number of lines, bad ones and comments included.
        blank: how many of the last points are blank lines.
        bad: number of bad lines, which left nothing behind.
        bad_line: number of the first one within the block, from 1; 0 if none.
        bad_code: what is wrong with it: `LABEL`, …, `VALUE`.
        bad_found: where in the block the wrong token begins; for `LABEL_TWICE` and `FEATURE_TWICE`
            the repeated id.
    """

    points: int
    features: int
    labels: int
    lines: int
    blank: int
    bad: int
    bad_line: int
    bad_code: int
    bad_found: int


class Room(NamedTuple):
    """Arrays that a block is parsed into, large enough for any block of `size` bytes; pages never
    written cost nothing.

    Attributes:
        columns: feature ids.
        values: feature values.
        features_end: per point, the number of feature entries so far.
        labels: label ids.
        labels_end: per point, the number of labels so far.
        row: per point, the number of points and bad lines before it.
    """

    columns: np.ndarray
    values: np.ndarray
    features_end: np.ndarray
    labels: np.ndarray
    labels_end: np.ndarray
    row: np.ndarray

    @classmethod
    def of(cls, size: int) -> Room:
        """A feature takes at least four bytes (` 1:1`), a label two (`1,`), a point one (its
        newline).
        """
        columns = np.empty(size // 4 + 1, np.int32)
        values = np.empty(size // 4 + 1, np.float32)
        labels = np.empty(size // 2 + 1, np.int32)
        ends = (np.empty(size, np.int64) for _ in range(3))
        return cls(columns, values, next(ends), labels, *ends)


@_compiled
def parse(text: np.ndarray, num_features: int, num_labels: int, room: Room) -> Parsed:
    """Parse lines, the last of which ends with a newline too. A bad line is left out and counted.

    Args:
        text: `[size]` uint8.
        num_features: ids must be below.
        num_labels: likewise.
        room: takes the result.
    """
    at = 0
    points = 0
    features = 0
    labels = 0
    lines = 0
    blank = 0
    bad = 0
    bad_line = 0
    bad_code = 0
    bad_found = 0
    while at < len(text):
        lines += 1
        code, found, at, new_features, new_labels = _line(
            text, at, num_features, num_labels, room, features, labels
        )
        while text[at] != _NEWLINE:
            at += 1
        at += 1
        if code <= BLANK:
            features = new_features
            labels = new_labels
            room.features_end[points] = features
            room.labels_end[points] = labels
            room.row[points] = points + bad
            points += 1
            blank = blank + 1 if code == BLANK else 0
        elif code >= LABEL:
            bad += 1
            if bad == 1:
                bad_line = lines
                bad_code = code
                bad_found = found
    return Parsed(points, features, labels, lines, blank, bad, bad_line, bad_code, bad_found)


@_compiled
def _line(
    text: np.ndarray,
    at: int,
    num_features: int,
    num_labels: int,
    room: Room,
    features: int,
    labels: int,
) -> tuple[int, int, int, int, int]:
    """One line: its code, what is wrong, how far it was read, and the new numbers of feature
    entries and labels.
    """
    first_feature = features
    first_label = labels
    if not _ends(text[at]) and not _is_pair(text, at):
        while True:
            start = at
            label, at = _whole(text, at)
            if label < 0 or not (_ends(text[at]) or text[at] == _COMMA):
                return LABEL, start, at, 0, 0
            if label >= num_labels:
                return LABEL_RANGE, start, at, 0, 0
            room.labels[labels] = label
            labels += 1
            if text[at] != _COMMA:
                break
            at += 1
    while True:
        while _blank(text[at]):
            at += 1
        if text[at] == _NEWLINE or text[at] == _HASH:
            break
        start = at
        column, at = _whole(text, at)
        if column < 0 and _is_query(text, start):
            while not _ends(text[at]):
                at += 1
            continue
        if column < 0 or text[at] != _COLON:
            return PAIR, start, at, 0, 0
        if column >= num_features:
            return FEATURE_RANGE, start, at, 0, 0
        at += 1
        if _ends(text[at]):
            return MISSING, start, at, 0, 0
        value, at = _decimal(text, at)
        if not np.isfinite(value) or not _ends(text[at]):
            return VALUE, start, at, 0, 0
        room.columns[features] = column
        room.values[features] = value
        features += 1
    twice = _repeated(room.labels[first_label:labels])
    if twice >= 0:
        return LABEL_TWICE, twice, at, 0, 0
    twice = _repeated(room.columns[first_feature:features])
    if twice >= 0:
        return FEATURE_TWICE, twice, at, 0, 0
    code = (
        POINT
        if features > first_feature or labels > first_label
        else COMMENT
        if text[at] == _HASH
        else BLANK
    )
    return code, 0, at, features, labels


@_compiled
def _blank(byte: int) -> bool:
    """A space, tab, carriage return, …, but no newline."""
    return byte == _SPACE or (9 <= byte <= 13 and byte != _NEWLINE)


@_compiled
def _ends(byte: int) -> bool:
    """What may stand behind a token."""
    return 9 <= byte <= 13 or byte in (_SPACE, _HASH)


@_compiled
def _is_pair(text: np.ndarray, at: int) -> bool:
    """Whether the token holds a colon, so that it is a feature, or a query id, of a point without
    labels.
    """
    while not _ends(text[at]) and text[at] != _COMMA:
        if text[at] == _COLON:
            return True
        at += 1
    return False


@_compiled
def _is_query(text: np.ndarray, at: int) -> bool:
    # The newline at the block's end stops this in time: no letter of `qid:` is one.
    return (
        text[at] == _Q
        and text[at + 1] == ord("i")
        and text[at + 2] == ord("d")
        and text[at + 3] == _COLON
    )


@_compiled
def _whole(text: np.ndarray, at: int) -> tuple[int, int]:
    """The whole number that begins here, at most `MOST`, or −1 where none does, and the position
    behind it.
    """
    start = at
    number = 0
    while 48 <= text[at] <= 57:
        number = min(10 * number + (text[at] - 48), MOST)
        at += 1
    return (number if at > start else -1), at


@_compiled
def _decimal(text: np.ndarray, at: int) -> tuple[np.float32, int]:
    """The decimal number that begins here, NaN where none does, and the position behind it.

    The first 17 digits are kept. With at most 15 of them and a small exponent the double is the
    nearest one, so that the float32 differs from the nearest one only where the double rounds onto
    a tie.
    """
    negative = text[at] == _MINUS
    if negative or text[at] == _PLUS:
        at += 1
    digits = 0
    mantissa = 0
    exponent = 0
    fraction = False
    while True:
        if 48 <= text[at] <= 57:
            digits += 1
            kept = mantissa < _DIGITS
            if kept:
                mantissa = 10 * mantissa + (text[at] - 48)
            exponent += (not kept) - fraction
        elif text[at] == _DOT and not fraction:
            fraction = True
        else:
            break
        at += 1
    if digits == 0:
        return np.float32(np.nan), at
    if text[at] | 32 == _E:
        at += 1
        down = text[at] == _MINUS
        if down or text[at] == _PLUS:
            at += 1
        power, at = _whole(text, at)
        if power < 0:
            return np.float32(np.nan), at
        exponent += -power if down else power
    number = _scaled(float(mantissa), exponent)
    return np.float32(-number if negative else number), at


@_compiled
def _scaled(mantissa: float, exponent: int) -> float:
    """mantissa · 10^exponent."""
    if mantissa == 0 or exponent == 0:
        return mantissa
    if -23 < exponent < 0:
        return mantissa / _POWERS[-exponent]
    if 0 < exponent < 23:
        return mantissa * _POWERS[exponent]
    return mantissa * 10.0 ** float(exponent)


@_compiled
def _repeated(ids: np.ndarray) -> int:
    """An id that stands twice, or −1. Ids in ascending order, as most files have them, need one
    look each.
    """
    ascending = True
    for i in range(1, len(ids)):
        ascending &= ids[i - 1] < ids[i]
    if ascending:
        return -1
    ordered = np.sort(ids)
    for i in range(1, len(ids)):
        if ordered[i - 1] == ordered[i]:
            return ordered[i]
    return -1
