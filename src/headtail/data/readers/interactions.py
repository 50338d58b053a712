"""Interactions of users with items: a point is a user."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from headtail.core.targets import Ragged
from headtail.data.cache import Entry, Store, cached, key_of
from headtail.data.points import Bag, DataSet, Points, Progress, ragged_rows
from headtail.data.readers.parquet import (
    Columns,
    Vocabulary,
    check_same_kind,
    label_names,
    save_ids,
    saved_ids,
)
from headtail.errors import HeadtailError, check_number

SEED = 0


def read_interactions(
    train: Path, test: Path | None = None, *, holdout: float = 0.2, progress: Progress | None = None
) -> DataSet:
    """Read which user had which item from Parquet: a row an interaction (user, item), or a row a
    user with a list of items.

    A point is a user, its feature is who it is (one column a user), its labels are the items it had
    in training. The test points are the same users with their test items, and `seen` is what they
    had in training, which is not recommended again. Interactions that repeat count once. Users and
    items are those of training, sorted; test interactions with others are left out. Users of the
    test file who keep none (without one: who have one item) are `unlabelled`; who is unknown has no
    feature. A user's row is the first that names it. Where no file has a user column, row i of both
    is user i.

    Args:
        train: Parquet file.
        test: Parquet file, or None to hold out a part of each user's items, the same at every call.
        holdout: the share that is held out of a user with two items or more; at least one item,
            never all.
        progress: told what is done, and how much of it.

    >>> folder = getfixture("tmp_path")
    >>> getfixture("monkeypatch").setenv("HEADTAIL_CACHE", str(folder / "cache"))
    >>> import pyarrow.parquet as pq
    >>> pq.write_table(pa.table({"user_id": [1, 1, 2], "item_id": [0, 1, 2]}), folder / "train.parquet")
    >>> pq.write_table(pa.table({"user_id": [1], "item_id": [2]}), folder / "test.parquet")
    >>> data = read_interactions(folder / "train.parquet", folder / "test.parquet")
    >>> data.test.labels.values, data.test.seen.values
    (tensor([2], dtype=torch.int32), tensor([0, 1], dtype=torch.int32))
    """
    check_number("holdout", holdout, low=0, high=1)
    files = [Columns.of(path) for path in (train, test) if path is not None]
    if (nameless := [file for file in files if not file.user]) and len(
        {(file.user is None, file.rows) for file in files}
    ) > 1:
        raise HeadtailError(
            f"`{nameless[0].path}` has no user column, so `{train}` and `{test}` do not match. Add "
            "`user_id` to both."
        )
    recipe = {"reader": "interactions", "holdout": None if test else holdout}
    paths = [file.path for file in files]
    entry = cached(
        paths, recipe | {"with": "rows and users"}, partial(_build, files, holdout, progress)
    )
    return DataSet(
        name=train.stem,
        train=_points(entry, "train"),
        test=_points(entry, "test"),
        label_names=label_names(entry),
        notes=_notes(entry, files, holdout),
        digest=key_of(paths, recipe),  # what is trained and tested, whatever else is kept of it
        unlabelled=_points(entry, "unlabelled") if len(entry.arrays["unlabelled_users"]) else None,
    )


def _build(files: list[Columns], holdout: float, progress: Progress | None, store: Store) -> None:
    source = files[0]
    users, items = (
        Vocabulary.of(pair[i] for pair in _interactions(source, progress)) for i in (0, 1)
    )
    store.facts |= {"users": len(users), "unknown": 0, "seen": 0}
    train = _pairs(source, users, items, store, progress)
    if not len(train):
        raise HeadtailError(
            f"`{source.path}` holds no interaction. Write a row for each: a user and an item."
        )
    if len(files) == 2:
        test = _pairs(files[1], users, items, store, progress)
        again = train[np.searchsorted(train, test).clip(max=len(train) - 1)] == test
        test = test[~again]
        store.facts["seen"] = int(again.sum())
    else:
        out = hold_out_items(train // len(items), holdout)
        train, test = train[~out], train[out]
    user, item = divmod(train, len(items))
    test_user, test_item = divmod(test, len(items))
    # What was held out of all its users is no label any more: there is nothing to learn it from.
    known = np.bincount(item, minlength=len(items)) > 0
    id_of = np.cumsum(known) - 1
    store.facts["unknown"] += int((~known[test_item]).sum())
    test_user = test_user[known[test_item]]
    test_item = test_item[known[test_item]]
    items.keep(known).save(store)
    store.facts["num_labels"] = int(known.sum())
    for part, users_of, items_of in (("train", user, item), ("test", test_user, test_item)):
        number = np.bincount(users_of)
        store.append(f"{part}_offsets", np.r_[0, np.cumsum(number[number > 0])])
        store.append(f"{part}_labels", id_of[items_of].astype(np.int32))
    _save_users(files, users, np.unique(test_user), store, progress)


def _save_users(
    files: list[Columns],
    users: Vocabulary,
    tested: np.ndarray,
    store: Store,
    progress: Progress | None,
) -> None:
    """Who the points of each part are, and where the source names them first."""
    asked = Vocabulary.of(user for _, user in _users(files[-1], progress))
    is_tested = np.isin(users.ids(asked.names), tested)
    parts = {
        "train": (files[0], users),
        "test": (files[-1], users.keep(np.isin(np.arange(len(users)), tested))),
        "unlabelled": (files[-1], asked.keep(~is_tested)),
    }
    for part, (columns, who) in parts.items():
        first = np.full(len(who) + 1, columns.rows)  # the last is for all others
        for row, user in _users(columns, progress):
            np.minimum.at(first, who.ids(user), np.arange(row, row + len(user)))
        store.append(f"{part}_rows", first[:-1])
        store.append(f"{part}_users", users.ids(who.names))
        save_ids(store, f"{part}_names", who.names)


def _users(columns: Columns, progress: Progress | None) -> Iterator[tuple[int, pa.Array]]:
    """The user of each row, some rows at a time with the number of the first; whoever has no name
    is called by the row.
    """
    if columns.user is None:
        yield 0, pa.array(np.arange(columns.rows))
        return
    for first, batch in columns.read([columns.user], progress):
        yield first, columns.ids(batch.column(columns.user), columns.user, first)


def _item_column(columns: Columns) -> str:
    if columns.user and columns.item:
        return columns.item
    if columns.lists is None:
        raise HeadtailError(
            f"`{columns.path}` has columns {columns.listed}. Interactions need `user_id` and "
            "`item_id`, or a list column `items`."
        )
    return columns.lists


def _interactions(
    columns: Columns, progress: Progress | None
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Users and items, an entry an interaction, whichever form the file has."""
    what = _item_column(columns)
    for first, batch in columns.read([columns.user, what] if columns.user else [what], progress):
        rows = pa.array(np.arange(first, first + len(batch)))
        user = (
            columns.ids(batch.column(columns.user), columns.user, first) if columns.user else rows
        )
        if what == columns.lists:
            item, offsets = columns.ragged_ids(batch.column(what), what, first)
            user = user.take(pa.array(np.arange(len(batch)).repeat(np.diff(offsets))))
        else:
            item = columns.ids(batch.column(what), what, first)
        yield user, item


def _pairs(
    columns: Columns, users: Vocabulary, items: Vocabulary, store: Store, progress: Progress | None
) -> np.ndarray:
    """`[p]` user · L + item of the known interactions, sorted, each once."""
    found = [np.empty(0, np.int64)]
    for user, item in _interactions(columns, progress):
        check_same_kind(users, user, columns, columns.user or "row")
        check_same_kind(items, item, columns, _item_column(columns))
        who = users.ids(user).astype(np.int64)
        what = items.ids(item)
        known = (who >= 0) & (what >= 0)
        store.facts["unknown"] += int((~known).sum())
        found.append(who[known] * len(items) + what[known])
    pairs = np.sort(np.concatenate(found))
    return pairs[np.diff(pairs, prepend=-1) > 0]


def hold_out_items(user: np.ndarray, share: float) -> np.ndarray:
    """Which interactions are held out: `share` of each user's, at random but always the same; at
    least one, never all.

    Args:
        user: `[p]` the user of each interaction, rising.
        share: between 0 and 1.

    >>> hold_out_items(np.array([0, 0, 0, 0, 0, 1, 2, 2]), 0.4).nonzero()[0].shape
    (3,)
    """
    number = np.bincount(user)
    wanted = np.where(number > 1, np.clip(np.rint(share * number), 1, np.maximum(number - 1, 1)), 0)
    order = np.lexsort((np.random.default_rng(SEED).random(len(user)), user))
    rank = np.arange(len(user)) - (np.cumsum(number) - number)[user]
    out = np.zeros(len(user), bool)
    out[order] = rank < wanted[user]
    return out


def _points(entry: Entry, part: str) -> Points:
    users = entry.arrays[f"{part}_users"]
    had = Ragged(entry.arrays["train_labels"], entry.arrays["train_offsets"])
    labels = Ragged(had.values[:0], torch.zeros(len(users) + 1, dtype=torch.int64))
    if part != "unlabelled":
        labels = Ragged(entry.arrays[f"{part}_labels"], entry.arrays[f"{part}_offsets"])
    known = users >= 0
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), known.cumsum(0)])
    who = Bag(offsets, users[known], torch.ones(int(known.sum())), entry.facts["users"])
    # Behind the last user stands one who had nothing: who is unknown.
    and_nobody = Ragged(had.values, torch.cat([had.offsets, had.offsets[-1:]]))
    seen = (
        None
        if part == "train"
        else ragged_rows(and_nobody, torch.where(known, users, len(had.offsets) - 1).long())
    )
    about = {"rows": entry.arrays[f"{part}_rows"], "users": saved_ids(entry, f"{part}_names")}
    return Points(who, labels, entry.facts["num_labels"], seen, **about)


def _notes(entry: Entry, files: list[Columns], holdout: float) -> tuple[str, ...]:
    notes = ["Read as interactions: a point is a user, its labels are the items it had."]
    if len(files) == 1:
        notes.append(
            f"There is no test file: {holdout:.0%} of each user's items are held out for testing."
        )
    if unknown := entry.facts["unknown"]:
        notes.append(
            f"{unknown:,} test interactions are with users or items that never occur in training "
            "and are left out."
        )
    if seen := entry.facts["seen"]:
        notes.append(f"{seen:,} test interactions stand in training too and are left out.")
    if unlabelled := len(entry.arrays["unlabelled_users"]):
        notes.append(
            f"{unlabelled:,} users have no test item left: they are answered, but not measured."
        )
    used = {name for file in files for name in (file.user, _item_column(file))}
    if ignored := sorted({name for file in files for name in file.names} - used):
        notes.append(f"Columns that are not used: {', '.join(ignored)}.")
    return tuple(notes)
