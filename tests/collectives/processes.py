"""Run checks in several processes that train together, and report what failed on which rank."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

Check = Callable[[], None]


def failures(
    checks: dict[str, Check], size: int, folder: Path, backend: str = "gloo"
) -> dict[str, str]:
    """What failed, by the names of checks. One set of processes makes all checks in order."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_run, (size, port, checks, folder, backend), nprocs=size)  # pyright: ignore[reportPrivateImportUsage]
    failed: dict[str, str] = {}
    for path in sorted(folder.glob("rank-*.json")):
        for name, error in json.loads(path.read_text()).items():
            failed[name] = failed.get(name, "") + f"\n{path.stem}: {error}"
    return failed


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
    failed = {}
    for name, check in checks.items():
        torch.manual_seed(0)
        try:
            check()
        except Exception:
            failed[name] = traceback.format_exc()
            print(f"rank {rank}: {name} failed", file=sys.stderr)
        # A rank that failed must not leave the others waiting in its next check.
        dist.barrier()
    (folder / f"rank-{rank}.json").write_text(json.dumps(failed))
    # A thread of gloo that lets go of a tensor after Python has ended would abort the process.
    time.sleep(0.5)
    dist.destroy_process_group()
