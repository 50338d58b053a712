"""Record the golden runs: `python -m tests.golden.record` from the project's root.

Run it only where results are meant to change, and say why in the changelog under "Numerics".
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from headtail.cli import main as headtail
from tests.golden.problem import COMPARISON, cases, digest, made_with, record, summary, write_data

FOLDER = Path(__file__).parent


def main() -> None:
    """Write digests.json, steps.npz and results.csv."""
    torch.set_num_threads(1)
    digests = {}
    steps = {}
    for scheme, optimiser, dtype in cases():
        for kernels in (True, False):
            name = f"{scheme} {optimiser} {dtype} {'kernels' if kernels else 'plain'}"
            arrays = record(scheme, optimiser, dtype, kernels=kernels)
            digests[name] = digest(arrays)
            if dtype == "float64":  # float32 is compared bit for bit only
                steps |= {f"{name} {part}": values for part, values in summary(arrays).items()}
    about = {"made_with": made_with(), "digests": digests}
    (FOLDER / "digests.json").write_text(json.dumps(about, indent=1) + "\n")
    np.savez_compressed(FOLDER / "steps.npz", **steps)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_data(data)
        headtail(["compare", str(data), *COMPARISON, "--out", str(data / "out")])
        rows = (data / "out" / "results.csv").read_text().replace(data.name, "data")
        (FOLDER / "results.csv").write_text(rows)


if __name__ == "__main__":
    main()
