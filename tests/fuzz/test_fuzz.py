"""Damaged files and odd arguments end in one plain sentence, or in data: never in anything else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import headtail
from headtail import HeadtailError
from tests.fuzz.readers import use
from tests.fuzz.verdicts import OK, of_sentence

ROOT = Path(__file__).parents[2]
FOUND = Path(__file__).parent / "found"


def fuzz(*arguments: object) -> None:
    command = [sys.executable, "-m", "tests.fuzz", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_few_hundred_cases_give_data_or_one_sentence():
    fuzz("--cases", 900, "--seed", 0, "--seconds", 20)


@pytest.mark.long
def test_many_cases_give_data_or_one_sentence():
    """Their number is `HEADTAIL_FUZZ_CASES`, and the seed `HEADTAIL_FUZZ_SEED`."""
    cases = os.environ.get("HEADTAIL_FUZZ_CASES", "10000")
    fuzz("--cases", cases, "--seed", os.environ.get("HEADTAIL_FUZZ_SEED", "1"))


@pytest.mark.parametrize("path", sorted(FOUND.glob("*--*")), ids=lambda path: path.name)
def test_what_once_broke_a_reader_is_data_or_one_sentence(path, tmp_path, monkeypatch):
    """Each file is called what it broke, `--`, and the name under which it is read."""
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / ".cache"))
    copy = Path(shutil.copy(path, tmp_path / path.name.partition("--")[2]))
    verdict = OK
    try:
        use(headtail.load(copy))
    except HeadtailError as error:
        verdict = of_sentence(str(error), tmp_path, "load")
    assert not verdict.is_finding, verdict
