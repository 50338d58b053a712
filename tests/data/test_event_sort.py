"""Sorting events in bounded memory against sorting them in memory."""

from __future__ import annotations

import numpy as np
import pytest

from headtail.data.event_sort import Events, EventSorter, kth_smallest


def log(number: int, users: int, seed: int = 0) -> Events:
    """Events of users of very different activity, with times that repeat."""
    rng = np.random.default_rng(seed)
    user = (users * rng.random(number) ** 3).astype(np.int32)
    item = rng.integers(1000, size=number).astype(np.int32)
    return Events(user, item, rng.integers(-20, 20, size=number))


@pytest.mark.parametrize("at_once", [1, 7, 100, 10_000])
@pytest.mark.parametrize("blocks", [1, 5])
def test_events_come_out_as_a_stable_sort_in_memory_would_order_them(tmp_path, at_once, blocks):
    events = log(1000, users=60)
    sorter = EventSorter(tmp_path, np.bincount(events.user, minlength=60), at_once)
    for part in np.array_split(np.arange(1000), blocks):
        sorter.add(Events(*(array[part] for array in events)))
    order = np.lexsort((events.time, events.user))
    parts = list(sorter.sorted())
    for name, wanted in events._asdict().items():
        reached = np.concatenate([getattr(part, name) for part in parts])
        assert np.array_equal(reached, wanted[order])
    assert not list(tmp_path.iterdir()), "the files are removed"


def test_a_user_is_never_cut_in_two_and_a_range_holds_little_more_than_at_once(tmp_path):
    events = log(5000, users=300)
    counts = np.bincount(events.user, minlength=300)
    sorter = EventSorter(tmp_path, counts, at_once=100)
    sorter.add(events)
    parts = list(sorter.sorted())
    owners = [set(part.user.tolist()) for part in parts]
    assert sum(map(len, owners)) == len(set.union(*owners))
    assert max(len(part.user) for part in parts) < 100 + counts.max()


def test_users_without_events_and_no_users_at_all(tmp_path):
    sorter = EventSorter(tmp_path, np.array([0, 2, 0]), at_once=1)
    sorter.add(Events(*(np.array(column) for column in ([1, 1], [4, 3], [2, 1]))))
    assert [part.item.tolist() for part in sorter.sorted() if len(part.item)] == [[3, 4]]
    assert list(EventSorter(tmp_path, np.array([], np.int64)).sorted()) == []


@pytest.mark.parametrize("scale", [1, 1000, 10**15])
def test_the_kth_smallest_number_is_exact_at_any_scale(scale):
    rng = np.random.default_rng(1)
    numbers = rng.integers(-(10**3), 10**3, size=500) * scale
    parts = [*np.array_split(numbers, 7), numbers[:0]]
    for k in (0, 1, 250, 399, 499):
        assert kth_smallest(lambda: parts, k) == np.sort(numbers)[k]
