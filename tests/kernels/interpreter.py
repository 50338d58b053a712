"""Triton tests run on a GPU where there is one; elsewhere Triton's interpreter runs their file, in
a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
# read when triton is imported, so this process cannot change its mind
HERE = GPU or os.environ.get("TRITON_INTERPRET") == "1"

in_triton = pytest.mark.skipif(
    not HERE, reason="run by Triton's interpreter in a process of its own"
)
elsewhere = pytest.mark.skipif(HERE, reason="the other tests of this file run here")


def interpret(file: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    done = subprocess.run(
        command,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout, done.stdout
