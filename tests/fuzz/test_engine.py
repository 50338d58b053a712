"""The engine sees what must never happen, and its cases can be repeated."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.broken import EXPECTED
from tests.fuzz.damage import damage_files, files_in
from tests.fuzz.mutate import BYTES, TEXT
from tests.fuzz.seeds import FORMATS
from tests.fuzz.structure import BY_ENDING

ROOT = Path(__file__).parents[2]


def test_every_kind_of_finding_is_attributed_to_its_case():
    command = [sys.executable, "-m", "tests.fuzz.broken"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = {target.__name__: [kind] for target, kind in EXPECTED.items()}
    assert json.loads(done.stdout) == expected


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in files_in(folder)}


@pytest.mark.parametrize("name", ["delimited", "npz", "image-folder"])
def test_equal_numbers_give_equal_damage(name, tmp_path):
    held = []
    for place in (tmp_path / "one", tmp_path / "two"):
        folder = place / "data"
        folder.mkdir(parents=True)
        FORMATS[name][0].write(folder)
        before = contents(folder)
        for number in range(5):
            damage_files(folder, random.Random(number))
        held.append(contents(folder))
    assert held[0] == held[1] != before


@pytest.mark.parametrize(
    "mutation",
    dict.fromkeys([*BYTES, *TEXT, *sum(BY_ENDING.values(), ())]),
    ids=lambda mutation: mutation.__name__,
)
def test_any_content_can_be_damaged_in_every_way(mutation):
    for number, content in enumerate((b"", b"x", b"\n", b"[]", bytes(300), b'{"a": [1, "b"]}')):
        for seed in range(20):
            damaged = mutation(content, random.Random(f"{number} {seed}"))
            assert isinstance(damaged, bytes)
