"""Examples run, and show what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_an_example_runs(script: Path):
    environment = os.environ | {"TQDM_DISABLE": "1"}  # progress bars are written to stderr
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr == ""


def test_the_quickstart_shows_tail_weights_helping_the_tail():
    script = next(path for path in EXAMPLES if path.stem == "quickstart")
    out = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    ).stdout
    right = {line.split()[0]: float(line.split()[-1].rstrip("%")) for line in out.splitlines()}
    assert right["within-batch:tail"] > right["within-batch:importance"] + 10
