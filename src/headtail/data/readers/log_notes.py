"""What a user should know about how a log was read and split."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from headtail.data.readers.log_events import Log
from headtail.data.readers.log_times import notes_on_times
from headtail.data.tables.columns import called
from headtail.errors import Sentence, Setting


def notes_on_log(log: Log, facts: dict[str, Any], read_as: str) -> tuple[str, ...]:
    """Which columns are used, how the parts are made, and what repeats.

    Args:
        log: the log.
        facts: of its cache entry.
        read_as: "sequences" or "interactions".
    """
    train = log.tables.train
    order = "time" if train.roles.time else "the rows"
    read = {
        "sequences": f"Read as sequences: the items of each {log.who} in the order of {order}; "
        "each is predicted from those before it.",
        "interactions": "Read as interactions: a point is a user, its labels are the items it had.",
    }
    used = [log.who, "item", *(["time"] if train.roles.time else [])]
    if log.min_rating is not None:
        used.append("rating")
    notes = [read[read_as], train.note(used), _split(log, facts, read_as)]
    if train.roles.rating and log.min_rating is None:
        notes.append(note_on_ratings(train.roles.rating))
    below, missing = facts.get("dropped", (0, 0))  # entries of the cache may be older
    if below or missing:
        without = f", and {missing:,} without a rating" if missing else ""
        notes.append(
            f"{below:,} interactions with a rating below {log.min_rating:g} are dropped{without}."
        )
    notes += notes_on_times(log.tables, facts["times"])
    if train.roles.time and log.tables.test is not None and not log.tables.test.roles.time:
        notes.append("The test part has no column of times: its rows are in order.")
    if both := facts["tested_and_trained"]:
        notes.append(
            f"{both:,} of {facts['sizes'][2]:,} test interactions are in training too, with the "
            "same user, item and time. Remove them from one of the parts."
        )
    repeated = facts["repeated"]
    if repeated:
        kept = "They are kept" if read_as == "sequences" else "They count once"
        same = "user, item and time" if train.roles.time else "user and item"
        notes.append(f"{repeated:,} interactions repeat another of the same {same}. {kept}.")
    if read_as == "sequences" and (alone := facts["alone"]):
        notes.append(f"{alone:,} {log.who}s have only one item and give no example.")
    return tuple(notes)


def note_on_ratings(column: str) -> Sentence:
    """That ratings are not used, and how they would be."""
    return Sentence(
        f"All interactions count, whatever their {called(column)}; with ",
        Setting("min_rating", 4),
        " those below 4 would be dropped.",
    )


def _split(log: Log, facts: dict[str, Any], read_as: str) -> str:
    train, validation, test = facts["sizes"]
    total = max(1, train + validation + test)
    shares = f"{test / total:.0%} of the interactions are for testing"
    chosen = f"{validation / total:.0%} for validation"
    if log.split == "given":
        if not validation:
            return "The test part is given."
        if log.tables.validation is not None:
            return "The test and validation parts are given."
        return f"The test part is given; the latest {chosen[:-15]} of all are for validation."
    if log.tables.validation is not None:
        held = {"time": "the latest interactions", "last": f"the last item of each {log.who}"}
        users = "items of each user" if read_as == "interactions" else f"whole {log.who}s"
        tested = held.get(log.split, users)
        return f"The validation part is given; for testing, the training part gives up {tested}."
    if log.split == "time":
        begin = _date(log, facts["test_from"])
        return f"Split by time: the last {shares}{begin}, and {chosen} come right before them."
    if log.split == "last":
        return (
            f"Split by {log.who}: the last item of each is for testing, the one before it for "
            "validation."
        )
    if log.split == "random" and read_as == "interactions":
        return f"Split at random: {log.holdout:.0%} of each user's items are held out for testing."
    latest = "the latest" if log.split == "session" and log.tables.train.roles.time else "random"
    whole = f"{log.who}s are held out as a whole, {latest} ones: {shares}, {chosen}."
    return f"Split by {log.who}: {whole}"


def _date(log: Log, value: int) -> str:
    """When testing begins, where the times are dates or look like seconds since 1970."""
    column = log.tables.train.roles.time or ""
    kind = log.tables.train.kind(column)
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    scale = 1
    if pa.types.is_timestamp(kind):
        scale = per_second[kind.unit]
    elif pa.types.is_date(kind):
        scale = 10**3
    elif pa.types.is_integer(kind):
        scale = next((s for s in per_second.values() if 10**8 < value / s < 5 * 10**9), 0)
    else:
        scale = 10**6
    least = 0 if pa.types.is_temporal(kind) else 10**8  # smaller numbers may be days
    if not scale or not least < value / scale < 5 * 10**9:
        return ""
    return f" (from {datetime.fromtimestamp(value / scale, UTC):%Y-%m-%d} on)"
