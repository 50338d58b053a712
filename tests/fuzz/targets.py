"""All targets by name, and the valid files they start from."""

from __future__ import annotations

import os
import traceback
from importlib import import_module
from pathlib import Path

import torch

from headtail.cli.overview import COMMANDS
from tests.fuzz.engine import FORK, Target, quieten
from tests.fuzz.readers import ReadDamaged, ReadDamagedCache, write_seeds
from tests.fuzz.saved import (
    ReportDamagedComparison,
    ResumeDamagedRun,
    UseDamagedModel,
    write_runs,
)
from tests.fuzz.seeds import FORMATS
from tests.fuzz.tables import RunArguments, load_table


def prepare(folder: Path) -> dict[str, Target]:
    """Write valid files of every kind into an empty folder, and return what damages and uses them.

    They are written by another process: one that workers are forked from must have no threads.
    """
    torch.set_num_threads(1)
    for module in ("pandas", "sklearn.feature_extraction.text", "scipy.sparse", "jinja2"):
        import_module(module)  # or every worker would
    for command in COMMANDS.values():
        command.load()
    process = FORK.Process(target=_write, args=(folder,))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError((folder / "prepare" / "error").read_text())
    seeds = folder / "seeds"
    runs = folder / "runs"
    return {
        **{name: ReadDamaged(seeds, name) for name in FORMATS},
        "tables": load_table,
        "cache": ReadDamagedCache(seeds),
        "model": UseDamagedModel(runs),
        "checkpoint": ResumeDamagedRun(runs),
        "comparison": ReportDamagedComparison(runs),
        "arguments": RunArguments(runs / "models" / "sparse" / "run", runs / "data"),
    }


def _write(folder: Path) -> None:
    os.environ["HEADTAIL_CACHE"] = str(folder / "prepare" / "cache")
    quieten(folder / "prepare")
    try:
        write_seeds(folder / "seeds")
        write_runs(folder / "runs", folder / "seeds")
    except BaseException:
        (folder / "prepare" / "error").write_text(traceback.format_exc())
        raise
