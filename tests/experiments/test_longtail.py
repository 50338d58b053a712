"""The long-tail study: its whole grid runs through, is resumed, and ends as tables."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import math
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import longtail_page
import pytest

from headtail.comparison.compare import run_grid
from headtail.comparison.grid import cells
from headtail.comparison.results import POPULAR, Row, read_rows
from headtail.files.records import to_csv
from headtail.training.config import Training
from tests.longtail import COUNTS, longtail

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def script(name: str) -> ModuleType:
    if name == "longtail":
        pytest.importorskip(
            "headtail.training.recipes", reason="the study trains by a recipe, and there is none"
        )
    spec = importlib.util.spec_from_file_location(name, EXPERIMENTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there for their annotations
    spec.loader.exec_module(module)
    return module


QUICK = Training(dim=8, batch=32, epochs=1, lr=0.1, dropout=0.0, validation=0.0)


def given(folder: Path, **changed) -> argparse.Namespace:
    options = {
        "out": folder,
        "seeds": 1,
        "steps": 20,
        "device": "cpu",
        "workers": 1,
        "keep_models": False,
        "schemes": (),
    }
    return argparse.Namespace(**(options | changed))


def test_every_scheme_of_every_study_trains_and_is_measured(tmp_path):
    study = script("longtail")
    names = tuple(dict.fromkeys(name for one in study.STUDIES for name in one.schemes))
    assert len(names) == 13 + 9 + 32
    # Within-batch takes its negatives from the batch, so it must hold 128 pairs.
    grid = cells(
        Training(dim=4, batch=160, epochs=1, negatives=4, dropout=0.0, validation=0.0),
        names,
        1,
        longtail(),
        tmp_path,
    )
    found = run_grid(grid, longtail(), tmp_path)
    assert found.failures == {}
    errors = {
        (row.scheme, row.slice): row.value for row in found.rows if row.metric == "balanced-error"
    }
    assert all(
        0 <= errors[name, slice_] <= 1
        for name in names
        for slice_ in ("head", "torso", "tail", "full")
    )
    assert len(found.classes) == len(names) * len(COUNTS)


def test_epochs_follow_from_the_images_so_that_every_run_takes_as_many_steps():
    study = script("longtail")
    for pictures, epochs in ((21_549, 130), (50_500, 55), (12_406, 227), (25_250, 111)):
        found = study.settings(study.STUDIES[2], pictures, Training(batch=128))
        assert (found.epochs, found.negatives) == (epochs, 4)
        assert abs(found.epochs * (pictures // 128) - study.STEPS) < 200
        assert found.warmup == 0
    warm = [one for one in study.STUDIES if one.warmup]
    assert [study.settings(one, 12_406, Training(batch=128)).warmup for one in warm] == [
        5 * (12_406 // 128)
    ]
    assert study.settings(study.STUDIES[2], 12_406, Training(batch=128, warmup=7)).warmup == 7, (
        "a recipe's own stays"
    )


def test_some_schemes_of_a_study_come_with_what_is_answered_by_their_models(tmp_path):
    study = script("longtail")
    small = study.Study(
        "tiny", "", "exp", 8, ("softmax+post-hoc", "softmax", "within-batch:tail"), 3
    )
    assert (
        study.perform(
            small, partial(longtail), QUICK, given(tmp_path, schemes=["softmax"]), "python"
        )
        == 0
    )
    assert {row.scheme for row in read_rows(tmp_path / "tiny" / "results.csv")} == {
        "softmax",
        "softmax+post-hoc",
        POPULAR,
    }
    assert (
        study.perform(
            small,
            partial(longtail),
            QUICK,
            given(tmp_path / "none", schemes=["adaptive"]),
            "python",
        )
        == 0
    )
    assert not (tmp_path / "none").exists()


def test_a_misspelt_scheme_and_data_that_are_not_there_are_reported_in_a_sentence(
    tmp_path, monkeypatch, capsys
):
    study = script("longtail")
    usual = [
        "longtail.py",
        "--data",
        str(tmp_path),
        "--only",
        "0",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "out"),
    ]
    monkeypatch.setattr(sys, "argv", [*usual, "--schemes", "softmaxx"])
    with pytest.raises(SystemExit) as left:
        study.main()
    assert left.value.code == 2
    assert "invalid choice: 'softmaxx'" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", usual)
    assert study.main() == 1
    assert "does not exist." in capsys.readouterr().err


def test_a_study_prints_its_epochs_keeps_its_rows_and_drops_models_nobody_needs(tmp_path, capsys):
    study = script("longtail")
    small = study.Study(
        "tiny", "", "exp", 8, ("softmax+post-hoc", "softmax", "within-batch:tail"), 3
    )
    assert study.perform(small, partial(longtail), QUICK, given(tmp_path), "python") == 0
    told = capsys.readouterr().out
    assert (
        f"tiny: {sum(COUNTS)} images, 8 classes, 2 epochs = 26 steps, 0 of 3 runs done, 2 of them "
        "trained" in told
    )
    left = sorted(path.name for path in (tmp_path / "tiny" / "cells").rglob("*.safetensors"))
    assert left == []
    rows = read_rows(tmp_path / "tiny" / "results.csv")
    assert study.perform(small, partial(longtail), QUICK, given(tmp_path), "python") == 0
    assert "3 of 3 runs done" in capsys.readouterr().out
    assert read_rows(tmp_path / "tiny" / "results.csv") == rows
    assert (tmp_path / "tiny" / "report.html").exists()


def test_the_model_that_another_run_will_answer_with_is_kept_until_then(tmp_path):
    study = script("longtail")
    grid = cells(QUICK, ("softmax", "softmax+post-hoc"), 1, longtail(), tmp_path)
    run_grid(grid[:1], longtail(), tmp_path)
    study.lighten(grid)
    assert (grid[0].folder / "model.safetensors").exists()
    run_grid(grid, longtail(), tmp_path)
    study.lighten(grid)
    assert not (grid[0].folder / "model.safetensors").exists()


def test_time_that_is_up_asks_as_ctrl_c_does():
    study = script("longtail")
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(os.getpid()))
    try:
        study.stop_after(0.0).join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [os.getpid()]


def row(
    scheme: str,
    seed: int,
    slice_: str,
    value: float,
    m: float | None = None,
    metric: str = "balanced-error",
) -> Row:
    return Row("r", "x", "test", "softmax", scheme, m, seed, 1, 10, slice_, metric, value)


def test_tables_have_means_deviations_and_dashes_in_the_order_of_the_paper(tmp_path, monkeypatch):
    tables = script("longtail_tables")
    folder = tmp_path / "runs"
    data = longtail((160, 120, 60, 40, 24))  # nobody in the tail
    names = ("within-batch:tail", "uniform:constant", "softmax", "uniform:constant@4")
    for name, schemes in (("tiny", names[:3]), ("tiny-sweep", names[3:])):
        run_grid(cells(QUICK, schemes, 2, data, folder / name), data, folder / name)
    old = [
        replace(row("softmax", 0, "head", 7.0), dataset=name) for name in ("tiny", "of another day")
    ]
    (tmp_path / "longtail.csv").write_text(to_csv(old, Row))
    (tmp_path / "longtail-classes.csv").write_text(
        "study,scheme,label,train,test,error,deviation\ntiny,softmax,9,1,1,7,\nof another "
        "day,softmax,0,1,1,7,\n"
    )
    monkeypatch.setattr(tables, "PAGE", tmp_path / "no page")
    monkeypatch.setattr(sys, "argv", ["longtail_tables.py", str(folder)])
    tables.main()
    rows, losses = (read_rows(tmp_path / f"{name}.csv") for name in ("longtail", "longtail-losses"))
    # not run again, so kept
    assert [one.dataset for one in rows if one.value == 7.0] == ["of another day"]
    assert list(dict.fromkeys(row.scheme for row in rows if row.dataset == "tiny")) == [
        *reversed(names[:3]),
        POPULAR,
    ]
    assert len({(row.dataset, row.scheme, row.seed, row.metric, row.slice) for row in rows}) == len(
        rows
    )
    lines = longtail_page.table([row for row in rows if row.dataset == "tiny"]).splitlines()
    assert lines[0] == "| scheme | seeds | Head | Torso | Balanced | Prior-weighted |"  # no tail
    assert [line.split(" | ")[1] for line in lines[2:5]] == ["2"] * 3
    found = [
        one
        for one in rows
        if (one.dataset, one.scheme, one.metric) == ("tiny", "softmax", "balanced-error")
    ]
    values = [one.value for one in found if one.slice == "head"]
    deviation = abs(values[0] - values[1]) / math.sqrt(2)
    assert f"| softmax | 2 | {100 * sum(values) / 2:.1f} ± {100 * deviation:.1f} |" in lines[2]
    assert {(one.dataset, one.scheme, one.seed, one.epoch) for one in losses} == {
        ("tiny" if name in names[:3] else "tiny-sweep", name, seed, 1)
        for name in names
        for seed in (0, 1)
    }
    with (tmp_path / "longtail-classes.csv").open(newline="") as file:
        means = list(csv.DictReader(file))
    wanted = {("of another day", "softmax"), *(("tiny", name) for name in names[:3])}
    assert {(one["study"], one["scheme"]) for one in means} == wanted
    assert [
        int(one["train"]) for one in means if (one["study"], one["scheme"]) == ("tiny", "softmax")
    ] == [160, 120, 60, 40, 24]


@pytest.mark.parametrize("name", ["longtail_tables", "samplers_tables", "evidence_tables"])
@pytest.mark.parametrize("given", [(), ("nowhere/runs",)], ids=["no folder", "a missing folder"])
def test_without_runs_what_is_committed_is_not_overwritten(name, given, tmp_path, monkeypatch):
    tables = script(name)
    written = []
    writer = "write_table" if name == "evidence_tables" else "write_text"
    monkeypatch.setattr(tables, writer, lambda *what: written.append(what))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *given])
    with pytest.raises(SystemExit, match="Name one folder"):
        tables.main()
    assert not written


def test_a_sweep_stands_beside_the_grid_that_it_is_of():
    rows = [
        row("uniform:tail", 0, "head", 0.25, 32),
        row("uniform:tail", 0, "tail", 0.75, 32),
        row("uniform:tail", 0, "full", 0.5, 32),
        row("uniform:tail@8", 0, "full", 0.75, 8),
        row("uniform:tail", 1, "full", 0.9, 32),  # the sweep has no other seed
        row("softmax", 0, "full", 0.4),
    ]
    rows += [row("uniform:constant", 0, "full", 0.6, 32)]  # of the grid alone
    assert longtail_page.sweep_table(rows).splitlines() == [
        "| head / tail / balanced | m = 8 | m = 32 |",
        "|---|--:|--:|",
        "| uniform:tail | – / – / 75.0 | 25.0 / 75.0 / 50.0 |",
    ]


def test_tables_go_to_their_places_and_nothing_else_changes():
    tables = script("study_tables")
    page = (
        "# Title\n<!-- table tiny -->\nold\n<!-- end -->\ntext\n<!-- table tiny-sweep -->\n<!-- "
        "end -->\n"
    )
    new = tables.place_in(page, {"tiny": r"| \1 |", "other": "nowhere"})
    assert new == page.replace("old", r"| \1 |")
    assert tables.place_in(new, {"tiny": "old"}) == page
