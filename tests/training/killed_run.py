"""A sharded run that kills itself at a named point when it is first started, and notes what it has
trained on. torchrun starts it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from headtail import Run, Trainer, load
from headtail.collectives.ranks import Ranks
from headtail.data.batches import Batches
from headtail.distributed import checkpoint_storage
from headtail.distributed.processes import joined
from headtail.files.checksums import new_checksum
from headtail.rows.row_optimizer import RowOptimizer
from headtail.training import sharded_files
from headtail.training.engine import Engine

POINTS: dict[str, tuple[Any, str, bool]] = {
    "gather": (Ranks, "gather", False),
    "before an update": (RowOptimizer, "advance", False),
    "after an update": (RowOptimizer, "advance", True),
    "before saving": (sharded_files, "save_checkpoint", False),
    "after the copy to save": (sharded_files, "save_checkpoint", True),
    "before a rank's file": (checkpoint_storage.RankFiles, "write_data", False),
    "after a rank's file": (checkpoint_storage.RankFiles, "write_data", True),
    "before the commit": (checkpoint_storage.RankFiles, "finish", False),
    "after the commit": (checkpoint_storage.RankFiles, "finish", True),
}
"""What is called there, and whether it ends before the process does."""


def kill_at(point: str, number: int, note: Path) -> None:
    """Let this process die at the call with this number."""
    owner, name, after = POINTS[point]
    usual: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        result = usual(*args, **kwargs) if after or calls < number else None
        if calls == number:
            note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, counted)


def note_examples(trainer: Trainer, path: Path) -> None:
    """Write the ids of each step's examples before it is taken."""
    take = Batches.take

    def noted(batches: Batches, ids: torch.Tensor) -> Any:
        state = trainer.state
        with path.open("a") as file:
            file.write(json.dumps([state.epoch, state.step, ids.tolist()]) + "\n")
        return take(batches, ids)

    Batches.take = noted


def main(folder: Path, scheme: str, point: str, who: str, number: int) -> None:
    """Train to the end; `who` is a rank, "all" or "none"."""
    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    attempt = os.environ["LAUNCH"] + os.environ["TORCHELASTIC_RESTART_COUNT"]
    if attempt == "00" and who in (rank, "all"):
        kill_at(point, number, folder / f"killed-{rank}")
    data = load("synthetic:points=240,test=51,features=90,labels=37")
    dropout = 0.0 if scheme == "softmax" else 0.3
    run = Run(
        scheme=scheme, dim=6, epochs=3, batch=31, negatives=5, dropout=dropout, patience=9, lr=0.05
    )
    with joined("cpu"):
        often = Engine(sharded=True, check_every=1, save_every=0.2)
        trainer = Trainer(run, data, folder / "run", engine=often)
        path = folder / f"examples-{attempt}-{rank}.jsonl"
        path.touch()
        note_examples(trainer, path)
        (folder / f"pid-{attempt}-{rank}").write_text(f"{os.getpid()}")
        trained = trainer.fit()
        weights = torch.cat([p.detach().reshape(-1) for p in trained.model.parameters()])
    checksum = new_checksum()
    checksum.update(weights.numpy().tobytes())
    result = {
        "curve": trained.state.curve,
        "best_epoch": trained.state.best_epoch,
        "weights": checksum.hexdigest(),
        "rows": float(trained.model.head.weight.detach().double().square().sum()),
    }
    (folder / f"result-{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5], int(sys.argv[5]))
