"""Tables large enough to see in memory: none is held twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from headtail import Constant, Labels, RowAdagrad, SampledSoftmaxLoss, Uniform
from headtail.distributed import (
    ShardedLabelHead,
    export_table,
    import_table,
    load_checkpoint,
    save_checkpoint,
)
from tests.distributed.checkpoint_checks import _folder

L, D = 2**20, 128
"""512 MiB in float32."""


def no_rank_holds_its_rows_twice() -> None:
    labels = Labels.from_counts(torch.ones(L))
    loss = SampledSoftmaxLoss(Uniform(labels, 64), Constant())
    head = ShardedLabelHead(labels, D, loss)
    optimizer = RowAdagrad(head.parameters(), lr=0.1)
    head(torch.randn(8, D), torch.arange(8)).backward()
    optimizer.step()
    own = head.weight.numel() * head.weight.element_size()
    before = head.weight.detach()[:100].clone()
    with _folder() as folder:
        parts = {"head": head, "optimizer": optimizer}
        work: dict[str, Callable[[], object]] = {
            "save": lambda: save_checkpoint(folder, **parts),
            "load": lambda: load_checkpoint(folder, **parts),
            "export": lambda: export_table(head, folder / "model.safetensors"),
            "import": lambda: import_table(head, folder / "model.safetensors"),
        }
        grown = {name: _growth(do) / own for name, do in work.items()}
        assert max(grown.values()) < 0.5, grown
        assert torch.equal(before, head.weight[:100])
        # What is watched would show a second copy.
        assert _growth(lambda: save_checkpoint(folder, **parts, asynchronous=True).wait()) > own


def _growth(work: Callable[[], object]) -> int:
    """By how many bytes the memory of this process grows at most; files that are mapped into memory
    are not counted.
    """
    start = _used()
    most = [start]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.001):
            with suppress(OSError):
                most.append(_used())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        over.set()
        watcher.join()
    return max(most) - start


def _used() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024
