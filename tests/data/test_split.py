"""Which points train and which test."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headtail.core.targets import Ragged
from headtail.data.load import load
from headtail.data.points import Points
from headtail.data.readers.text_folder import TextFiles, find_text
from headtail.data.readers.text_parts import read_split, read_xc
from headtail.data.split import hold_out
from headtail.errors import HeadtailError


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))

    def write(content: str, name: str = "train.txt") -> Path:
        (tmp_path / name).write_text(content)
        return tmp_path / name

    return write


def test_split_files_count_rows_from_one_and_have_a_column_a_split(write):
    path = write("3 1\n1 2\n\n", "trSplit.txt")
    assert read_split(path, 0).tolist() == [2, 0]
    assert read_split(path, 1, num_points=2).tolist() == [0, 1]
    for content, column, says in [
        ("3 1\n1 2\n", 2, "line 1: column 2 does not exist, only 2 splits"),
        ("3\n1\n", 1, "line 1: column 1 does not exist, only 1 split, column 0"),
        ("1 2\n3\n", 1, "line 2: column 1 does not exist"),
        ("1\n0\n", 0, "line 2: expected a row number from 1 to 9, but found `0`"),
        ("1\n10\n", 0, "line 2: expected a row number from 1 to 9, but found `10`"),
        ("1\nx\n", 0, "found `x`"),
        ("2\n2\n", 0, "row 2 occurs twice in column 0"),
        ("", 0, "is empty"),
    ]:
        with pytest.raises(HeadtailError, match=says):
            read_split(write(content, "trSplit.txt"), column, num_points=9)


def test_one_file_with_split_files_is_parted_by_them(write):
    write("4 3 5\n0 0:1\n1 1:1\n2 2:1\n3 0:2\n", "bibtex_data.txt")
    train = write("4 1\n1 2\n", "bibtex_trSplit.txt")
    test = write("2 3\n3 4\n", "bibtex_tstSplit.txt")
    found = find_text(train.parent)
    data = read_xc(found.train, found.test, splits=found.splits)
    assert (data.name, data.train.labels.values.tolist(), data.test.labels.values.tolist()) == (
        "bibtex",
        [3, 0],
        [1, 2],
    )
    other = read_xc(found.train, splits=found.splits, split_column=1)
    assert other.train.labels.values.tolist() == [0, 1]
    assert other.digest != data.digest
    write("4 2\n3 4\n", "bibtex_tstSplit.txt")
    with pytest.raises(HeadtailError, match="share 1 rows in column 0, the first is 4"):
        read_xc(found.train, splits=(train, test))


def test_training_and_test_file_get_one_width(write):
    train = write("1 8:1\n")
    test = write("5 2:1\n", "test.txt")
    data = read_xc(train, test)
    assert {(part.num_features, part.num_labels) for part in (data.train, data.test)} == {(9, 6)}
    assert data.name == train.parent.name
    headed = read_xc(write("1 20 30\n1 8:1\n", "a.txt"), test)
    assert (headed.test.num_features, headed.test.num_labels) == (20, 30)
    with pytest.raises(
        HeadtailError,
        match=(
            r"`.*a.txt` promises 4 features and 6 labels in its header, but `.*test.txt` has 5 and "
            r"6"
        ),
    ):
        read_xc(write("1 4 6\n1 3:1\n", "a.txt"), write("1 5 6\n1 3:1\n", "test.txt"))
    with pytest.raises(HeadtailError, match="promises 3 features and 6 labels in its header, but"):
        read_xc(train, write("1 3 6\n1 2:1\n", "test.txt"))
    with pytest.raises(HeadtailError, match="needs `test` or `splits`, but got neither"):
        read_xc(train)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("train.txt test.txt", ("train.txt", "test.txt")),
        ("amazonCat_train.txt amazonCat_test.txt", ("amazonCat_train.txt", "amazonCat_test.txt")),
        ("train.svm.gz test.svm.gz README.txt", ("train.svm.gz", "test.svm.gz")),
        ("trn.txt tst.txt filter_labels_test.txt", ("trn.txt", "tst.txt")),
        ("train.txt train.txt.gz test.txt.xz", ("train.txt", "test.txt.xz")),
        ("train.txt notes.md", ("train.txt", None)),
        ("eurlex.txt", ("eurlex.txt", None)),
    ],
)
def test_the_files_of_a_folder_are_found_by_name(tmp_path, names, found):
    for name in names.split():
        (tmp_path / name).touch()
    train, test = found
    assert find_text(tmp_path) == TextFiles(tmp_path / train, test and tmp_path / test)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("", "holds no text file"),
        ("test.txt", "holds only a test file"),
        ("a_train.txt b_train.txt", r"more than one candidate \(a_train.txt, b_train.txt\)"),
        ("train.txt train.svm", "more than one candidate"),
        ("x_data.txt x_trSplit.txt", "only one of the two split files"),
    ],
)
def test_a_folder_that_does_not_say_which_files_to_read_is_refused(tmp_path, names, says):
    for name in names.split():
        (tmp_path / name).touch()
    with pytest.raises(HeadtailError, match=says):
        find_text(tmp_path)


def test_points_held_out_and_the_others_are_all_points_and_the_seed_decides_which():
    points = Points(torch.zeros(50, 1), Ragged.from_lists([[i] for i in range(50)]), 50)
    train, test = (part.labels.values.tolist() for part in hold_out(points, 0.3, seed=4))
    assert len(test) == 15
    assert sorted(train + test) == list(range(50))
    assert hold_out(points, 0.3, seed=4)[1].labels.values.tolist() == test
    assert hold_out(points, 0.3, seed=5)[1].labels.values.tolist() != test
    assert [len(part) for part in hold_out(points, 0.001)] == [49, 1]
    for share in (0, 1, -1, float("nan")):
        with pytest.raises(HeadtailError, match="share"):
            hold_out(points, share)


def test_a_filter_of_labels_that_is_not_read_is_named(tmp_path):
    for name in ("trn", "tst"):
        (tmp_path / f"{name}.txt").write_text("2 3 4\n0 0:1\n1 1:1\n")
    (tmp_path / "filter_labels_test.txt").write_text("0 1\n")
    assert load(tmp_path).notes[-1].startswith("filter_labels_test.txt is not read: labels that")
