"""A model keeps the names of its labels: other labels are refused, however many there are, and
answers have its own names.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from headtail.cli import main
from headtail.files.tensors import save_tensors
from headtail.training import checkpoint
from tests.cli.test_image_commands import QUICK, painted

SMALL = ["--dim", "8", "--epochs", "1", "--device", "cpu"]


def folders(place: Path, names: list) -> Path:
    for i in range(12):
        home = place / ("train" if i < 9 else "test") / str(names[i % 3])
        home.mkdir(parents=True, exist_ok=True)
        Image.fromarray(
            np.random.default_rng(i).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        ).save(home / f"{i}.png")
    return place


def pictures(place: Path, names: list) -> Path:
    place.mkdir()
    for part, number in (("train", 30), ("test", 6)):
        columns = {
            "image": [painted(i) for i in range(number)],
            "label": [names[i % 3] for i in range(number)],
        }
        pq.write_table(pa.table(columns), place / f"{part}.parquet")
    return place


def sequences(place: Path, names: list) -> Path:
    place.mkdir()
    pq.write_table(
        pa.table({"items": [[names[i % 3], names[(i + 1) % 3]] * 3 for i in range(20)]}),
        place / "sequences.parquet",
    )
    return place


def train(data: Path, run: Path) -> Path:
    words = SMALL if (data / "sequences.parquet").exists() else QUICK
    assert main(["train", str(data), "--out", str(run), *words]) == 0
    return run


@pytest.mark.parametrize(
    ("write", "names", "others"),
    [
        (folders, ["cat", "dog", "eel"], ["cat", "dog", "owl"]),
        (pictures, ["cat", "dog", "eel"], ["ant", "bee", "cat"]),
        (pictures, [1, 2, 3], [0, 1, 2]),
        (pictures, [0, 1, 2], [1, 2, 3]),
        (sequences, [10, 20, 30], [10, 20, 31]),
    ],
)
def test_data_with_other_labels_are_refused_and_named(tmp_path, capsys, write, names, others):
    data = write(tmp_path / "zoo", names)
    other = write(tmp_path / "other", others)
    out = tmp_path / "best.csv"
    run = train(data, tmp_path / "run")
    label = next(i for i in range(3) if names[i] != others[i])
    for command in (
        ["evaluate", str(run), str(other)],
        ["predict", str(run), str(other), "--out", str(out)],
    ):
        capsys.readouterr()
        assert main([*command, "--device", "cpu"]) == 2
        said = capsys.readouterr().err
        assert f"`{other}` has other labels than the model in `{run}`" in said
        assert f"label {label} is `{others[label]}`, and was `{names[label]}`" in said
        assert f"`{data}`" in said
    assert not out.exists()
    assert main(["evaluate", str(run), str(data), "--device", "cpu"]) == 0


def test_where_only_training_names_its_labels_answers_have_those_names(tmp_path):
    run = train(pictures(tmp_path / "zoo", ["cat", "dog", "eel"]), tmp_path / "run")
    numbered = pictures(tmp_path / "numbered", [0, 1, 2])
    assert main(["evaluate", str(run), str(numbered), "--device", "cpu"]) == 0
    assert (
        main(
            [
                "predict",
                str(run),
                str(numbered),
                "--device",
                "cpu",
                "--out",
                str(tmp_path / "best.parquet"),
            ]
        )
        == 0
    )
    assert set(pq.read_table(tmp_path / "best.parquet")["label"].to_pylist()) == {
        "cat",
        "dog",
        "eel",
    }


def test_a_model_from_before_names_were_kept_is_still_read(tmp_path):
    run = train(sequences(tmp_path / "shop", [10, 20, 30]), tmp_path / "run")
    tensors, facts = checkpoint.load(run / "model.safetensors")
    del tensors["labels.names"]
    save_tensors(run / "model.safetensors", tensors, facts)
    other = sequences(tmp_path / "other", [10, 20, 31])
    out = tmp_path / "best.parquet"
    assert main(["evaluate", str(run), str(other), "--device", "cpu"]) == 0
    assert main(["predict", str(run), str(other), "--device", "cpu", "--out", str(out)]) == 0
    assert set(pq.read_table(out)["label"].to_pylist()) == {10, 20, 31}


def test_audit_names_the_labels_that_deviate_most(tmp_path, capsys):
    table = tmp_path / "log.parquet"
    pq.write_table(pa.table({"item": ["tea", "jam", "tea", "milk"] * 5}), table)
    source = ["--counts", str(table), "--column", "item"]
    assert main(["audit", "uniform", *source, "--negatives", "2", "--draws", "200"]) == 0
    shown = capsys.readouterr().out.partition("deviate most")[2]
    assert {"tea", "jam", "milk"} & set(shown.split())
    assert main(["audit", "uniform", *source, "--negatives", "2", "--draws", "200", "--json"]) == 0
    worst = json.loads(capsys.readouterr().out)["worst"]
    assert {label for label, _, _ in worst} <= {"tea", "jam", "milk"}
