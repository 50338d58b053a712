"""Machine, date and versions, which every benchmark row records."""

from __future__ import annotations

import csv
import datetime
import os
import platform
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


def facts() -> dict[str, str]:
    """Machine, date and versions."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else _cpu()
    return {
        "machine": device,
        "cores": str(os.cpu_count()),
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def append(name: str, rows: list[dict[str, object]]) -> Path:
    """Add rows to `results/NAME.csv`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    rows = [facts() | row for row in rows]
    new = not path.exists()
    if not new:
        with path.open(newline="", encoding="utf-8") as file:
            if next(csv.reader(file)) != list(rows[0]):
                raise SystemExit(
                    f"{path} has other columns than the new rows. Rename the file, or give the "
                    "rows the same columns."
                )
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        if new:
            writer.writeheader()
        writer.writerows(rows)
    return path


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
