"""Cells in several processes: every outcome comes back, and no process is left behind."""

from __future__ import annotations

import os
import queue
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from headtail import HeadtailError
from headtail.comparison.compare import Execution, outcomes, sentence_of
from headtail.comparison.grid import Cell
from headtail.comparison.news import Followers, Reporter
from headtail.comparison.workers import in_turn, pays, side_by_side
from headtail.data.load import load
from headtail.training.callbacks import Callback, Progress
from headtail.training.config import SettledRun
from tests.training.test_train import Calls

CELLS = [Cell(SettledRun(scheme="softmax", seed=seed), Path(f"seed{seed}")) for seed in range(4)]


def nothing():
    return "the data"


def quiet(_):
    return Callback()


def after(step, finished=False):
    """The progress of a run with ten steps per epoch."""
    return Progress(step, step // 10, 10, 5, best_epoch=0, finished=finished)


def work(cell, data, callback, stop):
    """Seed 1 fails; the others say what they know."""
    callback.on_step(after(1), 0.5)
    callback.on_epoch(after(10), {"train/loss": cell.run.seed})
    callback.on_end(after(10, finished=cell.run.seed != 1))
    if cell.run.seed == 1:
        raise HeadtailError("Seed 1 is unlucky.")
    return cell.run.seed, data, torch.get_num_threads(), os.getpid()


def die_after_a_step(cell, data, callback, stop):
    callback.on_step(after(3), 0.5)
    time.sleep(0.5)  # until that is sent
    os._exit(3)


def die(cell, data, callback, stop):
    os._exit(3)


def break_down_once(folder, how, cell, data, callback, stop):
    """Seed 2 takes its process down, or its GPU; another try succeeds."""
    if cell.run.seed == 2 and not (folder / "broken").exists():
        (folder / "broken").touch()
        if how == "process":
            os._exit(3)
        raise torch.AcceleratorError(
            "CUDA error: an illegal memory access was encountered\nFor debugging …"
        )
    return cell.run.seed


def lose_the_gpu(cell, data, callback, stop):
    raise torch.AcceleratorError(
        "CUDA error: an illegal memory access was encountered\nFor debugging …"
    )


def mark_and_wait(folder, cell, data, callback, stop):
    (folder / str(cell.run.seed)).write_text(str(os.getpid()))
    if cell.run.seed == 0:
        raise HeadtailError("The first fails at once.")
    assert stop.wait(30), "no request to stop came"


def seen_by(outcomes):
    found = {
        cell.run.seed: (result, str(error) if error else None) for cell, result, error in outcomes
    }
    return found.pop(1), found


def test_in_turn_goes_on_after_a_failure_and_gives_the_threads_back():
    before = torch.get_num_threads()
    failed, rest = seen_by(in_turn(CELLS, "the data", work, quiet, threads=1))
    assert failed == (None, "Seed 1 is unlucky.")
    assert rest == {seed: ((seed, "the data", 1, os.getpid()), None) for seed in (0, 2, 3)}
    assert torch.get_num_threads() == before


def test_side_by_side_brings_results_failures_and_news_from_other_processes():
    heard = {cell.title: Calls() for cell in CELLS}
    follow = lambda cell: heard[cell.title]  # noqa: E731
    failed, rest = seen_by(side_by_side(CELLS, nothing, work, follow, workers=2, threads=1))
    assert failed == (None, "Seed 1 is unlucky.")
    assert {seed: result[:3] for seed, (result, _) in rest.items()} == {
        seed: (seed, "the data", 1) for seed in (0, 2, 3)
    }
    assert all(result[3] != os.getpid() for result, _ in rest.values())
    for cell in CELLS:  # nothing is lost, however soon a cell is over
        seed = cell.run.seed
        assert heard[cell.title].made == [
            ("step", after(1), 0.5),
            ("epoch", after(10), {"train/loss": seed}),
            ("end", after(10, finished=seed != 1), None),
        ]


def test_a_worker_that_dies_is_reported_with_a_way_out():
    with pytest.raises(HeadtailError, match=r"A worker process died.*fewer `workers`"):
        list(side_by_side(CELLS, nothing, die, quiet, workers=2, threads=1))


def test_news_that_is_slower_than_the_result_is_waited_for():
    news = queue.Queue()
    calls = Calls()
    reporter = Reporter("a cell", news)

    def late():
        time.sleep(0.2)
        reporter.on_end(after(10, finished=True))
        reporter.over()

    threading.Thread(target=late).start()
    followers = Followers({"a cell": calls}, news)
    followers.wait_for("a cell")
    assert calls.made == [("end", after(10, finished=True), None)]


def test_news_of_a_cell_that_is_over_is_ignored():
    news = queue.Queue()
    calls = Calls()
    for _ in range(2):  # as if its process had died before it gave its result, and it ran again
        reporter = Reporter("a cell", news)
        reporter.on_end(after(10, finished=True))
        reporter.over()
    followers = Followers({"a cell": calls}, news)
    followers.pass_on()
    followers.end()
    assert calls.made == [("end", after(10, finished=True), None)]


def test_a_cell_whose_process_dies_ends_where_it_was_last():
    calls = Calls()
    with pytest.raises(HeadtailError, match="A worker process died"):
        list(
            side_by_side(
                CELLS[:1], nothing, die_after_a_step, lambda _: calls, workers=1, threads=1
            )
        )
    both_times = [("step", after(3), 0.5), ("end", after(3), None)] * 2
    assert calls.made == both_times


@pytest.mark.parametrize("how", ["process", "GPU"])
def test_what_a_fault_took_down_is_done_once_more(tmp_path, how):
    outcomes = list(
        side_by_side(
            CELLS, nothing, partial(break_down_once, tmp_path, how), quiet, workers=2, threads=1
        )
    )
    assert (tmp_path / "broken").exists()
    assert sorted(outcome.result for outcome in outcomes) == [0, 1, 2, 3]


def test_a_gpu_that_is_lost_again_is_a_failure_of_one_line():
    outcomes = list(side_by_side(CELLS, nothing, lose_the_gpu, quiet, workers=2, threads=1))
    assert [sentence_of(outcome.error) for outcome in outcomes] == [
        "The GPU reported a fault: an illegal memory access was encountered."
    ] * 4


def test_closing_early_stops_the_running_and_cancels_the_rest(tmp_path):
    outcomes = side_by_side(
        CELLS, nothing, partial(mark_and_wait, tmp_path), quiet, workers=1, threads=1
    )
    assert str(next(outcomes).error) == "The first fails at once."
    outcomes.close()
    assert "3" not in {one.name for one in tmp_path.iterdir()}


def test_processes_pay_for_many_steps_and_for_large_ones_alone():
    data = load("synthetic:points=300,test=20,features=80,labels=20")
    few = [replace(cell, run=replace(cell.run, epochs=1)) for cell in CELLS]
    many = [replace(cell, run=replace(cell.run, epochs=3_000)) for cell in CELLS]
    large = [replace(cell, run=replace(cell.run, epochs=1, dim=3_000_000)) for cell in CELLS]
    assert not pays(few, data)
    assert pays(many, data)
    assert pays(large, data)


@pytest.mark.parametrize("if_it_pays", [True, False])
def test_a_small_comparison_starts_no_processes(if_it_pays, tmp_path):
    data = load("synthetic:points=300,test=20,features=80,labels=20")
    grid = [replace(cell, folder=tmp_path / cell.folder) for cell in CELLS[:2]]
    execution = Execution(workers=2, if_it_pays=if_it_pays)
    found = list(outcomes(grid, data, Here("cpu"), execution))
    assert [outcome.error for outcome in found] == [None, None]
    assert ({outcome.result for outcome in found} == {os.getpid()}) is if_it_pays


@dataclass(frozen=True)
class Here:
    """Work that returns the process that it is done in."""

    device: str

    def __call__(self, cell, data, callback, stop):
        return os.getpid()
