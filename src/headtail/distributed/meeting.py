"""How the processes that torchrun has started find each other, and learn of one that has failed
before.

torchrun may hand the store of ranks that have died to those that it starts in their place, with all
that is in it, and machines count restarts differently. So ranks first agree on a name that no
earlier start had, and keep what they say under it.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store

from headtail.errors import HeadtailError

JOINING = timedelta(minutes=5)
"""In which all ranks must have started: torchrun starts them at the same time."""
_PAUSE = 0.02


@dataclass(frozen=True)
class Meeting:
    """What all ranks know once they are here.

    Attributes:
        store: of these ranks alone.
        failed: the first rank that cannot go on; None where all can.
        problem: what that rank says; else empty.
    """

    store: Store
    failed: int | None
    problem: str


def meet(
    store: Store, rank: int, size: int, problem: str = "", patience: timedelta = JOINING
) -> Meeting:
    """Wait until all ranks are here.

    Args:
        store: that all ranks reach, perhaps with what earlier ranks have left.
        rank: of this process.
        size: the number of processes.
        problem: why this rank cannot go on.
        patience: how long to wait.

    >>> from torch._C._distributed_c10d import HashStore
    >>> meet(HashStore(), 0, 1, "The disk is full.").problem
    'The disk is full.'
    """
    deadline = time.monotonic() + patience.total_seconds()
    if rank == 0:
        name = secrets.token_hex(8)
        plan = _gather(store, name, size, problem, deadline)
        return _known(store, name, plan)
    name, plan = _follow(store, rank, problem, deadline)
    return _known(store, name, plan)


def _gather(store: Store, name: str, size: int, problem: str, deadline: float) -> dict[str, Any]:
    """Give the meeting its name, wait for all others, and let them go on."""
    store.set("headtail/meeting", name)
    missing = set(range(1, size))
    here = {0: {"own": "", "problem": problem}}
    while missing and time.monotonic() < deadline:
        for rank in [rank for rank in missing if store.check([f"headtail/{name}/here/{rank}"])]:
            here[rank] = json.loads(store.get(f"headtail/{name}/here/{rank}"))
            missing.remove(rank)
        time.sleep(_PAUSE)
    problems = {rank: said["problem"] for rank, said in here.items() if said["problem"]}
    if missing and not problems:
        listed = ", ".join(map(str, sorted(missing)))
        problems = {
            0: f"These ranks have not started within {JOINING.seconds // 60} minutes: {listed}. "
            "Start the same command on all machines."
        }
    failed = min(problems, default=None)
    plan = {
        "own": {rank: said["own"] for rank, said in here.items()},
        "failed": failed,
        "problem": "" if failed is None else problems[failed],
    }
    store.set(f"headtail/{name}/plan", json.dumps(plan))
    return plan


def _follow(store: Store, rank: int, problem: str, deadline: float) -> tuple[str, dict[str, Any]]:
    """Come to the meeting that the first rank holds now; one of an earlier start does not know this
    process.
    """
    own = secrets.token_hex(8)
    name = ""
    # The first rank gives up first, and says so.
    while time.monotonic() < deadline + 10:
        if store.check(["headtail/meeting"]):
            latest = store.get("headtail/meeting").decode()
            if latest != name:
                name = latest
                said = json.dumps({"own": own, "problem": problem})
                store.set(f"headtail/{name}/here/{rank}", said)
            if store.check([f"headtail/{name}/plan"]):
                plan = json.loads(store.get(f"headtail/{name}/plan"))
                if plan["own"].get(str(rank)) == own:
                    return name, plan
        time.sleep(_PAUSE)
    raise HeadtailError(
        f"Rank 0 has not started within {JOINING.seconds // 60} minutes. Start the same command on "
        "all machines."
    )


def _known(store: Store, name: str, plan: dict[str, Any]) -> Meeting:
    return Meeting(PrefixStore(f"headtail/{name}", store), plan["failed"], plan["problem"])
