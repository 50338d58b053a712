"""Data and encoders without the optional packages: what needs one asks for its extra."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

PRELUDE = """
import sys
sys.modules.update(dict.fromkeys(["numba", "pyarrow", "PIL", "triton", "sklearn"]))
from pathlib import Path
import torch
from headtail.data.load import load
from headtail.data.reading import Reading
"""


def run_without_extras(code: str, folder) -> str:
    """What a process without numba, pyarrow, pillow, triton and scikit-learn prints."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_text_is_read_and_an_encoder_trains_without_a_compiler(tmp_path):
    (tmp_path / "train.txt").write_text("0,2 1:0.5\n1 0:2\n" * 50)
    code = """
from headtail.encoders import Bottleneck
from headtail.data.bag import Picked
data = load(sys.argv[1])
torch.manual_seed(0)
encoder = Bottleneck(2, 4, sparse=True, dropout=0.5)
hidden = encoder(Picked(data.train.features, torch.arange(70)))
hidden.square().sum().backward()
print(len(data.train), hidden.shape, int((hidden == 0).sum() > 0), encoder.weight.grad.is_sparse)
"""
    assert run_without_extras(code, tmp_path) == "80 torch.Size([70, 4]) 1 True"


def test_what_is_dropped_and_drawn_is_the_same_without_a_compiler(tmp_path):
    code = """
from headtail.encoders.dropout import dropout
torch.manual_seed(7)
print(dropout(torch.ones(40), 0.5).nonzero().flatten().tolist(), float(torch.rand(())))
"""
    here = subprocess.run(
        [sys.executable, "-c", "import torch\n" + code], capture_output=True, text=True, check=True
    )
    assert run_without_extras(code, tmp_path) == here.stdout.strip()


def write_parquet(folder):
    pq.write_table(pa.table({"user_id": [1], "item_id": [2]}), folder / "train.parquet")


def write_texts(folder):
    (folder / "train.txt").write_text("__label__a x\n__label__b y\n")


def write_images(folder):
    for label in "ab":
        (folder / label).mkdir()
        for i in range(3):
            Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(folder / label / f"{i}.png")


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (
            write_parquet,
            "Reading tables needs pyarrow, which is not installed. "
            "Run `pip install 'headtail[data]'`.",
        ),
        (
            write_texts,
            "Reading raw text needs scikit-learn, which is not installed. "
            "Run `pip install 'headtail[text]'`.",
        ),
        (
            write_images,
            "Decoding images needs pillow, which is not installed. "
            "Run `pip install 'headtail[data]'`.",
        ),
    ],
)
def test_a_missing_package_is_one_sentence_that_names_the_extra(tmp_path, write, sentence):
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder)
    code = """
from headtail.errors import HeadtailError
try:
    data = load(sys.argv[1])
    data.train.features.decoded(torch.arange(1), train=False, seed=0)
except HeadtailError as error:
    print(error)
"""
    assert run_without_extras(code, folder) == sentence
