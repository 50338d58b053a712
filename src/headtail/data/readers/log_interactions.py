"""A log as interactions: a point is a user, its labels are the items it had."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from headtail.core.targets import Ragged
from headtail.data.bag import Bag
from headtail.data.cache import Entry, Store, cached, key_of
from headtail.data.points import DataSet, Points, Progress
from headtail.data.readers.interaction_pairs import hold_out_items
from headtail.data.readers.item_features import items_recipe
from headtail.data.readers.log_events import Log
from headtail.data.readers.log_notes import notes_on_log
from headtail.data.readers.log_scan import PARTS
from headtail.data.readers.log_sort import WITH, Sorted, sort_log
from headtail.data.reading import Reading
from headtail.data.tables.columns import DataTables, renamed
from headtail.data.tables.vocabulary import label_names, save_ids, saved_ids
from headtail.errors import HeadtailError, Setting


def read_log(tables: DataTables, reading: Reading, progress: Progress | None) -> DataSet:
    """Read a log as interactions as `reading` says.

    An item that a user has in several parts counts in the first of them. What a user had before the
    part (`seen`) is not recommended again. Users and items that never occur in training are left
    out; users without a test item are `unlabelled`.
    """
    if reading.split == "session":
        raise HeadtailError(
            Setting("split", "session"),
            " holds whole sessions out, but points are users that must be trained on. Choose ",
            Setting("split", "time"),
            " or ",
            Setting("format", "sequences"),
            ".",
        )
    log = Log.of(tables, reading, as_users=True)
    files = list(tables.parts.values())
    recipe = log.recipe | {"as": "interactions"} | items_recipe(reading)
    entry = cached(files, recipe | WITH, partial(_build, log, progress))
    data = DataSet(
        tables.train.table.title,
        _points(entry, "train"),
        _points(entry, "test"),
        _points(entry, "validation") if len(entry.arrays["validation_users"]) else None,
        label_names=label_names(entry),
        notes=notes_on_log(log, entry.facts, "interactions") + _notes(entry),
        digest=key_of(files, recipe),
        unlabelled=_points(entry, "unlabelled") if len(entry.arrays["unlabelled_users"]) else None,
    )
    return renamed(data, tables)


def _build(log: Log, progress: Progress | None, store: Store) -> None:
    events = sort_log(log, store, progress)
    known, trained = _in_training(events, log)
    known |= events.described
    id_of = np.cumsum(known) - 1
    user_of = np.cumsum(trained) - 1
    events.items.keep(known).save(store)
    save_ids(store, "users", events.who.names.filter(trained))
    store.facts |= events.counts | {"num_labels": int(known.sum()), "users": int(trained.sum())}
    left_out = 0
    for user, item, part in _pairs(events, log):
        usable = known[item] & trained[user]
        left_out += int((~usable).sum())
        _append(store, user_of[user[usable]], id_of[item[usable]], part[usable])
    store.facts["left_out"] = left_out
    for name in ("train", "test"):
        if not store.shapes[f"{name}_users"][0]:
            raise HeadtailError(
                f"`{log.tables.train.path}` leaves no user with an item to {name} on. Choose "
                "another split or share."
            )


def _pairs(events: Sorted, log: Log) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Different (user, item) pairs block by block, each with the first part that it is in."""
    for first, offsets, inside in events.blocks():
        user = first + np.arange(len(offsets) - 1).repeat(np.diff(offsets))
        item = events.item[inside].astype(np.int64)
        part = events.part[inside]
        order = np.lexsort((part, item, user))
        user, item, part = user[order], item[order], part[order]
        new = np.r_[True, (np.diff(user) != 0) | (np.diff(item) != 0)][: len(user)]
        user, item, part = user[new], item[new], part[new]
        if log.split == "random":
            free = np.ones(len(part), bool) if log.tables.validation is None else part != 1
            part[free] = np.where(hold_out_items(user[free] - first, log.holdout), 2, 0)
        yield user, item, part


def _in_training(events: Sorted, log: Log) -> tuple[np.ndarray, np.ndarray]:
    """Which items, and which users, occur in training."""
    known = np.zeros(len(events.items), bool)
    trained = np.zeros(len(events.who), bool)
    for user, item, part in _pairs(events, log):
        known[item[part == 0]] = True
        trained[user[part == 0]] = True
    return known, trained


def _append(store: Store, user: np.ndarray, item: np.ndarray, part: np.ndarray) -> None:
    """Users of each part with their items and with what they had before."""
    everyone = np.unique(user)
    for number, name in enumerate(PARTS):
        here = part == number
        _append_rows(store, name, np.unique(user[here]), user, item, here, part < number)
    nobody = np.setdiff1d(everyone, user[part == 2])
    _append_rows(store, "unlabelled", nobody, user, item, part < 0, part < 2)


def _append_rows(
    store: Store,
    name: str,
    users: np.ndarray,
    user: np.ndarray,
    item: np.ndarray,
    labels: np.ndarray,
    seen: np.ndarray,
) -> None:
    store.append(f"{name}_users", users.astype(np.int32))
    for what, which in (("labels", labels), ("seen", seen & np.isin(user, users))):
        row = np.searchsorted(users, user[which])
        store.append(f"{name}_{what}_lengths", np.bincount(row, minlength=len(users)))
        store.append(f"{name}_{what}", item[which].astype(np.int32))


def _points(entry: Entry, part: str) -> Points:
    users = entry.arrays[f"{part}_users"]

    def ragged(what: str) -> Ragged:
        lengths = entry.arrays[f"{part}_{what}_lengths"]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        return Ragged(entry.arrays[f"{part}_{what}"], offsets)

    names = saved_ids(entry, "users")
    return Points(
        Bag(torch.arange(len(users) + 1), users, torch.ones(len(users)), entry.facts["users"]),
        ragged("labels"),
        entry.facts["num_labels"],
        None if part == "train" else ragged("seen"),
        rows=users.long(),
        users=None if names is None else names.take(users.numpy()),
    )


def _notes(entry: Entry) -> tuple[str, ...]:
    notes = []
    if left_out := entry.facts["left_out"]:
        notes.append(
            f"{left_out:,} test or validation interactions are with users or items that never "
            "occur in training and are left out."
        )
    if unlabelled := len(entry.arrays["unlabelled_users"]):
        notes.append(
            f"{unlabelled:,} users have no test item left: they are answered, but not measured."
        )
    return tuple(notes)
