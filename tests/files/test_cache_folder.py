"""A cache that others can write to is not believed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headtail.errors import HeadtailError
from headtail.files import cache_folder as module
from headtail.files.cache_folder import cache_folder, own_folder

USE_A_KERNEL = """
import torch, headtail as ht
from numba import config
head = ht.LabelHead(ht.Labels.zipf(3000), 4, ht.SoftmaxLoss())
from headtail.kernels.cpu import topk
print(config.CACHE_DIR)
"""


@pytest.fixture(autouse=True)
def _own_memory():
    own_folder.cache_clear()
    yield
    own_folder.cache_clear()


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    return folder


def test_a_new_folder_is_made_for_the_user_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "deep" / "cache"))
    before = os.umask(0)
    try:
        assert cache_folder().stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_a_folder_that_all_may_read_but_only_the_user_may_write_is_used(folder):
    folder.chmod(0o755)
    assert own_folder(folder) == folder
    assert folder.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o707])
def test_a_folder_that_everybody_may_write_to_is_refused(folder, monkeypatch, mode):
    folder.chmod(mode)
    monkeypatch.setenv("HEADTAIL_CACHE", str(folder))
    with pytest.raises(HeadtailError, match="can be written to by other users") as raised:
        cache_folder()
    assert str(folder) in str(raised.value)
    assert "chmod -R go-w" in str(raised.value)
    assert "HEADTAIL_CACHE" in str(raised.value)
    assert folder.stat().st_mode & 0o7777 == mode, "nothing hides that others could write there"


def groups(monkeypatch, name: str, members: list[str]) -> None:
    import grp
    import pwd

    user = SimpleNamespace(pw_name="me", pw_gid=os.getegid())
    group = SimpleNamespace(gr_name=name, gr_gid=os.getegid(), gr_mem=members)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: group)


@pytest.mark.parametrize("members", [[], ["me"]])
def test_a_folder_of_the_users_own_group_is_tightened_and_used(folder, monkeypatch, members):
    folder.chmod(0o775)
    groups(monkeypatch, "me", members)
    assert own_folder(folder) == folder
    assert folder.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(("name", "members"), [("staff", []), ("me", ["you"])])
def test_a_folder_that_a_group_of_others_may_write_to_is_refused(
    folder, monkeypatch, name, members
):
    folder.chmod(0o775)
    groups(monkeypatch, name, members)
    with pytest.raises(HeadtailError, match="can be written to by other users"):
        own_folder(folder)


def test_a_folder_of_another_user_is_refused(folder, monkeypatch):
    monkeypatch.setattr(module.os, "geteuid", lambda: folder.stat().st_uid + 1)
    monkeypatch.setattr(module, "_doubt", _as_if_not_root(module._doubt))
    with pytest.raises(HeadtailError, match="belongs to another user"):
        own_folder(folder)


def _as_if_not_root(doubt):
    """Files of root are trusted, and tests may run as root."""

    def of_others(found, is_link=False):
        owner = SimpleNamespace(st_uid=found.st_uid + 1000, st_mode=found.st_mode)
        return doubt(owner, is_link)

    return of_others


def test_a_link_to_a_folder_that_everybody_may_write_to_is_refused(tmp_path, folder):
    folder.chmod(0o777)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(HeadtailError, match="can be written to by other users"):
        own_folder(tmp_path / "link")


def test_a_link_to_a_folder_of_ones_own_is_used(tmp_path, folder):
    (tmp_path / "link").symlink_to(folder)
    assert own_folder(tmp_path / "link") == tmp_path / "link"


def test_everything_below_is_looked_at_where_code_is_kept(folder):
    inside = folder / "kernels"
    inside.mkdir()
    (inside / "topk.nbi").touch()
    inside.chmod(0o755)
    assert own_folder(folder, below=True) == folder
    own_folder.cache_clear()
    (inside / "topk.nbi").chmod(0o666)
    with pytest.raises(HeadtailError, match=r"topk\.nbi"):
        own_folder(folder, below=True)


def test_a_folder_is_looked_at_once_in_a_process(folder):
    own_folder(folder)
    folder.chmod(0o777)
    assert own_folder(folder) == folder


def kernels(**variables: str) -> subprocess.CompletedProcess[str]:
    others = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    command = [sys.executable, "-c", USE_A_KERNEL]
    return subprocess.run(
        command, env=others | variables, capture_output=True, text=True, check=True
    )


def test_compiled_kernels_are_kept_in_a_folder_for_the_user_alone(tmp_path):
    done = kernels(HEADTAIL_CACHE=str(tmp_path / "cache"))
    assert done.stdout.strip() == str(tmp_path / "cache" / "numba")
    assert (tmp_path / "cache" / "numba").stat().st_mode & 0o777 == 0o700
    assert "compiled again" not in done.stderr


@pytest.mark.parametrize("variable", ["HEADTAIL_CACHE", "NUMBA_CACHE_DIR"])
def test_kernels_that_others_can_write_to_are_never_read(folder, variable):
    folder.chmod(0o777)
    done = kernels(**{"HEADTAIL_CACHE": str(folder.with_name("own")), variable: str(folder)})
    used = Path(done.stdout.strip())
    assert folder not in (used, *used.parents)
    assert not used.exists(), "what was compiled for the process is removed at its end"
    assert "Kernels are compiled again in each process." in done.stderr
    assert str(folder) in done.stderr
    assert not list(folder.iterdir())


def test_every_link_on_the_way_is_looked_at(tmp_path, folder, monkeypatch):
    (tmp_path / "second").symlink_to(folder)
    (tmp_path / "first").symlink_to("second")
    assert own_folder(tmp_path / "first") == tmp_path / "first"
    own_folder.cache_clear()
    doubt = module._doubt
    theirs = (tmp_path / "second").lstat().st_ino

    def of_another(found, is_link=False):
        return "belongs to another user (id 7)" if found.st_ino == theirs else doubt(found, is_link)

    monkeypatch.setattr(module, "_doubt", of_another)
    with pytest.raises(HeadtailError, match=r"leads to `.*second`, a link that belongs to another"):
        own_folder(tmp_path / "first")


def test_links_in_a_circle_are_refused(tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(HeadtailError, match="cannot be inspected"):
        own_folder(tmp_path / "one")


@pytest.mark.parametrize("kind", ["folder", "file", "nothing"])
def test_links_are_refused_where_code_is_kept(tmp_path, folder, kind):
    elsewhere = tmp_path / "elsewhere"
    if kind == "folder":
        elsewhere.mkdir(mode=0o700)
    elif kind == "file":
        elsewhere.touch(mode=0o600)
    (folder / "cpu_1").symlink_to(elsewhere)
    assert own_folder(folder) == folder
    with pytest.raises(HeadtailError, match="cpu_1` is a link"):
        own_folder(folder, below=True)
