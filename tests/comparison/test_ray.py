"""A comparison on Ray: the same bytes as without it, whatever is killed or stopped on the way."""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import torch

from headtail import HeadtailError
from headtail.cli import main
from headtail.comparison import ray_engine
from headtail.comparison.compare import Execution, compare, outcomes
from headtail.comparison.grid import cells
from headtail.comparison.ray_cluster import cluster
from headtail.comparison.tune import tune
from headtail.data.load import load
from headtail.training.callbacks import Callback
from headtail.training.config import Training
from headtail.training.interrupts import Stopped
from tests.longtail import longtail
from tests.training.test_train import Calls

DATA = "synthetic:points=300,test=50,features=100,labels=30"
SCHEMES = ("within-batch:tail", "softmax", "softmax+post-hoc", "uniform:tail")
LONG = Training(dim=8, epochs=15, batch=16, negatives=16, lr=0.02)
QUICK = replace(LONG, epochs=1)
ONE_THREAD = {"workers": torch.get_num_threads(), "if_it_pays": True}
CHANGING = ("made_by.json", "times.json", "SHA256SUMS.other")


def home_token():
    """The token that Ray keeps in the home of a user, where there is one."""
    path = Path.home() / ".ray" / "auth_token"
    return path.read_bytes() if path.exists() else None


BEFORE = home_token()


@pytest.fixture(scope="module", autouse=True)
def two_workers():
    """A private cluster with two workers, which every test uses."""
    with cluster(2, "cpu", print) as ray:
        yield ray


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The same comparison without Ray, one thread per cell."""
    folder = tmp_path_factory.mktemp("plain")
    return compared(folder, Execution(**ONE_THREAD))


def compared(folder, execution, **options):
    how = {"training": LONG, "device": "cpu"} | options
    compare(DATA, SCHEMES, out=folder, execution=execution, **how)
    return folder


def files(folder):
    """The content of every file that does not hold times."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in CHANGING and path.parent.name != "events"
    }


def tasks():
    """The processes that do a cell now."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::perform"):
                found.append(process)
        except psutil.Error:
            continue
    return found


class At(Callback):
    """Does something once, at the first step at which it can: it returns whether it could."""

    def __init__(self, attempt):
        self.attempt = attempt
        self.done = False

    def on_step(self, progress, loss):
        self.done = self.done or self.attempt()


def test_files_are_the_same_to_the_last_byte_and_nothing_else_is_left(plain, tmp_path):
    finished = []
    execution = Execution(engine="ray", finished=lambda cell, _: finished.append(cell.title))
    compared(tmp_path, execution)
    assert (tmp_path / "results.csv").read_bytes() == (plain / "results.csv").read_bytes()
    assert files(tmp_path) == files(plain)
    assert len(finished) == 4


def test_a_worker_that_is_killed_changes_nothing(plain, tmp_path):
    def kill_one():
        victims = tasks()[:1]
        for process in victims:
            process.kill()
        return len(victims) == 1

    at = At(kill_one)
    compared(tmp_path, Execution(engine="ray", callbacks=lambda _: [at]))
    assert at.done
    assert files(tmp_path) == files(plain)


def test_ctrl_c_saves_what_is_under_way_and_the_same_call_goes_on(plain, tmp_path):
    at = At(lambda: os.kill(os.getpid(), signal.SIGINT) is None)
    begun = time.monotonic()
    with pytest.raises(Stopped):
        compared(tmp_path, Execution(engine="ray", callbacks=lambda _: [at]))
    assert time.monotonic() - begun < ray_engine.SAVE_SECONDS, "cells stopped when they were asked"
    assert list(tmp_path.glob("cells/*/checkpoint.safetensors"))
    assert not (tmp_path / "results.csv").exists()
    assert tasks() == []
    assert [path.name for path in tmp_path.glob(".*")] == []
    compared(tmp_path, Execution(engine="ray"))
    assert files(tmp_path) == files(plain)


@pytest.mark.parametrize("begun_with", ["processes", "ray"])
def test_a_half_finished_comparison_goes_on_and_finished_cells_are_left_alone(
    plain, tmp_path, begun_with
):
    class Enough(Exception):
        pass

    def enough(*_):
        raise Enough

    first = ONE_THREAD if begun_with == "processes" else {"engine": "ray"}
    with pytest.raises(Enough):
        compared(tmp_path, Execution(finished=enough, **first))
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/SHA256SUMS")}
    assert 1 <= len(done) < 4
    compared(tmp_path, Execution(engine="ray"))
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert files(tmp_path) == files(plain)


def test_a_finished_comparison_asks_ray_for_nothing(plain, monkeypatch):
    monkeypatch.setattr(ray_engine, "cluster", None)
    before = files(plain)
    compared(plain, Execution(engine="ray"))
    assert files(plain) == before


def test_failures_are_the_same_sentences(tmp_path):
    diverging = replace(QUICK, lr=1e9, optimiser="sgd")
    found = {}
    for name, how in (("ray", {"engine": "ray"}), ("plain", ONE_THREAD)):
        folder = tmp_path / name
        compare(DATA, SCHEMES, out=folder, training=diverging, execution=Execution(**how))
        text = (folder / "failures.json").read_text().replace(str(folder), "")
        # A slow machine looks at the loss more often, and so sees it earlier.
        found[name] = re.sub(r"the loss is \S+ in epoch 1, step \d+", "the loss is …", text)
    assert "Training `softmax` diverged: the loss is …" in found["plain"]
    assert found["ray"] == found["plain"]


def test_callbacks_are_called_here_in_order(tmp_path):
    heard = {}

    def follow(cell):
        return [heard.setdefault(cell.title, Calls())]

    data = longtail()
    execution = Execution(engine="ray", callbacks=follow)
    compare(data, ["softmax"], seeds=2, out=tmp_path, training=LONG, execution=execution)
    for calls in heard.values():
        steps = [progress.step for _, progress, _ in calls.made]
        assert steps == sorted(steps)
        assert calls.made[-1][0] == "end"
        assert sum(kind == "epoch" for kind, *_ in calls.made) == LONG.epochs
    assert len(heard) == 2


def test_tuning_makes_the_same_tries(tmp_path):
    held_out = Training(dim=4, batch=16, negatives=4, epochs=1, validation=0.2)
    for name, how in (("ray", {"engine": "ray"}), ("plain", ONE_THREAD)):
        out = tmp_path / name
        tune(DATA, ["softmax"], out=out, training=held_out, execution=Execution(**how))
    assert (tmp_path / "ray/tries.csv").read_bytes() == (tmp_path / "plain/tries.csv").read_bytes()


def test_a_node_without_the_folder_is_named_in_one_sentence(tmp_path, monkeypatch):
    @contextmanager
    def elsewhere(folder):
        yield folder / "not-here"

    monkeypatch.setattr(ray_engine, "_marked", elsewhere)
    with pytest.raises(HeadtailError, match=r"node of Ray's cluster, does not see `.*` that is on"):
        compared(tmp_path, Execution(engine="ray"), training=QUICK)


def test_a_node_with_other_data_is_named_in_one_sentence(tmp_path):
    data = replace(load(DATA), digest="of other data")
    with pytest.raises(HeadtailError, match=r"a node of Ray's cluster, finds other data"):
        compare(data, ["softmax"], out=tmp_path, training=QUICK, execution=Execution(engine="ray"))


def test_a_node_with_another_version_is_named_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_engine, "versions", lambda: {"headtail": "0.0.1"})
    with pytest.raises(
        HeadtailError, match=r"was started with headtail 0\.0\.1\. Install the same"
    ):
        compared(tmp_path, Execution(engine="ray"), training=QUICK)


@dataclass(frozen=True)
class Die:
    """Work that takes its process down."""

    device: str = "cpu"

    def __call__(self, cell, data, callback, stop):
        os._exit(3)


def test_a_cell_that_always_takes_its_process_down_fails_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_engine, "RETRIES", 0)
    data = load(DATA)
    grid = cells(QUICK, ["softmax"], 2, data, tmp_path)
    found = list(outcomes(grid, data, Die(), Execution(engine="ray")))
    assert len(found) == 2
    for outcome in found:
        assert "Its worker process died" in str(outcome.error)
        assert "fewer `workers`" in str(outcome.error)


def test_the_cluster_listens_on_this_machine_alone_and_leaves_the_home_alone():
    listening = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # one that ends just now
            connections = process.net_connections("inet")
            listening += [each.laddr.ip for each in connections if each.status == "LISTEN"]
    assert len(listening) > 3
    mapped = [ipaddress.ip_address(ip.removeprefix("::ffff:")) for ip in listening]
    assert all(ip.is_loopback for ip in mapped), listening
    assert home_token() == BEFORE


def test_from_the_command_line(tmp_path, capfd):
    line = ["compare", DATA, "--dim", "4", "--epochs", "1", "--schemes", "softmax", "--seeds", "2"]
    line += ["--device", "cpu", "--out", str(tmp_path), "--engine", "ray", "--workers", "1"]
    assert main(line) == 0
    out, err = capfd.readouterr()
    assert "softmax, seed 1: done" in err
    assert "raylet" not in out + err
    assert Path(tmp_path / "report.html").exists()
