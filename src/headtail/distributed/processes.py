"""The processes that torchrun has started, from joining them to what is said when one fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.distributed.rendezvous import rendezvous

from headtail.collectives.ranks import Ranks
from headtail.distributed.together import everywhere
from headtail.errors import HeadtailError, Setting

LONGEST_WAIT = timedelta(hours=12)
"""For a rank that works alone, such as one that reads the data for the first time. Ranks that have
died are noticed otherwise.
"""
PATIENCE = 3.0
"""Seconds in which ranks that fail together have all said so."""
_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Socket Timeout",
)
"""What the errors say that ranks raise when another one has ended."""
_Value = TypeVar("_Value")


class LostRankError(HeadtailError):
    """Another rank has ended."""


@contextmanager
def joined(device: Literal["cpu", "cuda"]) -> Iterator[Ranks]:
    """All processes that torchrun has started, as ranks; a process by itself is the only one.

    After an error the group of several ranks is left as it is, so that they can agree on who
    reports it.

    Args:
        device: where the model will be; on GPUs, each rank takes the one of its number.
    """
    backend = "gloo"
    if device == "cuda":
        torch.cuda.set_device(_number("LOCAL_RANK"))
        backend = "cpu:gloo,cuda:nccl"
    try:
        _join(backend)
        yield Ranks.of()
        dist.barrier()  # no rank leaves while another one still needs it
    except Exception as error:
        if not started_by_torchrun() and dist.is_initialized():
            dist.destroy_process_group()
        if not _is_of_lost_rank(error):
            raise
        raise LostRankError(
            "Another rank has ended, and this one with it. Start the same command again: it goes "
            "on from the last checkpoint."
        ) from error
    dist.destroy_process_group()


def _join(backend: str) -> None:
    store: Any = HashStore()
    rank, size = 0, 1
    if started_by_torchrun():
        store, rank, size = next(iter(rendezvous("env://", timeout=LONGEST_WAIT)))
        if _number("GROUP_WORLD_SIZE", 1) == 1:
            # On one machine torchrun may use a store again, with what ranks that have died left.
            store = PrefixStore(f"start {_number('TORCHELASTIC_RESTART_COUNT')}", store)
    options = {"store": store, "rank": rank, "world_size": size, "timeout": LONGEST_WAIT}
    dist.init_process_group(backend, **options)


def started_by_torchrun() -> bool:
    """Whether there may be other ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def choose_device_of_rank(device: Literal["auto", "cpu", "cuda"]) -> Literal["cpu", "cuda"]:
    """Where this rank works: a GPU where the machine has one for each of its ranks."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    wanted = _number("LOCAL_WORLD_SIZE", 1)
    if device == "cuda" and there < wanted:
        raise HeadtailError(
            Setting("device", "cuda"),
            f" needs a GPU for each rank, but this machine has {wanted} ranks and {there} GPUs "
            "that torch can use. Start fewer ranks, or write ",
            Setting("device", "cpu"),
            ".",
        )
    return "cuda" if device != "cpu" and there >= wanted else "cpu"


def in_turn(ranks: Ranks, work: Callable[[], _Value]) -> _Value:
    """Do something on the first rank of each machine, and then on the others, which find in the
    cache what the first has put there. Where one fails, all do.
    """
    first = _number("LOCAL_RANK") == 0
    results = [_alike(ranks, work if turn else lambda: None) for turn in (first, not first)]
    return next(result for result in results if result is not None)


def _alike(ranks: Ranks, work: Callable[[], _Value | None]) -> _Value | None:
    try:
        return everywhere(ranks, work)
    except HeadtailError as error:
        if isinstance(error.__cause__, HeadtailError | OSError):
            raise error.__cause__ from None  # with its parts, which surfaces write in their own way
        raise


def speaks(error: BaseException) -> bool:
    """Whether this process reports an error that ends it: of several ranks, one does.

    It is rank 0 where that fails too. A rank that was left behind is silent where another one has
    reported why.
    """
    if not started_by_torchrun():
        return True
    rank = _number("RANK")
    if not dist.is_initialized():
        return rank == 0  # all have been told the same
    try:
        return _first_to_speak(rank, isinstance(error, LostRankError))
    except RuntimeError:  # what ranks would agree through is gone
        return rank == 0


def _first_to_speak(rank: int, lost: bool) -> bool:
    store = dist.distributed_c10d._get_default_store()
    if not lost:
        store.set(f"headtail/failed/{rank}", "")
    if lost or rank:
        others = range(dist.get_world_size()) if lost else range(1)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if any(store.check([f"headtail/failed/{other}"]) for other in others):
                return False
            time.sleep(0.05)
    return store.add("headtail/spoken", 1) == 1


def _number(name: str, default: int = 0) -> int:
    return int(os.environ.get(name, default)) if started_by_torchrun() else default


def _is_of_lost_rank(error: Exception) -> bool:
    return isinstance(error, dist.DistError) or any(words in str(error) for words in _LOST)
