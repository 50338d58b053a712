"""Logs of interactions: parts by time, by user and by session, against a plain recomputation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from headtail import HeadtailError
from headtail.data.load import load
from headtail.data.readers import log_scan, log_sort
from tests.data.test_tables import examples


def log(number=400, users=25, items=40, seed=0, times=10_000):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "user": [f"u{i}" for i in rng.integers(0, users, number)],
            "item": rng.integers(0, items, number),
            "time": rng.integers(0, times, number),
        }
    )


def by_hand(frame, part):
    """Examples by part: the items before each item of a user, in the order of time.

    `part` is the part of each row of the frame.
    """
    frame = frame.assign(part=part).sort_values(["user", "time"], kind="stable")
    known = set(frame.item[frame.part == "train"])
    found = {"train": [], "validation": [], "test": []}
    for _, rows in frame.groupby("user", sort=True):
        items = rows["item"].tolist()
        for i in range(1, len(items)):
            if items[i] in known:
                before = [item for item in items[:i] if item in known]
                found[rows["part"].iloc[i]].append((before, items[i]))
    return found


def same(data, wanted):
    for part, pairs in wanted.items():
        if pairs or getattr(data, part) is not None:
            assert examples(data, part) == pairs, part


@pytest.mark.parametrize("holdout", [0.2, 0.5])
def test_by_time_the_last_interactions_of_all_are_tested(holdout):
    frame = log()
    times = np.sort(frame.time.to_numpy())
    test = times[len(times) - round(holdout * len(times))]
    before = times[times < test]
    validation = before[len(before) - round(0.1 * len(before))]
    part = np.where(frame.time >= test, "test", "train")
    part = np.where((frame.time >= validation) & (frame.time < test), "validation", part)
    data = load(frame, holdout=holdout)
    same(data, by_hand(frame, part))
    assert data.notes[2].startswith(f"Split by time: the last {holdout:.0%} of the interactions")
    assert data.test.users is not None


def test_a_user_without_training_history_is_tested_on_its_own_earlier_items():
    frame = log()
    late = pd.DataFrame({"user": ["new"] * 3, "item": [1, 2, 3], "time": [20_000, 20_001, 20_002]})
    data = load(pd.concat([frame, late]))
    assert ([1], 2) in examples(data)
    assert ([1, 2], 3) in examples(data)


@pytest.mark.parametrize("at_once", [1 << 20, 50])
def test_by_user_the_last_item_is_tested_and_the_one_before_it_validates(monkeypatch, at_once):
    for module in (log_scan, log_sort):
        monkeypatch.setattr(module, "AT_ONCE", at_once)
    monkeypatch.setattr(log_scan, "ROWS", at_once)
    frame = log()
    ordered = frame.sort_values(["user", "time"], kind="stable")
    behind = ordered.groupby("user").cumcount(ascending=False)
    part = behind.map({0: "test", 1: "validation"}).fillna("train").reindex(frame.index)
    data = load(frame, split="last")
    same(data, by_hand(frame, part.to_numpy()))
    assert data.notes[2].startswith("Split by user: the last item of each is for testing")


def test_sessions_are_never_cut_in_two_and_the_latest_are_tested():
    frame = log(users=60).rename(columns={"user": "session_id"})
    data = load(frame)
    starts = frame.groupby("session_id").time.min()
    order = sorted(starts.index, key=lambda name: (starts[name], name))
    test = set(order[len(order) - round(0.2 * len(order)) :])
    left = [name for name in order if name not in test]
    validation = set(left[len(left) - round(0.1 * len(left)) :])
    part = frame.session_id.map(
        lambda name: "test" if name in test else "validation" if name in validation else "train"
    )
    same(data, by_hand(frame.rename(columns={"session_id": "user"}), part.to_numpy()))
    assert data.notes[2].startswith(
        "Split by session: sessions are held out as a whole, the latest"
    )


def test_without_time_random_sessions_are_held_out_whole():
    frame = log(users=60).rename(columns={"user": "session"}).drop(columns="time")
    data = load(frame)
    rows = [set(getattr(data, part).features.row.tolist()) for part in ("train", "test")]
    assert not rows[0] & rows[1]
    assert len(rows[1]) == 12
    assert "random ones" in data.notes[2]
    again = load(frame)
    assert examples(again) == examples(data)
    by_user = load(frame.rename(columns={"session": "user"}), format="sequences", split="random")
    assert examples(by_user) == examples(data)


def test_a_given_test_part_is_what_is_tested_after_all_of_training():
    frame = log()
    rng = np.random.default_rng(1)
    part = np.where(rng.random(len(frame)) < 0.3, "test", "train")
    train, test = frame[part == "train"], frame[part == "test"]
    data = load(train, test=test)
    assert "The test part is given; the latest 7% of all are for validation." in data.notes
    # Training examples never see a test item before them.
    shifted = frame.assign(time=frame.time + 10**6 * (part == "test"))
    times = np.sort(train.time.to_numpy())
    cut = times[len(times) - round(0.1 * len(times))]
    part = np.where((part == "train") & (frame.time >= cut), "validation", part)
    same(data, by_hand(shifted, part))


def test_given_validation_is_used():
    frame = log()
    parts = {"train": frame[:300], "test": frame[350:], "validation": frame[300:350]}
    data = load(parts)
    assert "The test and validation parts are given." in data.notes
    codes = np.r_[["train"] * 300, ["validation"] * 50, ["test"] * 50]
    later = np.select([codes == "test", codes == "validation"], [2, 1])
    same(data, by_hand(frame.assign(time=frame.time + 10**6 * later), codes))


@pytest.mark.parametrize(
    "times",
    [
        lambda seconds: seconds * 1000,
        lambda seconds: seconds + 0.5,
        lambda seconds: pd.to_datetime(seconds, unit="s"),
        lambda seconds: pd.to_datetime(seconds, unit="s").dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
        lambda seconds: pd.to_datetime(seconds, unit="s").astype(str),
        lambda seconds: seconds.astype(str),
    ],
    ids=["milliseconds", "floats", "datetimes", "ISO with zone", "ISO", "digits"],
)
def test_times_may_be_written_in_any_way(times):
    frame = log()
    frame["time"] += 1_500_000_000
    assert examples(load(frame.assign(time=times(frame.time)))) == examples(load(frame))


def test_days_are_times_and_ties_keep_the_order_of_the_rows():
    frame = log(times=20)
    days = pd.to_datetime(frame.time, unit="D").dt.date
    data = load(frame.assign(time=days))
    assert examples(data) == examples(load(frame))
    assert "(from 1970-01-1" in data.notes[2]


def test_times_that_are_all_the_same_cannot_split():
    with pytest.raises(HeadtailError, match=r"same time to split by it. Choose `split='last'`"):
        load(log().assign(time=7))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"min_rating": 3},
            r"`min_rating` needs a column of ratings, but .* Name it with `rating`",
        ),
        ({"split": "session"}, r"`split='session'` needs a column of sessions, but"),
        ({"user": "usr"}, r"`user` is `usr`, but `data` has the columns .* Did you mean `user`"),
        ({"last": 0}, r"`last` must be a whole number of at least 1"),
    ],
)
def test_settings_that_do_not_fit_are_one_sentence(options, sentence):
    with pytest.raises(HeadtailError, match=sentence):
        load(log(), **options)


def test_splitting_by_time_needs_time():
    with pytest.raises(HeadtailError, match=r"`split='time'` needs a column of times"):
        load(log().drop(columns="time"), split="time")


@pytest.mark.parametrize(
    ("row", "value"), [(0, "notadate"), (7, "yesterday"), (9, "2026-01-31 12:00:00"), (5, "12.5.")]
)
def test_a_time_that_is_none_is_named_with_its_row(tmp_path, row, value):
    frame = log()
    frame["time"] = frame.time.astype(str)
    frame.loc[row, "time"] = value
    path = tmp_path / "badtime.csv"
    frame.to_csv(path, index=False)
    sentence = rf"badtime.csv`, row {row} \(from 0\): `{value}` in column `time` is not a time"
    with pytest.raises(HeadtailError, match=sentence) as caught:
        load(path)
    assert "zone" not in str(caught.value)


def test_ratings_below_the_least_are_dropped_and_otherwise_named():
    frame = log()
    frame["stars"] = np.random.default_rng(2).integers(1, 6, len(frame))
    assert "whatever their stars; with `min_rating=4` those below 4" in " ".join(load(frame).notes)
    kept = load(frame, min_rating=3)
    assert examples(kept) == examples(load(frame[frame.stars >= 3].drop(columns="stars")))
    assert "stars → rating" in kept.notes[1]
    sentence = (
        "holds no interaction with a rating of at least 6: the largest is 5. .* smaller `min_r"
    )
    with pytest.raises(HeadtailError, match=sentence):
        load(frame, min_rating=6)


def test_what_the_least_rating_drops_is_counted(tmp_path):
    frame = log()
    frame["stars"] = np.random.default_rng(2).integers(1, 6, len(frame)).astype(float)
    below = int((frame.stars < 3).sum())
    note = f"{below} interactions with a rating below 3 are dropped"
    assert f"{note}." in load(frame, min_rating=3).notes
    frame.loc[frame.index[frame.stars >= 3][:7], "stars"] = np.nan
    frame.to_csv(tmp_path / "log.csv", index=False)
    assert f"{note}, and 7 without a rating." in load(tmp_path / "log.csv", min_rating=3).notes
    assert "dropped" not in " ".join(load(frame.dropna(), min_rating=1).notes)


def test_a_rating_that_is_a_word_is_named_with_its_row(tmp_path):
    frame = log().assign(rating="4.5")
    with pytest.raises(HeadtailError, match="column `rating` holds strings, but ratings must be"):
        load(frame, min_rating=3)
    frame.loc[11, "rating"] = "good"
    frame.to_csv(tmp_path / "log.csv", index=False)
    sentence = r"log.csv`, row 11 \(from 0\): `good` in column `rating` is not a rating"
    for options in ({}, {"rating": "rating"}):
        with pytest.raises(HeadtailError, match=sentence):
            load(tmp_path / "log.csv", min_rating=3, **options)


def test_interactions_that_repeat_are_counted():
    frame = log()
    twice = pd.concat([frame, frame[:7]])
    note = "7 interactions repeat another of the same user, item and time. They are kept."
    assert note in load(twice).notes
    assert "They count once." in " ".join(load(twice, format="interactions").notes)


def sets(points, ragged):
    rows = [ragged.values[a:b].tolist() for a, b in pairwise(ragged.offsets.tolist())]
    assert all(len(row) == len(set(row)) for row in rows)
    return dict(zip(points.users.to_pylist(), map(set, rows), strict=True))


def test_as_interactions_a_log_is_split_by_time_too():
    frame = log()
    data = load(frame, format="interactions")
    times = np.sort(frame.time.to_numpy())
    cut = times[len(times) - round(0.2 * len(times))]
    early = times[times < cut]
    first = early[len(early) - round(0.1 * len(early))]
    names = data.label_names or list(range(data.train.num_labels))
    had = frame[frame.time < first].groupby("user").item.agg(set).to_dict()
    before = frame[frame.time < cut].groupby("user").item.agg(set).to_dict()
    later = frame[frame.time >= cut].groupby("user").item.agg(set).to_dict()
    named = {u: {names[i] for i in ids} for u, ids in sets(data.train, data.train.labels).items()}
    assert named == had
    wanted = {u: (later[u] - before[u]) & set(names) for u in later if u in had}
    wanted = {u: items for u, items in wanted.items() if items}
    named = {u: {names[i] for i in ids} for u, ids in sets(data.test, data.test.labels).items()}
    assert named == wanted
    seen = {u: {names[i] for i in ids} for u, ids in sets(data.test, data.test.seen).items()}
    assert seen == {u: before[u] & set(names) for u in wanted}
    assert data.validation is not None
    asked = set(data.asked.users.to_pylist())
    assert asked == set(had)


def test_as_interactions_without_time_a_random_share_of_each_user_is_held_out():
    frame = log().drop(columns="time")
    data = load(frame)
    assert data.notes[0].startswith("Read as interactions")
    assert "20% of each user's items are held out" in " ".join(data.notes)
    last = load(frame, split="last")
    assert last.test.labels.offsets.diff().max() == 1
    rated = load(frame.assign(rating=5), min_rating=2)
    assert "Split at random: 20% of each user's items" in " ".join(rated.notes)
    assert rated.test.num_pairs == data.test.num_pairs


def test_every_user_is_asked_what_comes_after_all_its_items():
    frame = log()
    whole = load(frame).whole
    counts = frame.groupby("user").size()
    assert dict(zip(whole.users.to_pylist(), whole.features.end.tolist(), strict=True)) == (
        counts.to_dict()
    )
    assert whole.num_pairs == 0
    assert load(frame[:300], test=frame[300:]).whole is None
    with pytest.raises(HeadtailError, match=r"`holdout` would do nothing"):
        load(frame, split="last", holdout=0.5)


def test_as_interactions_users_count_and_not_their_sessions():
    frame = log().assign(session_id=lambda rows: rows.user + (rows.time // 3000).astype(str))
    by_user = load(frame, format="interactions")
    assert set(by_user.train.users.to_pylist()) <= set(frame.user)
    assert "session_id is not used" in by_user.notes[1]
    assert (
        load(frame).notes[1] == "session_id → session, item → item, time → time; user is not used."
    )
    with pytest.raises(HeadtailError, match=r"`split='session'` holds whole sessions out, but"):
        load(frame, format="interactions", split="session")


def test_other_data_are_split_at_random_only():
    frame = pd.DataFrame({"x": np.arange(20.0), "label": ["a", "b"] * 10})
    assert len(load(frame, split="random").test) == 4
    with pytest.raises(HeadtailError, match=r"`split` would do nothing to `data`: it is for logs"):
        load(frame, split="last")
    with pytest.raises(HeadtailError, match=r"`split` would do nothing to `data`: it is for logs"):
        load(log()[:300], test=log()[300:], split="last")


def test_a_time_without_end_is_named_with_its_row():
    frame = log()
    frame["time"] = frame.time.astype(float)
    frame.loc[4, "time"] = np.inf
    with pytest.raises(HeadtailError, match=r"row 4 \(from 0\): `inf` in column `time` is not a"):
        load(frame)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ("holdout", "The test part is given; the latest 5% of all are for validation."),
        ("eval", "The test part is given; the latest 5% of all are for validation."),
        ("dev", "The validation part is given; for testing, the training part gives up the latest"),
    ],
)
def test_the_second_part_has_many_names(other, sentence, tmp_path):
    first, second = log(), log(seed=1)
    first.to_csv(tmp_path / "train.csv", index=False)
    second.to_csv(tmp_path / f"{other}.csv", index=False)
    second.to_csv(tmp_path / "copy.csv", index=False)
    data = load(tmp_path)
    assert sentence in " ".join(data.notes)
    assert "Files that are not read: copy.csv." in data.notes
    part = data.validation if other == "dev" else data.test
    assert len(part) > 350
    assert len(data.train) + len(data.test) + len(data.validation) > 700


def test_eval_beside_test_is_for_validation(tmp_path):
    for name, number in (("train", 400), ("eval", 80), ("test", 150)):
        log(number).to_csv(tmp_path / f"{name}.csv", index=False)
    data = load(tmp_path)
    assert (len(data.validation), len(data.test)) == (80, 150)


@pytest.mark.parametrize(
    ("read_as", "split"),
    [
        ("sequences", "last"),
        ("sequences", "random"),
        ("sequences", "time"),
        ("interactions", "random"),
        ("interactions", "time"),
    ],
)
def test_a_given_validation_part_is_validated_on(read_as, split):
    first = log()
    second = log(40, seed=1).assign(time=20_000)
    data = load({"train": first, "validation": second}, format=read_as, split=split)
    assert data.notes[2].startswith("The validation part is given; for testing, the training part")
    pairs = set(zip(second.user, second.item, strict=True)) - set(
        zip(first.user, first.item, strict=True)
    )
    number = data.validation.num_pairs
    assert number == 40 if read_as == "sequences" else len(pairs) - 3 <= number <= 40
    assert len(data.test) > 0


def test_a_first_line_with_a_column_that_was_named_names_the_columns(tmp_path):
    path = tmp_path / "needs.csv"
    rows = [f"p{i},lib{(i + k) % 5}" for i in range(20) for k in range(4)]
    path.write_text("\n".join(["package,depends_on", *rows]))
    data = load(path, user="package", item="depends_on")
    assert data.train.num_labels == 5
    assert set(data.label_names) == {f"lib{i}" for i in range(5)}
