"""Damage is seen: in tensors, in sealed JSON, and in folders of results."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headtail import HeadtailError
from headtail.files.checksums import (
    SUMS,
    add_sum,
    check_sums,
    damage_of,
    opened,
    sealed,
    write_sums,
)
from headtail.files.tensors import load_tensors, save_tensors

TENSORS = {
    "weight": torch.arange(6.0).reshape(2, 3),
    "narrow": torch.ones(3, dtype=torch.bfloat16),
    "none": torch.empty(0, 4),
    "one": torch.tensor(7),
    "yes": torch.tensor([True, False]),
}
FACTS = {"epochs": 3, "names": ["a", "ü", "\ud800"]}


@pytest.fixture
def folder(tmp_path):
    for name in ("results.csv", "run.toml"):
        (tmp_path / name).write_text(f"{name}\n1\n2\n")
    (tmp_path / "times.json").write_text("{ }")
    write_sums(tmp_path, ["results.csv", "run.toml", "missing.csv"], ["times.json"])
    return tmp_path


def test_tensors_and_facts_come_back(tmp_path):
    save_tensors(tmp_path / "model", TENSORS, FACTS)
    tensors, facts = load_tensors(tmp_path / "model", "a model", "")
    assert facts == FACTS
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)
        assert tensors[name].dtype == tensor.dtype


def test_equal_tensors_and_facts_give_equal_files(tmp_path):
    contents = set()
    for number in range(20):
        save_tensors(tmp_path / f"{number}", TENSORS, FACTS)
        contents.add((tmp_path / f"{number}").read_bytes())
    assert len(contents) == 1


def test_no_flipped_bit_of_a_tensor_file_goes_unseen(tmp_path):
    path = tmp_path / "model"
    save_tensors(path, TENSORS, FACTS)
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            tensors, facts = load_tensors(path, "a model", "")
        except HeadtailError:
            continue
        # A change that no reader can see, such as another space between two words of the header.
        assert facts == FACTS
        assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())


def test_facts_alone_are_checked_too(tmp_path):
    path = tmp_path / "model"
    save_tensors(path, TENSORS, FACTS)
    path.write_bytes(path.read_bytes().replace(b"epochs", b"epochz"))
    with pytest.raises(HeadtailError, match=r"cannot be read as a model: its checksum does not"):
        load_tensors(path, "a model", "", only_facts=True)


@given(st.recursive(st.integers() | st.text() | st.booleans(), st.lists))
def test_sealed_values_come_back(value):
    assert opened(sealed(value)) == value


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"content": 3}', '{"content": "3"}', "[" * 10_000]
)
def test_text_without_a_checksum_is_refused(text):
    with pytest.raises(ValueError):
        opened(text)


def test_a_folder_of_results_is_whole(folder):
    assert damage_of(folder) is None
    check_sums(folder, "")


DAMAGE = {
    "`results.csv` does not match": lambda f: (f / "results.csv").write_text("results.csv\n1\n"),
    "`run.toml` cannot be read": lambda f: (f / "run.toml").unlink(),
    "`SHA256SUMS` is missing": lambda f: (f / SUMS).unlink(),
    "`SHA256SUMS` is not a list": lambda f: (f / SUMS).write_text(""),
    "`times.json` does not match": lambda f: (f / "times.json").write_text("{}"),
    "is not a list of checksums": lambda f: (f / SUMS).write_text("x\n"),
}


@pytest.mark.parametrize("problem", DAMAGE)
def test_damage_is_named(folder, problem):
    DAMAGE[problem](folder)
    with pytest.raises(HeadtailError, match=rf"is damaged: .*{problem}.*\. Run again\."):
        check_sums(folder, "Run again.")


def test_one_more_file_gets_a_checksum(folder):
    (folder / "tries.csv").write_text("a\n")
    add_sum(folder, "tries.csv")
    assert damage_of(folder) is None
    (folder / "tries.csv").write_text("b\n")
    assert damage_of(folder) == "`tries.csv` does not match its checksum"


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_anyone_can_check_the_checksums(folder):
    subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=folder, check=True)
