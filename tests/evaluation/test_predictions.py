"""Predictions on disk are what the model answered, under the labels' own names."""

from __future__ import annotations

import errno
from dataclasses import replace

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from headtail import HeadtailError
from headtail.core.targets import Ragged
from headtail.data.histories import Histories
from headtail.data.image_files import ImageFiles
from headtail.data.points import Points
from headtail.evaluation.predictions import Predictions, write_predictions

POINTS = Points(torch.zeros(3, 1), Ragged.from_lists([[], [], []]), 3)
TOP = torch.tensor([[2, 0], [1, -1], [-1, -1]])
SCORES = torch.tensor([[0.5, 0.25], [-1.0, 9.0], [9.0, 9.0]])


def read(path):
    return (
        pyarrow.parquet.read_table(path)
        if path.suffix == ".parquet"
        else pyarrow.csv.read_csv(path)
    ).to_pydict()


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_one_row_per_point_and_rank_without_empty_places(tmp_path, ending):
    path = tmp_path / "new" / f"top.{ending}"
    write_predictions(path, Predictions(POINTS, TOP, SCORES))
    assert read(path) == {
        "point": [0, 0, 1],
        "rank": [1, 2, 1],
        "label": [2, 0, 1],
        "score": [0.5, 0.25, -1.0],
    }
    write_predictions(path, Predictions(POINTS, TOP, SCORES), ["a, b", 'say "c"', "é"])
    assert read(path)["label"] == ["é", "a, b", 'say "c"']
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_point_is_identified_by_its_row_and_its_user_and_numbers_stay_numbers(tmp_path, ending):
    path = tmp_path / f"top.{ending}"
    for users in (pa.array([70, 50, 60]), pa.array(["x, y", "", 'ü"'])):
        points = Points(
            POINTS.features, POINTS.labels, 3, rows=torch.tensor([9, 4, 6]), users=users
        )
        asked = points.select(torch.tensor([1, 0]))
        write_predictions(path, Predictions(asked, TOP[:2], SCORES[:2]), [30, 10, 20])
        names = users.to_pylist()
        assert list(read(path).items()) == [
            ("point", [4, 4, 9]),
            ("user", [names[1], names[1], names[0]]),
            ("rank", [1, 2, 1]),
            ("label", [20, 30, 10]),
            ("score", [0.5, 0.25, -1.0]),
        ]
    assert (
        ending == "parquet"
        or path.read_text().splitlines()[0] == '"point","user","rank","label","score"'
    )


def test_a_point_of_a_log_has_its_time_and_points_of_one_row_their_positions(tmp_path):
    path = tmp_path / "top.csv"
    items = torch.tensor([0, 1, 2]).int()
    ends = torch.tensor([1, 2])
    row = torch.zeros(2, dtype=torch.int64)
    histories = Histories(items, torch.tensor([0, 3]), row, ends, 10, 3)
    labels = Ragged.from_lists([[1], [2]])
    times = pa.array([70, 80])
    tested = Points(histories, labels, 3, rows=torch.tensor([5, 4]), times=times)
    write_predictions(path, Predictions(tested, TOP[:2], SCORES[:2]))
    found = read(path)
    assert (found["point"], found["time"]) == ([5, 5, 4], [70, 70, 80])
    assert "position" not in found
    write_predictions(path, Predictions(replace(tested, rows=row), TOP[:2], SCORES[:2]))
    assert (read(path)["point"], read(path)["position"]) == ([0, 0, 0], [1, 1, 2])


def test_an_image_file_is_identified_by_its_path(tmp_path):
    points = Points(ImageFiles(("a.jpg", "b.jpg", "c.jpg")), POINTS.labels, 3).select(
        torch.tensor([2, 1, 0])
    )
    write_predictions(tmp_path / "top.csv", Predictions(points, TOP, SCORES))
    found = read(tmp_path / "top.csv")
    assert (found["point"], found["path"]) == ([2, 2, 1], ["c.jpg", "c.jpg", "b.jpg"])


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch, ending):
    path = tmp_path / f"top.{ending}"
    path.write_text("before")

    def full(_, path):
        path.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.write_table", full)
    monkeypatch.setattr("pyarrow.csv.write_csv", full)
    with pytest.raises(HeadtailError, match=r"cannot be written: No space left on device"):
        write_predictions(path, Predictions(POINTS, TOP, SCORES))
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
