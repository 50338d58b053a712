"""The cache: keyed by content and recipe, written whole or not at all."""

from __future__ import annotations

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from headtail.data import cache, digests
from headtail.data.cache import Store, cached
from headtail.data.digests import digest
from headtail.errors import HeadtailError
from headtail.files.checksums import DamagedWarning
from headtail.files.leftovers import temporary_name


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


def flip(path: Path, place: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "a bit of an array": lambda entry: flip(entry / "a"),
    "a bit of another array": lambda entry: flip(entry / "b", 0),
    "a bit of the facts": lambda entry: flip(entry / "about.json", 30),
    "an array cut short": lambda entry: os.truncate(entry / "a", 4),
    "facts cut short": lambda entry: os.truncate(entry / "about.json", 9),
    "a missing array": lambda entry: (entry / "none").unlink(),
    "other facts": lambda entry: (entry / "about.json").write_text('{"facts": {}}'),
    "a list": lambda entry: (entry / "about.json").write_text("[]"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_made_again_with_a_warning(source, folder, damage):
    build = Builder()
    key = cached([source], {}, build).key
    DAMAGE[damage](folder / key)
    with pytest.warns(DamagedWarning, match="A part of the cache was damaged"):
        entry = cached([source], {}, build)
    assert build.calls == 2
    assert entry.arrays["a"].tolist() == [0, 1, 2, 0, 1]
    assert entry.facts == {"answer": 42}
    cached([source], {}, build)
    assert build.calls == 2


def test_an_entry_is_compared_with_its_checksums_once_per_identity_of_its_files(
    source, folder, monkeypatch
):
    key = cached([source], {}, Builder()).key
    compared = []
    checksum_of = cache.checksum_of

    def counted(path):
        compared.append(path.name)
        return checksum_of(path)

    monkeypatch.setattr(cache, "checksum_of", counted)
    cached([source], {}, Builder())
    assert compared == []  # it was just written
    os.utime(folder / key / "a")
    cached([source], {}, Builder())
    assert sorted(compared) == ["a", "b", "none"]
    cached([source], {}, Builder())
    assert len(compared) == 3


def test_a_file_that_changes_while_it_is_read_is_refused(source, folder):
    before = source.stat()

    def build(store: Store) -> None:
        Builder()(store)
        source.write_text("CONTENT")
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))

    with pytest.raises(HeadtailError, match=r"source` changed while it was read\. Read it again"):
        cached([source], {}, build)
    assert entries(folder) == []


def test_a_change_within_one_tick_of_the_clock_is_seen(source, monkeypatch):
    same = digests.identity_of(source)
    monkeypatch.setattr(digests, "identity_of", lambda _: same)

    def build(store: Store) -> None:
        Builder()(store)
        source.write_text("CONTENT")

    with pytest.raises(HeadtailError, match="changed while it was read"):
        cached([source], {}, build)


def test_an_edit_in_place_with_the_old_size_and_time_is_seen(source):
    os.utime(source, ns=(1, 1))
    first = digest(source)
    source.write_text("CONTENT")
    os.utime(source, ns=(1, 1))
    assert digest(source) != first


def test_a_digest_is_remembered_and_a_damaged_memo_is_not_believed(source, folder, monkeypatch):
    monkeypatch.setattr(digests, "SETTLED", -1.0)
    first = digest(source)
    [memo] = (folder / "digests").iterdir()
    monkeypatch.setattr(digests, "checksum_of", lambda _: "computed")
    assert digest(source) == first
    for content in ("", memo.read_text()[:-9], memo.read_text().replace(first, first[::-1])):
        memo.write_text(content)
        assert digest(source) == "computed"


def test_a_cache_that_cannot_be_written_is_reported_with_the_way_out(source, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(HeadtailError, match="set HEADTAIL_CACHE to a folder of your own"):
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


def test_what_a_killed_process_left_is_removed(source, folder):
    folder.mkdir(parents=True, exist_ok=True)
    mine = temporary_name(folder / "entry")
    host, pid, started, _ = mine.name.removesuffix(".part").rpartition(".")[2].split("-")
    gone = folder / f".entry.{host}-{pid}-{int(started) - 1}.part"
    old = folder / ".entry.00000000-1-1.part"
    young = folder / ".entry.00000001-1-1.part"
    for left in (mine, gone, old, young):
        left.mkdir()
        (left / "values").write_bytes(b"half")
    os.utime(old, (0, 0))
    cached([source], {"reader": "test"}, lambda store: store.append("values", np.arange(3)))
    assert [left.exists() for left in (mine, gone, old, young)] == [True, False, False, True]


def test_threads_may_read_the_same_file_at_once(source):
    def build(store: Store) -> None:
        time.sleep(0.05)
        Builder()(store)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: cached([source], {}, build).facts, range(8)))
    assert found == [{"answer": 42}] * 8


def test_an_entry_that_the_system_cannot_open_just_now_is_kept(source, folder, monkeypatch):
    key = cached([source], {}, Builder()).key

    def exhausted(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(cache, "_map", exhausted)
    with pytest.raises(HeadtailError, match="Too many open files"):
        cached([source], {}, Builder())
    assert (folder / key / "about.json").exists()
