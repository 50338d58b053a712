"""Run checks in several processes that train together, and report what failed on which rank."""

from __future__ import annotations

import inspect
import json
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Check = Callable[[], None]


def checks_in(*modules: ModuleType) -> dict[str, Check]:
    """The checks that modules hold: their own public functions without arguments."""
    return {
        name: check
        for module in modules
        for name, check in inspect.getmembers(module, inspect.isfunction)
        if inspect.getmodule(check) is module and not name.startswith("_")
        if not inspect.signature(check).parameters
    }


def failures(
    checks: dict[str, Check], size: int, folder: Path, backend: str = "gloo"
) -> dict[str, str]:
    """What failed, by the names of checks. One set of processes makes all checks in order.

    A rank that fails leaves the others in the middle of a collective, so the first failure ends
    the processes: the checks after it have failed too, as not made.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        mp.spawn(_run, (size, port, checks, folder, backend), nprocs=size)  # pyright: ignore[reportPrivateImportUsage]
    except mp.ProcessRaisedException as error:  # pyright: ignore[reportPrivateImportUsage]
        raised = str(error)
    else:
        return {}
    made = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
    passed = set(checks).intersection(*made) if len(made) == size else set()
    return {name: f"failed, or was not made: {raised}" for name in checks if name not in passed}


def _run(
    rank: int, size: int, port: int, checks: dict[str, Check], folder: Path, backend: str
) -> None:
    torch.set_num_threads(1)
    # As torchrun leaves it, for libraries that look there.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group(
        backend,
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    passed = []
    for name, check in checks.items():
        torch.manual_seed(0)
        check()
        passed.append(name)
        (folder / f"rank-{rank}.json").write_text(json.dumps(passed))
        dist.barrier()
    # A thread of gloo that lets go of a tensor after Python has ended would abort the process.
    time.sleep(0.5)
    dist.destroy_process_group()
