"""The processes that torchrun has started, from joining them to what is said when one fails."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.rendezvous import rendezvous

from headtail.collectives.ranks import Ranks
from headtail.distributed.agree import refuse_differences
from headtail.distributed.meeting import JOINING, Meeting, meet
from headtail.distributed.together import everywhere, texts_of_all
from headtail.errors import HeadtailError, Setting

LONGEST_WAIT = timedelta(hours=12)
"""For a rank that works alone, such as one that reads the data for the first time. Ranks that have
died are noticed otherwise.
"""
CONNECTING = timedelta(minutes=1)
"""In which ranks that have all started must reach each other."""
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
_WRONG_PATH = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
"""What a system answers to a name that was not meant; other answers may be different later."""
_Value = TypeVar("_Value")


class LostRankError(HeadtailError):
    """Another rank has ended."""


class NotStartedError(HeadtailError):
    """Ranks have met, and cannot go on.

    Attributes:
        store: of all ranks.
        rank: which one has failed before, and reports why; None where each may fail by itself.
    """

    def __init__(self, sentence: str, store: Store, rank: int | None = None) -> None:
        super().__init__(sentence)
        self.store = store
        self.rank = rank


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
        ranks = Ranks.of()
        refuse_differences(ranks, {"versions of headtail or torch": _version()})
        _refuse_other_devices(ranks, device)
        yield ranks
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
        meeting = _meet()
        if meeting.failed is not None:
            sentence = f"Rank {meeting.failed} has not started: {meeting.problem}"
            raise NotStartedError(sentence, meeting.store, meeting.failed)
        store, rank, size = meeting.store, _number("RANK"), _number("WORLD_SIZE")
        store.set_timeout(LONGEST_WAIT)
    options = {"store": store, "rank": rank, "world_size": size, "timeout": CONNECTING}
    try:
        dist.init_process_group(backend, **options)
    except RuntimeError as error:
        if _number("GROUP_WORLD_SIZE", 1) == 1:
            raise
        raise NotStartedError(
            "Ranks on different machines cannot connect to each other. Set `GLOO_SOCKET_IFNAME` on "
            "each machine to the network interface that the others reach it by, such as eth0; `ip "
            "address` lists them.",
            store,
        ) from error
    dist.distributed_c10d._set_pg_timeout(LONGEST_WAIT)


def _meet(problem: str = "") -> Meeting:
    """Meet all processes that torchrun has started."""
    try:
        store, rank, size = next(iter(rendezvous("env://", timeout=JOINING)))
    except ValueError as error:
        raise HeadtailError(f"Start ranks with torchrun: {error}.") from error
    return meet(store, rank, size, problem)


def _version() -> str:
    """The versions that ranks must share, and the code itself, which may differ within one."""
    folder = Path(__file__).parents[1]
    digest = hashlib.blake2b()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode())
        digest.update(path.read_bytes())
    return f"{version('headtail')} {torch.__version__} {digest.hexdigest()}"


def _refuse_other_devices(ranks: Ranks, device: Literal["cpu", "cuda"]) -> None:
    """Refuse ranks on CPUs beside ranks on GPUs, who would wait for each other in the first message
    between GPUs. Each machine has chosen by itself.
    """
    own = [device, f"{ranks.rank} on {socket.gethostname()}"]
    kinds: dict[str, str] = {}
    for kind, who in map(json.loads, texts_of_all(ranks, json.dumps(own))):
        kinds.setdefault(kind, who)
    if len(kinds) > 1:
        raise HeadtailError(
            f"Rank {kinds['cuda']} works on a GPU, but rank {kinds['cpu']} on the CPU. Start as "
            "many ranks on each machine as it has GPUs that torch can use, or write ",
            Setting("device", "cpu"),
            " on all.",
        )


def started_by_torchrun() -> bool:
    """Whether there may be other ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def refuse_several() -> None:
    """Refuse to do the same in each of several processes."""
    size = _number("WORLD_SIZE", 1)
    if size > 1 and "TORCHELASTIC_RUN_ID" in os.environ:
        raise HeadtailError(
            f"torchrun has started {size} processes, and each would train the same model. Write ",
            Setting("sharded", True),
            " to let them share it, or start one process without torchrun.",
        )


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
        return everywhere(ranks, lambda: _named(ranks, work))
    except HeadtailError as error:
        if ranks.rank == 0 and isinstance(error.__cause__, OSError):
            raise error.__cause__ from None  # with its parts, which surfaces write in their own way
        raise


def _named(ranks: Ranks, work: Callable[[], _Value | None]) -> _Value | None:
    """Say who fails, where the first rank does not."""
    try:
        return work()
    except (HeadtailError, OSError) as error:
        if ranks.rank == 0:
            raise
        raise HeadtailError(
            f"Rank {ranks.rank} on {socket.gethostname()} has failed: {error}"
        ) from error


def tell_once(error: BaseException, tell: Callable[[], Any]) -> bool:
    """Report an error that ends this process: of several ranks, one does, and no rank ends before,
    because torchrun then ends all others.

    It is rank 0 where that fails too. A rank that was left behind is silent where another one has
    reported why.

    Args:
        error: of this process.
        tell: reports it.

    Returns:
        whether all ranks have refused what they were started with, so that they would again.
    """
    if not started_by_torchrun():
        tell()
        return True
    try:
        store, speaks = _speaks(error)
    except (RuntimeError, HeadtailError):  # ranks cannot agree: one on each machine reports
        store, speaks = None, _number("LOCAL_RANK") == 0
    if store is None:
        if speaks:
            tell()
        return False
    refuses = is_refusal(error)
    with suppress(RuntimeError):
        store.set(f"refuses/{_number('RANK')}", str(refuses))
    if speaks:
        tell()
    refused = False
    with suppress(RuntimeError):
        refused = refuses and _all_refuse(store)
        _part(store, speaks)
    return refused


def is_refusal(error: BaseException) -> bool:
    """Whether an error would be the same if ranks were started again: bad input is, but a rank that
    is lost, a network or a disk may be there again.

    >>> is_refusal(HeadtailError("`lr` must be positive.")), is_refusal(LostRankError("Lost."))
    (True, False)
    """
    if isinstance(error, NotStartedError):
        return error.rank is not None
    if isinstance(error, LostRankError):
        return False
    cause: BaseException | None = error
    while cause is not None:
        passing = isinstance(cause, OSError) and not isinstance(cause, _WRONG_PATH)
        if passing or isinstance(cause, CheckpointException):
            return False
        cause = cause.__cause__
    return True


def _all_refuse(store: Store) -> bool:
    """Whether every rank has failed with a refusal."""
    said = [f"refuses/{rank}" for rank in range(_number("WORLD_SIZE"))]
    return _wait(lambda: store.check(said)) and all(store.get(key) == b"True" for key in said)


def _speaks(error: BaseException) -> tuple[Store, bool]:
    """Whether this rank reports an error, and the store of all that fail."""
    rank = _number("RANK")
    if isinstance(error, NotStartedError):
        first = error.rank
        return error.store, first == rank if first is not None else _first(error.store, rank)
    if not dist.is_initialized():
        meeting = _meet(str(error) or type(error).__name__)
        return meeting.store, meeting.failed == rank
    store = dist.distributed_c10d._get_default_store()
    return store, _first(store, rank, isinstance(error, LostRankError))


def _first(store: Store, rank: int, lost: bool = False) -> bool:
    """Whether no rank that should report an error before this one has failed too."""
    if not lost:
        store.set(f"failed/{rank}", "")
    if lost or rank:
        others = range(_number("WORLD_SIZE")) if lost else range(1)
        if _wait(lambda: any(store.check([f"failed/{other}"]) for other in others)):
            return False
    return store.add("spoken", 1) == 1


def _part(store: Store, spoke: bool) -> None:
    """Leave once all has been reported, and the rank whose process may hold the store last."""
    if spoke:
        store.set("told", "")
    _wait(lambda: store.check(["told"]), seconds=5 * PATIENCE)  # it is being written
    left = store.add("left", 1)
    if _number("RANK") == 0:
        size = _number("WORLD_SIZE")
        _wait(lambda: left == size or store.add("left", 0) == size)


def _wait(until: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether something happens while ranks are patient."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if until():
            return True
        time.sleep(0.05)
    return False


def _number(name: str, default: int = 0) -> int:
    return int(os.environ.get(name, default)) if started_by_torchrun() else default


def _is_of_lost_rank(error: Exception) -> bool:
    return isinstance(error, dist.DistError) or any(words in str(error) for words in _LOST)
