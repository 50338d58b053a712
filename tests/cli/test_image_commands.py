"""train and evaluate judge images as compare does: by their errors."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from headtail.cli import main
from headtail.comparison.results import read_rows

QUICK = [
    "--encoder",
    "resnet20",
    "--epochs",
    "1",
    "--batch",
    "16",
    "--scheme",
    "softmax",
    "--device",
    "cpu",
]
ERRORS = {("balanced-error", name) for name in ("head", "torso", "tail", "full")} | {
    ("class-weighted-error", "full")
}


def painted(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def zoo(folder: Path) -> Path:
    """Pictures of a head, a torso and a tail label."""
    folder.mkdir()
    for part, labels in (("train", [0] * 100 + [1] * 20 + [2] * 4), ("test", [0, 1, 2] * 8)):
        images = [painted(len(labels) + i) for i in range(len(labels))]
        pq.write_table(pa.table({"image": images, "label": labels}), folder / f"{part}.parquet")
    return folder


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What train and evaluate print of the same model, at two widths, and the rows of the run."""
    folder = tmp_path_factory.mktemp("pictures")
    found = {}
    patch = pytest.MonkeyPatch()
    data = zoo(folder / "zoo")
    run = folder / "run"
    for width in ("80", "160"):
        for command in (
            ["train", str(data), *QUICK, "--out", str(run)],
            ["evaluate", str(run), str(data), "--device", "cpu"],
        ):
            with patch.context() as context, io.StringIO() as out:
                context.setenv("COLUMNS", width)
                context.setattr("sys.stdout", out)
                assert main(command) == 0
                found[command[0], width] = out.getvalue().partition("model:")[0]
    return found, [row for row in read_rows(run / "results.csv") if row.split == "test"]


@pytest.mark.parametrize("width", ["80", "160"])
@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_images_are_shown_by_their_errors_and_not_by_retrieval_metrics(shown, command, width):
    said = shown[0][command, width]
    rows = shown[1]
    assert max(map(len, said.splitlines())) <= int(width)
    for word in (
        "softmax on zoo: Error by slice",
        "Head",
        "Torso",
        "Tail",
        "Balanced",
        "Prior-weighted",
    ):
        assert word in said
    for word in ("recall", "precision", "ndcg", "coverage"):
        assert word not in said
    errors = [row for row in rows if (row.metric, row.slice) in ERRORS]
    assert len(errors) == 5
    for row in errors:
        assert f"{100 * row.value:.1f}" in said
        assert f"{100 * row.low:.1f}–{100 * row.high:.1f}" in said


def test_all_other_metrics_of_images_are_kept_next_to_the_model(shown):
    assert {"recall@10", "precision@1", "coverage@10"} <= {row.metric for row in shown[1]}
