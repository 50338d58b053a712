"""The cache: keyed by content and recipe, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from headtail.data import cache
from headtail.data.cache import Store, cached, digest
from headtail.errors import HeadtailError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "source"
    path.write_text("content")
    return path


class Builder:
    """Writes two arrays, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, store: Store) -> None:
        self.calls += 1
        store.append("a", np.arange(3, dtype=np.int32))
        store.append("a", np.arange(2, dtype=np.int32))
        store.append("b", np.ones((2, 4), np.float32))
        store.append("none", np.empty(0, np.int64))
        store.facts["answer"] = 42


def entries(folder: Path) -> list[str]:
    return (
        sorted(path.name for path in folder.iterdir() if path.name != "digests")
        if folder.exists()
        else []
    )


def test_what_was_appended_comes_back_in_order_with_its_dtype_and_shape(source):
    entry = cached([source], {}, Builder())
    assert torch.equal(entry.arrays["a"], torch.tensor([0, 1, 2, 0, 1], dtype=torch.int32))
    assert torch.equal(entry.arrays["b"], torch.ones(2, 4))
    assert (entry.arrays["none"].dtype, entry.arrays["none"].shape) == (torch.int64, (0,))
    assert entry.facts == {"answer": 42}


def test_an_entry_is_built_once_for_each_content_and_recipe(source, tmp_path):
    build = Builder()
    first = cached([source], {"x": 1}, build)
    copy = tmp_path / "copy"
    copy.write_text("content")
    assert cached([copy], {"x": 1}, build).key == first.key
    assert build.calls == 1
    assert cached([source], {"x": 2}, build).key != first.key
    source.write_text("other content")
    assert cached([source], {"x": 1}, build).key != first.key
    assert build.calls == 3


def test_an_entry_of_another_version_is_not_read(source, monkeypatch):
    build = Builder()
    cached([source], {}, build)
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    cached([source], {}, build)
    assert build.calls == 2


def test_changes_to_an_array_do_not_reach_the_disk(source):
    cached([source], {}, Builder()).arrays["a"].fill_(7)
    assert cached([source], {}, Builder()).arrays["a"].tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("error", [HeadtailError("bad"), KeyboardInterrupt(), MemoryError()])
def test_a_build_that_fails_leaves_nothing_behind_and_can_be_tried_again(source, folder, error):
    def fail(store: Store) -> None:
        store.append("a", np.zeros(3))
        raise error

    with pytest.raises(type(error)):
        cached([source], {}, fail)
    assert entries(folder) == []
    assert cached([source], {}, Builder()).facts == {"answer": 42}


def test_a_folder_left_without_its_facts_is_written_again(source, folder):
    key = cached([source], {}, Builder()).key
    (folder / key / "about.json").unlink()
    assert cached([source], {}, Builder()).arrays["a"].tolist() == [0, 1, 2, 0, 1]
    assert entries(folder) == [key]


def test_a_damaged_entry_is_reported_with_its_folder(source, folder):
    key = cached([source], {}, Builder()).key
    (folder / key / "about.json").write_text("{")
    with pytest.raises(HeadtailError, match=f"{key}` is damaged. Delete that folder"):
        cached([source], {}, Builder())
    (folder / key / "about.json").unlink()
    cached([source], {}, Builder())
    with (folder / key / "a").open("r+b") as file:
        file.truncate(4)
    with pytest.raises(HeadtailError, match="is damaged"):
        cached([source], {}, Builder())


def test_a_cache_that_cannot_be_written_is_reported_with_the_way_out(source, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(HeadtailError, match="set the environment variable HEADTAIL_CACHE"):
        cached([], {}, Builder())


def test_the_digest_follows_the_content_and_not_the_name(source, tmp_path):
    first = digest(source)
    copy = tmp_path / "copy"
    copy.write_text("content")
    assert digest(copy) == first
    source.write_text("CONTENT")
    os.utime(source, ns=(1, 1))
    assert digest(source) != first
    with pytest.raises(HeadtailError, match="cannot be read: No such file"):
        digest(tmp_path / "missing")


def test_an_array_may_not_change_its_dtype_while_it_is_written(source):
    def build(store: Store) -> None:
        store.append("a", np.zeros(1, np.int32))
        store.append("a", np.zeros(1, np.int64))

    with pytest.raises(ValueError, match="array a changed its dtype"):
        cached([source], {}, build)


def test_what_a_killed_process_left_is_removed_a_day_later(source, folder):
    folder.mkdir(parents=True, exist_ok=True)
    old = folder / ".entry.old"
    young = folder / ".entry.young"
    for left in (old, young):
        left.mkdir()
        (left / "values").write_bytes(b"half")
    os.utime(old, (0, 0))
    cached([source], {"reader": "test"}, lambda store: store.append("values", np.arange(3)))
    assert not old.exists()
    assert young.exists()
