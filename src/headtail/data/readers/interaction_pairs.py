"""Pairs of users and items from Parquet columns, and which of them are held out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headtail.data.cache import Store
from headtail.data.points import Progress
from headtail.data.tables.columns import Columns, check_same_kind
from headtail.data.tables.vocabulary import Vocabulary
from headtail.errors import HeadtailError

SEED = 0


def users_of(columns: Columns, progress: Progress | None) -> Iterator[tuple[int, pa.Array]]:
    """The user of each row, in batches with the number of their first row; without a user column,
    the row names the user.
    """
    if columns.user is None:
        yield 0, pa.array(np.arange(columns.rows))
        return
    for first, batch in columns.read([columns.user], progress):
        yield first, columns.ids(batch.column(columns.user), columns.user, first)


def item_column(columns: Columns) -> str:
    """The column of items: one per row, or lists of them."""
    if columns.user and columns.item:
        return columns.item
    if columns.lists is None:
        raise HeadtailError(
            f"`{columns.path}` has columns {columns.listed}. Interactions need `user_id` and "
            "`item_id`, or a list column `items`."
        )
    return columns.lists


def interactions_of(
    columns: Columns, progress: Progress | None
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Users and items, one entry per interaction, whichever form the file has."""
    column = item_column(columns)
    for first, batch in columns.read(
        [columns.user, column] if columns.user else [column], progress
    ):
        user = pa.array(np.arange(first, first + len(batch)))
        if columns.user:
            user = columns.ids(batch.column(columns.user), columns.user, first)
        if column == columns.lists:
            item, offsets = columns.ragged_ids(batch.column(column), column, first)
            user = user.take(pa.array(np.arange(len(batch)).repeat(np.diff(offsets))))
        else:
            item = columns.ids(batch.column(column), column, first)
        yield user, item


def known_pairs(
    columns: Columns, users: Vocabulary, items: Vocabulary, store: Store, progress: Progress | None
) -> np.ndarray:
    """`[p]` user · L + item of the known interactions, sorted, each once."""
    blocks = [np.empty(0, np.int64)]
    for user, item in interactions_of(columns, progress):
        check_same_kind(users, user, columns, columns.user or "row")
        check_same_kind(items, item, columns, item_column(columns))
        user_id = users.ids(user).astype(np.int64)
        item_id = items.ids(item)
        known = (user_id >= 0) & (item_id >= 0)
        store.facts["unknown"] += int((~known).sum())
        blocks.append(user_id[known] * len(items) + item_id[known])
    pairs = np.sort(np.concatenate(blocks))
    different = pairs[np.diff(pairs, prepend=-1) > 0]
    store.facts["repeated"] += len(pairs) - len(different)
    return different


def hold_out_items(user: np.ndarray, share: float) -> np.ndarray:
    """Which interactions are held out: `share` of each user's, at random but always the same.

    At least one and never all, of users with two or more.

    Args:
        user: `[p]` the user of each interaction, ascending.
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
