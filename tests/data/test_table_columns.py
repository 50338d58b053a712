"""What columns are for: found by name and type, chosen by settings, or refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from headtail import HeadtailError
from headtail.data.load import load
from tests.data.test_logs import log

NUMBERS = pd.DataFrame(
    {
        "row_id": range(40),
        "x1": np.linspace(0, 1, 40),
        "x2": range(40),
        "note": ["word"] * 40,
        "category": ["cat", "dog"] * 20,
    }
)


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (
            ("reviewerID", "asin", "unixReviewTime"),
            "reviewerID → user, asin → item, unixReviewTime",
        ),
        (("visitorid", "itemid", "timestamp"), "visitorid → user, itemid → item, timestamp → time"),
        (("Customer ID", "StockCode", "InvoiceDate"), "Customer ID → user, StockCode → item, Inv"),
        (("user_id", "track_id", "ts"), "user_id → user, track_id → item, ts → time"),
        (("SessionId", "ItemId", "Time"), "SessionId → session, ItemId → item, Time → time"),
        (("uid", "movie", "date"), "uid → user, movie → item, date → time"),
    ],
)
def test_common_names_are_known(names, note):
    frame = log().set_axis(names, axis=1).assign(event="view")
    assert load(frame).notes[1].startswith(note)
    assert load(frame).notes[1].endswith("; event is not used.")


def test_settings_choose_other_columns():
    frame = log().rename(columns={"user": "who", "item": "what", "time": "clock"})
    data = load(frame, user="who", item="what", time="clock")
    assert data.notes[1] == "who → user, what → item, clock → time."
    by_default = log().assign(product=log().item, moment=log().time)
    data = load(by_default, item="product", time="moment")
    assert data.notes[1] == "user → user, product → item, moment → time; item, time are not used."
    with pytest.raises(HeadtailError, match=r"it is not clear what they are for"):
        load(frame)


def test_ids_may_be_whole_floats_but_not_fractions():
    frame = log()
    data = load(frame.assign(item=frame.item.astype(float)))
    assert data.label_names == load(frame).label_names
    with pytest.raises(HeadtailError, match=r"column `item` holds fractions"):
        load(frame.assign(item=frame.item + 0.5))
    with pytest.raises(HeadtailError, match=r"column `user`: row 3 \(from 0\) is null"):
        load(frame.assign(user=[*frame.user[:3], None, *frame.user[4:]]))
    with pytest.raises(
        HeadtailError, match=r"column `time`: row 3 .* is null. .* or write a time\."
    ):
        load(frame.assign(time=[*frame.time[:3], None, *frame.time[4:]]))


def test_numbers_that_are_missing_are_reported_with_their_columns():
    frame = NUMBERS.assign(x3=1.0)
    frame.loc[3, "x2"] = frame.loc[5, "x1"] = float("nan")
    said = r"column `x2`: row 3 \(from 0\) is missing or not finite \(so are values of `x1`\)\."
    with pytest.raises(HeadtailError, match=said):
        load(frame)


def test_labels_with_numbers_are_dense_points():
    data = load(NUMBERS)
    assert data.notes[1] == "category → label, x1, x2 → features; row_id, note are not used."
    assert data.label_names == ["cat", "dog"]
    assert data.whole.features[:3].flatten().tolist() == pytest.approx(
        [0.0, 0.0, 1 / 39, 1.0, 2 / 39, 2.0]
    )
    assert load(NUMBERS, features="x2").train.num_features == 1
    several = NUMBERS.assign(category=[["cat"], ["dog", "cat"]] * 20)
    assert load(several, features=["x1"]).whole.labels.offsets[:4].tolist() == [0, 1, 3, 4]
    vectors = pd.DataFrame({"embedding": [[1.0, 2.0]] * 10, "y": range(10)})
    assert load(vectors).train.features.shape == (8, 2)


def test_test_rows_may_lack_a_known_label():
    test = NUMBERS[:4].assign(category=["cat", None, "cow", "dog"])
    data = load(NUMBERS, test=test)
    assert data.test.labels.offsets.tolist() == [0, 1, 1, 1, 2]
    assert "1 labels of test or validation rows never occur in training" in " ".join(data.notes)
    data = load(NUMBERS, test=NUMBERS[:4].drop(columns="category"))
    assert data.test.num_pairs == 0


@pytest.mark.parametrize(
    ("frame", "options", "sentence"),
    [
        (NUMBERS.assign(x1=np.nan), {}, r"column `x1`: row 0 \(from 0\) is missing or not"),
        (NUMBERS, {"features": "note"}, r"column `note` holds .*string, but features must be num"),
        (NUMBERS[["category"]], {"label": "category"}, r"none of them is for features"),
        (NUMBERS, {"features": "x9"}, r"`features` is `x9`, but .* Did you mean `x2` or `x1`"),
        (
            pd.DataFrame({"vector": [[1.0], [1.0, 2.0]], "label": [0, 1]}),
            {},
            r"column `vector`: row 1 \(from 0\) is not a list of 1 numbers",
        ),
        (NUMBERS.assign(category=np.linspace(0, 1, 40)), {}, r"column `category` holds fractions"),
    ],
)
def test_numbers_that_cannot_be_used_are_one_sentence(frame, options, sentence):
    with pytest.raises(HeadtailError, match=sentence):
        load(frame, **options)


def test_test_rows_without_a_column_of_training_are_refused():
    with pytest.raises(HeadtailError, match=r"but not `x2`, which training has"):
        load(NUMBERS, test=NUMBERS.rename(columns={"x2": "z"}), label="category")


def test_lists_of_labels_beside_text_are_not_sequences():
    frame = pd.DataFrame({"text": ["my cat sleeps", "a dog"] * 9, "labels": [[0, 2], [1]] * 9})
    data = load(frame)
    assert data.notes[0].startswith("Read as raw text")
    assert data.train.num_labels == 3


@pytest.mark.parametrize("name", ["input_ids", "words"])
def test_lists_beside_a_label_are_refused_with_both_readings(name):
    frame = pd.DataFrame({name: [[1, 2, 3, 4]] * 6, "label": [0, 1] * 3})
    with pytest.raises(HeadtailError) as error:
        load(frame)
    sentence = str(error.value)
    assert f"`format='sequences'` with `item='{name}'`" in sentence
    assert "fits two readings" in sentence
    data = load(frame, format="sequences", item=name)
    assert data.notes[0].startswith("Read as sequences")
    assert "label is not used" in " ".join(data.notes)


def test_lists_of_items_name_the_columns_that_are_not_used():
    frame = pd.DataFrame({"user": [1, 2], "items": [[1, 2, 3, 4]] * 2, "country": ["a", "b"]})
    assert "user → user, items → items; country is not used." in load(frame).notes


def test_lists_of_items_are_split_by_their_last_item_or_as_a_whole():
    lists = [[i % 7, i % 5, i % 3, i % 2] for i in range(50)]
    frame = pd.DataFrame({"items": lists})
    for split in ("random", "session"):
        data = load(frame, split=split)
        assert "with 20% of the sequences, chosen at random, held out" in data.notes[0]
        rows = [set(part.rows.tolist()) for part in (data.train, data.test)]
        assert not rows[0] & rows[1]
        assert (len(rows[1]), len(data.test)) == (10, 30)
    assert len(load(frame, split="last").test) == len(load(frame).test) == 50
    assert len(load(frame, split="session", holdout=0.5).test) == 75
    with pytest.raises(HeadtailError, match=r"`split='time'` needs a column of times"):
        load(frame, split="time")
    with pytest.raises(HeadtailError, match=r"`holdout` would do nothing"):
        load(frame, holdout=0.5)
    users = frame.assign(user=range(50))
    with pytest.raises(HeadtailError, match=r"lists of items without an order.* leave `split` out"):
        load(users, format="interactions", split="last")


def test_other_columns_of_the_same_table_are_not_taken_from_the_cache():
    lists = [[i % 7, i % 5, i % 3, i % 2] for i in range(50)]
    frame = pd.DataFrame({"a": lists, "b": [row[::-1] for row in lists], "user": range(50)})
    for format_name in ("sequences", "interactions"):
        first, second = (load(frame, format=format_name, item=name) for name in "ab")
        assert first.digest != second.digest
        one, other = (load(frame[[name, "user"]], format=format_name) for name in "ab")
        assert first.test.labels.values.tolist() == one.test.labels.values.tolist()
        assert second.test.labels.values.tolist() == other.test.labels.values.tolist()


def reviews() -> pd.DataFrame:
    names = {"user": "reviewerID", "item": "asin", "time": "unixReviewTime"}
    frame = log().rename(columns=names)
    return frame.assign(helpful=[[0, 1]] * len(frame))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"user": "reviewerID", "item": "asin", "time": "unixReviewTime"},
        {"format": "sequences", "item": "asin", "time": "unixReviewTime"},
        {"format": "interactions", "item": "asin"},
    ],
)
def test_a_log_stays_one_beside_a_column_of_lists(options):
    found = load(reviews(), **options)
    assert "reviewerID → user, asin → item, unixReviewTime → time" in " ".join(found.notes)
    assert found.train.num_labels == 40


def test_named_columns_make_a_log_beside_lists_of_items():
    frame = reviews().rename(columns={"helpful": "item_list"})
    assert load(frame, item="asin", time="unixReviewTime").train.num_labels == 40


def test_a_column_named_twice_is_refused():
    frame = pd.DataFrame({"a": [1, 1, 2, 2], "b": [5, 6, 5, 6]})
    sentence = r"The column `a` is named twice: by `user` and by `item`"
    with pytest.raises(HeadtailError, match=sentence):
        load(frame, user="a", item="a")


def test_a_table_without_rows_is_one_sentence():
    frame = pd.DataFrame({"user": [1], "item": [2], "time": [3]})
    with pytest.raises(HeadtailError, match="`data` has no rows, so there is nothing to learn"):
        load(frame[:0])


@pytest.mark.parametrize(
    ("holdout", "sentence"), [(0.99, "no train .* a smaller"), (0.01, "no test .* a larger")]
)
def test_a_share_that_leaves_no_example_is_told_which_way_to_go(holdout, sentence):
    users = [1, 1, 1, 2, 2, 2, 3, 4] if holdout > 0.5 else [1, 1, 1, 2, 2, 2, 3]
    frame = pd.DataFrame({"user": users, "item": 1, "time": range(len(users))})
    with pytest.raises(HeadtailError, match=f"gives {sentence} `holdout`"):
        load(frame, holdout=holdout)


@pytest.mark.parametrize("options", [{}, {"user": "nobody"}])
def test_an_error_names_twenty_of_many_columns(options):
    frame = pd.DataFrame([["a"] * 3000], columns=[f"c{i}x" for i in range(3000)])
    with pytest.raises(HeadtailError, match=r"`c19x` and 2,980 more") as raised:
        load(frame, **options)
    assert len(str(raised.value)) < 1000
