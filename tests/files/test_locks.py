"""One process at a time writes to a folder."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest

from headtail import HeadtailError
from headtail.files.leftovers import temporary_name
from headtail.files.locks import held


def hold(folder, end):
    with held(folder):
        end.send("held")
        end.recv()


@pytest.fixture
def holder(tmp_path):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=hold, args=(tmp_path, there))
    process.start()
    assert here.recv() == "held"
    yield process
    if process.is_alive():
        here.send("done")
    process.join()


def test_a_second_process_is_refused_with_the_first_ones_number(holder, tmp_path):
    sentence = f"` is in use by process {holder.pid}. Wait until that has ended, or choose another"
    with pytest.raises(HeadtailError, match=sentence) as raised, held(tmp_path):
        pass
    assert raised.value.argument == "out"


def test_the_folder_of_a_killed_process_is_free_and_swept(holder, tmp_path):
    left = temporary_name(tmp_path / "results.csv")
    left.touch()
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with held(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_a_folder_is_made_and_can_be_held_again(tmp_path):
    for _ in range(2):
        with held(tmp_path / "new" / "folder"):
            pass
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_a_file_cannot_be_held(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(HeadtailError, match="it is not a folder"), held(tmp_path / "file"):
        pass


def test_a_folder_is_free_again_though_a_process_that_was_forked_meanwhile_lives(tmp_path):
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    with held(tmp_path):
        child = context.Process(target=there.recv)
        child.start()
    with held(tmp_path):
        pass
    here.send("done")
    child.join()
