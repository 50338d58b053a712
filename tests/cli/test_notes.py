"""What users see before they train, and what they may ask a trained model about."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from headtail.cli import main
from headtail.comparison.results import read_rows
from headtail.comparison.rows import negatives_of
from headtail.training.config import SettledRun

QUICK = ["--encoder", "resnet20", "--epochs", "1", "--batch", "16", "--device", "cpu"]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory) -> Path:
    """Pictures of three animals, a folder each, and three without a label."""
    folder = tmp_path_factory.mktemp("zoo")
    for part, each in (("train", 6), ("test", 2), ("new", 1)):
        for animal in ("ant", "bee", "cat"):
            place = folder / "new" if part == "new" else folder / "data" / part / animal
            place.mkdir(parents=True, exist_ok=True)
            for i in range(each):
                pixels = np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{animal} {i}.jpg")
    (folder / "new.txt").write_text("new/ant 0.jpg\nnew/bee 0.jpg\n")
    return folder


@pytest.fixture(scope="module")
def run(zoo: Path) -> Path:
    words = [
        "train",
        str(zoo / "data"),
        "--scheme",
        "within-batch:tail",
        "--out",
        str(zoo / "run"),
        *QUICK,
    ]
    assert main(words) == 0
    return zoo / "run"


def test_held_out_points_recipes_and_an_empty_head_are_noted(zoo, tmp_path, capsys):
    words = [
        "train",
        str(zoo / "data"),
        "--scheme",
        "softmax",
        "--validation",
        "0.25",
        "--out",
        str(tmp_path / "run"),
        *QUICK,
    ]
    assert main(words) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert (
        "4 of the 18 training points are held out to choose the epoch; with `--validation 0` all "
        "are trained on." in told
    )
    assert "those for images come with a `--recipe`: `cifar`, `imagenet-lt`, `inaturalist`." in told
    assert (
        "No label has 100 training examples, so the head is empty; `--slices mass` divides labels "
        "by their share." in told
    )
    words = [
        *words[:-1],
        "cpu",
        "--lr",
        "0.1",
        "--slices",
        "mass",
        "--validation",
        "0",
        "--out",
        str(tmp_path / "other"),
    ]
    assert main(words) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert not any(word in told for word in ("held out to choose", "--recipe", "head is empty"))


def test_rows_have_the_negatives_that_a_batch_has(run):
    # 64 by default, but there are 16 in a batch
    assert {row.m for row in read_rows(run / "results.csv")} == {16.0}
    assert negatives_of(SettledRun(scheme="within-batch:tail", batch=256)) == 64
    assert negatives_of(SettledRun(scheme="uniform:tail", batch=16)) == 64
    assert negatives_of(SettledRun(scheme="softmax")) is None


def test_more_negatives_than_a_batch_has_are_refused_where_they_are_asked_for(
    zoo, tmp_path, capsys
):
    words = [
        "train",
        str(zoo / "data"),
        "--scheme",
        "within-batch:tail",
        "--negatives",
        "64",
        "--out",
        str(tmp_path),
        *QUICK,
    ]
    assert main(words) == 2
    wanted = (
        "`--negatives 64` for `within-batch:tail` is more than the 16 labels of a batch. Write "
        "`--negatives 16` at most"
    )
    assert wanted in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("test", "points"), [("new", 3), ("new/bee 0.jpg", 1), ("new.txt", 2)])
def test_a_model_is_asked_about_images_without_labels(zoo, run, tmp_path, capsys, test, points):
    place = str(zoo / test)
    out = tmp_path / "best.csv"
    assert (
        main(
            [
                "predict",
                str(run),
                str(zoo / "data"),
                "--test",
                place,
                "--out",
                str(out),
                "--device",
                "cpu",
            ]
        )
        == 0
    )
    assert f"{points} points × 3 labels" in capsys.readouterr().out.replace("1 point ", "1 points ")
    lines = list(csv.DictReader(out.read_text().splitlines()))
    assert len(lines) == 3 * points
    assert {line["label"] for line in lines} == {"ant", "bee", "cat"}


@pytest.mark.parametrize("place", ["new", "new/bee 0.jpg", "new.txt"])
def test_an_image_or_a_list_or_folder_of_them_is_answered_by_itself(zoo, run, tmp_path, place):
    out = tmp_path / "best.csv"
    assert main(["predict", str(run), str(zoo / place), "--out", str(out), "--device", "cpu"]) == 0
    lines = list(csv.DictReader(out.read_text().splitlines()))
    assert {line["label"] for line in lines} == {"ant", "bee", "cat"}
