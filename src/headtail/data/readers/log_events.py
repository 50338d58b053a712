"""A log of interactions: who had what, when."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headtail.data.progress import Progress
from headtail.data.reading import Reading
from headtail.data.tables.arrow_types import is_string
from headtail.data.tables.columns import Columns, DataTables, check_same_kind
from headtail.data.tables.names import candidates
from headtail.data.tables.vocabulary import Vocabulary
from headtail.errors import HeadtailError, Setting


class Dropped(NamedTuple):
    """Interactions that the least rating leaves out.

    Attributes:
        below: with a lower rating.
        missing: without a rating.
        largest: rating of all interactions, kept or not.
    """

    below: int = 0
    missing: int = 0
    largest: float = -math.inf

    @classmethod
    def of(cls, ratings: pa.Array, kept: pa.BooleanArray) -> Dropped:
        """What is left out of these."""
        missing = ratings.null_count
        largest = pc.max(ratings).as_py()  # pyright: ignore[reportAttributeAccessIssue]
        below = len(ratings) - missing - kept.true_count
        return cls(below, missing, -math.inf if largest is None else largest)

    @classmethod
    def total(cls, parts: Iterable[Dropped]) -> Dropped:
        """Of several parts together."""
        every = [cls(), *parts]
        below, missing = (sum(part[place] for part in every) for place in (0, 1))
        return cls(int(below), int(missing), max(part.largest for part in every))


@dataclass(frozen=True, eq=False)
class Log:
    """Tables of interactions, and how they are read.

    Attributes:
        tables: to train on, and perhaps to test and validate on.
        who: "session" where interactions belong to sessions, else "user".
        split: how the parts are made: "given", "time", "last", "session" or "random".
        holdout: share for testing.
        min_rating: interactions with a rating below it are dropped.
        described: names of items with features, which are labels even if training lacks them.
    """

    tables: DataTables
    who: str
    split: str
    holdout: float
    min_rating: float | None
    described: pa.Array | None = None

    @classmethod
    def of(cls, tables: DataTables, reading: Reading, as_users: bool = False) -> Log:
        """How `reading` says that the log in these tables is read: sessions count more than users,
        unless points are users.
        """
        # not above: processes that only read tables start faster without it
        from headtail.data.readers.item_features import as_named, described_items

        roles = tables.train.roles
        who = "session" if roles.session and not (as_users and roles.user) else "user"
        split = "given" if tables.test is not None else reading.split
        if split == "auto":
            timed = "time" if roles.time else "random" if as_users else "last"
            split = "session" if who == "session" and not as_users else timed
        for wanted in ("time", "session"):
            if split == wanted and getattr(roles, wanted) is None:
                raise HeadtailError(
                    Setting("split", split),
                    f" needs a column of {wanted}s, but `{tables.train.path}` has "
                    f"{tables.train.listed}. Name it with ",
                    Setting(wanted),
                    ", or choose another split.",
                )
        rating = _checked_rating(tables, reading)
        described = described_items(reading)
        if described is not None:
            described = as_named(_ids_kind(tables.train, "item"), described)
        return cls(tables, who, split, reading.holdout, rating, described)

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything but the content that decides what is read, as JSON."""
        names = (self.who, "item", "time", "rating")
        columns = [
            {name: getattr(part.roles, name) for name in names}
            for part in self.tables.parts.values()
        ]
        holdout = None if self.split in ("given", "last") else self.holdout
        alone = self.tables.validation is not None and self.tables.test is None
        return {
            **({"validation": "given"} if alone else {}),
            "reader": "log",
            "columns": columns,
            "parts": list(self.tables.parts),
            "split": [self.split, holdout],
            "min_rating": self.min_rating,
        }

    def events(
        self, columns: Columns, progress: Progress | None, dropped: list[Dropped]
    ) -> Iterator[tuple[pa.Array, pa.Array, np.ndarray, np.ndarray]]:
        """Who, item, time and row of each interaction, block by block; without a time column, 0.

        Interactions with a rating that is too low, or without one, go to `dropped`.
        """
        roles = columns.roles
        who, item = (_need(columns, name) for name in (self.who, "item"))
        rating = roles.rating if self.min_rating is not None else None
        names = [name for name in (who, item, roles.time, rating) if name is not None]
        for first, read in columns.read(names, progress):
            batch = read
            rows = np.arange(first, first + len(batch))
            if rating is not None:
                ratings = batch.column(rating)
                if pa.types.is_decimal(ratings.type) or pa.types.is_integer(ratings.type):
                    ratings = ratings.cast(pa.float64(), safe=False)
                kept = pc.greater_equal(ratings, self.min_rating).fill_null(False)  # pyright: ignore[reportAttributeAccessIssue]
                dropped.append(Dropped.of(ratings, kept))
                batch = batch.filter(kept)
                rows = rows[kept.to_numpy(zero_copy_only=False)]
            when = np.zeros(len(batch), np.int64)
            if roles.time is not None:
                when = columns.times(batch.column(roles.time), roles.time, rows)
            yield (
                columns.ids(batch.column(who), who, rows),
                columns.ids(batch.column(item), item, rows),
                when,
                rows,
            )


def _checked_rating(tables: DataTables, reading: Reading) -> float | None:
    if reading.min_rating is None:
        return None
    for part in tables.parts.values():
        column = part.roles.rating or next(iter(candidates("rating", list(part.names))), None)
        if column is not None:
            _check_numbers(part, column)
        if part.roles.rating is None:
            raise HeadtailError(
                Setting("min_rating"),
                f" needs a column of ratings, but `{part.path}` has {part.listed}. Name it with ",
                Setting("rating"),
                ".",
            )
    return reading.min_rating


def _check_numbers(columns: Columns, column: str) -> None:
    """Refuse words in a column of ratings, with the first row that has one."""
    if not is_string(columns.kind(column)):
        return
    for first, batch in columns.read([column]):
        for place, value in enumerate(batch.column(column).to_pylist()):
            try:
                float(value or 0)
            except ValueError as error:
                name, row = columns.at(first + place)
                raise HeadtailError(
                    f"`{name}`, row {row:,} (from 0): `{value}` in column `{column}` is not a "
                    "rating, which must be a number. Fix or drop it."
                ) from error
    raise HeadtailError(
        f"`{columns.path}`, column `{column}` holds strings, but ratings must be numbers. Cast the "
        "column first."
    )


def _need(columns: Columns, role: str) -> str:
    column = getattr(columns.roles, role)
    if column is None:
        raise HeadtailError(
            f"`{columns.path}` has the columns {columns.listed}, and none of them is a {role}. "
            "Name it with ",
            Setting(role),
            ".",
        )
    return column


def check_same_kinds(log: Log) -> None:
    """Refuse parts that have numbers in one place and strings in the other."""
    for role in (log.who, "item"):
        known: Vocabulary | None = None
        for columns in log.tables.parts.values():
            none = pa.nulls(0, _ids_kind(columns, role))
            known = Vocabulary(none) if known is None else known
            check_same_kind(known, none, columns, _need(columns, role))


def _ids_kind(columns: Columns, role: str) -> pa.DataType:
    """The type that ids of a role are read as."""
    column = _need(columns, role)
    kind = columns.table.schema.field(column).type
    return columns.ids(pa.nulls(0, kind), column, 0).type
