"""Files are whole or absent, and what cannot be written is refused in a sentence."""

from __future__ import annotations

import errno
import os

import pytest

from headtail import HeadtailError
from headtail.files.atomic import check_writable, new_folder, write_text


def test_a_failing_disk_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "results.csv"
    write_text(path, "before")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(
        HeadtailError,
        match=r"results.csv` cannot be written: No space left on device. What was there before",
    ):
        write_text(path, "after")
    assert path.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["results.csv"]


def test_nothing_is_left_to_remove_once_the_file_has_its_name(tmp_path, monkeypatch):
    """A process that is killed between the two could not remove it."""
    path = tmp_path / "results.csv"
    found = []
    rename = os.replace

    def then_look(*names):
        rename(*names)
        found.extend(tmp_path.iterdir())

    monkeypatch.setattr("os.replace", then_look)
    write_text(path, "content")
    assert found == [path]


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(HeadtailError, match=r"cannot be written"):
        write_text(tmp_path / "file" / "results.csv", "text")
    with pytest.raises(
        HeadtailError, match=r"file` cannot be written: it is not a folder. Choose another."
    ):
        check_writable(tmp_path / "file", "Choose another.")
    check_writable(tmp_path / "new" / "folder", "")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_a_folder_or_a_file_in_the_way_is_named(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(HeadtailError, match="file` is not a folder; name another file"):
        write_text(file / "best.csv", "")
    with pytest.raises(HeadtailError, match="it is a folder; name a file"):
        write_text(tmp_path, "")


def test_a_new_folder_is_whole_or_absent(tmp_path):
    with new_folder(tmp_path / "deep" / "out") as folder:
        (folder / "file").write_text("x")
        assert not (tmp_path / "deep" / "out").exists()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert (tmp_path / "deep" / "out" / "file").read_text() == "x"
    (tmp_path / "empty").mkdir()
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "empty") as folder:
        (folder / "file").write_text(f"{1 / 0}")
    with new_folder(tmp_path / "empty") as folder:
        (folder / "file").write_text("x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "empty"]


@pytest.mark.parametrize("taken", ["folder", "file"])
def test_a_folder_that_holds_something_is_refused_before_any_work(tmp_path, taken):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("x")
    (tmp_path / "file").write_text("x")
    work = []
    with pytest.raises(HeadtailError, match="exists already"), new_folder(tmp_path / taken):
        work.append(1)
    assert not work
    with (
        pytest.raises(HeadtailError, match=r"file` is not a folder"),
        new_folder(tmp_path / "file" / "out"),
    ):
        work.append(1)
    assert not work
