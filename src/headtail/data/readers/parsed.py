"""What parsing a block of text lines needs and gives."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MOST = 2**31 - 1
"""Most columns or labels that int32 ids can name."""


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
        bad_place: where in the block the wrong token begins; for `LABEL_TWICE` and `FEATURE_TWICE`
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
    bad_place: int


class Room(NamedTuple):
    """Arrays that a block is parsed into, large enough for any block of `size` bytes.

    Pages that are never written cost nothing.

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
        """A feature takes at least four bytes (` 1:1`), a label two (`1,`), a point a newline."""
        columns = np.empty(size // 4 + 1, np.int32)
        values = np.empty(size // 4 + 1, np.float32)
        labels = np.empty(size // 2 + 1, np.int32)
        ends = (np.empty(size, np.int64) for _ in range(3))
        return cls(columns, values, next(ends), labels, *ends)
