"""Names that are not UTF-8: files that a library cannot open are not called damaged."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from headtail import HeadtailError
from headtail.data.counts import read_counts
from headtail.data.load import load
from headtail.files.tensors import load_tensors, save_tensors

LATIN = os.fsdecode(b"caf\xe9")


@pytest.fixture
def latin(tmp_path):
    """A folder whose name is in Latin-1."""
    folder = tmp_path / LATIN
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system has names in UTF-8 only")
    return folder


def refused(work, *arguments):
    with pytest.raises(HeadtailError, match=r"only names in UTF-8\. Rename the file") as error:
        work(*arguments)
    said = str(error.value)
    assert "damaged" not in said
    assert "elete" not in said


@pytest.mark.parametrize("ending", ["parquet", "feather", "safetensors"])
def test_data_that_a_library_cannot_open_by_name_are_to_be_renamed(tmp_path, latin, ending):
    path = tmp_path / f"log.{ending}"
    log = pd.DataFrame({"user": np.arange(60) % 6, "item": np.arange(60) % 9})
    if ending == "parquet":
        log.to_parquet(path)
    elif ending == "feather":
        log.to_feather(path)
    else:
        tensors = {"features": torch.rand(60, 3), "labels": torch.arange(60) % 5}
        save_file(tensors, path)
    assert len(load(path).train) > 0
    refused(load, shutil.copy(path, latin))
    refused(load, path.rename(path.with_stem(LATIN)))


def test_counts_and_saved_tensors_are_to_be_renamed(tmp_path, latin):
    counts = tmp_path / "counts.parquet"
    pd.DataFrame({"count": [3, 2, 1]}).to_parquet(counts)
    refused(read_counts, Path(shutil.copy(counts, latin)))
    model = tmp_path / "model.safetensors"
    save_tensors(model, {"x": torch.zeros(2)}, {"a": 1})
    there = Path(shutil.copy(model, latin))
    refused(load_tensors, there, "a checkpoint", "Delete it to start that run again.")
