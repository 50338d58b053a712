"""Which cluster Ray uses, and what is said where there is none."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from types import SimpleNamespace

import pytest

from headtail import HeadtailError
from headtail.cli import main
from headtail.comparison import ray_cluster, ray_task
from headtail.comparison.compare import Execution
from headtail.comparison.ray_cluster import gpus_per_task
from headtail.files.locks import FolderInUseError
from headtail.training.interrupts import Stopped


@pytest.fixture
def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]  # it is taken, but nothing listens


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "ray://127.0.0.1:{port}", "nonsense"])
def test_an_address_without_a_cluster_is_one_sentence_before_any_work(
    address, closed_port, tmp_path, monkeypatch, capsys
):
    address = address.format(port=closed_port)
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert main(["compare", "--out", str(tmp_path / "out"), "--engine", "ray"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"headtail: No Ray cluster answers at `{address}`")
    assert said.count("\n") == 1
    assert "unset RAY_ADDRESS" in said
    assert not (tmp_path / "out").exists()


def test_a_cluster_that_does_not_let_us_in_is_one_sentence(monkeypatch):
    def refuse(**_):
        raise RuntimeError("Version mismatch. The cluster was started with:\nRay 1")

    with pytest.raises(HeadtailError, match=r"names \(Version mismatch\)\. Start it there"):
        ray_cluster._connect(SimpleNamespace(init=refuse), "10.0.0.1:6379")


def test_without_ray_the_sentence_says_how_to_install_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["compare", "--out", str(tmp_path / "out"), "--engine", "ray"]) == 2
    assert capsys.readouterr().err == (
        "headtail: The engine `ray` needs ray, which is not installed. Run "
        "`pip install 'headtail[ray]'`.\n"
    )
    assert not (tmp_path / "out").exists()
    with pytest.raises(HeadtailError, match="needs ray, which is not installed"):
        Execution(engine="ray")


def test_an_engine_that_does_not_exist_is_refused(capsys):
    with pytest.raises(HeadtailError, match=r"`engine` must be one of 'processes', 'ray', but got"):
        Execution(engine="dask")  # type: ignore[arg-type]
    assert main(["compare", "--engine", "dask"]) == 2
    assert capsys.readouterr().err == (
        "headtail: `--engine` must be one of 'processes', 'ray', but got `dask`.\n"
    )


def test_ray_is_imported_only_when_asked(tmp_path):
    code = (
        "import sys; from headtail.cli import main; "
        "main(['compare', 'synthetic:points=60,test=20,features=80,labels=12', '--dim', '4', "
        f"'--epochs', '1', '--schemes', 'softmax', '--out', {str(tmp_path)!r}]); "
        "raise SystemExit('ray' in sys.modules)"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0


@pytest.mark.parametrize(
    ("gpus", "workers", "share"),
    [(1, None, 1), (4, None, 1), (4, 4, 1), (1, 2, 0.5), (2, 3, 0.5), (1, 3, 0.3333)],
)
def test_workers_share_the_gpus_evenly(gpus, workers, share):
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 8, "GPU": gpus})
    assert gpus_per_task(ray, workers, "cuda") == share
    assert gpus_per_task(ray, workers, "cpu") == 0


def test_a_cluster_without_a_gpu_is_refused_for_work_on_one():
    ray = SimpleNamespace(cluster_resources=lambda: {"CPU": 8})
    with pytest.raises(HeadtailError, match=r"no GPU\. Write `device='cpu'`"):
        gpus_per_task(ray, None, "cuda")


def test_a_folder_that_a_lost_process_still_locks_is_waited_for(monkeypatch):
    monkeypatch.setattr(ray_task.time, "sleep", lambda _: None)
    tries = []

    def work():
        tries.append(1)
        if len(tries) < 3:
            raise FolderInUseError("It is in use.")
        return "done"

    stop = threading.Event()
    assert ray_task._once_free(work, stop) == "done"
    monkeypatch.setattr(ray_task, "LOCK_SECONDS", -1)
    tries.clear()
    with pytest.raises(FolderInUseError):
        ray_task._once_free(work, stop)


def test_a_cell_that_waits_for_a_locked_folder_stops_when_it_is_cancelled(tmp_path, monkeypatch):
    def pause(_):
        assert len(tries) == 1, "it has gone on after it was cancelled"
        os.kill(os.getpid(), signal.SIGINT)  # as Ray cancels a task

    tries = []

    def work(*_):
        tries.append(1)
        raise FolderInUseError("It is in use.")

    monkeypatch.setattr(ray_task.time, "sleep", pause)
    monkeypatch.setattr(ray_task, "_KEPT", {})
    monkeypatch.setattr(ray_task.torch, "set_num_threads", lambda _: None)
    cell = SimpleNamespace(folder=tmp_path, title="a cell")
    shared = ray_task.Shared(tmp_path, tmp_path, "digest", ray_task.versions(), "key")
    data = SimpleNamespace(digest="digest")
    with pytest.raises(Stopped):
        ray_task.perform(cell, work, shared, lambda: lambda: data, ray_task.Mailbox(None))
    assert tries == [1]


def test_news_of_a_queue_that_is_gone_is_no_news():
    class Gone:
        def put(self, _):
            raise RuntimeError

        empty = get = put

    news = ray_task.Mailbox(Gone())
    news.put(("a cell", "over", ()))
    assert news.empty()
    with pytest.raises(ray_task.Empty):
        news.get(timeout=1)
