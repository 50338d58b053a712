"""The study of samplers: its four questions run through, are resumed, and end as tables."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from headtail import Labels, scheme
from headtail.comparison.results import Row, read_rows
from headtail.data.synthetic import generate
from headtail.errors import HeadtailError
from headtail.training.config import Training
from tests.experiments.test_longtail import script

SMALL = partial(generate, "synthetic:points=600,test=200,labels=60,features=200")
QUICK = Training(
    dim=8,
    batch=64,
    epochs=3,
    negatives=16,
    lr=0.1,
    dropout=0.0,
    schedule="constant",
    validation=0.1,
)


def study_of(monkeypatch: pytest.MonkeyPatch):
    script("longtail")
    study = script("samplers")
    monkeypatch.setitem(study.TRAINING, "tiny", QUICK)
    monkeypatch.setitem(study.RATES, "tiny", (0.1, 0.001))
    return study


def given(folder: Path) -> argparse.Namespace:
    return argparse.Namespace(out=folder, seeds=2, device="cpu", workers=1)


def test_the_four_questions_run_through_and_are_not_asked_twice(tmp_path, monkeypatch, capsys):
    study = study_of(monkeypatch)
    tmp_path = tmp_path / "runs"
    small = (
        study.Study("tiny-learn", ("uniform", "block", "block(1)", "uniform@32"), seeds=2),
        study.Study("tiny-time", ("uniform", "block", "uniform@32"), ("softmax",)),
        study.Study("tiny-fast", ("block", "uniform@32"), seeds=1),
        study.Study("tiny-noise", ("uniform", "tilted", "full"), numbers=(4, 16)),
    )
    monkeypatch.setattr(study, "STUDIES", small)
    for one in small:
        assert study.perform(one, SMALL, given(tmp_path)) == 0
    told = capsys.readouterr().out
    assert told.count("tiny-learn: 0 of 8 runs done") == 2  # two rates
    assert "tiny-learn: 8 of 16 runs done" in told
    recall = {
        (row.scheme, row.seed, row.slice)
        for row in read_rows(tmp_path / "tiny-learn" / "results.csv")
        if row.metric == "recall@10"
    }
    wanted = {
        f"{name}:{weights}"
        for name in ("uniform", "block", "block(1)")
        for weights in ("tail", "importance")
    }
    assert {(name, seed, "tail") for name in wanted for seed in (0, 1)} <= recall
    noise = {
        (row["target"], row["sampler"], row["m"]): row
        for row in study.read_table(tmp_path / "tiny" / "noise-cpu.csv")
    }
    # on its own target it has none
    assert float(noise["logit-adjusted", "tilted", "4"]["squared_error"]) < 1e-12
    assert float(noise["logit-adjusted", "uniform", "4"]["squared_error"]) > 0.1
    assert float(noise["softmax", "full", "60"]["table_cosine"]) == 1
    models = {path.parent.name.rsplit("-", 1)[0] for path in tmp_path.rglob("model.safetensors")}
    # those that noise is looked at on
    assert models == {"block-1-tail-seed0", "block-1-importance-seed0"}
    _tables_tell_what_was_run(tmp_path, noise, monkeypatch)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "tiny").rglob("*.csv")}
    for one in small:
        assert study.perform(one, SMALL, given(tmp_path)) == 0
    assert "tiny-learn: 16 of 16 runs done" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "tiny").rglob("*.csv")} == before


def _tables_tell_what_was_run(
    folder: Path, noise: dict[tuple[str, str, str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = script("samplers_tables")
    beside = folder.parent
    held = ("tiny,cpu,uniform,7,0,1", "tiny,cuda,uniform,8,0,1", "other,cpu,uniform,9,0,1")
    (beside / "samplers-times.csv").write_text(
        "\n".join(["data,device,sampler,step_ms,refresh_ms,every", *held]) + "\n"
    )
    monkeypatch.setattr(tables, "PAGE", folder / "no page")
    monkeypatch.setattr(sys, "argv", ["samplers_tables.py", str(folder)])
    tables.main()
    times = tables.read_table(beside / "samplers-times.csv")
    kept = {
        (one["data"], one["device"]): one["step_ms"] for one in times if one["sampler"] == "uniform"
    }
    assert kept["tiny", "cpu"] != "7"  # measured again
    assert (kept["tiny", "cuda"], kept["other", "cpu"]) == ("8", "9")
    rows = read_rows(beside / "samplers.csv")
    assert {row.scheme for row in rows if row.dataset == "tiny-learn"} >= {
        "uniform:tail",
        "block(1):importance",
    }
    assert {row.epoch for row in rows if row.dataset == "tiny-learn"} == {3}
    lines = tables.noise_table(list(noise.values()), "logit-adjusted", "4").splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| uniform", "| tilted", "| full"]
    assert lines[3].split(" | ")[1] == "0"
    found = tables.times_table(tables.measured(times, "tiny", "cpu", "cuda")).splitlines()[2:]
    assert [line.split(" | ")[2] for line in found if line.startswith("| uniform |")] == ["1"]


def row(dataset: str, scheme: str, seed: int, slice_: str, value: float) -> Row:
    return Row("r", dataset, "test", "softmax", scheme, 64, seed, 8, 10, slice_, "recall@10", value)


def test_the_worst_slice_tells_how_far_a_scheme_is_from_what_is_meant(monkeypatch):
    study_of(monkeypatch)
    tables = script("samplers_tables")
    rows = [
        row("x-learn", "logit-adjusted", 0, slice_, 0.3)
        for slice_ in ("head", "torso", "tail", "full")
    ]
    for seed, shift in ((0, 0.0), (1, 0.02)):
        rows += [
            row("x-learn", "block:tail", seed, slice_, 0.3 + shift)
            for slice_ in ("head", "torso", "full")
        ]
        rows += [
            row("x-learn", "block:tail", seed, "tail", 0.25 + shift),
            row("x-learn", "block:importance", seed, "tail", 0.9),
        ]
    lines = tables.learning_table(rows, "x", "logit-adjusted", {"block": 28.0}, {}).splitlines()
    assert lines[2].startswith("| logit-adjusted | 8 | – | – | 1 | 30.0 | 30.0 | 30.0 |")
    assert lines[3].startswith(
        "| block:tail | 8 | – | – | 2 | 31.0 ± 1.4 | 31.0 ± 1.4 | 26.0 ± 1.4 |"
    )
    assert lines[3].endswith("| 4.0 |")
    assert len(lines) == 4
    shorter = [
        replace(row("x-fast", "block:tail", 0, "full", 0.1 * epochs), epoch=epochs)
        for epochs in (3, 5)
    ]
    times = {"uniform": 10.0, "block": 28.0}, {"uniform": 0.1, "block": 0.16}
    found = tables.learning_table([*rows, *shorter], "x", "logit-adjusted", *times).splitlines()[3:]
    told = [line.split(" | ")[1:4] for line in found]
    assert told == [["8", "2.8", "1.6"], ["5", "1.8", "1"], ["3", "1.1", "0.6"]], (
        "runs of another length are a line of their own"
    )
    assert ["| 50.0 |" in found[1], "| 30.0 |" in found[2]] == [True, True]


def test_a_step_that_costs_more_gets_fewer_epochs_and_an_unknown_one_is_refused(monkeypatch):
    study = study_of(monkeypatch)
    times = {"uniform": 10.0, "block(1)": 82.0, "within-batch@512": 25.0}
    run = Training(epochs=8)
    assert [
        study.epochs_in_time(name, run, times)
        for name in ("uniform:tail", "block(1):tail", "within-batch:tail@512")
    ] == [
        8,
        1,
        3,
    ]
    with pytest.raises(HeadtailError, match="`block` takes"):
        study.epochs_in_time("block:importance", run, times)


def test_every_sampler_of_the_grid_has_a_name_that_is_known(monkeypatch):
    study = study_of(monkeypatch)
    for name in {name for one in study.STUDIES for name in study.schemes(one)}:
        scheme(name, Labels.zipf(60), 16)
    assert study.STUDIES[0].name == "diginetica-learn"  # what is judged comes first
