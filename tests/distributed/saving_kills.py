"""Ranks that are killed while they save a checkpoint, and ranks that load what is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from headtail.distributed import checkpoint_folder, checkpoint_storage, load_checkpoint
from headtail.distributed import save_checkpoint as save
from tests.distributed.small_runs import Run, assert_equal

FAILED = 3
"""What a rank ends with that was not killed, but could not go on."""
Work = Callable[["Kill", Path], None]


@dataclass(frozen=True)
class Kill:
    """When who is killed.

    Attributes:
        phase: of saving.
        everyone: kill all ranks, not only the one that has come to this phase.
        rank: the one that is killed, or that kills all, where all ranks come to the phase.
        beside: save asynchronously.
    """

    phase: str
    everyone: bool = False
    rank: int = 0
    beside: bool = False

    def strike(self, folder: Path) -> None:
        """Kill."""
        if self.everyone:
            for path in folder.glob("pid-*"):
                if path.name != f"pid-{dist.get_rank()}":
                    os.kill(int(path.read_text()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def before(module: Any, name: str) -> Callable[[Callable[[], None]], None]:
    """Strike instead of calling a function."""

    def arm(strike: Callable[[], None]) -> None:
        setattr(module, name, lambda *args: strike())

    return arm


def after(module: Any, name: str) -> Callable[[Callable[[], None]], None]:
    """Strike when a function has returned."""

    def arm(strike: Callable[[], None]) -> None:
        usual = getattr(module, name)
        setattr(module, name, lambda *args: (usual(*args), strike()))

    return arm


def _while_writing(strike: Callable[[], None]) -> None:
    """When the file has its header and one tensor."""
    usual = checkpoint_storage.blocks_of
    calls: list[Any] = []

    def blocks(tensor: torch.Tensor) -> Any:
        calls.append(tensor)
        return usual(tensor) if len(calls) < 3 else strike()

    checkpoint_storage.blocks_of = blocks


def _while_removing(strike: Callable[[], None]) -> None:
    """When an old checkpoint has lost some of its files."""

    def remove(path: Path) -> None:
        (path / "rank-0.safetensors").unlink()
        strike()

    checkpoint_folder.remove = remove


PHASES: dict[str, tuple[Callable[[Callable[[], None]], None], bool]] = {
    "before the folder is made": (before(checkpoint_folder, "begin"), False),
    "before writing": (before(checkpoint_storage, "write_rank_file"), False),
    "while writing": (_while_writing, False),
    "after writing": (after(checkpoint_storage, "write_rank_file"), False),
    "before the metadata": (before(checkpoint_folder, "write_text"), False),
    "before the rename": (before(checkpoint_folder, "publish"), False),
    "after the rename": (after(checkpoint_folder, "publish"), True),
    "while removing": (_while_removing, True),
}
"""How to strike in each phase of saving, and whether the new checkpoint counts by then."""
ON_ALL_RANKS = ("before writing", "while writing", "after writing")


def save_until_killed(kill: Kill, folder: Path) -> None:
    """Two checkpoints, and a third that is never finished by all."""
    run = Run.new()
    for number in range(1, 4):
        run.steps(2 * number, 2 * number + 1)
        everything = run.everything()
        torch.save(everything, folder / f"known-{number}-{dist.get_rank()}.pt")
        dist.barrier()
        on_this_rank = kill.phase not in ON_ALL_RANKS or kill.rank == dist.get_rank()
        if number == 3 and on_this_rank:
            PHASES[kill.phase][0](lambda: kill.strike(folder))
        parts = {**run.parts, "facts": {"number": number}}
        save(folder / "checkpoints", **parts, asynchronous=kill.beside).wait()
    dist.barrier()  # in which ranks that have saved notice that others have not


def load_what_is_left(kill: Kill, folder: Path) -> None:
    """The last checkpoint that counts, untouched; saving goes on and leaves nothing behind."""
    number = 3 if PHASES[kill.phase][1] else 2
    run = Run.new()
    assert load_checkpoint(folder / "checkpoints", **run.parts) == {"number": number}
    known = torch.load(folder / f"known-{number}-{dist.get_rank()}.pt", weights_only=True)
    assert_equal(known, run.everything())
    run.steps(20)
    save(folder / "checkpoints", **run.parts, facts={"number": 9})
    dist.barrier()
    left = {path.name for path in (folder / "checkpoints").iterdir()}
    assert left == {f"checkpoint-{number}", f"checkpoint-{number + 1}"}, left
    assert load_checkpoint(folder / "checkpoints", **run.parts) == {"number": 9}


def codes(work: Work, kill: Kill, ranks: int, folder: Path) -> list[int | None]:
    """How the ranks ended: 0, or −9 if killed. Those that hang are ended, and count as None."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.distributed.saving_kills"])
    store = folder / f"store-{work.__name__}"
    arguments = (work, kill, ranks, folder, store)
    processes = [context.Process(target=_rank, args=(rank, *arguments)) for rank in range(ranks)]
    for process in processes:
        process.start()
    until = time.monotonic() + 90
    for process in processes:
        process.join(max(0.1, until - time.monotonic()))
    ended = [process.exitcode for process in processes]
    for process in processes:
        if process.exitcode is None:
            process.kill()
            process.join()
    return ended


def _rank(rank: int, work: Work, kill: Kill, ranks: int, folder: Path, store: Path) -> None:
    torch.set_num_threads(1)
    sys.stderr = (folder / f"{work.__name__}-{rank}.txt").open("w")
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(store), ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=45),
    )
    try:
        work(kill, folder)
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        sys.stderr.flush()
        os._exit(FAILED)  # as a rank ends that torchrun stops: without goodbye
    sys.stderr.flush()
    os._exit(0)
