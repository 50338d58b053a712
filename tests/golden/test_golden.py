"""Golden runs: what must not change when code moves.

Recorded by `python -m tests.golden.record`. With the versions and the processor they were made with
the numbers are the same to the last bit; elsewhere float64 runs agree to 1e-12.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headtail.cli import main
from tests.golden.problem import (
    COMPARISON,
    cases,
    digest,
    made_with,
    record,
    summary,
    write_data,
)

FOLDER = Path(__file__).parent
MADE_WITH, DIGESTS = json.loads((FOLDER / "digests.json").read_text()).values()
SAME_MACHINE = made_with() == MADE_WITH
STEPS = np.load(FOLDER / "steps.npz")


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "plain"])
@pytest.mark.parametrize(("scheme", "optimiser", "dtype"), list(cases()))
def test_twenty_steps_give_the_recorded_numbers(scheme, optimiser, dtype, kernels):
    if not SAME_MACHINE and dtype == "float32":
        pytest.skip(f"recorded with {MADE_WITH}; float32 is compared bit for bit, there only")
    name = f"{scheme} {optimiser} {dtype} {'kernels' if kernels else 'plain'}"
    arrays = record(scheme, optimiser, dtype, kernels=kernels)
    if SAME_MACHINE:
        assert digest(arrays) == DIGESTS[name]
    for part, values in summary(arrays).items() if dtype == "float64" else ():
        np.testing.assert_allclose(values, STEPS[f"{name} {part}"], rtol=1e-12, atol=1e-300)


def test_a_tiny_comparison_gives_the_recorded_rows(tmp_path):
    write_data(tmp_path)
    main(["compare", str(tmp_path), *COMPARISON, "--out", str(tmp_path / "out")])
    rows = (tmp_path / "out" / "results.csv").read_text().replace(tmp_path.name, "data")
    recorded = (FOLDER / "results.csv").read_text()
    if SAME_MACHINE:
        assert rows == recorded
    assert [line.split(",")[:5] for line in rows.splitlines()] == [
        line.split(",")[:5] for line in recorded.splitlines()
    ]
