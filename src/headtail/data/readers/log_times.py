"""Times of a log that may be wrong: in several units, out of range, or tested before trained on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headtail.data.tables.columns import Columns, DataTables
from headtail.errors import HeadtailError

UNITS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
_FROM, _TO = 10**8, 5 * 10**9
"""Seconds since 1970 that dates have: from 1973 up to 2128."""
EDGES = np.array([edge * 1000**power for power in range(len(UNITS)) for edge in (_FROM, _TO)])
"""Where ranges of times begin: every second range holds the dates of a unit."""
FEW = 0.01
"""A smaller share of the times in another unit is noted; more is refused."""


class TimeRanges(NamedTuple):
    """The times of some events, by the ranges between `EDGES`; JSON.

    Attributes:
        counts: `[ranges]` how many are in each range.
        rows: `[ranges]` the row of the first of these, −1 without any.
        values: `[ranges]` its time, or 0.
        low: the earliest of all.
        high: the latest.
    """

    counts: list[int]
    rows: list[int]
    values: list[int]
    low: int
    high: int

    @classmethod
    def of(cls, times: np.ndarray, rows: np.ndarray) -> TimeRanges:
        """The ranges of one or more times, and the rows that they are in."""
        inside = np.searchsorted(EDGES, times, side="right")
        counts = np.bincount(inside, minlength=len(EDGES) + 1)
        first = np.array([(inside == place).argmax() if n else 0 for place, n in enumerate(counts)])
        of_first = (
            np.where(counts > 0, rows[first], -1).tolist(),
            np.where(counts > 0, times[first], 0).tolist(),
        )
        return cls(counts.tolist(), *of_first, int(times.min()), int(times.max()))

    @classmethod
    def total(cls, parts: Iterable[TimeRanges]) -> TimeRanges | None:
        """Of several parts, in the order of their rows, together; None if there are none."""
        total: TimeRanges | None = None
        for part in parts:
            total = part if total is None else total._with(part)
        return total

    def _with(self, later: TimeRanges) -> TimeRanges:
        chosen = [self if n else later for n in self.counts]
        return TimeRanges(
            [a + b for a, b in zip(self.counts, later.counts, strict=True)],
            [part.rows[place] for place, part in enumerate(chosen)],
            [part.values[place] for place, part in enumerate(chosen)],
            min(self.low, later.low),
            max(self.high, later.high),
        )

    def behind(self, rows: int) -> TimeRanges:
        """The same, with so many rows before them."""
        return self._replace(rows=[row + rows if row >= 0 else -1 for row in self.rows])


def notes_on_times(tables: DataTables, facts: dict[str, Any]) -> list[str]:
    """What looks wrong with the times of a log, in sentences; a mixture of units is refused.

    Args:
        tables: of the log.
        facts: the `TimeRanges` of each part that has times, by its name.
    """
    parts = {name: TimeRanges(*ranges) for name, ranges in facts.items()}
    notes = []
    if "test" in parts and "train" in parts and parts["test"].high < parts["train"].low:
        notes.append(_swapped(tables, parts))
    counts = np.sum([part.counts for part in parts.values()], axis=0)
    usual = int(counts.argmax())
    if usual % 2 == 0:
        return notes  # no parts, or days, steps, whatever else most of them are
    _refuse_mixture(tables, parts, counts)
    odd = [place for place, number in enumerate(counts) if number and place != usual]
    if odd:
        column = tables.train.roles.time
        notes.append(
            f"{int(counts[odd].sum()):,} of {int(counts.sum()):,} times in column `{column}` are "
            f"before 1973 or after 2128, {_example(tables, parts, odd[0])}. Check them: order and "
            "split follow the time."
        )
    return notes


def _refuse_mixture(tables: DataTables, parts: dict[str, TimeRanges], counts: np.ndarray) -> None:
    """Refuse numbers that are times in two units or more, with nothing between their dates."""
    column = tables.train.roles.time or ""
    kind = tables.train.time_type(column)
    units = [place for place in range(1, len(counts), 2) if counts[place] >= FEW * counts.sum()]
    between = list(range(units[0] + 1, units[-1], 2))
    if pa.types.is_temporal(kind) or len(units) < 2 or counts[between].any():
        return
    # Numbers with fractions are read in millionths.
    first = 2 if pa.types.is_floating(kind) else 0
    found = [
        f"{int(counts[place]):,} look like {UNITS[place // 2 - first]}, "
        f"{_example(tables, parts, place)}"
        for place in units
        if place // 2 >= first
    ]
    raise HeadtailError(
        f"`{tables.train.path}`: the times in column `{column}` are not all in one unit: "
        f"{', and '.join(found)}. Write all of them in one."
    )


def _example(tables: DataTables, parts: dict[str, TimeRanges], place: int) -> str:
    """The first time of a range, and where it is."""
    part, ranges = next((part, found) for part, found in parts.items() if found.counts[place])
    columns = tables.parts[part]
    name, row = columns.at(ranges.rows[place])
    written = _written(columns, ranges.values[place])
    return f"for example {written} in row {row:,} (from 0) of `{Path(name).name}`"


def _written(columns: Columns, time: int) -> str:
    values = columns.times_as_read(np.array([time]), columns.roles.time or "")
    return f"`{values.cast(pa.string())[0].as_py()}`"


def _swapped(tables: DataTables, parts: dict[str, TimeRanges]) -> str:
    assert tables.test is not None
    last = _written(tables.test, parts["test"].high)
    first = _written(tables.train, parts["train"].low)
    return (
        f"The test part is earlier than all of training: its last time is {last}, and training "
        f"begins with {first}. Swap the two files if they are mixed up."
    )
