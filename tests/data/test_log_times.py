"""Logs: where and when what is tested was, and times that cannot be right."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from headtail import HeadtailError
from headtail.data.load import load
from headtail.data.readers import log_scan
from tests.data.test_logs import log

NOW = 1_500_000_000


def dated(**changed):
    """A log with seconds since 1970, some of which are others."""
    frame = log()
    frame["time"] += NOW
    for row, time in changed.items():
        frame.loc[int(row[1:]), "time"] = time
    return frame


def noted(data, words):
    return [note for note in data.notes if words in note]


@pytest.mark.parametrize("options", [{}, {"min_rating": 3}, {"split": "last"}])
def test_a_test_point_has_the_row_and_the_time_of_what_is_tested(monkeypatch, options):
    monkeypatch.setattr(log_scan, "ROWS", 100)
    frame = log().assign(rating=np.arange(400) % 5)
    data = load(frame, **options)
    test = data.test
    assert len(set(test.rows.tolist())) == len(test)
    rows = frame.iloc[test.rows.numpy()]
    assert rows.user.tolist() == test.users.to_pylist()
    assert rows.time.tolist() == test.times.to_pylist()
    names = data.label_names or range(data.train.num_labels)
    assert rows.item.tolist() == [names[i] for i in test.labels.values.tolist()]
    first = frame[frame.rating >= options.get("min_rating", 0)].reset_index().groupby("user")
    assert data.whole.rows.tolist() == first["index"].min().tolist()


def test_rows_of_a_given_test_part_are_those_of_its_own_table():
    frame = log().sort_values("time", ignore_index=True)
    later = frame[300:].reset_index(drop=True)
    test = load(frame[:300], test=later).test
    assert later.time[test.rows.numpy()].tolist() == test.times.to_pylist()


@pytest.mark.parametrize(
    "written",
    [
        lambda times: times.astype(float) + 0.25,
        lambda times: pd.to_datetime(times, unit="s"),
        lambda times: pd.to_datetime(times, unit="s").dt.date,
        lambda times: pd.to_datetime(times, unit="s").astype(str),
        lambda times: times.astype(str),
    ],
)
def test_times_come_out_as_numbers_or_dates_as_they_came_in(written):
    frame = dated()
    frame["time"] = written(frame.time * 100 - 99 * NOW)
    test = load(frame, split="last").test
    wanted = frame.time[test.rows.numpy()].astype(str).tolist()
    assert [str(time) for time in test.times.to_pylist()] == wanted


def test_seconds_among_milliseconds_are_refused_with_an_example_of_each():
    frame = dated(r7=0)
    frame.loc[200:, "time"] *= 1000
    with pytest.raises(HeadtailError) as error:
        load(frame)
    first, second = frame.time[0], frame.time[200]
    assert str(error.value) == (
        "`data`: the times in column `time` are not all in one unit: 199 look like seconds, for "
        f"example `{first}` in row 0 (from 0) of `data`, and 200 look like milliseconds, for "
        f"example `{second}` in row 200 (from 0) of `data`. Write all of them in one."
    )
    with pytest.raises(HeadtailError, match="199 look like seconds"):
        load(frame.assign(time=frame.time + 0.5))


def test_parts_in_different_units_are_refused():
    train, test = dated(), dated()
    with pytest.raises(HeadtailError, match=r"400 look like milliseconds.*row 0 .* of `test`"):
        load(train, test=test.assign(time=test.time * 1000))


@pytest.mark.parametrize("odd", [0, -5, 40_000_000_000, NOW * 1000])
def test_a_few_times_out_of_range_are_noted(odd):
    (note,) = noted(load(dated(r17=odd)), "before 1973")
    assert note == (
        "1 of 400 times in column `time` are before 1973 or after 2128, for example "
        f"`{odd}` in row 17 (from 0) of `data`. Check them: order and split follow the time."
    )
    assert not noted(load(dated()), "before 1973")


def test_a_date_out_of_range_is_noted():
    frame = dated(r17=0)
    frame["time"] = pd.to_datetime(frame.time, unit="s")
    (note,) = noted(load(frame), "before 1973")
    assert "`1970-01-01 00:00:00" in note


def test_steps_and_numbers_of_all_sizes_are_not_taken_for_dates():
    steps = log()
    every_size = steps.assign(time=(10.0 ** np.linspace(0, 15, 400)).astype(int))
    for frame in (steps, every_size):
        assert not noted(load(frame), "before 1973")


def test_a_test_part_before_all_of_training_is_noted():
    frame = log(times=1000)
    earlier = frame.assign(time=frame.time - 2000)
    (note,) = noted(load(frame, test=earlier), "earlier than all of training")
    assert f"its last time is `{earlier.time.max()}`" in note
    assert f"begins with `{frame.time.min()}`" in note
    assert not noted(load(earlier, test=frame), "earlier than all")


@pytest.mark.parametrize("read_as", ["sequences", "interactions"])
def test_what_is_tested_and_trained_on_is_counted(read_as):
    frame = log()
    data = load(frame[:300], test=frame[200:], format=read_as)
    (note,) = noted(data, "are in training too")
    assert note.startswith("100 of 200 test interactions")
    assert not noted(load(frame[:300], test=frame[300:]), "are in training too")


def test_a_test_part_without_times_is_noted():
    frame = log()
    data = load(frame[:300], test=frame[300:][["user", "item"]])
    assert noted(data, "The test part has no column of times: its rows are in order.")


def test_large_numbers_with_fractions_are_refused():
    with pytest.raises(HeadtailError, match=r"holds times above 9e\+12 as numbers with fractions"):
        load(dated().assign(time=lambda frame: frame.time * 1e6))
