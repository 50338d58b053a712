"""Rows of any file, without labels, answered by a model that was trained before."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from headtail.cli import main
from headtail.files.tensors import save_tensors

QUICK = ["--dim", "8", "--epochs", "3", "--batch", "32", "--lr", "0.5"]
QUICK += ["--device", "cpu"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")


def train(data: Path, folder: Path, *options: str) -> Path:
    """A run trained on these data, which are then gone."""
    arguments = [str(data), "--scheme", "softmax", *QUICK, *options, "--out", str(folder / "run")]
    assert main(["train", *arguments]) == 0
    shutil.rmtree(data) if data.is_dir() else data.unlink()
    return folder / "run"


def answers(run: Path, rows: Path, *options: str) -> list[dict[str, str]]:
    """What `headtail predict` writes."""
    out = rows.parent / "best.csv"
    assert main(["predict", str(run), str(rows), "--out", str(out), *options]) == 0
    with out.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture
def text_run(tmp_path) -> Path:
    """A model of 4 features, each of which means the label of the same id."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.txt").write_text("".join(f"{i % 4} {i % 4}:1\n" for i in range(200)))
    (data / "test.txt").write_text("0 0:1\n1 1:1\n")
    return train(data, tmp_path)


def test_lines_without_labels_are_answered_and_unknown_features_counted(text_run, tmp_path, capsys):
    rows = tmp_path / "new.txt"
    rows.write_text("2:1\n0:1 900:5\n 3:1\n77 1:1\n")
    found = answers(text_run, rows, "--k", "1")
    assert [(row["point"], row["rank"], row["label"]) for row in found] == [
        ("0", "1", "2"),
        ("1", "1", "0"),
        ("2", "1", "3"),
        ("3", "1", "1"),
    ]
    said = capsys.readouterr().err
    assert "1 of 5 feature values have a feature that never occurs in training" in said


@pytest.fixture
def shop(tmp_path) -> Path:
    """Sessions in which tea follows milk, and jam follows bread."""
    data = tmp_path / "shop.parquet"
    sessions = [["milk", "tea", "milk", "tea"], ["bread", "jam", "bread", "jam"]] * 60
    pq.write_table(pa.table({"items": sessions}), data)
    return train(data, tmp_path, "--last", "1")


def test_a_list_of_items_is_asked_what_comes_next(shop, tmp_path, capsys):
    rows = tmp_path / "now.parquet"
    now = {"user_id": ["ann", "bob", "cy"], "items": [["jam", "milk"], ["bread"], ["soap"]]}
    pq.write_table(pa.table(now), rows)
    found = answers(shop, rows, "--k", "1")
    assert [(row["user"], row["label"]) for row in found[:2]] == [("ann", "tea"), ("bob", "jam")]
    assert [row["user"] for row in found] == ["ann", "bob", "cy"]
    assert "1 of 4 items are one that never occurs in training" in capsys.readouterr().err


def test_a_log_in_csv_is_put_in_order_for_a_model_of_sequences(shop, tmp_path):
    rows = tmp_path / "events.csv"
    rows.write_text("user_id,item_id,timestamp\nbob,bread,5\nann,tea,1\nann,milk,2\nbob,milk,3\n")
    found = answers(shop, rows, "--k", "1")
    assert [(row["user"], row["point"], row["label"]) for row in found] == [
        ("ann", "1", "tea"),
        ("bob", "0", "jam"),
    ]


def test_numbers_for_a_model_of_words_are_refused(shop, tmp_path, capsys):
    rows = tmp_path / "now.parquet"
    pq.write_table(pa.table({"items": [[1, 2]]}), rows)
    out = str(tmp_path / "best.csv")
    assert main(["predict", str(shop), str(rows), "--out", out]) == 2
    assert "holds numbers, but training has strings" in capsys.readouterr().err


def test_users_get_items_that_they_did_not_have(tmp_path, capsys):
    data = tmp_path / "log.parquet"
    pairs = [(f"u{u}", f"i{(u + k) % 6}") for u in range(60) for k in range(4)]
    users, items = map(list, zip(*pairs, strict=True))
    pq.write_table(pa.table({"user_id": users, "item_id": items}), data)
    run = train(data, tmp_path, "--format", "interactions")
    rows = tmp_path / "users.csv"
    rows.write_text("user_id,item_id\nu6,i4\nu1,i0\nnew,i2\n")
    found = answers(run, rows, "--k", "6")
    by_user = {
        name: {row["label"] for row in found if row["user"] == name} for name in ("u6", "u1", "new")
    }
    # u6 had three of i0 … i3 in training and i4 in the file
    assert "i4" not in by_user["u6"]
    assert len(by_user["u6"]) == 2
    assert "i0" not in by_user["u1"]
    assert "i2" not in by_user["new"]
    assert len(by_user["new"]) == 5
    assert "1 of 3 users never occur in training" in capsys.readouterr().err
    rows.write_text("user_id\nu6\nu1\n")
    found = answers(run, rows, "--k", "1")
    assert [row["user"] for row in found] == ["u6", "u1"]
    assert capsys.readouterr().err == ""


def test_arrays_and_tables_of_numbers_are_answered(tmp_path, capsys):
    data = tmp_path / "all.npz"
    features = np.eye(3, dtype=np.float32).repeat(40, 0)
    np.savez(data, features=features, labels=np.arange(3).repeat(40))
    run = train(data, tmp_path, "--slices", "mass")
    np.savez(tmp_path / "new.npz", features=np.eye(3, dtype=np.float32)[[2, 0]])
    assert [row["label"] for row in answers(run, tmp_path / "new.npz", "--k", "1")] == ["2", "0"]
    (tmp_path / "new.csv").write_text("a,b,c\n0,1,0\n1,0,0\n")
    assert [row["label"] for row in answers(run, tmp_path / "new.csv", "--k", "1")] == ["1", "0"]
    np.savez(tmp_path / "wide.npz", features=np.eye(4, dtype=np.float32))
    out = str(tmp_path / "best.csv")
    assert main(["predict", str(run), str(tmp_path / "wide.npz"), "--out", out]) == 2
    assert "the model has 3 features" in capsys.readouterr().err


@pytest.fixture
def flowers(tmp_path) -> Path:
    """A model in which column `b` means rose, `a` means lily, and `c` nothing."""
    data = tmp_path / "flowers.csv"
    rows = "".join("0.0,1.0,0.5,rose\n1.0,0.0,0.5,lily\n" for _ in range(60))
    data.write_text(f"a,b,c,kind\n{rows}")
    return train(data, tmp_path, "--label", "kind", "--slices", "mass")


@pytest.mark.parametrize(
    "text",
    [
        "a,b,c\n0.0,1.0,0.5\n1.0,0.0,0.5\n",
        "c,b,a\n0.5,1.0,0.0\n0.5,0.0,1.0\n",
        "extra,b,note,c,a\n7,1.0,x,0.5,0.0\n8,0.0,y,0.5,1.0\n",
        "0.0,1.0,0.5\n1.0,0.0,0.5\n",
    ],
)
def test_columns_of_numbers_are_found_by_their_names(flowers, tmp_path, text):
    rows = tmp_path / "new.csv"
    rows.write_text(text)
    assert [row["label"] for row in answers(flowers, rows, "--k", "1")] == ["rose", "lily"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("z,b,c\n0.0,1.0,0.5\n", "`z`, `b`, `c`, but not `a`, which training has"),
        ("a,c\n0.0,0.5\n", "`a`, `c`, but not `b`, which training has"),
        ("a,b,c\n0.0,1.0,0.5\n1.0,,0.5\n", "column `b`: row 1 (from 0) is missing"),
        ("a,b,c\n0.0,1.0,x\n", "column `c` holds string, but features must be numbers"),
    ],
)
def test_columns_that_do_not_fit_the_model_are_refused(flowers, tmp_path, capsys, text, sentence):
    rows = tmp_path / "new.csv"
    rows.write_text(text)
    out = tmp_path / "best.csv"
    assert main(["predict", str(flowers), str(rows), "--out", str(out)]) == 2
    assert sentence in capsys.readouterr().err
    assert not out.exists()


def test_arrays_with_missing_values_are_refused(flowers, tmp_path, capsys):
    rows = tmp_path / "new.npz"
    np.savez(rows, features=np.array([[0, 1, 0], [0, np.nan, 0]], np.float32))
    assert main(["predict", str(flowers), str(rows), "--out", str(tmp_path / "best.csv")]) == 2
    assert "row 1 (from 0), feature 1 is missing or not finite" in capsys.readouterr().err


def test_data_with_columns_in_another_order_are_not_measured(flowers, tmp_path, capsys):
    data = tmp_path / "other.csv"
    data.write_text("b,a,c,kind\n" + "1.0,0.0,0.5,rose\n0.0,1.0,0.5,lily\n" * 9)
    assert main(["evaluate", str(flowers), str(data), "--label", "kind"]) == 2
    assert "has the feature `a` where `other` has `b`" in capsys.readouterr().err


def test_a_column_of_texts_is_answered_without_a_word(tmp_path, capsys):
    data = tmp_path / "texts.csv"
    lines = ["wine cheese bread,food", "chip code server,tech"] * 60
    data.write_text("\n".join(["text,label", *lines]))
    run = train(data, tmp_path)
    rows = tmp_path / "new.csv"
    rows.write_text("text\ncode and chip\nred wine\n")
    capsys.readouterr()
    assert [row["label"] for row in answers(run, rows, "--k", "1")] == ["tech", "food"]
    assert capsys.readouterr().err == ""


def test_a_model_of_a_comparison_is_chosen_by_its_scheme(tmp_path, capsys):
    data = tmp_path / "data.txt"
    data.write_text("".join(f"{i % 4} {i % 4}:1\n" for i in range(200)))
    results = tmp_path / "results"
    schemes = ["softmax", "uniform:tail"]
    compare = ["compare", str(data), "--schemes", *schemes, *QUICK, "--workers", "1"]
    assert main([*compare, "--out", str(results)]) == 0
    rows = tmp_path / "new.txt"
    rows.write_text("3:1\n")
    (row,) = answers(results, rows, "--k", "1", "--scheme", "uniform:tail")
    assert row["label"] == "3"
    arguments = ["predict", str(results), str(rows), "--out", str(tmp_path / "best.csv")]
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "holds a comparison. Choose a scheme with `--scheme`: softmax, uniform:tail." in said
    assert main([*arguments, "--scheme", "softmx"]) == 2
    assert "Did you mean `softmax`?" in capsys.readouterr().err
    assert main([*arguments, "--scheme", "softmax", "--seed", "7"]) == 2
    assert "with `--seed 7`. There are: 0." in capsys.readouterr().err
    assert main(["evaluate", str(results), str(data), "--scheme", "softmax"]) == 0
    assert "softmax on " in capsys.readouterr().out


def test_a_single_run_refuses_another_scheme(text_run, tmp_path, capsys):
    rows = tmp_path / "new.txt"
    rows.write_text("3:1\n")
    out = ["--out", str(tmp_path / "best.csv")]
    assert main(["predict", str(text_run), str(rows), *out, "--scheme", "uniform:tail"]) == 2
    assert "is a single run, of `softmax` with seed 0" in capsys.readouterr().err


def test_post_hoc_subtracts_the_log_prior_from_scores(tmp_path):
    data = tmp_path / "data.txt"
    lines = ["0 0:1\n"] * 150 + ["1 0:1\n"] * 30 + ["2 1:1\n"] * 20
    data.write_text("".join(lines))
    run = train(data, tmp_path)
    rows = tmp_path / "new.txt"
    rows.write_text("0:1\n")
    plain = {row["label"]: float(row["score"]) for row in answers(run, rows)}
    moved = {row["label"]: float(row["score"]) for row in answers(run, rows, "--post-hoc", "1")}
    gain = {label: moved[label] - plain[label] for label in plain}
    assert gain["2"] > gain["1"] > gain["0"] > 0
    order = [row["label"] for row in answers(run, rows, "--post-hoc", "1")]
    assert order == sorted(moved, key=lambda label: -moved[label])


def test_options_about_parts_are_refused_for_rows(text_run, tmp_path, capsys):
    rows = tmp_path / "new.txt"
    rows.write_text("3:1\n")
    out = ["--out", str(tmp_path / "best.csv")]
    assert main(["predict", str(text_run), str(rows), *out, "--holdout", "0.5"]) == 2
    assert "`--holdout` would do nothing: every row of the file is answered" in (
        capsys.readouterr().err
    )


@pytest.fixture
def graph(tmp_path) -> Path:
    """A graph in which every city is in the country of the same number."""
    data = tmp_path / "graph"
    data.mkdir()
    triples = [f"city {i % 8}\tis in\tland {i % 8}\n" for i in range(80)]
    triples += [f"land {i % 8}\tnext to\tland {(i + 1) % 8}\n" for i in range(80)]
    (data / "train.txt").write_text("".join(triples))
    (data / "test.txt").write_text("".join(triples[:8]))
    return train(data, tmp_path, "--epochs", "60", "--batch", "4", "--validation", "0")


@pytest.mark.parametrize("header", ["", "head\trelation\n"])
def test_a_head_with_a_relation_is_asked_for_its_tail(graph, tmp_path, capsys, header):
    rows = tmp_path / "ask.tsv"
    asked = "".join(f"city {i}\tis in\n" for i in (5, 2, 7))
    rows.write_text(f"{header}{asked}city 99\tis in\n")
    found = answers(graph, rows, "--k", "1")
    assert [(row["point"], row["label"]) for row in found[:3]] == [
        ("0", "land 5"),
        ("1", "land 2"),
        ("2", "land 7"),
    ]
    assert len(found) == 4
    said = capsys.readouterr().err
    assert "1 of 4 rows have a head or a relation that never occurs in training" in said


def test_columns_without_a_head_are_refused(graph, tmp_path, capsys):
    rows = tmp_path / "ask.csv"
    rows.write_text("user,item\n1,2\n")
    assert main(["predict", str(graph), str(rows), "--out", str(tmp_path / "best.csv")]) != 0
    assert "a row needs a `head` and a `relation`" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("finished", [False, True])
def test_answers_of_a_run_that_was_stopped_come_with_a_note(text_run, tmp_path, capsys, finished):
    facts = {"run": {"epochs": 9}, "state": {"epoch": 2, "finished": finished}}
    save_tensors(text_run / "checkpoint.safetensors", {"unused": torch.zeros(1)}, facts)
    rows = tmp_path / "new.txt"
    rows.write_text("2:1\n")
    assert answers(text_run, rows, "--k", "1")[0]["label"] == "2"
    note = "has not reached its end: its model is the best of the first 2 of 9 epochs"
    assert (note in capsys.readouterr().err) is not finished
    tested = tmp_path / "tested.txt"
    tested.write_text("".join(f"{i} {i}:1\n" for i in range(4)))
    assert main(["evaluate", str(text_run), str(tested), "--test", str(tested)]) == 0
    assert (note in " ".join(capsys.readouterr().err.split())) is not finished
