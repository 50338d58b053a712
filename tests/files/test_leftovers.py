"""What killed processes leave is found by its name, and removed."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headtail.files.atomic import write_text
from headtail.files.leftovers import sweep, temporary_name


def leave(path: Path) -> None:
    temporary_name(path).write_text("half")


def left_by_another(path: Path) -> Path:
    before = set(path.parent.iterdir())
    process = multiprocessing.get_context("fork").Process(target=leave, args=(path,))
    process.start()
    process.join()
    [left] = set(path.parent.iterdir()) - before
    return left


def test_the_next_write_sweeps_what_a_process_that_is_gone_left(tmp_path):
    left = left_by_another(tmp_path / "results.csv")
    unrelated = tmp_path / ".hidden.part"
    unrelated.touch()
    mine = temporary_name(tmp_path / "other")
    mine.touch()
    assert left.exists()
    write_text(tmp_path / "another.csv", "x")
    assert not left.exists()
    assert unrelated.exists()
    assert mine.exists()


def test_unfinished_files_of_another_machine_are_kept_for_a_day(tmp_path):
    old = tmp_path / ".a.ffffffff-1-1.part"
    young = tmp_path / ".b.ffffffff-1-1.part"
    for path in (old, young):
        path.touch()
    os.utime(old, (0, 0))
    sweep(tmp_path)
    assert not old.exists()
    assert young.exists()
    sweep(tmp_path, everything=True)
    assert not young.exists()


def test_a_long_name_leaves_room_for_the_temporary_one(tmp_path):
    path = tmp_path / ("é" * 120)
    write_text(path, "x")
    assert path.read_text() == "x"


def test_threads_write_the_same_file_without_disturbing_each_other(tmp_path):
    path = tmp_path / "file"

    def write(text: str) -> None:
        for _ in range(20):
            write_text(path, text)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, ["a" * 50, "b" * 50, "c" * 50, "d" * 50]))
    assert path.read_text() in {letter * 50 for letter in "abcd"}
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
