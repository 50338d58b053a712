"""Paths that are no readable files: each gets a sentence, and nothing waits for ever."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headtail import HeadtailError
from headtail.data.load import load
from headtail.errors import check_exists

LINES = "0 1:1\n1 0:1\n" * 5


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text(LINES)
    return path


def refused(path, sentence, **options):
    with pytest.raises(HeadtailError, match=sentence) as error:
        load(path, **options)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000


def test_pipes_sockets_and_devices_are_refused_at_once(tmp_path, train, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    os.mkfifo("pipe.txt")
    held = socket.socket(socket.AF_UNIX)
    held.bind("socket.txt")
    for path, kind in (("pipe.txt", "a named pipe"), ("socket.txt", "a socket")):
        refused(path, rf"is {kind}.*reading it may never end")
        refused(train, rf"is {kind}", test=path)
        refused(train, rf"is {kind}", item_features=path)
    refused("/dev/zero", "is a device")
    held.close()


def test_pipes_among_the_files_of_a_folder_are_not_read(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.txt").write_text(LINES)
    for name in ("test.txt", "Y.txt", "data_trSplit.txt", "train-00000-of-00002.csv"):
        os.mkfifo(tmp_path / "data" / name)
    assert len(load(tmp_path / "data").train) == 8


def test_a_shard_that_is_a_pipe_is_refused(tmp_path):
    rows = "user,item,time\n" + "".join(f"{i % 3},{i % 4},{i}\n" for i in range(30))
    (tmp_path / "train-00000-of-00002.csv").write_text(rows)
    os.mkfifo(tmp_path / "train-00001-of-00002.csv")
    refused(tmp_path / "train-00000-of-00002.csv", "is a named pipe")


def test_a_listed_image_that_is_a_pipe_is_refused(tmp_path):
    for number in range(4):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    os.mkfifo(tmp_path / "4.png")
    path = tmp_path / "train.txt"
    path.write_text("".join(f"{number}.png {number % 2}\n" for number in range(5)))
    refused(path, r"names `4.png`, which is not a file, but a folder, a pipe or a device")
    assert len(load(path, skip_bad_images=True).whole) == 4


def test_odd_paths_get_a_sentence(tmp_path, train):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused(tmp_path / ("x" * 300), "cannot be read: File name too long")
    refused("a\0b", "is not a path: it has a NUL in it")
    refused(tmp_path / "loop", "cannot be read: Too many levels of symbolic links")
    refused(train / "inside", "does not exist")
    (tmp_path / "folder.csv").mkdir()
    refused(tmp_path / "folder.csv", "holds nothing to read")
    refused(train, "folder.csv", test=tmp_path / "folder.csv")


@pytest.mark.parametrize("folder", [False, True])
def test_what_may_not_be_read_gets_a_sentence(tmp_path, train, monkeypatch, folder):
    path = tmp_path if folder else train
    monkeypatch.setattr(os, "access", lambda *_: False)
    refused(path, "cannot be read: Permission denied. Make it readable")


def test_a_file_that_turns_unreadable_gets_a_sentence(tmp_path, train, monkeypatch):
    opened = Path.open

    def no_permission(path, *given, **options):
        if path.suffix in (".txt", ".npz", ".csv"):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *given, **options)

    np.savez(tmp_path / "train.npz", features=np.eye(4), labels=np.arange(4) % 2)
    (tmp_path / "log.csv").write_text("user,item\n1,2\n")
    monkeypatch.setattr(Path, "open", no_permission)
    for path in (train, tmp_path / "log.csv", tmp_path / "train.npz", tmp_path):
        refused(path, r"cannot be read: Permission denied")


def test_a_folder_that_cannot_be_listed_gets_a_sentence(tmp_path, train, monkeypatch):
    def no_permission(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", no_permission)
    refused(tmp_path, "cannot be read: Permission denied")
    with pytest.raises(HeadtailError, match=r"nothing` does not exist\.$"):
        check_exists(tmp_path / "nothing")
