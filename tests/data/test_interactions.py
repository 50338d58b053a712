"""Users with the items they had, as recomputed with sets."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from headtail import HeadtailError
from headtail.data.readers.interaction_pairs import hold_out_items
from headtail.data.readers.interactions import read_interactions

DATA = Path(os.environ.get("HEADTAIL_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def sets(points, ragged, users, names):
    """Items by user, from one-hot users and ragged ids."""
    features = points.features
    assert torch.equal(features.offsets, torch.arange(len(points) + 1))
    assert features.values.eq(1).all()
    assert features.num_columns == len(users)
    lists = [ragged.values[a:b].tolist() for a, b in pairwise(ragged.offsets.tolist())]
    assert all(len(set(ids)) == len(ids) for ids in lists)
    return {
        users[u]: {names[i] for i in ids}
        for u, ids in zip(features.columns.tolist(), lists, strict=True)
    }


def by_user(pairs):
    found = {}
    for user, item in pairs:
        found.setdefault(user, set()).add(item)
    return found


def draw(seed, number, users=6, items=9):
    rng = np.random.default_rng(seed)
    return [
        (f"u{u}", int(i) * 10)
        for u, i in zip(rng.integers(0, users, number), rng.integers(0, items, number), strict=True)
    ]


def write_long(path, pairs):
    users, items = zip(*pairs, strict=True)
    return write(path, user_id=users, rating=[1.5] * len(pairs), item_id=items)


def write_lists(path, pairs):
    """Two rows a user, because nothing says that there is one."""
    halves = [by_user(pairs[:20]), by_user(pairs[20:])]
    rows = [(user, list(items)) for half in halves for user, items in half.items()]
    return write(path, User=[user for user, _ in rows], items=[items for _, items in rows])


@pytest.mark.parametrize("written", [write_long, write_lists])
@pytest.mark.parametrize("at_once", [1 << 20, 8])
def test_a_point_is_a_user_with_its_items_and_what_it_has_seen(tmp_path, written, at_once):
    train = draw(0, 40)
    test = draw(1, 30, users=8, items=11)
    data = read_interactions(
        written(tmp_path / "train.parquet", train),
        written(tmp_path / "test.parquet", test),
        at_once=at_once,
    )
    had = by_user(train)
    users = sorted(by_user(train))
    known = {item for items in had.values() for item in items}
    assert data.label_names == sorted(known), "numbers stay numbers"
    assert sets(data.train, data.train.labels, users, data.label_names) == had
    assert data.train.seen is None
    expected = {u: (items & known) - had[u] for u, items in by_user(test).items() if u in had}
    expected = {u: items for u, items in expected.items() if items}
    assert sets(data.test, data.test.labels, users, data.label_names) == expected
    assert sets(data.test, data.test.seen, users, data.label_names) == {u: had[u] for u in expected}
    again = {(u, i) for u, i in test if u in had and i in had[u]}
    assert f"{len(again)} test interactions occur in training too" in " ".join(data.notes)
    assert ("rating is not used" in " ".join(data.notes)) == (written is write_long)
    named = pq.read_table(tmp_path / "test.parquet").column(0).to_pylist()
    first = {user: row for row, user in reversed(list(enumerate(named)))}
    asked = data.asked
    assert dict(zip(asked.users.to_pylist(), asked.rows.tolist(), strict=True)) == first
    assert asked.rows.tolist() == sorted(first.values())
    assert [users[u] for u in data.test.features.columns] == data.test.users.to_pylist()
    assert data.train.users.to_pylist() == users


def test_users_with_nothing_to_be_measured_on_are_asked_without_what_they_have(tmp_path):
    train = write(tmp_path / "train.parquet", user_id=["b", "a", "c"], items=[[1, 2], [2], [3, 1]])
    items = pa.array([[], [9], [2], [1, 3]], pa.list_(pa.int64()))
    data = read_interactions(
        train, write(tmp_path / "test.parquet", user_id=["c", "nobody", "b", "a"], items=items)
    )
    assert data.test.users.to_pylist() == ["a"]
    asked = data.asked
    assert (asked.users.to_pylist(), asked.rows.tolist()) == (
        ["c", "nobody", "b", "a"],
        [0, 1, 2, 3],
    )
    assert asked.features.to_dense().tolist() == [[0, 0, 1], [0, 0, 0], [0, 1, 0], [1, 0, 0]]
    seen = [asked.seen.values[a:b].tolist() for a, b in pairwise(asked.seen.offsets.tolist())]
    assert seen == [[0, 2], [], [0, 1], [1]]
    assert "3 users have no test item left: they are answered, but not measured." in data.notes


def test_a_user_of_one_item_is_asked_though_none_can_be_held_out(tmp_path):
    path = write(tmp_path / "train.parquet", user_id=[7, 5, 7, 5, 6], item_id=[0, 1, 1, 0, 1])
    data = read_interactions(path)
    assert data.unlabelled.users.to_pylist()[-1] == 6
    assert (data.asked.users.to_pylist(), data.asked.rows.tolist()) == ([7, 5, 6], [0, 1, 4])


def test_without_a_test_file_a_fifth_of_each_user_s_items_is_held_out(tmp_path):
    pairs = [(u, i) for u, number in enumerate((1, 2, 5, 10, 3)) for i in range(number)]
    path = write(tmp_path / "train.parquet", user=[u for u, _ in pairs], item=[i for _, i in pairs])
    data = read_interactions(path)
    train, test = (
        sets(p, p.labels, range(5), data.label_names or range(p.num_labels))
        for p in (data.train, data.test)
    )
    had = by_user(pairs)
    for user in range(5):
        held = test.get(user, set())
        assert not held & train[user]
        assert held | train[user] <= had[user]
    assert set(data.train.labels.values.tolist()) == set(range(data.train.num_labels)), (
        "every label occurs in training"
    )
    assert [len(train[u]) for u in range(5)] == [1, 1, 4, 8, 2]
    assert torch.equal(data.test.labels.values, read_interactions(path).test.labels.values)
    assert "20% of each user's items are held out" in " ".join(data.notes)
    more = read_interactions(path, holdout=0.5)
    assert more.digest != data.digest
    assert more.train.num_pairs == 1 + 1 + 3 + 5 + 1  # halves round to even


def test_held_out_items_are_any_of_a_user_s_items():
    user = np.arange(3000).repeat(4)
    out = hold_out_items(user, 0.25).reshape(-1, 4)
    assert (out.sum(axis=1) == 1).all()
    # Each of four places is held out of 750 ± 24 users.
    assert np.abs(out.sum(axis=0) - 750).max() < 5 * 24
    assert (hold_out_items(user, 1.0).reshape(-1, 4).sum(axis=1) == 3).all(), "never all"


@pytest.mark.parametrize("at_once", [1 << 20, 1])
def test_without_user_columns_rows_are_users(tmp_path, at_once):
    train = write(tmp_path / "train.parquet", items=[[0, 1], [], [2]])
    test = write(tmp_path / "test.parquet", items=[[2], [0], [1, 1]])
    data = read_interactions(train, test, at_once=at_once)
    assert sets(data.test, data.test.labels, [0, 2], "012") == {0: {"2"}, 2: {"1"}}
    assert data.asked.rows.tolist() == [0, 1, 2]
    with pytest.raises(
        HeadtailError, match=r"has no user column, so .* do not match. Add `user_id` to both"
    ):
        read_interactions(train, write(tmp_path / "test.parquet", items=[[2]]))
    with pytest.raises(HeadtailError, match=r"`\S*train.parquet` has no user column"):
        read_interactions(
            train, write(tmp_path / "test.parquet", user_id=[1, 2, 3], items=[[2], [1], [0]])
        )


def test_bad_columns_are_reported(tmp_path):
    good = write(tmp_path / "good.parquet", user_id=[1], item_id=[1])
    for columns, sentence in [
        (
            {"user_id": [1], "thing": [2]},
            r"train.parquet` has columns `user_id`, `thing`. Interactions need",
        ),
        ({"user_id": [1.5], "item_id": [2]}, r"train.parquet`, column `user_id` holds fractions"),
        (
            {"user_id": [1, 2], "item_id": pa.array([2, None])},
            r"train.parquet`, column `item_id`: row 1 \(from 0\) is null",
        ),
        (
            {"user_id": ["1"], "item_id": [2]},
            r"good.parquet`, column `user_id` holds numbers, but training has strings",
        ),
        (
            {"user_id": [1], "items": pa.array([[]], pa.list_(pa.int64()))},
            r"train.parquet` holds no interaction",
        ),
    ]:
        with pytest.raises(HeadtailError, match=sentence):
            read_interactions(write(tmp_path / "train.parquet", **columns), good)
    with pytest.raises(HeadtailError, match="`holdout` must be between 0 and 1, but got 2"):
        read_interactions(good, holdout=2)


def test_gowalla_has_the_published_counts():
    folder = DATA / "gowalla"
    if not folder.exists():
        pytest.skip(f"gowalla is not in {DATA}; set HEADTAIL_DATA to the folder that holds it")
    data = read_interactions(folder / "train.parquet", folder / "test.parquet")
    assert (len(data.train), data.train.num_features, data.train.num_labels) == (
        29_858,
        29_858,
        40_981,
    )
    assert (data.train.num_pairs, data.test.num_pairs) == (810_128, 217_242)
    assert data.test.seen is not None
    assert len(data.test.seen.values) == 810_128
