"""From bytes to arrays: lines of `label,label feature:value feature:value …`.

The code is plain Python that numba can compile; without numba it gives the same arrays, slowly. It
is one file because numba's cache looks for changes in the file of the compiled function only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from headtail.data.readers.parsed import MOST, Parsed, Room
from headtail.kernels.dispatch import HAS_NUMBA, kernels_in_use

Text: TypeAlias = bytes | np.ndarray
"""Bytes for Python, uint8 for compiled code."""

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
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def parse_block(block: bytes, num_features: int, num_labels: int, room: Room) -> Parsed:
    """Parse lines, each ended by a newline. A bad line is left out and counted.

    Args:
        block: the lines.
        num_features: ids must be below.
        num_labels: likewise.
        room: takes the result.
    """
    if _compiled is not None and kernels_in_use() != "off":
        return _compiled(np.frombuffer(block, np.uint8), num_features, num_labels, room)
    with np.errstate(over="ignore"):  # a value that is too large is refused as infinite
        return _parse(block, num_features, num_labels, room)


def _compilable(function: Callable[..., Any]) -> Any:
    """Leave a function as it is, but let compiled code call it."""
    function = inspect.unwrap(function)  # from under `pytest --shapes`, which numba cannot compile
    if not HAS_NUMBA:
        return function
    from numba.extending import register_jitable

    return register_jitable(**_OPTIONS)(function)


@_compilable
def _parse(text: Text, num_features: int, num_labels: int, room: Room) -> Parsed:
    at = 0
    points = 0
    features = 0
    labels = 0
    lines = 0
    blank = 0
    bad = 0
    bad_line = 0
    bad_code = 0
    bad_place = 0
    while at < len(text):
        lines += 1
        code, place, at, new_features, new_labels = _line(
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
                bad_place = place
    return Parsed(points, features, labels, lines, blank, bad, bad_line, bad_code, bad_place)


@_compilable
def _line(
    text: Text,
    at: int,
    num_features: int,
    num_labels: int,
    room: Room,
    first_feature: int,
    first_label: int,
) -> tuple[int, int, int, int, int]:
    """One line: its code, where or what is wrong, how far it was read, and the new numbers of
    feature entries and labels.
    """
    if text[at] == _NEWLINE:  # files of millions of these are read as fast as others
        return BLANK, 0, at, first_feature, first_label
    labels = first_label
    if not _ends(text[at]) and not _is_pair(text, at):
        code, place, at, labels = _labels(text, at, num_labels, room.labels, labels)
        if code != POINT:
            return code, place, at, 0, 0
    code, place, at, features = _features(text, at, num_features, room, first_feature)
    if code != POINT:
        return code, place, at, 0, 0
    twice = _repeated(room.labels[first_label:labels])
    if twice >= 0:
        return LABEL_TWICE, twice, at, 0, 0
    twice = _repeated(room.columns[first_feature:features])
    if twice >= 0:
        return FEATURE_TWICE, twice, at, 0, 0
    if features == first_feature and labels == first_label:
        code = COMMENT if text[at] == _HASH else BLANK
    return code, 0, at, features, labels


@_compilable
def _labels(
    text: Text, at: int, num_labels: int, ids: np.ndarray, labels: int
) -> tuple[int, int, int, int]:
    """The labels that begin a line: a code, where it is wrong, where they end, their number."""
    while True:
        start = at
        label, at = _whole(text, at)
        if label < 0 or not (_ends(text[at]) or text[at] == _COMMA):
            return LABEL, start, at, labels
        if label >= num_labels:
            return LABEL_RANGE, start, at, labels
        ids[labels] = label
        labels += 1
        if text[at] != _COMMA:
            return POINT, 0, at, labels
        at += 1


@_compilable
def _features(
    text: Text, at: int, num_features: int, room: Room, features: int
) -> tuple[int, int, int, int]:
    """The features of a line, as `_labels` gives its labels."""
    while True:
        while _blank(text[at]):
            at += 1
        if text[at] == _NEWLINE or text[at] == _HASH:
            return POINT, 0, at, features
        start = at
        column, at = _whole(text, at)
        if column < 0 and _is_query(text, start):
            while not _ends(text[at]):
                at += 1
            continue
        if column < 0 or text[at] != _COLON:
            return PAIR, start, at, features
        if column >= num_features:
            return FEATURE_RANGE, start, at, features
        at += 1
        if _ends(text[at]):
            return MISSING, start, at, features
        is_number, value, at = _decimal(text, at)
        if not is_number or not np.isfinite(value) or not _ends(text[at]):
            return VALUE, start, at, features
        room.columns[features] = column
        room.values[features] = value
        features += 1


@_compilable
def _blank(byte: int) -> bool:
    """A space, tab, carriage return, …, but no newline."""
    return byte == _SPACE or (9 <= byte <= 13 and byte != _NEWLINE)


@_compilable
def _ends(byte: int) -> bool:
    """What may follow a token."""
    return 9 <= byte <= 13 or byte in (_SPACE, _HASH)


@_compilable
def _is_pair(text: Text, at: int) -> bool:
    """Whether the token has a colon: a feature, or a query id, of a point without labels."""
    while not _ends(text[at]) and text[at] != _COMMA:
        if text[at] == _COLON:
            return True
        at += 1
    return False


@_compilable
def _is_query(text: Text, at: int) -> bool:
    # The newline at the block's end stops this in time: no letter of `qid:` is one.
    return (
        text[at] == _Q
        and text[at + 1] == ord("i")
        and text[at + 2] == ord("d")
        and text[at + 3] == _COLON
    )


@_compilable
def _whole(text: Text, at: int) -> tuple[int, int]:
    """The whole number that begins here, at most `MOST`, or −1 if none does, and where it ends."""
    start = at
    number = 0
    while 48 <= text[at] <= 57:
        number = min(10 * number + (text[at] - 48), MOST)
        at += 1
    return (number if at > start else -1), at


@_compilable
def _decimal(text: Text, at: int) -> tuple[bool, np.float32, int]:
    """Whether a decimal number begins here, the number, and where it ends.

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
        return False, np.float32(0), at
    if text[at] | 32 == _E:
        at += 1
        down = text[at] == _MINUS
        if down or text[at] == _PLUS:
            at += 1
        power, at = _whole(text, at)
        if power < 0:
            return False, np.float32(0), at
        exponent += -power if down else power
    number = _scaled(float(mantissa), exponent)
    return True, np.float32(-number if negative else number), at


@_compilable
def _scaled(mantissa: float, exponent: int) -> float:
    """mantissa · 10^exponent."""
    if mantissa == 0 or exponent == 0:
        return mantissa
    if -23 < exponent < 0:
        return mantissa / _POWERS[-exponent]
    if 0 < exponent < 23:
        return mantissa * _POWERS[exponent]
    return mantissa * np.float64(10.0) ** float(exponent)  # Python's own power would raise


@_compilable
def _repeated(ids: np.ndarray) -> int:
    """An id that occurs twice, or −1. Ascending ids, as in most files, need one look each."""
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


def _compile() -> Callable[..., Parsed] | None:
    if not HAS_NUMBA:
        return None
    import numba

    try:
        return numba.njit(cache=True, **_OPTIONS)(_parse)
    except RuntimeError:  # numba has no folder that it may write to: compile in every process
        return numba.njit(**_OPTIONS)(_parse)


_compiled = _compile()
