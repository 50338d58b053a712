"""Folders and files may be given as text, as people write them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from headtail.comparison.compare import compare
from headtail.comparison.grid import cells
from headtail.comparison.results import Comparison, read_rows
from headtail.data.load import load
from headtail.report import write_report
from headtail.training.config import Run, Training
from headtail.training.recipes import with_defaults
from headtail.training.saved_model import load_model
from headtail.training.trainer import Trainer

SMALL = "synthetic:points=300,test=60,labels=20,features=80"


def test_a_run_is_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run = Run(scheme="softmax", epochs=1, dim=8, batch=64)
    trained = Trainer(run, load(SMALL), "runs/first").fit()
    model, found, _ = load_model("runs/first")
    assert found == with_defaults(run, load(SMALL))
    assert torch.equal(model.head.weight, trained.model.head.weight)


def test_a_comparison_is_made_read_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    quick = Training(epochs=1, dim=8, batch=64)
    grid = cells(quick, ["softmax"], 1, load(SMALL), "compared")
    made = compare(SMALL, ["softmax"], out="compared", training=quick, device="cpu")
    write_report(made, "compared/page.html")
    read = Comparison.read("compared")
    assert read.rows == made.rows == read_rows("compared/results.csv")
    saved = Run.read(str(grid[0].folder / "run.toml"))
    assert asdict(saved) == asdict(grid[0].run)
    assert (tmp_path / "compared" / "page.html").stat().st_size > 10_000
