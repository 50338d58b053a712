"""`headtail export`: indexes, vectors and programs of trained models."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from headtail.cli import main
from headtail.training.saved_model import load_model

DATA = "synthetic:points=600,test=100,features=200,labels=60"
QUICK = ["--dim", "8", "--epochs", "1", "--device", "cpu"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    assert main(["train", DATA, "--scheme", "softmax", "--out", str(folder), *QUICK]) == 0
    return folder


def exported(run: Path, out: Path, *options: str) -> Path:
    assert main(["export", str(run), "--out", str(out), *options]) == 0
    return out


def as_queries(hidden: np.ndarray, folder: Path) -> np.ndarray:
    recipe = json.loads((folder / "query.json").read_text())
    assert not recipe["normalise"]
    tail = np.tile(np.float32(recipe["append"]), (len(hidden), 1))
    return np.hstack([hidden, tail]).astype(np.float32)


def test_an_index_an_encoder_and_a_program_answer_as_the_model(run, tmp_path, capsys):
    index = exported(run, tmp_path / "index", "--to", "faiss", "--post-hoc", "0.5")
    assert "60 labels: " in (line := capsys.readouterr().out)
    assert line.rstrip().endswith("index, recall@10 1.000 (60 rows of the label table)")
    vectors = exported(run, tmp_path / "vectors", "--to", "safetensors", "--post-hoc", "0.5")
    program = exported(run, tmp_path / "all", "--to", "torch", "--k", "4", "--post-hoc", "0.5")
    encoder = exported(run, tmp_path / "encoder", "--to", "encoder")
    columns = torch.tensor([[3, 5, 9], [1, 0, 0], [199, 7, 2]])
    values = torch.tensor([[1.0, 2.0, 0.5], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    hidden = torch.export.load(encoder / "model.pt2").module()(columns, values)
    best = load_model(run)[0].head.topk(hidden, 4, post_hoc=0.5).indices
    queries = as_queries(hidden.numpy(), index)
    assert torch.equal(
        torch.from_numpy(faiss.read_index(str(index / "index.faiss")).search(queries, 4)[1]), best
    )
    scores = queries @ load_file(vectors / "vectors.safetensors")["vectors"].T
    assert torch.equal(torch.from_numpy(scores).topk(4).indices, best)
    assert torch.equal(torch.export.load(program / "model.pt2").module()(columns, values)[1], best)


def test_an_approximate_index_has_its_recall_and_advice_where_it_is_low(run, tmp_path, capsys):
    capsys.readouterr()
    cells = ["--to", "faiss", "--index", "IVF8,Flat"]
    exported(run, tmp_path / "low", *cells)
    printed = capsys.readouterr()
    recall = json.loads((tmp_path / "low" / "query.json").read_text())["recall@10"]
    assert recall < 0.9
    assert f"recall@10 {recall:.3f} (60 rows" in printed.out
    words = " ".join(printed.err.split())
    assert f"The index misses {1 - recall:.0%} of the best 10 labels." in words
    assert "`--search nprobe=16` for cells" in words
    exported(run, tmp_path / "high", *cells, "--search", "nprobe=8")
    printed = capsys.readouterr()
    assert "recall@10 1.000" in printed.out
    assert "misses" not in printed.err


def test_the_program_predicts_what_the_command_predicts(run, tmp_path):
    rows = tmp_path / "rows.txt"
    rows.write_text("3:1 5:2\n7:1 199:3\n")
    assert main(["predict", str(run), str(rows), "--out", str(tmp_path / "best.csv")]) == 0
    with (tmp_path / "best.csv").open() as file:
        best = [int(row["label"]) for row in csv.DictReader(file)]
    program = exported(run, tmp_path / "all", "--to", "torch")
    columns, values = torch.tensor([[3, 5], [7, 199]]), torch.tensor([[1.0, 2.0], [1.0, 3.0]])
    _, labels = torch.export.load(program / "model.pt2").module()(columns, values)
    assert labels.flatten().tolist() == best


def test_a_model_of_a_comparison_is_chosen_by_its_scheme(tmp_path, capsys):
    grid = tmp_path / "grid"
    schemes = ["--schemes", "softmax", "within-batch:tail"]
    assert main(["compare", DATA, *schemes, "--out", str(grid), *QUICK]) == 0
    assert main(["export", str(grid), "--to", "faiss", "--out", str(tmp_path / "x")]) == 2
    assert "Choose a scheme with `--scheme`" in capsys.readouterr().err
    exported(grid, tmp_path / "x", "--to", "faiss", "--scheme", "within-batch:tail")
    assert (tmp_path / "x" / "index.faiss").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--to", "safetensors", "--index", "Flat"], "`--index` would do nothing: only a faiss"),
        (["--to", "torch", "--search", "nprobe=2"], "`--search` would do nothing: only a faiss"),
        (["--to", "faiss", "--k", "5"], "`--k` would do nothing: the number of labels is chosen"),
        (["--to", "encoder", "--post-hoc", "1"], "`--post-hoc` would do nothing: the encoder al"),
        (["--to", "faiss", "--post-hoc", "-1"], "`--post-hoc` must be at least 0, but got -1.0."),
        (["--to", "faiss", "--index", "Flatt"], "`--index Flatt` cannot be built for 60 labels"),
        (["--to", "faiss", "--search", "efSearch=2"], "`--search efSearch=2` does not fit the in"),
        (["--to", "torch", "--k", "0"], "`--k` must be a whole number of at least 1, but got 0."),
        (["--to", "torch", "--k", "61"], "`--k` is 61, but there are only 60 labels."),
    ],
)
def test_bad_use_gets_a_sentence_and_leaves_no_folder(run, tmp_path, capsys, options, sentence):
    assert main(["export", str(run), "--out", str(tmp_path / "out"), *options]) == 2
    assert capsys.readouterr().err.startswith(f"headtail: {sentence}")
    assert not list(tmp_path.iterdir())


def test_folders_are_not_overwritten_and_runs_must_be_runs(run, tmp_path, capsys):
    exported(run, tmp_path / "out", "--to", "safetensors")
    assert main(["export", str(run), "--to", "faiss", "--out", str(tmp_path / "out")]) == 2
    assert "exists already. Name another folder" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "out"), "--to", "faiss", "--out", str(tmp_path)]) == 2
    assert "holds no trained model" in capsys.readouterr().err
