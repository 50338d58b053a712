"""Sorting events in bounded memory against sorting them in memory."""

from __future__ import annotations

import numpy as np
import pytest

from headtail.data.event_sort import (
    EVENT,
    EventRanges,
    Events,
    kth_smallest,
    read_events,
    sort_events,
)


def log(number: int, users: int, seed: int = 0) -> Events:
    """Events of users of very different activity, with times that repeat."""
    rng = np.random.default_rng(seed)
    user = (users * rng.random(number) ** 3).astype(np.int32)
    item = rng.integers(1000, size=number).astype(np.int32)
    return Events(user, item, rng.integers(-20, 20, size=number), np.arange(number))


def as_records(events: Events) -> np.ndarray:
    """The events as they are in files."""
    records = np.empty(len(events.user), EVENT)
    for name, array in events._asdict().items():
        records[name] = array
    return records


def in_ranges(folder, events: Events, at_once: int, blocks: int) -> tuple[EventRanges, list]:
    """Events in files, each numbered on its own, divided into ranges; the sorted ranges."""
    ranges = EventRanges.of(np.bincount(events.user, minlength=60), at_once)
    starts = []
    for number, part in enumerate(np.array_split(np.arange(len(events.user)), blocks)):
        path = folder / str(number)
        records = as_records(Events(*(array[part] for array in events)))
        user, records["user"] = np.unique(records["user"], return_inverse=True)
        item, records["item"] = np.unique(records["item"], return_inverse=True)
        records["row"] -= part[0]
        records.tofile(path)
        starts.append(ranges.divide(path, user, item, first=int(part[0])))
    parts = []
    for number in range(len(ranges)):
        pieces = [
            read_events(folder / str(block), start[number], start[number + 1] - start[number])
            for block, start in enumerate(starts)
        ]
        parts.append(sort_events(np.concatenate(pieces), None)[1])
    return ranges, parts


@pytest.mark.parametrize("at_once", [1, 7, 100, 10_000])
@pytest.mark.parametrize("blocks", [1, 5])
def test_events_come_out_as_a_stable_sort_in_memory_would_order_them(tmp_path, at_once, blocks):
    events = log(1000, users=60)
    ranges, parts = in_ranges(tmp_path, events, at_once, blocks)
    order = np.lexsort((events.time, events.user))
    for name, wanted in events._asdict().items():
        reached = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(reached, wanted[order])
    assert np.diff(ranges.events).tolist() == [len(part.user) for part in parts]


def test_a_user_is_never_cut_in_two_and_a_range_holds_little_more_than_at_once(tmp_path):
    events = log(5000, users=60)
    _, parts = in_ranges(tmp_path, events, at_once=100, blocks=2)
    owners = [set(part.user.tolist()) for part in parts]
    assert sum(map(len, owners)) == len(set.union(*owners))
    assert max(len(part.user) for part in parts) < 100 + np.bincount(events.user).max()


def test_what_was_given_to_test_on_comes_last_whatever_its_time():
    events = as_records(Events(*map(np.array, ([1, 0, 0], [7, 8, 9], [10, 5, 20], [0, 1, 2]))))
    order, _ = sort_events(events, np.array([0, 2, 0]))
    assert order.tolist() == [2, 1, 0]


@pytest.mark.parametrize("scale", [1, 1000, 10**15])
def test_the_kth_smallest_number_is_exact_at_any_scale(scale):
    rng = np.random.default_rng(1)
    numbers = rng.integers(-(10**3), 10**3, size=500) * scale
    parts = [*np.array_split(numbers, 7), numbers[:0]]
    for k in (0, 1, 250, 399, 499):
        wanted = np.sort(numbers)[k]
        assert kth_smallest(lambda: parts, k) == (wanted, (numbers < wanted).sum())
