"""Ranks find those that were started with them, also in a store that earlier ranks have used."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore, Store

from headtail.distributed.meeting import Meeting, meet
from headtail.errors import HeadtailError

SHORT = timedelta(seconds=0.3)


def met(store: Store, late: int | None = None, problems: dict[int, str] | None = None):
    """What three ranks know, one of which may come late."""

    def one(rank: int) -> Meeting:
        time.sleep(0.3 if rank == late else 0)
        return meet(store, rank, 3, (problems or {}).get(rank, ""), timedelta(seconds=10))

    with ThreadPoolExecutor(3) as threads:
        return list(threads.map(one, range(3)))


@pytest.mark.parametrize("late", [0, 1, 2])
def test_ranks_that_are_started_again_do_not_see_what_earlier_ones_left(late: int):
    store = HashStore()
    for start in range(3):
        meetings = met(store, late if start else None)
        assert not any(meeting.store.check(["address"]) for meeting in meetings)
        meetings[0].store.set("address", f"{start}")
        assert [meeting.store.get("address") for meeting in meetings] == [b"%d" % start] * 3


def test_all_ranks_know_the_first_one_that_cannot_go_on():
    meetings = met(HashStore(), late=0, problems={1: "No disk.", 2: "No data."})
    assert [(meeting.failed, meeting.problem) for meeting in meetings] == [(1, "No disk.")] * 3


def test_a_rank_that_does_not_come_is_named():
    store = HashStore()
    alone = meet(store, 0, 3, patience=SHORT)
    assert alone.failed == 0
    assert "not started within 5 minutes: 1, 2." in alone.problem
    [plan] = [key for key in store.list_keys() if key.endswith("/plan")]
    assert json.loads(store.get(plan))["failed"] == 0


def test_without_the_first_rank_no_rank_goes_on():
    store = HashStore()
    met(store)  # its plan is of other processes
    with pytest.raises(HeadtailError, match="Rank 0 has not started"):
        meet(store, 1, 3, patience=timedelta(seconds=-9.5))
