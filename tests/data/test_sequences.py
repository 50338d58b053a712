"""Sequences become examples prefix → next item, as recomputed one by one."""

from __future__ import annotations

import os
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from headtail import HeadtailError
from headtail.data.load import load
from headtail.data.readers.sequences import read_sequences

DATA = Path(os.environ.get("HEADTAIL_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


def examples(points, names):
    """What a reader returned, as (features by name, target's name)."""
    found = []
    for i in range(len(points)):
        row = points.features.rows(torch.tensor([i])).bag()
        features = dict(
            zip((names[c] for c in row.columns.tolist()), row.values.tolist(), strict=True)
        )
        assert len(features) == len(row.columns), "columns within a point differ"
        (label,) = points.labels.values[
            points.labels.offsets[i] : points.labels.offsets[i + 1]
        ].tolist()
        found.append((features, names[label]))
    return found


def bag(prefix, known, last=10):
    """The features by definition."""
    weights = Counter()
    for i, item in enumerate(reversed(prefix[-last:] if last else prefix), start=1):
        if item in known:
            weights[item] += 1 / i
    return weights


def as_expected(found, expected):
    assert [target for _, target in found] == [target for _, target in expected]
    for (features, _), (wanted, _) in zip(found, expected, strict=True):
        assert features == pytest.approx(wanted)


@pytest.mark.parametrize("last", [1, 3, 10])
@pytest.mark.parametrize(
    "name", [lambda i: int(i) - 4, lambda i: f"né{i}"], ids=["numbers", "strings"]
)
@pytest.mark.parametrize("at_once", [1 << 20, 16])
def test_every_prefix_predicts_its_next_item(tmp_path, last, name, at_once):
    rng = np.random.default_rng(0)
    train = [[name(i) for i in rng.integers(0, 9, n)] for n in (5, 1, 0, 2, 14, 3)]
    known = {item for session in train for item in session}
    test = [[name(i) for i in rng.integers(0, 13, n)] for n in (1, 6, 3, 0)]
    targets = [name(2), name(12), name(5), name(3)]
    assert name(12) not in known
    data = read_sequences(
        write(tmp_path / "train.parquet", session=range(6), items=train),
        write(
            tmp_path / "test.parquet",
            items=pa.array(test, pa.list_(pa.array(targets).type)),
            target=targets,
        ),
        last=last,
        at_once=at_once,  # so that sequences come in many batches
    )
    assert data.label_names == sorted(known), "numbers stay numbers"
    assert data.train.num_labels == data.train.num_features == len(known)
    expected = [(bag(s[:i], known, last), s[i]) for s in train for i in range(1, len(s))]
    as_expected(examples(data.train, data.label_names), expected)
    expected = [(bag(s, known, last), y) for s, y in zip(test, targets, strict=True) if y in known]
    as_expected(examples(data.test, data.label_names), expected)
    assert "1 of 4 test examples have a target that never occurs in training" in " ".join(
        data.notes
    )
    assert "1 sequences have only one item" in " ".join(data.notes)


def test_without_targets_the_last_item_of_a_test_list_is_the_target(tmp_path):
    train = write(tmp_path / "train.parquet", items=[[1, 2, 3]])
    data = read_sequences(train, write(tmp_path / "test.parquet", items=[[3, 1, 2], [2], [9, 3]]))
    assert data.validation is None
    as_expected(examples(data.test, data.label_names), [({1: 1.0, 3: 0.5}, 2), ({}, 3)])


def test_training_rows_with_a_target_stand_as_they_are(tmp_path):
    train = write(tmp_path / "train.parquet", items=[[1, 2], [2]], target=[3, 1])
    data = read_sequences(train, write(tmp_path / "test.parquet", items=[[3]], target=[2]))
    as_expected(examples(data.train, data.label_names), [({2: 1.0, 1: 0.5}, 3), ({2: 1.0}, 1)])


def test_without_a_test_file_one_is_left_out_for_testing_and_one_for_validation(tmp_path):
    sessions = [[1, 2, 3, 1, 2], [2, 1], [3, 1, 2, 4, 3], [1, 2, 1], [5]]
    data = read_sequences(write(tmp_path / "s.parquet", user=range(5), items=sessions))
    known = {1, 2, 3}  # 4 is seen only where it validates, 5 stands alone
    assert data.label_names == [1, 2, 3]
    as_expected(
        examples(data.train, data.label_names),
        [(bag(s[:i], known), s[i]) for s in sessions for i in range(1, len(s) - 2)],
    )
    as_expected(
        examples(data.validation, data.label_names),
        [(bag([1, 2, 3], known), 1), (bag([1], known), 2)],
    )
    as_expected(
        examples(data.test, data.label_names), [(bag(s[:-1], known), s[-1]) for s in sessions[:4]]
    )
    assert "1 of 3 validation examples" in " ".join(data.notes)
    assert data.asked.rows.tolist() == data.asked.users.to_pylist() == [0, 1, 2, 3, 4]
    assert data.train.rows.tolist() == [0, 0, 2, 2]


@pytest.mark.parametrize("name", [int, str])
@pytest.mark.parametrize("at_once", [1 << 20, 2])
def test_every_test_row_is_asked_in_its_place_whatever_its_target(tmp_path, name, at_once):
    kind = pa.int64() if name is int else pa.string()
    lists = [[1, 2], [], [9], [2, 9, 3], [3]]
    targets = [7, 1, 2, None, 3]
    lists = [[name(i) for i in one] for one in lists]
    targets = [None if i is None else name(i) for i in targets]
    users = [f"ü{i}" for i in "edcba"]
    test = write(
        tmp_path / "test.parquet",
        uid=users,
        items=pa.array(lists, pa.list_(kind)),
        target=pa.array(targets, kind),
    )
    train = write(tmp_path / "train.parquet", items=[[name(i) for i in (1, 2, 3)]])
    data = read_sequences(train, test, at_once=at_once)
    asked = data.asked
    known = [name(i) for i in (1, 2, 3)]
    assert asked.rows.tolist() == [0, 1, 2, 3, 4]
    assert asked.users.to_pylist() == users
    assert data.test.rows.tolist() == [1, 2, 4]
    assert data.test.users.to_pylist() == [users[i] for i in (1, 2, 4)]
    dense = asked.features.bag().to_dense()
    for i, prefix in enumerate(lists):
        wanted = bag(prefix, known)
        assert dense[i].tolist() == pytest.approx([wanted[item] for item in known])
    labels = [asked.labels.values[a:b].tolist() for a, b in pairwise(asked.labels.offsets.tolist())]
    assert labels == [[], [0], [1], [], [2]]
    assert "2 of 5 test examples have a target that never occurs in training, or none" in " ".join(
        data.notes
    )


def test_sending_points_to_another_process_leaves_their_users_where_they_are(tmp_path):
    users = [f"user {i}" for i in range(50)]
    items = [[i % 7, i % 5, i % 3, i % 2] for i in range(50)]
    data = load(write(tmp_path / "lists.parquet", user=users, items=items))
    rows = data.test.rows
    before = rows.data_ptr()
    codes = data.test.users.indices.buffers()[1]
    rows.share_memory_()  # as torch does when a process is started with a tensor
    assert rows.data_ptr() != before
    assert not before <= codes.address < before + rows.nbytes
    assert data.test.users.to_pylist() == users


def test_rows_without_any_target_are_asked(tmp_path):
    train = write(tmp_path / "train.parquet", items=[[1, 2, 3]])
    data = read_sequences(
        train, write(tmp_path / "test.parquet", items=[[3, 1], [2]], target=pa.nulls(2))
    )
    assert (len(data.test), data.asked.rows.tolist()) == (0, [0, 1])
    assert data.asked.features.bag().to_dense().tolist() == [[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]]
    with pytest.raises(
        HeadtailError, match=r"train.parquet`, column `target`: row 1 \(from 0\) is null"
    ):
        read_sequences(
            write(tmp_path / "train.parquet", items=[[1], [2]], target=pa.array([2, None])), train
        )


def test_numbers_from_zero_are_their_own_names_and_each_type_of_list_reads_alike(tmp_path):
    kinds = [
        pa.list_(pa.int16()),
        pa.large_list(pa.uint64()),
        pa.list_(pa.int32(), 3),
        pa.list_(pa.dictionary(pa.int8(), pa.string())),
    ]
    for i, kind in enumerate(kinds):
        text = pa.types.is_list(kind) and pa.types.is_dictionary(kind.value_type)
        lists = [[0, 1, 2], [2, 0, 1]]
        lists = pa.array([[str(x) for x in row] for row in lists] if text else lists, kind)
        path = write(tmp_path / f"{i}.parquet", things=lists)
        data = read_sequences(path, path)
        assert data.label_names == (["0", "1", "2"] if text else None)
        assert data.train.labels.values.tolist() == [1, 2, 0, 1]


def test_the_second_reading_comes_from_the_cache_and_other_options_do_not(tmp_path):
    path = write(tmp_path / "train.parquet", items=[[1, 2, 3, 4, 5]])
    reports = []
    first = read_sequences(path, path, progress=lambda *report: reports.append(report))
    assert reports[-1] == ("reading train.parquet", 1.0)
    assert read_sequences(path, path, last=1).digest != first.digest
    reports.clear()
    again = read_sequences(path, path, progress=lambda *report: reports.append(report))
    assert reports == [], "nothing was built again"
    assert again.digest == first.digest
    assert torch.equal(again.train.features.bag().to_dense(), first.train.features.bag().to_dense())


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (pa.array([[1, 2], None]), r"column `items`: row 1 \(from 0\) is null"),
        (
            pa.array([[1, 2], [], [3, None]]),
            r"column `items`: the list of row 2 \(from 0\) has a null",
        ),
        (
            pa.array([[1.0, 2.5]]),
            r"column `items` holds fractions, but ids must be whole numbers or strings",
        ),
        (pa.array([[[1], [2]]]), r"column `items` holds list<"),
        (pa.array([1, 2]), r"has no list column `items`, only `items`"),
        (pa.array([[1], []]), "gives no train example"),
        (pa.array([[], []], pa.list_(pa.int64())), "holds no items to train on"),
        (
            pa.array([[2**63, 1]], pa.list_(pa.uint64())),
            "has ids above int64. Write them as strings",
        ),
    ],
)
@pytest.mark.parametrize("at_once", [1 << 20, 1])
def test_bad_columns_are_reported_with_file_and_column(tmp_path, column, sentence, at_once):
    good = write(tmp_path / "good.parquet", items=[[1, 2]])
    with pytest.raises(HeadtailError, match=rf"`\S*train.parquet`.*{sentence}"):
        read_sequences(write(tmp_path / "train.parquet", items=column), good, at_once=at_once)
    assert not [entry for entry in (tmp_path / "cache").glob("*") if entry.name != "digests"], (
        "a failed reading leaves nothing"
    )


def test_bad_test_files_are_reported(tmp_path):
    train = write(tmp_path / "train.parquet", items=[[1, 2]])
    for columns, sentence in [
        (
            {"items": [["1", "2"]]},
            r"test.parquet`, column `items` holds strings, but training has numbers",
        ),
        (
            {"items": [[1]], "target": ["2"]},
            r"test.parquet`, column `target` holds strings, but training has numbers",
        ),
        ({"items": [[1]], "target": [2.5]}, r"test.parquet`, column `target` holds fractions"),
        (
            {"items": pa.array([], pa.list_(pa.int64()))},
            r"test.parquet` has no rows, so it gives no test example",
        ),
        ({"a": [[1]], "b": [[2]]}, r"test.parquet` has no list column `items`, only `a`, `b`"),
    ]:
        with pytest.raises(HeadtailError, match=sentence):
            read_sequences(train, write(tmp_path / "test.parquet", **columns))


def test_a_damaged_or_missing_file_is_reported(tmp_path):
    path = write(tmp_path / "train.parquet", items=[list(range(500))] * 50)
    whole = path.read_bytes()
    for content in (
        whole[: len(whole) // 2],
        b"",
        b"no parquet at all",
        b"PAR1" + bytes(len(whole)) + whole[-400:],
    ):
        path.write_bytes(content)
        with pytest.raises(HeadtailError, match=r"train.parquet` is not a readable Parquet file"):
            read_sequences(path)
    with pytest.raises(HeadtailError, match=r"gone.parquet` is not a file"):
        read_sequences(tmp_path / "gone.parquet")
    with pytest.raises(
        HeadtailError, match="`last` must be a whole number of at least 1, but got 0"
    ):
        read_sequences(path, last=0)


@pytest.mark.parametrize(
    ("name", "train", "test", "labels"),
    [("diginetica", 719_470, 60_858, 43_097), ("nowplaying", 825_304, 89_824, 60_416)],
)
def test_real_sessions_give_the_published_number_of_examples(name, train, test, labels):
    folder = DATA / name
    if not folder.exists():
        pytest.skip(f"{name} is not in {DATA}; set HEADTAIL_DATA to the folder that holds it")
    data = read_sequences(folder / "train.parquet", folder / "test.parquet")
    assert (len(data.train), len(data.test), data.train.num_labels) == (train, test, labels)
    assert int(data.train.features.items.max()) < labels


def test_beauty_leaves_one_out():
    path = DATA / "beauty" / "sequences.parquet"
    if not path.exists():
        pytest.skip(f"beauty is not in {DATA}; set HEADTAIL_DATA to the folder that holds it")
    data = read_sequences(path)
    assert data.validation is not None
    # all but the first and the last two items of each user
    assert len(data.train) == 353_962 - 3 * 40_226
    left_out = [int(note.split(" of ")[0].replace(",", "")) for note in data.notes[1:]]
    assert [len(data.validation), len(data.test)] == [40_226 - number for number in left_out]


def test_without_a_test_part_a_target_is_the_last_item_of_its_users_sequence():
    lists = [[(row + step) % 7 for step in range(2 + row % 3)] for row in range(40)]
    targets = [row % 5 for row in range(40)]
    frame = pa.table({"session_id": range(40), "item_id_list": lists, "item_id": targets})
    whole = [[*row, target] for row, target in zip(lists, targets, strict=True)]
    data, same = load(frame), load(pa.table({"items": whole}))
    assert "session_id → session, item_id_list → items, item_id → next item." in data.notes
    for part in ("train", "validation", "test"):
        found, wanted = getattr(data, part), getattr(same, part)
        as_expected(
            examples(found, data.label_names or range(7)),
            examples(wanted, same.label_names or range(7)),
        )
    with pytest.raises(HeadtailError, match="`holdout` would do nothing"):
        load(frame, holdout=0.5)


@pytest.mark.parametrize("named", [True, False])
def test_rows_with_targets_that_may_be_of_one_user_are_held_out_together(named):
    owners = [row // 4 for row in range(80)]
    columns = {"user_id": owners} if named else {}
    lists = {"items": [[row % 9] * (1 + row % 4) for row in range(80)], "target": [1, 2, 3, 4] * 20}
    data = load(pa.table(columns | lists), holdout=0.25)
    what = "users" if named else "rows"
    assert f"with 25% of the {what}, chosen at random, held out" in data.notes[0]
    assert (len(data.train), len(data.test)) == (60, 20)
    parts = [set(part.rows.tolist()) for part in (data.train, data.test)]
    assert parts[0] | parts[1] == set(range(80))
    if named:
        assert not {owners[row] for row in parts[0]} & {owners[row] for row in parts[1]}
    last = load(pa.table(columns | lists), split="last")
    assert len(last.test) == 80


def test_lists_with_a_validation_part_alone_are_tested_on_it():
    lists = pa.table({"items": [[1, 2, 3, 4]] * 3})
    data = load({"train": lists, "validation": lists})
    assert "The validation part is the only test part." in data.notes
    assert "last item of each sequence for testing" not in data.notes[0]


def test_lists_of_words_with_numbers_as_targets_are_refused():
    table = pa.table({"items": [["a", "b"]] * 8, "target": [1] * 8})
    with pytest.raises(HeadtailError, match=r"column `target` holds numbers, but training has str"):
        load(table)
