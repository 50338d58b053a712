"""Rows of tables to answer for a trained model: sequences, users, queries of a graph, numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from headtail.core.targets import Ragged
from headtail.data.bag import Bag, ragged_rows
from headtail.data.histories import Histories
from headtail.data.known import Known, dense_rows, left_out, unlabelled, vocabulary_of
from headtail.data.points import Points, Progress
from headtail.data.readers.interaction_pairs import users_of
from headtail.data.readers.log_times import TimeRanges, notes_on_times
from headtail.data.readers.table_dense import check_columns, numbers_of
from headtail.data.reading import Reading
from headtail.data.tables.arrow_types import is_string
from headtail.data.tables.columns import Columns, DataTables, check_same_kind
from headtail.data.tables.vocabulary import Vocabulary
from headtail.errors import HeadtailError


def read_rows(
    columns: Columns, known: Known, reading: Reading, progress: Progress | None
) -> tuple[Points, list[str]]:
    """Every row of a table as a point of the model, and notes."""
    if known.relations is not None:
        return _queries(columns, known, known.relations, progress)
    if known.kind == "histories":
        return _histories(columns, known, reading, progress)
    if known.kind == "users":
        return _users(columns, known, progress)
    return _numbers(columns, known, reading, progress)


def _numbers(
    columns: Columns, known: Known, reading: Reading, progress: Progress | None
) -> tuple[Points, list[str]]:
    """The columns of features."""
    names = _feature_columns(columns, known, reading)
    width = known.num_features
    blocks = [
        numbers_of(columns, batch, names, first, width)
        for first, batch in columns.read(names, progress)
    ]
    if not blocks:
        raise HeadtailError(f"`{columns.path}` has no rows, so there is nothing to answer.")
    return dense_rows(torch.from_numpy(np.concatenate(blocks)), known, columns.path), []


def _feature_columns(columns: Columns, known: Known, reading: Reading) -> list[str]:
    """Those of training by their names; where there are no names, those with that role, else all
    but the label.
    """
    trained = known.feature_names
    nameless = all(name.isdigit() for name in columns.names)
    if trained is not None and not nameless:
        if set(trained) <= set(columns.names):
            return trained
        if not reading.features:
            check_columns(columns, trained)
    names = [*columns.roles.features]
    return names or [name for name in columns.names if name != columns.roles.label]


def _queries(
    columns: Columns, known: Known, relations: list[str] | list[int], progress: Progress | None
) -> tuple[Points, list[str]]:
    """Heads with a relation, in the first two columns where they have no names; tails are asked."""
    head, relation = columns.roles.head, columns.roles.relation
    names = list(columns.names)
    if len(names) > 1 and all(name.isdigit() for name in names):
        head, relation = names[:2]
    if head is None or relation is None:
        raise HeadtailError(
            f"`{columns.path}` has the columns {columns.listed}. To be answered, a row needs a "
            "`head` and a `relation`."
        )
    vocabularies = {head: known.items, relation: vocabulary_of(relations)}
    blocks = []
    for first, batch in columns.read([head, relation], progress):
        ids = []
        for name, vocabulary in vocabularies.items():
            values = columns.ids(batch.column(name), name, first)
            if is_string(vocabulary.names.type):
                values = values.cast(vocabulary.names.type)
            check_same_kind(vocabulary, values, columns, name)
            ids.append(vocabulary.ids(values))
        blocks.append(np.stack(ids, axis=1))
    ids = torch.from_numpy(np.concatenate(blocks))
    inside = ids >= 0
    ids[:, 1] += known.num_labels
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), inside.sum(1).cumsum(0)])
    values = torch.ones(int(inside.sum()))
    bag = Bag(offsets, ids[inside].int(), values, known.num_features)
    unknown = int((~inside.all(dim=1)).sum())
    note = (
        f"{unknown:,} of {len(ids):,} rows have a head or a relation that never occurs in "
        "training: they are answered by the other alone."
    )
    return unlabelled(bag, known), [note] if unknown else []


def _histories(
    columns: Columns, known: Known, reading: Reading, progress: Progress | None
) -> tuple[Points, list[str]]:
    """Whole sequences: what comes next is asked. Lists of items, or a log in the order of time."""
    if columns.lists is not None:
        ids, offsets, users = _lists(columns, known.items, progress)
        rows = None
    else:
        ids, offsets, users, rows = _log(columns, known.items, progress)
    number = len(offsets) - 1
    histories = Histories(
        torch.from_numpy(ids),
        torch.from_numpy(offsets),
        torch.arange(number),
        torch.from_numpy(np.diff(offsets)),
        reading.last,
        known.num_labels,
    )
    note = left_out(int((ids < 0).sum()), len(ids), "items are one")
    return replace(unlabelled(histories, known), rows=rows, users=users), note


def _lists(
    columns: Columns, items: Vocabulary, progress: Progress | None
) -> tuple[np.ndarray, np.ndarray, pa.Array | None]:
    """Items of all rows, where rows begin, and their users, if there are any."""
    name = columns.need_lists()
    ids, lengths, users = [np.empty(0, np.int32)], [np.zeros(1, np.int64)], []
    wanted = [name, *([columns.user] if columns.user else [])]
    for first, batch in columns.read(wanted, progress):
        values, offsets = columns.ragged_ids(batch.column(name), name, first)
        check_same_kind(items, values, columns, name)
        ids.append(items.ids(values).astype(np.int32))
        lengths.append(np.diff(offsets))
        if columns.user:
            users.append(columns.ids(batch.column(columns.user), columns.user, first))
    named = pa.concat_arrays(users) if users else None
    return np.concatenate(ids), np.cumsum(np.concatenate(lengths)), named


def _log(
    columns: Columns, items: Vocabulary, progress: Progress | None
) -> tuple[np.ndarray, np.ndarray, pa.Array, Tensor]:
    """Items of all users in the order of time, where users begin, who they are, and the first row
    of each.
    """
    time = columns.roles.time
    who, item, first_rows, when = _events(columns, items, progress)
    names, user = np.unique(who, return_inverse=True)
    order = np.lexsort((np.arange(len(user)), when, user) if time else (np.arange(len(user)), user))
    offsets = np.r_[0, np.cumsum(np.bincount(user, minlength=len(names)))]
    first = np.full(len(names), len(user))
    np.minimum.at(first, user, first_rows)
    return item[order], offsets, pa.array(names), torch.from_numpy(first)


def _events(
    columns: Columns, items: Vocabulary, progress: Progress | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Users, items, rows and times of a log."""
    roles = columns.roles
    whose = roles.session or roles.user
    if whose is None or roles.item is None:
        raise HeadtailError(
            f"`{columns.path}` has the columns {columns.listed}. To be answered, write a row per "
            "sequence with a list of items, or a row per event with a user and an item."
        )
    blocks = []
    wanted = [whose, roles.item, *([roles.time] if roles.time else [])]
    for first, batch in columns.read(wanted, progress):
        values = columns.ids(batch.column(roles.item), roles.item, first)
        check_same_kind(items, values, columns, roles.item)
        times = np.zeros(len(batch), np.int64)
        if roles.time:
            times = columns.times(batch.column(roles.time), roles.time, first)
        who = columns.ids(batch.column(whose), whose, first).to_numpy(zero_copy_only=False)
        rows = np.arange(first, first + len(batch))
        blocks.append((who, items.ids(values).astype(np.int32), rows, times))
    if not blocks:
        raise HeadtailError(f"`{columns.path}` has no rows, so there is nothing to answer.")
    who, item, rows, times = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
    if roles.time:
        notes_on_times(DataTables(columns), {"train": TimeRanges.of(times, rows)})  # or a refusal
    return who, item, rows, times


def _users(columns: Columns, known: Known, progress: Progress | None) -> tuple[Points, list[str]]:
    """One point per user that a file names; items of training, and of the file, are not recommended
    again.
    """
    assert known.users is not None
    vocabulary = vocabulary_of(known.users.names)
    named, had = _users_and_items(columns, known.items, progress)
    names = named.unique()
    check_same_kind(vocabulary, names, columns, columns.user or "row")
    ids = torch.from_numpy(vocabulary.ids(names).astype(np.int64))
    place = Vocabulary(names).ids(named)
    first = np.full(len(names), len(named))
    np.minimum.at(first, place, np.arange(len(named)))
    inside = ids >= 0
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), inside.cumsum(0)])
    features = Bag(offsets, ids[inside].int(), torch.ones(int(inside.sum())), known.num_features)
    seen = _seen(known.users.had, ids, place[had[0]], had[1])
    points = replace(
        unlabelled(features, known), seen=seen, users=names, rows=torch.from_numpy(first)
    )
    new = len(names) - int(inside.sum())
    note = (
        f"{new:,} of {len(names):,} users never occur in training: they get the labels that suit "
        "everyone."
    )
    return points, [note] if new else []


def _users_and_items(
    columns: Columns, items: Vocabulary, progress: Progress | None
) -> tuple[pa.Array, tuple[np.ndarray, np.ndarray]]:
    """The user of each row; rows and items of what they had, where the file has items."""
    users = pa.concat_arrays([user for _, user in users_of(columns, progress)])
    rows, had = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    column = columns.item or columns.lists or ""
    for first, batch in columns.read([column], progress) if column else ():
        lengths = np.ones(len(batch), np.int64)
        if column == columns.lists:
            values, offsets = columns.ragged_ids(batch.column(column), column, first)
            lengths = np.diff(offsets)
        else:
            values = columns.ids(batch.column(column), column, first)
        ids = items.ids(values)
        row = np.arange(first, first + len(batch)).repeat(lengths)
        rows.append(row[ids >= 0])
        had.append(ids[ids >= 0].astype(np.int64))
    return users, (np.concatenate(rows), np.concatenate(had))


def _seen(had: Ragged, ids: Tensor, point: np.ndarray, item: np.ndarray) -> Ragged:
    """What each point's user had in training, and in the file."""
    with_nobody = Ragged(had.values, torch.cat([had.offsets, had.offsets[-1:]]))
    trained = ragged_rows(with_nobody, torch.where(ids < 0, len(had.offsets) - 1, ids))
    owner = torch.arange(len(ids)).repeat_interleave(trained.offsets.diff())
    pairs = torch.cat(
        [
            torch.stack([owner, trained.values.long()]),
            torch.from_numpy(np.stack([point.astype(np.int64), item])),
        ],
        dim=1,
    ).unique(dim=1)
    lengths = torch.bincount(pairs[0], minlength=len(ids))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return Ragged(pairs[1].int(), offsets)
