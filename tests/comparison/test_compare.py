"""A grid of runs: complete, never run twice, and the same whatever happens to it on the way."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

from headtail import HeadtailError
from headtail.cli import main
from headtail.comparison import cell as cell_module
from headtail.comparison.cell import run_cell
from headtail.comparison.grid import Cell, cells
from headtail.comparison.results import POPULAR, ClassError, Comparison, read_rows
from headtail.data.load import load
from headtail.data.slices import data_slices
from headtail.files.leftovers import temporary_name
from headtail.files.records import to_csv
from headtail.training.config import SettledRun, Training
from headtail.training.interrupts import Stopped
from headtail.training.trainer import Trainer

DATA = "synthetic:points=600,test=100,features=200,labels=60"
SCHEMES = ("within-batch:tail", "softmax")
SLICES = ("full", "head", "torso", "tail")
BY_SLICE = (
    "recall@1",
    "recall@10",
    "recall@50",
    "macro-recall@10",
    "balanced-error",
    "coverage@10",
    "recall@20",
    *(f"{metric}@{k}" for metric in ("hit-rate", "mrr", "ndcg") for k in (10, 20)),
    *(f"ndcg@{k}" for k in (1, 3, 5)),
)
EVERY = {(metric, slice_) for metric in BY_SLICE for slice_ in SLICES} | {
    (metric, "full") for metric in ("class-weighted-error", "popularity@10", "popularity-lift@10")
}
EVERY |= {(f"{metric}@{k}", "full") for metric in ("precision", "psp") for k in (1, 3, 5)}


def arguments(out, *more, schemes=SCHEMES, epochs=2):
    return [
        "compare",
        DATA,
        *("--dim", "16", "--batch", "256", "--lr", "0.02"),
        "--epochs",
        str(epochs),
        "--schemes",
        *schemes,
        "--out",
        str(out),
        *more,
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two schemes, two seeds."""
    folder = tmp_path_factory.mktemp("finished") / "comparison"
    assert main(arguments(folder, "--seeds", "2")) == 0
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy to change."""
    return Path(shutil.copytree(finished, tmp_path / "comparison"))


@pytest.fixture
def trained(monkeypatch):
    """The runs that are trained from here on."""
    runs = []

    class Spy(Trainer):
        def __init__(self, run, *rest, **options):
            runs.append((run.scheme, run.seed))
            super().__init__(run, *rest, **options)

    monkeypatch.setattr(cell_module, "Trainer", Spy)
    return runs


def cell_files(folder):
    return {
        path: path.stat().st_mtime_ns for path in (folder / "cells").rglob("*") if path.is_file()
    }


def test_every_scheme_seed_metric_and_slice_has_one_row(finished):
    found = Comparison.read(finished)
    test = Counter(
        (row.scheme, row.seed, row.metric, row.slice) for row in found.rows if row.split == "test"
    )
    expected = {(scheme, seed, *what) for scheme in SCHEMES for seed in (0, 1) for what in EVERY}
    assert set(test) == expected | {(POPULAR, 0, *what) for what in EVERY}
    assert set(test.values()) == {1}
    folders = {path.name for path in (finished / "cells").iterdir()}
    assert {
        row.run for row in found.rows if row.split == "test" and row.scheme != POPULAR
    } == folders
    assert found.failures == {}
    assert list(found.schemes) == list(SCHEMES)
    assert found.settings["schemes"] == list(SCHEMES)
    assert found.settings["dim"] == 16


def test_curves_and_what_is_known_before_training_are_rows_too(finished):
    rows = read_rows(finished / "results.csv")
    curves = defaultdict(list)
    for row in rows:
        if row.split in ("train", "validation"):
            curves[row.scheme, row.seed, row.metric].append(row.epoch)
    metrics = ("loss", "implicit-loss")
    assert curves == {
        (scheme, seed, metric): [1, 2]
        for scheme in SCHEMES
        for seed in (0, 1)
        for metric in metrics
    }
    known = {(row.scheme, row.metric): row.value for row in rows if row.split == "explain"}
    assert known["within-batch:tail", "lean"] > 0
    assert known["softmax", "lean"] == 0
    assert {row.m for row in rows if row.scheme == "softmax"} == {None}


def test_the_baseline_is_the_most_frequent_labels_for_every_point(finished):
    data = load(DATA)
    rows = read_rows(finished / "results.csv")
    counts = Counter(data.train.labels.values.tolist())
    best = {label for label, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:10]}
    truth = data.test.labels.values.tolist()
    value = next(
        row.value
        for row in rows
        if (row.scheme, row.metric, row.slice) == (POPULAR, "recall@10", "full")
    )
    assert value == pytest.approx(sum(label in best for label in truth) / len(truth))


def test_finished_cells_are_read_and_not_run_again(folder, trained):
    before = cell_files(folder)
    results = (folder / "results.csv").read_bytes()
    (folder / "results.csv").unlink()
    assert main(arguments(folder, "--seeds", "2")) == 0
    assert trained == []
    assert cell_files(folder) == before
    assert (folder / "results.csv").read_bytes() == results


def test_new_seeds_and_schemes_run_alone_and_other_settings_make_new_cells(folder, trained):
    before = cell_files(folder)
    assert main(arguments(folder, "--seeds", "2", schemes=(*SCHEMES, "uniform:tail"))) == 0
    assert trained == [("uniform:tail", 0), ("uniform:tail", 1)]
    trained.clear()
    assert main(arguments(folder, "--lr", "0.1")) == 0
    assert trained == [(scheme, 0) for scheme in SCHEMES]
    assert {path: cell_files(folder)[path] for path in before} == before
    assert len(list((folder / "cells").iterdir())) == 8


def test_other_slices_measure_again_without_training_and_leave_the_cells_alone(folder, trained):
    before = cell_files(folder)
    rows = read_rows(folder / "results.csv")
    assert main(arguments(folder, "--seeds", "2", "--slices", "count")) == 0
    again = read_rows(folder / "results.csv")
    assert trained == []
    assert cell_files(folder) == before

    def of(rows, slice_):
        kept = [
            row
            for row in rows
            if row.split == "test" and row.slice == slice_ and row.scheme != POPULAR
        ]
        return [
            (row.scheme, row.seed, row.metric, row.epoch, row.value, row.low, row.high)
            for row in kept
        ]

    assert of(again, "full") == of(rows, "full")
    assert of(again, "tail") != of(rows, "tail")
    assert "at least 100" in Comparison.read(folder).data["slices"]["rule"]
    assert main(arguments(folder, "--seeds", "2")) == 0
    assert read_rows(folder / "results.csv") == rows


def test_a_failing_cell_costs_itself_alone_and_is_tried_again(
    tmp_path, monkeypatch, capsys, trained
):
    def fail(self, **options):
        if (self.run.scheme, self.run.seed) == ("softmax", 1):
            raise RuntimeError("the sky fell")
        return fit(self, **options)

    fit = Trainer.fit
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "fit", fail)
        assert main(arguments(tmp_path, "--seeds", "2")) == 1
    assert "softmax, seed 1 failed: RuntimeError: the sky fell" in capsys.readouterr().err
    found = Comparison.read(tmp_path)
    assert found.failures == {"softmax, seed 1": "RuntimeError: the sky fell"}
    assert {(row.scheme, row.seed) for row in found.rows if row.split == "test"} == {
        (POPULAR, 0),
        ("within-batch:tail", 0),
        ("within-batch:tail", 1),
        ("softmax", 0),
    }
    assert "the sky fell" in (tmp_path / "report.html").read_text()
    trained.clear()
    assert main(arguments(tmp_path, "--seeds", "2")) == 0
    assert trained == [("softmax", 1)]
    assert json.loads((tmp_path / "failures.json").read_text()) == {}


def test_runs_that_diverge_fail_with_a_sentence_and_the_report_is_written(tmp_path, capsys):
    assert main(arguments(tmp_path, "--lr", "1e9", "--optimiser", "sgd", "--batch", "16")) == 1
    for name in SCHEMES:
        assert (
            f"Training `{name}` diverged" in Comparison.read(tmp_path).failures[f"{name}, seed 0"]
        )
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert f"Nothing was trained: all {len(SCHEMES)} runs failed." in captured.out
    assert (tmp_path / "report.html").exists()


def test_debug_lets_the_first_failure_through(tmp_path):
    with pytest.raises(HeadtailError, match="diverged"):
        main(arguments(tmp_path, "--lr", "1e9", "--optimiser", "sgd", "--batch", "16", "--debug"))


@pytest.mark.parametrize("interrupt", [Stopped, KeyboardInterrupt])
def test_an_interrupt_in_this_process_says_how_to_go_on(tmp_path, monkeypatch, capsys, interrupt):
    def fit(self, **_):
        raise interrupt

    monkeypatch.setattr(Trainer, "fit", fit)
    assert main(arguments(tmp_path / "my folder")) == 130
    assert (
        f"To go on: headtail {shlex.join(arguments(tmp_path / 'my folder'))}"
        in capsys.readouterr().err
    )
    assert main(["train", DATA, "--out", str(tmp_path / "run")]) == 130
    assert f"To go on: headtail train {DATA} --out {tmp_path / 'run'}" in capsys.readouterr().err


def test_a_cell_cut_at_the_end_of_a_row_is_run_again_and_the_others_are_kept(
    folder, capsys, trained
):
    damaged = next((folder / "cells").glob("softmax-seed1*")) / "results.csv"
    whole = damaged.read_text()
    damaged.write_text("".join(whole.splitlines(keepends=True)[:-3]))
    trained.clear()
    assert main(arguments(folder, "--seeds", "2")) == 0
    assert trained == [("softmax", 1)]
    assert damaged.read_text() == whole
    said = " ".join(capsys.readouterr().err.split())
    assert "is damaged (`results.csv` does not match its checksum), so it is run again." in said


def test_a_damaged_cell_is_not_answered_for_by_another_seed(folder, tmp_path, capsys):
    copy = shutil.copytree(folder, tmp_path / "copy")
    about = next((copy / "cells").glob("softmax-seed0*")) / "about.json"
    about.write_text(about.read_text() + "\n")
    answers = ["predict", str(copy), DATA, "--scheme", "softmax", "--out", str(tmp_path / "a.csv")]
    assert main(answers) == 2
    said = capsys.readouterr().err
    assert "is damaged: `about.json` does not match its checksum. The same comparison" in said
    assert main([*answers, "--seed", "1"]) == 0


@pytest.mark.parametrize("name", ["run.toml", "about.json"])
def test_a_cell_that_no_longer_says_what_it_is_is_run_again(folder, tmp_path, name, trained):
    copy = shutil.copytree(folder, tmp_path / "copy")
    damaged = next((copy / "cells").glob("softmax-seed1*")) / name
    damaged.write_text("null")
    trained.clear()
    assert main(arguments(copy, "--seeds", "2")) == 0
    assert trained == [("softmax", 1)]
    assert (copy / "results.csv").read_text() == (folder / "results.csv").read_text()


def test_a_model_that_does_not_suit_the_data_is_refused_once_and_nothing_is_begun(tmp_path, capsys):
    assert main(arguments(tmp_path / "out", "--encoder", "resnet20")) == 2
    assert capsys.readouterr().err.count("takes images, but the features are rows of numbers") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_takes_no_files_is_refused_before_any_work(tmp_path, trained, capsys):
    (tmp_path / "file").write_text("mine")
    assert main(arguments(tmp_path / "file")) == 2
    assert (
        "file` cannot be written: it is not a folder. Choose another folder."
        in capsys.readouterr().err
    )
    assert trained == []
    assert (tmp_path / "file").read_text() == "mine"


def test_errors_of_classes_that_other_runs_left_are_not_taken_for_those_of_these(folder):
    (folder / "classes.csv").write_text(
        to_csv([ClassError("other", "softmax", None, 0, 0, "", 5, 2, 0.5)], ClassError)
    )
    assert main(arguments(folder, "--seeds", "2")) == 0
    assert Comparison.read(folder).classes == []


OTHER = DATA.replace("60", "61")


@pytest.mark.parametrize("without", ["", "data.json"])
def test_a_folder_keeps_its_data_and_refuses_others_before_any_work(
    folder, trained, capsys, without
):
    if without:  # as where the first comparison was stopped before its end
        (folder / without).unlink()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main([OTHER if word == DATA else word for word in arguments(folder)]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert (
        f"comparison` holds a comparison on `{DATA}`, but now the data are `{OTHER}`. Choose "
        "another folder with `--out`" in shown
    )
    assert trained == []
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_data_read_in_another_way_are_other_data_and_so_are_those_that_changed(tmp_path, capsys):
    lines = [f"{i % 5},{i % 3 + 5} {i % 7}:1 {7 + i % 11}:1" for i in range(60)]
    (tmp_path / "train.txt").write_text("\n".join(lines))
    how = [
        "compare",
        str(tmp_path / "train.txt"),
        "--schemes",
        "softmax",
        "--dim",
        "4",
        "--epochs",
        "1",
    ]
    how += ["--out", str(tmp_path / "out")]
    assert main(how) == 0
    assert main([*how, "--holdout", "0.5"]) == 2
    assert "train.txt` `--holdout 0.2`, but now the data are" in " ".join(
        capsys.readouterr().err.split()
    )
    (tmp_path / "train.txt").write_text("\n".join(lines[1:]))
    assert main(how) == 2
    assert "train.txt`, but their content has changed. Choose" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_folder_keeps_its_run_and_refuses_another_before_it_writes(tmp_path):
    data = load(DATA)
    slices = data_slices(data)
    run = SettledRun(scheme="softmax", dim=8, epochs=1)
    rows = run_cell(Cell(run, tmp_path), data, slices)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(
        HeadtailError,
        match=r"holds a run with other `scheme`, `seed`. Choose another folder, or delete it.",
    ):
        run_cell(
            Cell(SettledRun(scheme="uniform:tail", dim=8, epochs=1, seed=3), tmp_path), data, slices
        )
    other = load(OTHER)
    with pytest.raises(HeadtailError, match=r"holds a run with other data"):
        run_cell(Cell(run, tmp_path), other, data_slices(other))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert run_cell(Cell(run, tmp_path), data, slices) == rows


def test_what_a_killed_process_left_half_written_is_swept_up(tmp_path):
    data = load(DATA)
    for name in ("checkpoint.safetensors", "model.safetensors"):
        temporary_name(tmp_path / name).write_text("half")
    run_cell(Cell(SettledRun(dim=8, epochs=1), tmp_path), data, data_slices(data))
    assert {one.name for one in tmp_path.iterdir()} == {
        "run.toml",
        "about.json",
        "events",
        "model.safetensors",
        "results.csv",
        "times.json",
        "answers.json",
        "SHA256SUMS",
        "SHA256SUMS.other",
    }


def test_settings_and_data_have_folders_of_their_own(tmp_path):
    data = load(DATA)
    other = load(OTHER)
    grids = [
        cells(Training(), ["softmax", "mixture(uniform,queue(8)):tail"], 2, data, tmp_path),
        cells(Training(lr=0.1), ["softmax"], 1, data, tmp_path),
        cells(Training(), ["softmax"], 1, other, tmp_path),
    ]
    folders = [cell.folder.name for grid in grids for cell in grid]
    assert len(set(folders)) == 6
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for name in folders)


LONG = {"schemes": ("within-batch:tail", "softmax"), "epochs": 40}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert main(arguments(folder, "--seeds", "2", "--patience", "40", **LONG)) == 0
    return (folder / "results.csv").read_bytes()


@pytest.fixture
def begin():
    """Starts the same comparison with two workers, as a process group of its own that is gone after
    the test.
    """
    begun = []

    def start(folder):
        line = [
            sys.executable,
            "-m",
            "headtail",
            *arguments(folder, "--seeds", "2", "--patience", "40", "--workers", "2", **LONG),
        ]
        how = {
            "stderr": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "text": True,
            "env": {**os.environ, "OMP_NUM_THREADS": "1"},
        }
        begun.append(subprocess.Popen(line, **how, start_new_session=True))
        return begun[-1]

    yield start
    for process in begun:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_until(happens, process=None):
    """Look often, for half a minute."""
    for _ in range(3000):
        if found := happens():
            return found
        assert process is None or process.poll() is None, "it was over before the moment came"
        time.sleep(0.01)
    raise AssertionError("the moment never came")


def moments(folder, name):
    return lambda: list((folder / "cells").glob(f"*/{name}"))


def children(pid):
    found = Path(f"/proc/{pid}/task/{pid}/children")
    if not found.exists():
        pytest.skip("this system does not tell the children of a process")
    return [int(child) for child in found.read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_killed_again_and_again_the_results_are_those_of_an_uninterrupted_run(
    tmp_path, begin, uninterrupted
):
    process = begin(tmp_path)
    wait_until(moments(tmp_path, "checkpoint.safetensors"), process)
    os.killpg(process.pid, signal.SIGKILL)  # everything at once, as a machine that goes down
    process = begin(tmp_path)
    finished = moments(tmp_path, "SHA256SUMS")  # the last file of a cell
    wait_until(finished, process)
    workers = children(process.pid)
    assert len(workers) >= 2
    process.kill()  # the parent alone: its workers must not go on without it
    wait_until(lambda: not any(map(alive, workers)))
    assert 0 < len(finished()) < 4
    assert not (tmp_path / "results.csv").exists()
    stopped = Comparison.read(tmp_path)
    measured = {(row.scheme, row.seed) for row in stopped.rows if row.split == "test" and row.run}
    assert len(measured) == len(finished())
    assert len(measured) + len(stopped.missing) == 4
    assert main(arguments(tmp_path, "--seeds", "2", "--patience", "40", **LONG)) == 0
    assert Comparison.read(tmp_path).missing == []
    assert (tmp_path / "results.csv").read_bytes() == uninterrupted


def test_ctrl_c_saves_says_how_to_go_on_and_workers_change_nothing(tmp_path, begin, uninterrupted):
    for starting in (True, False):
        process = begin(tmp_path)
        moment = (
            (lambda pid=process.pid: len(children(pid)) > 1)
            if starting
            else moments(tmp_path, "checkpoint.safetensors")
        )
        wait_until(moment, process)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group
        _, shown = process.communicate(timeout=60)
        assert process.returncode == 130, shown
        assert "Stopped, and saved. To go on: headtail compare synthetic:points=600" in shown
        assert "Traceback" not in shown
        assert len(moments(tmp_path, "results.csv")()) < 4
    assert (
        main(arguments(tmp_path, "--seeds", "2", "--patience", "40", "--workers", "2", **LONG)) == 0
    )
    assert (tmp_path / "results.csv").read_bytes() == uninterrupted
