"""compare, train, evaluate, predict, stats, report and doctor, as people type them."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from headtail.cli import main
from headtail.comparison.results import Comparison, Row, read_rows
from headtail.data.load import load
from headtail.evaluation.topk import top_labels
from headtail.files.checksums import add_sum
from headtail.files.records import to_csv
from headtail.training.config import Training
from headtail.training.notes import slow_on_cpu
from headtail.training.saved_model import load_model

DATA = "synthetic:points=600,test=100,features=200,labels=60"
QUICK = ["--dim", "16", "--epochs", "1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A comparison of three schemes, one with a long name."""
    folder = tmp_path_factory.mktemp("finished") / "comparison"
    schemes = ["within-batch:importance", "contrastive/frequency(0.75):tail(1)@256", "softmax"]
    assert (
        main(["compare", DATA, *QUICK, "--schemes", *schemes, "--seeds", "3", "--out", str(folder)])
        == 0
    )
    return folder


@pytest.fixture(scope="module")
def cell(finished):
    return next((finished / "cells").glob("softmax-seed0*"))


def told(capsys, arguments):
    """The one sentence that bad input gets."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    *notes, sentence = captured.err.strip().splitlines()
    known = (
        "Generated data",
        "Settings chosen for",
        "`--dropout",
        "are held out to choose the epoch",
        "`--validation 0` all are trained on",
    )
    assert all(any(word in note for word in known) for note in notes), captured.err
    assert sentence.startswith("headtail: ")
    assert captured.out == ""
    return sentence


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "headtail", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def widest(text):
    return max(map(len, text.splitlines()))


# What the commands show


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_table_of_a_comparison_fits_80_columns_and_cuts_no_word(
    finished, tmp_path, capsys, monkeypatch, seeds
):
    monkeypatch.setenv("COLUMNS", "80")
    folder = shutil.copytree(finished, tmp_path / "copy")
    rows = [row for row in read_rows(folder / "results.csv") if row.seed < seeds]
    (folder / "results.csv").write_text(to_csv(rows, Row))
    add_sum(folder, "results.csv")
    assert main(["report", str(folder), "--out", str(tmp_path / "report.html")]) == 0
    table = capsys.readouterr().out.partition("report:")[0]
    assert widest(table) <= 80
    assert "…" not in table
    flat = " ".join(table.split())
    assert ("popularity lift: in the report, or in a wider window." in flat) == (
        "popularity lift" not in flat.partition("importance")[0]
    )
    for word in (
        "contrastive/",
        "frequency(0.75):",
        "tail(1)@256",
        "importance",
        "most-popular",
        "neither",
        "Torso",
        "Full",
    ):
        assert word in flat
    assert ("over 3 seeds" in flat) == (seeds == 3)
    assert ("±" in flat.partition("Mean")[0]) == (seeds == 3)


def test_wide_terminals_get_more_columns(finished, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["report", str(finished), "--out", str(tmp_path / "report.html")]) == 0
    out = capsys.readouterr().out
    assert "coverage" in out
    assert "contrastive/frequency(0.75):tail(1)@256" in out
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_the_table_shows_the_means_of_the_rows(finished, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["report", str(finished), "--out", str(tmp_path / "report.html")]) == 0
    line = next(
        line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("softmax")
    )
    rows = read_rows(finished / "results.csv")
    for metric, slice_ in (
        ("recall@10", "head"),
        ("recall@10", "tail"),
        ("precision@1", "full"),
        ("coverage@10", "full"),
    ):
        values = [
            row.value
            for row in rows
            if (row.scheme, row.metric, row.slice, row.split) == ("softmax", metric, slice_, "test")
        ]
        assert len(values) == 3
        assert f"{100 * np.mean(values):.1f} ±{100 * np.std(values, ddof=1):.1f}" in line


@pytest.mark.parametrize("columns", ["80", "160"])
def test_train_shows_every_metric_and_goes_on_where_it_was(tmp_path, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    arguments = ["train", DATA, *QUICK, "--scheme", "uniform:tail", "--out", str(tmp_path / "run")]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert widest(first.partition("model:")[0]) <= int(columns)
    assert "…" not in first
    for word in (
        "uniform:tail on synthetic",
        "class-weighted-error",
        "macro-recall@10",
        "Torso",
        "model.safetensors",
    ):
        assert word in first
    row = next(
        row
        for row in read_rows(tmp_path / "run" / "results.csv")
        if (row.metric, row.slice) == ("recall@10", "tail")
    )
    assert f"{100 * row.value:.1f}" in first
    assert f"{100 * row.low:.1f}–{100 * row.high:.1f}" in first
    assert main(arguments) == 0
    assert capsys.readouterr().out == first


def test_train_refuses_a_folder_with_another_run(tmp_path, capsys):
    arguments = ["train", DATA, *QUICK, "--out", str(tmp_path)]
    assert main(arguments) == 0
    capsys.readouterr()
    assert "holds a run with other `--scheme`. Choose another folder" in told(
        capsys, [*arguments, "--scheme", "uniform:tail"]
    )


def test_evaluate_gives_a_finished_cell_s_own_numbers(cell, tmp_path, capsys):
    assert main(["evaluate", str(cell), DATA, "--out", str(tmp_path / "again.csv")]) == 0
    assert "softmax on synthetic" in capsys.readouterr().out
    first = [row for row in read_rows(cell / "results.csv") if row.split == "test"]
    again = read_rows(tmp_path / "again.csv")
    numbers = [
        [(row.metric, row.slice, row.value, row.low, row.high) for row in rows]
        for rows in (first, again)
    ]
    assert len(numbers[0]) == 73
    assert str(numbers[0]) == str(numbers[1])  # as text, where nan is nan


def test_stats_shows_the_size_of_images_and_what_a_profile_left(tmp_path, capsys):
    from PIL import Image

    for i in range(8):
        (tmp_path / "zoo" / f"label {i % 2}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 5)).save(tmp_path / "zoo" / f"label {i % 2}" / f"{i}.png")
    assert (
        main(
            [
                "stats",
                str(tmp_path / "zoo"),
                "--profile",
                "step",
                "--imbalance",
                "2",
                "--holdout",
                "0.2",
            ]
        )
        == 0
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "images 4 to train, 2 to test" in said
    assert "size 224 × 224 pixels, in RGB, as the model sees them" in said
    assert "Profile step" in said
    assert main(["stats", DATA, "--profile", "exp"]) == 2
    assert "`--profile exp` needs images with one label each" in " ".join(
        capsys.readouterr().err.split()
    )


def test_stats_shows_sizes_slices_and_the_curve(capsys):
    assert main(["stats", DATA]) == 0
    out = capsys.readouterr().out
    counts = torch.bincount(load(DATA).train.labels.values.long(), minlength=60)
    assert f"{int(counts.max())} at most" in out
    assert f"{len(load(DATA).train.labels.values):,} pairs" in out
    assert widest(out) <= 80
    for word in (
        "600 to train, 100 to test",
        "Gini",
        "head █",
        "▁ tail",
        "torso",
        "Zipf law",
        " heights logarithmic",
    ):
        assert word in out
    assert main(["stats", "synthetic:points=2000,test=100,labels=2000"]) == 0
    assert "both axes logarithmic" in capsys.readouterr().out  # too many to stand side by side
    assert main(["stats", DATA, "--json", "--slices", "count"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["slices"]["sizes"] == {
        "head": int((counts >= 100).sum()),
        "torso": int(((counts >= 20) & (counts < 100)).sum()),
        "tail": int((counts < 20).sum()),
    }


def test_doctor_passes_here_and_names_what_is_wrong(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "All is well." in out
    assert "✗" not in out
    for word in ("torch", "loss", "compiled", "GiB free"):
        assert word in out
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "file"))
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "cannot be written: it is not a folder. Set HEADTAIL_CACHE" in out
    assert "Something is missing" in out


def test_every_command_has_help_and_runs_as_a_program(finished, tmp_path):
    done = run("--help")
    for command in (
        "compare",
        "train",
        "evaluate",
        "predict",
        "stats",
        "report",
        "doctor",
        "explain",
        "audit",
    ):
        assert command in done.stdout
    done = run("report", str(finished), "--out", str(tmp_path / "report.html"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "most-popular" in done.stdout
    done = run("compare", "nowhere", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("headtail: `nowhere` does not exist.")
    assert len(done.stderr.splitlines()) == 1


# Predictions


def sequences(folder):
    folder.mkdir()
    rng = np.random.default_rng(0)
    lists = [[f"item {i}" for i in rng.integers(0, 12, 8)] for _ in range(60)]
    pq.write_table(
        pa.table({"session_id": range(60), "items": lists}), folder / "sequences.parquet"
    )
    return folder


def interactions(folder):
    folder.mkdir()
    rng = np.random.default_rng(0)
    pairs = sorted({(int(user), int(item)) for user, item in rng.integers(0, [20, 15], (150, 2))})
    users, items = zip(*pairs, strict=True)
    pq.write_table(
        pa.table({"user_id": users, "item_id": [10 * item for item in items]}),
        folder / "interactions.parquet",
    )
    return folder


@pytest.mark.parametrize("points", ["test", "train"])
def test_predictions_are_the_top_labels_by_their_names_in_both_formats(tmp_path, capsys, points):
    folder = sequences(tmp_path / "shop")
    model = tmp_path / "run"
    assert main(["train", str(folder), *QUICK, "--out", str(model)]) == 0
    for ending in ("parquet", "csv"):
        arguments = ["--k", "3", "--points", points, "--out", str(tmp_path / f"top.{ending}")]
        assert main(["predict", str(model), str(folder), *arguments]) == 0
    table = pq.read_table(tmp_path / "top.parquet").to_pydict()
    data = load(folder)
    asked = data.test if points == "test" else data.train
    top = top_labels(load_model(model)[0], asked, 3)
    assert table["label"] == [data.label_names[label] for label in top.reshape(-1)]
    assert table["label"][0].startswith("item ")
    assert table["point"] == [row for row in asked.rows.tolist() for _ in range(3)]
    assert table["rank"] == [1, 2, 3] * len(asked)
    assert all(
        a >= b
        for a, b, rank in zip(table["score"], table["score"][1:], table["rank"][1:], strict=False)
        if rank > 1
    )
    with (tmp_path / "top.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == table["label"]
    assert np.allclose([float(row["score"]) for row in rows], table["score"])
    assert f"{len(asked)} points × 3 labels" in capsys.readouterr().out


def test_what_a_user_has_already_is_never_predicted(tmp_path):
    folder = interactions(tmp_path / "shop")
    model = tmp_path / "run"
    assert main(["train", str(folder), *QUICK, "--out", str(model)]) == 0
    labels = load(folder).train.num_labels
    assert (
        main(
            [
                "predict",
                str(model),
                str(folder),
                "--k",
                str(labels),
                "--out",
                str(tmp_path / "top.parquet"),
            ]
        )
        == 0
    )
    table = pq.read_table(tmp_path / "top.parquet").to_pydict()
    asked = load(folder).asked
    predicted = set(zip(table["user"], table["label"], strict=True))
    names = load(folder).label_names
    offsets = asked.seen.offsets.tolist()
    users = asked.users.to_pylist()
    assert sorted(users) == sorted(
        set(pq.read_table(folder / "interactions.parquet")["user_id"].to_pylist())
    )
    seen = {
        (user, names[y])
        for i, user in enumerate(users)
        for y in asked.seen.values[offsets[i] : offsets[i + 1]].tolist()
    }
    everything = {(user, name) for user in users for name in names}
    assert seen
    assert predicted == everything - seen


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_rows_with_a_new_target_are_answered_and_no_row_gets_the_answers_of_another(
    tmp_path, capsys, ending
):
    folder = tmp_path / "shop"
    model = tmp_path / "run"
    out = tmp_path / f"top.{ending}"
    folder.mkdir()
    # Whoever had x is to be told of x + 1, and row i stands for x = i mod 6.
    lists = [[10 * (i % 6), 10 * (i % 6) + 1] for i in range(120)]
    pq.write_table(pa.table({"items": lists}), folder / "train.parquet")
    targets = [None if i % 4 == 0 else 999 if i % 4 == 1 else 10 * (i % 6) + 1 for i in range(24)]
    asked = {
        "user_id": [1000 - i for i in range(24)],
        "items": [[10 * (i % 6)] for i in range(24)],
        "target": targets,
    }
    pq.write_table(pa.table(asked), folder / "test.parquet")
    quick = ["--dim", "16", "--batch", "16", "--epochs", "20", "--lr", "0.5", "--device", "cpu"]
    assert main(["train", str(folder), *quick, "--scheme", "softmax", "--out", str(model)]) == 0
    assert main(["predict", str(model), str(folder), "--k", "1", "--out", str(out)]) == 0
    table = (pq.read_table(out) if ending == "parquet" else pyarrow.csv.read_csv(out)).to_pydict()
    assert table["point"] == list(range(24))
    assert table["user"] == asked["user_id"]
    assert table["label"] == [10 * (i % 6) + 1 for i in range(24)]
    capsys.readouterr()
    assert main(["evaluate", str(model), str(folder)]) == 0
    assert (
        "12 of 24 test points have no label that training knows: they are not measured."
        in capsys.readouterr().err
    )
    nothing = {**asked, "target": pa.nulls(24)}
    pq.write_table(pa.table(nothing), tmp_path / "new.parquet")
    new = [str(model), str(folder), "--test", str(tmp_path / "new.parquet")]
    assert main(["predict", *new, "--k", "1", "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["evaluate", *new]) == 2
    assert "so nothing can be measured" in capsys.readouterr().err


@pytest.mark.parametrize("labels", [None, 5, 70])
def test_points_of_vectors_are_answered_whatever_labels_they_have(tmp_path, labels):
    data = dense(tmp_path / "shop")
    model = tmp_path / "run"
    out = tmp_path / "top.parquet"
    assert main(["train", str(data), *QUICK, "--out", str(model)]) == 0
    with np.load(data / "test.npz") as test:
        features = test["features"][::-1]
    given = {} if labels is None else {"labels": np.full(len(features), labels)}
    np.savez(tmp_path / "new.npz", features=features, **given)
    assert main(["predict", str(model), str(data), "--k", "9", "--out", str(out)]) == 0
    before = pq.read_table(out).to_pydict()
    assert (
        main(
            [
                "predict",
                str(model),
                str(data),
                "--k",
                "9",
                "--test",
                str(tmp_path / "new.npz"),
                "--out",
                str(out),
            ]
        )
        == 0
    )
    after = pq.read_table(out).to_pydict()
    assert after["point"] == before["point"]
    assert after["label"] == [
        label for i in reversed(range(20)) for label in before["label"][9 * i : 9 * i + 9]
    ]


def test_held_out_points_are_identified_by_their_rows(tmp_path):
    data = svmlight(tmp_path / "shop")
    model = tmp_path / "run"
    out = tmp_path / "top.parquet"
    assert main(["train", str(data), *QUICK, "--out", str(model)]) == 0
    rows = {}
    for points in ("train", "test"):
        assert (
            main(
                [
                    "predict",
                    str(model),
                    str(data),
                    "--k",
                    "1",
                    "--points",
                    points,
                    "--out",
                    str(out),
                ]
            )
            == 0
        )
        rows[points] = pq.read_table(out)["point"].to_pylist()
    assert sorted(rows["train"] + rows["test"]) == list(range(80))
    assert rows["test"] != list(range(len(rows["test"])))


def test_a_run_keeps_how_its_data_were_read(tmp_path, capsys):
    folder = sequences(tmp_path / "shop")
    model = tmp_path / "run"
    assert main(["train", str(folder), *QUICK, "--last", "3", "--out", str(model)]) == 0
    kept = tomllib.loads((model / "run.toml").read_text())["data"]
    assert (kept["path"], kept["last"], kept["format"]) == (str(folder), 3, "auto")
    assert "slices" in kept
    capsys.readouterr()
    assert main(["evaluate", str(model), str(folder), "--last", "3"]) == 0
    assert "not the data" not in capsys.readouterr().err
    assert main(["evaluate", str(model), str(folder)]) == 0
    those = f"`{folder}` `--last 3`"
    these = f"`{folder}` `--last 10`"
    assert (
        f"not the data that the model was trained on: those were {those}, these are {these}."
        in capsys.readouterr().err
    )
    assert (
        main(
            [
                "compare",
                str(folder),
                *QUICK,
                "--schemes",
                "softmax",
                "--last",
                "3",
                "--out",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    assert Comparison.read(tmp_path / "out").settings["data"]["last"] == 3


# Every format, from end to end


def xc(folder):
    folder.mkdir()
    rng = np.random.default_rng(0)
    lines = [f"{y},{(y + 1) % 9} {y}:1.5 {rng.integers(9, 30)}:0.5" for y in rng.integers(0, 9, 80)]
    (folder / "a_data.txt").write_text("\n".join(["80 30 9", *lines, ""]))
    (folder / "a_trSplit.txt").write_text("".join(f"{i}\n" for i in range(1, 61)))
    (folder / "a_tstSplit.txt").write_text("".join(f"{i}\n" for i in range(61, 81)))
    return folder


def svmlight(folder):
    folder.mkdir()
    rng = np.random.default_rng(0)
    (folder / "all.svm").write_text(
        "".join(f"{y} {y + 1}:1 {rng.integers(10, 30)}:0.5\n" for y in rng.integers(0, 9, 80))
    )
    return folder / "all.svm"


def dense(folder):
    folder.mkdir()
    labels = np.random.default_rng(0).integers(0, 9, 80)
    for name, part in (("train", labels[:60]), ("test", labels[60:])):
        np.savez(folder / f"{name}.npz", features=np.eye(12, dtype=np.float32)[part], labels=part)
    return folder


@pytest.mark.parametrize("write", [xc, svmlight, sequences, interactions, dense])
def test_every_format_goes_from_its_files_to_a_report(tmp_path, capsys, write):
    data = write(tmp_path / "shop")
    out = tmp_path / "out"
    assert (
        main(
            [
                "compare",
                str(data),
                *QUICK,
                "--schemes",
                "within-batch:tail",
                "softmax",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    found = Comparison.read(out)
    assert {row.scheme for row in found.rows if row.split == "test"} == {
        "within-batch:tail",
        "softmax",
        "most-popular",
    }
    values = [
        row.value
        for row in found.rows
        if (row.split, row.metric, row.slice) == ("test", "recall@10", "full")
    ]
    assert len(values) == 3
    assert all(0 < value <= 1 for value in values)
    assert "within-batch:tail" in capsys.readouterr().out
    assert "within-batch:tail" in (out / "report.html").read_text()


# Bad input


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["stats", "nowhere"], "`nowhere` does not exist."),
        (["compare", DATA, "--schemes", "within-bach:tail"], "Did you mean `within-batch`?"),
        (
            ["compare", DATA, "--schemes", "softmax", "resampled(64):constant@8"],
            "for example `resampled(64):importance`",
        ),
        (["train", DATA, "--scheme", "resampled:relative"], "from a pool"),
        (["train", DATA, "--scheme", "sofmax"], "Did you mean `softmax`"),
        (
            ["compare", DATA, "--seeds", "0"],
            "`--seeds` must be a whole number of at least 1, but got 0.",
        ),
        (
            ["compare", DATA, "--workers", "0"],
            "`--workers` must be a whole number of at least 1, but got 0.",
        ),
        (
            ["compare", DATA, "--epochs", "0"],
            "`--epochs` must be a whole number of at least 1, but got 0.",
        ),
        (["train", DATA, "--feature-dropout", "1"], "`--feature-dropout` is a share from 0"),
        (["compare", "synthetic:labels=many"], "`labels=many`"),
        (["stats", "synthetic:labls=60"], "labls"),
        (["report", "nowhere"], "`nowhere` is not a finished comparison"),
        (["evaluate", "nowhere", DATA], "`nowhere` does not exist. Pass the folder of a run"),
        (["predict", "nowhere", DATA, "--out", "top.csv"], "`nowhere` does not exist."),
        (
            ["predict", "nowhere", DATA, "--out", "top.xyz"],
            "`--out top.xyz` must end in .parquet or .csv: write for example",
        ),
        (
            ["predict", "nowhere", DATA, "--out", "top.csv", "--k", "0"],
            "`--k` must be a whole number of at least 1",
        ),
    ],
)
def test_bad_arguments_get_one_sentence(tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    assert sentence in told(capsys, arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stats", DATA, "--format", "xcc"], "`--format` must be one of 'auto', 'xc', 'svmlight'"),
        (["predict"], "`headtail predict` needs `RUN` and `FILE` and `--out`. Write for example"),
        (["predict", "run", "rows"], "`headtail predict` needs `--out`."),
        (["export", "run"], "`headtail export` needs `--to` and `--out`."),
    ],
)
def test_missing_options_and_misspelt_choices_are_answered_with_the_right_ones(
    capsys, arguments, words
):
    assert words in told(capsys, arguments)


def test_a_run_is_not_trained_into_a_file(tmp_path, capsys):
    file = tmp_path / "file"
    file.touch()
    sentence = told(capsys, ["train", DATA, *QUICK, "--out", str(file)])
    assert "cannot be written: it is not a folder. Choose another folder." in sentence


def test_a_model_meets_only_data_of_its_own_shape(cell, tmp_path, capsys):
    other = DATA.replace("labels=60", "labels=61")
    for command in (
        ["evaluate", str(cell), other],
        ["predict", str(cell), other, "--out", str(tmp_path / "top.csv")],
    ):
        sentence = told(capsys, command)
        assert "has 200 features and 60 labels, but `synthetic" in sentence
        assert f"Pass the data it was trained on (`{DATA}`)" in sentence
    too_many = ["predict", str(cell), DATA, "--k", "61", "--out", str(tmp_path / "top.csv")]
    assert "`--k 61` is more than the 60 labels there are" in told(capsys, too_many)
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_is_not_there_is_refused_before_the_data_are_read(
    cell, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for command in (
        ["compare", "nowhere"],
        ["train", "nowhere"],
        ["evaluate", str(cell), "nowhere"],
    ):
        assert "`--device cuda` needs a GPU that torch can use" in told(
            capsys, [*command, "--device", "cuda"]
        )


def test_a_bad_line_is_refused_or_skipped_and_counted(tmp_path, capsys):
    (tmp_path / "train.txt").write_text("4 5 3\n0,2 1:0.5\n1 0:2\n0,x 1:1\n2 3:1\n")
    (tmp_path / "test.txt").write_text("1 5 3\n2 3:1\n")
    sentence = told(capsys, ["stats", str(tmp_path)])
    assert "train.txt" in sentence
    assert "line 4" in sentence
    assert main(["stats", str(tmp_path), "--skip-bad-lines"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "3 to train, 1 to test" in out
    assert "skipped 1 bad line" in out


def test_places_that_cannot_be_written_are_refused(cell, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    for command in (
        ["train", DATA, *QUICK, "--out", str(tmp_path / "file")],
        ["compare", DATA, "--out", str(tmp_path / "file")],
    ):
        assert "cannot be written" in told(capsys, command)
    for command in (["predict", str(cell), DATA], ["evaluate", str(cell), DATA]):
        assert "cannot be written" in told(
            capsys, [*command, "--out", str(tmp_path / "file" / "top.csv")]
        )
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_costs_a_sentence_and_no_results(finished, tmp_path, capsys, monkeypatch):
    folder = shutil.copytree(finished, tmp_path / "comparison")
    before = (folder / "results.csv").read_bytes(), (folder / "report.html").read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert "report.html` cannot be written: No space left on device" in told(
        capsys, ["report", str(folder)]
    )
    assert ((folder / "results.csv").read_bytes(), (folder / "report.html").read_bytes()) == before


def test_a_damaged_comparison_is_refused(finished, tmp_path, capsys):
    folder = shutil.copytree(finished, tmp_path / "comparison")
    (folder / "results.csv").write_text((folder / "results.csv").read_text()[:-40])
    assert "is damaged: `results.csv` does not match its checksum" in told(
        capsys, ["report", str(folder)]
    )
    (folder / "results.csv").write_text("something else\n")
    add_sum(folder, "results.csv")
    assert "is not a results file of headtail" in told(capsys, ["report", str(folder)])


def test_stats_of_real_data_show_the_published_counts(real_data, capsys):
    if not (real_data / "delicious").is_dir():
        pytest.skip(f"delicious is not in {real_data}")
    assert main(["stats", str(real_data / "delicious")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in ("12,920 to train, 3,185 to test", "features 500,", "labels 983, 19.0"):
        assert words in out


def test_a_loss_over_all_labels_that_will_take_hours_is_announced():
    data = load(DATA)
    assert slow_on_cpu(["softmax", "within-batch:tail"], Training(), data) is None
    assert slow_on_cpu(["within-batch:tail"], Training(dim=10**12), data) is None
    note = slow_on_cpu(
        ["softmax", "logit-adjusted", "within-batch:tail"], Training(dim=10**12), data
    )
    assert note is not None
    assert note.startswith("softmax and logit-adjusted score all 60 labels for each of 600 points")


def test_runs_and_comparisons_keep_out_of_each_others_folders(finished, cell, capsys):
    for words, folder, sentence in (
        (
            ["compare", DATA, *QUICK, "--schemes", "softmax"],
            cell,
            "holds a single run. Choose another folder",
        ),
        (
            ["train", DATA, *QUICK, "--scheme", "softmax"],
            finished,
            "holds a comparison. Choose another folder for a run.",
        ),
    ):
        before = {path: path.read_bytes() for path in folder.glob("*") if path.is_file()}
        assert sentence in told(capsys, [*words, "--out", str(folder)])
        assert {path: path.read_bytes() for path in folder.glob("*") if path.is_file()} == before
