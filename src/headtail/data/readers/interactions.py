"""Interactions of users with items: a point is a user."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch

from headtail.core.targets import Ragged
from headtail.data.bag import Bag, ragged_rows
from headtail.data.cache import Entry, Store, cached, key_of
from headtail.data.points import DataSet, Points, Progress
from headtail.data.readers.interaction_pairs import (
    hold_out_items,
    interactions_of,
    item_column,
    known_pairs,
    users_of,
)
from headtail.data.readers.log_interactions import read_log
from headtail.data.readers.log_notes import note_on_ratings
from headtail.data.reading import Reading
from headtail.data.tables.columns import AT_ONCE, Columns, DataTables, renamed
from headtail.data.tables.vocabulary import Vocabulary, label_names, save_ids, saved_ids
from headtail.errors import HeadtailError, Setting, check_number


def read_tables(tables: DataTables, reading: Reading, progress: Progress | None) -> DataSet:
    """Read tables of interactions as `reading` says."""
    parts = tables.parts.values()
    if all(part.is_log for part in parts) and _needs_log(tables, reading):
        return read_log(tables, reading, progress)
    if reading.split not in ("auto", "random"):
        raise HeadtailError(
            f"`{tables.train.path}` has lists of items without an order, so only a random share of "
            "each user's items can be held out: leave ",
            Setting("split"),
            " out, or choose ",
            Setting("format", "sequences"),
            ".",
        )
    holdout = reading.holdout
    data = read_interactions(tables.train, tables.test, holdout=holdout, progress=progress)
    if not data.test.num_pairs and tables.test is None:
        raise HeadtailError(
            f"`{tables.train.path}` leaves no item to test on: no user has two different items "
            "that others have too. Pass a test file."
        )
    return renamed(data, tables)


def _needs_log(tables: DataTables, reading: Reading) -> bool:
    """Whether time or ratings matter, or the split is not a random one."""
    by_time = tables.train.roles.time is not None and reading.split != "random"
    other_split = reading.split not in ("auto", "random")
    return by_time or other_split or reading.min_rating is not None or tables.validation is not None


def read_interactions(
    train: Path | Columns,
    test: Path | Columns | None = None,
    *,
    holdout: float = 0.2,
    progress: Progress | None = None,
    at_once: int = AT_ONCE,
) -> DataSet:
    """Read from Parquet which user had which item.

    A row is an interaction (user, item), or a user with a list of items. A point is a user, its
    feature is its identity (one column per user), its labels are the items it had in training. The
    test points are the same users with their test items, and `seen` is what they had in training,
    which is not recommended again. Interactions that repeat count once. Users and items are those
    of training, sorted; test interactions with others are left out. Users of the test file who keep
    none (without a test file: who have one item) are `unlabelled`; unknown users have no feature. A
    user's row is the first that names it. Where no file has a user column, row i of both is user i.

    Args:
        train: Parquet file.
        test: Parquet file, or None to hold out a part of each user's items, the same at every call.
        holdout: the share that is held out of a user with two items or more; at least one item,
            never all.
        progress: called with what is being done and the share of it that is done.
        at_once: ids held in memory at once.

    >>> folder = getfixture("tmp_path")
    >>> getfixture("monkeypatch").setenv("HEADTAIL_CACHE", str(folder / "cache"))
    >>> import pyarrow as pa, pyarrow.parquet as pq
    >>> train, test = folder / "train.parquet", folder / "test.parquet"
    >>> pq.write_table(pa.table({"user_id": [1, 1, 2], "item_id": [0, 1, 2]}), train)
    >>> pq.write_table(pa.table({"user_id": [1], "item_id": [2]}), test)
    >>> data = read_interactions(train, test)
    >>> data.test.labels.values, data.test.seen.values
    (tensor([2], dtype=torch.int32), tensor([0, 1], dtype=torch.int32))
    """
    check_number("holdout", holdout, low=0, high=1)
    files = [Columns.of(path, at_once) for path in (train, test) if path is not None]
    nameless = [file for file in files if not file.user]
    if nameless and len({(file.user is None, file.rows) for file in files}) > 1:
        raise HeadtailError(
            f"`{nameless[0].path}` has no user column, so `{files[0].path}` and "
            f"`{files[-1].path}` do not match. Add "
            "`user_id` to both."
        )
    recipe = {"reader": "interactions", "holdout": None if test else holdout}
    build = partial(_build, files, holdout, progress)
    entry = cached(files, recipe | {"with": "rows, users, repeats"}, build)
    return DataSet(
        name=files[0].table.title,
        train=_points(entry, "train"),
        test=_points(entry, "test"),
        label_names=label_names(entry),
        notes=_notes(entry, files, holdout),
        digest=key_of(files, recipe),  # of what is trained and tested, without what else is kept
        unlabelled=_points(entry, "unlabelled") if len(entry.arrays["unlabelled_users"]) else None,
    )


def _build(files: list[Columns], holdout: float, progress: Progress | None, store: Store) -> None:
    source = files[0]
    users, items = (
        Vocabulary.of(pair[i] for pair in interactions_of(source, progress)) for i in (0, 1)
    )
    store.facts |= {"users": len(users), "unknown": 0, "seen": 0, "repeated": 0}
    train = known_pairs(source, users, items, store, progress)
    if not len(train):
        raise HeadtailError(
            f"`{source.path}` holds no interaction. Write a row for each: a user and an item."
        )
    if len(files) == 2:
        test = known_pairs(files[1], users, items, store, progress)
        again = train[np.searchsorted(train, test).clip(max=len(train) - 1)] == test
        test = test[~again]
        store.facts["seen"] = int(again.sum())
    else:
        out = hold_out_items(train // len(items), holdout)
        train, test = train[~out], train[out]
    user, item = divmod(train, len(items))
    test_user, test_item = divmod(test, len(items))
    # An item that was held out of all its users is not a label: nothing can be learnt about it.
    known = np.bincount(item, minlength=len(items)) > 0
    id_of = np.cumsum(known) - 1
    store.facts["unknown"] += int((~known[test_item]).sum())
    test_user = test_user[known[test_item]]
    test_item = test_item[known[test_item]]
    items.keep(known).save(store)
    store.facts["num_labels"] = int(known.sum())
    for part, part_user, part_item in (("train", user, item), ("test", test_user, test_item)):
        number = np.bincount(part_user)
        store.append(f"{part}_offsets", np.r_[0, np.cumsum(number[number > 0])])
        store.append(f"{part}_labels", id_of[part_item].astype(np.int32))
    _save_users(files, users, np.unique(test_user), store, progress)


def _save_users(
    files: list[Columns],
    users: Vocabulary,
    tested: np.ndarray,
    store: Store,
    progress: Progress | None,
) -> None:
    """The users of each part, and the rows of the source that name them first."""
    in_test_file = Vocabulary.of(user for _, user in users_of(files[-1], progress))
    is_tested = np.isin(users.ids(in_test_file.names), tested)
    parts = {
        "train": (files[0], users),
        "test": (files[-1], users.keep(np.isin(np.arange(len(users)), tested))),
        "unlabelled": (files[-1], in_test_file.keep(~is_tested)),
    }
    for part, (columns, who) in parts.items():
        first = np.full(len(who) + 1, columns.rows)  # the last is for all others
        for row, user in users_of(columns, progress):
            np.minimum.at(first, who.ids(user), np.arange(row, row + len(user)))
        store.append(f"{part}_rows", first[:-1])
        store.append(f"{part}_users", users.ids(who.names))
        save_ids(store, f"{part}_names", who.names)


def _points(entry: Entry, part: str) -> Points:
    users = entry.arrays[f"{part}_users"]
    had = Ragged(entry.arrays["train_labels"], entry.arrays["train_offsets"])
    labels = Ragged(had.values[:0], torch.zeros(len(users) + 1, dtype=torch.int64))
    if part != "unlabelled":
        labels = Ragged(entry.arrays[f"{part}_labels"], entry.arrays[f"{part}_offsets"])
    known = users >= 0
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), known.cumsum(0)])
    features = Bag(offsets, users[known], torch.ones(int(known.sum())), entry.facts["users"])
    seen = None
    if part != "train":
        # Unknown users had nothing: an empty row behind that of the last user.
        with_empty = Ragged(had.values, torch.cat([had.offsets, had.offsets[-1:]]))
        seen = ragged_rows(with_empty, torch.where(known, users, len(had.offsets) - 1).long())
    return Points(
        features,
        labels,
        entry.facts["num_labels"],
        seen,
        rows=entry.arrays[f"{part}_rows"],
        users=saved_ids(entry, f"{part}_names"),
    )


def _notes(entry: Entry, files: list[Columns], holdout: float) -> tuple[str, ...]:
    notes = [
        "Read as interactions: a point is a user, its labels are the items it had.",
        files[0].note(("user", "item" if item_column(files[0]) == files[0].item else "lists")),
    ]
    if len(files) == 1:
        notes.append(
            f"There is no test file: {holdout:.0%} of each user's items are held out for testing."
        )
    if repeated := entry.facts["repeated"]:
        notes.append(
            f"{repeated:,} interactions repeat another of the same user and item. They count once."
        )
    if files[0].is_log and files[0].roles.rating:
        notes.append(note_on_ratings(files[0].roles.rating))
    if unknown := entry.facts["unknown"]:
        notes.append(
            f"{unknown:,} test interactions are with users or items that never occur in training "
            "and are left out."
        )
    if seen := entry.facts["seen"]:
        notes.append(f"{seen:,} test interactions occur in training too and are left out.")
    if unlabelled := len(entry.arrays["unlabelled_users"]):
        notes.append(
            f"{unlabelled:,} users have no test item left: they are answered, but not measured."
        )
    return tuple(notes)
