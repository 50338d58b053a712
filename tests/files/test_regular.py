"""A pipe in the place of a file is refused, and nothing waits for it."""

from __future__ import annotations

import os
import signal

import pytest

from headtail import HeadtailError
from headtail.comparison.kept_json import read_object
from headtail.comparison.results import Row
from headtail.files.checksums import SUMS, damage_of, write_sums
from headtail.files.records import read_csv
from headtail.files.tensors import load_tensors
from headtail.training.config import Run, data_of


@pytest.fixture(autouse=True)
def alarm():
    """End a test that waits."""
    signal.alarm(20)
    yield
    signal.alarm(0)


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


READERS = {
    "rows": lambda path: read_csv(path, Row),
    "tensors": lambda path: load_tensors(path, "a model", ""),
    "settings": Run.read,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_is_refused(pipe, reader):
    with pytest.raises(HeadtailError, match="cannot be read: It is not a regular file"):
        READERS[reader](pipe)


def test_a_pipe_is_not_json_nor_settings_of_data(pipe):
    with pytest.raises(OSError, match="not a regular file"):
        read_object(pipe)
    assert data_of(pipe) == {}


def test_a_pipe_among_results_is_damage(pipe, tmp_path):
    os.rename(pipe, tmp_path / "results.csv")
    (tmp_path / "run.toml").touch()
    write_sums(tmp_path, ["run.toml"])
    (tmp_path / SUMS).write_text((tmp_path / SUMS).read_text().replace("run.toml", "results.csv"))
    assert damage_of(tmp_path) == "`results.csv` cannot be read (It is not a regular file)"
    (tmp_path / SUMS).unlink()
    os.mkfifo(tmp_path / SUMS)
    assert damage_of(tmp_path) == "`SHA256SUMS` is not a list of checksums"
