"""Rows and files: what is written comes back, and what is damaged is refused."""

from __future__ import annotations

import json
import math

import pytest

from headtail import HeadtailError
from headtail.comparison.results import CLASSES, COLUMNS, ClassError, Comparison, Row, read_rows
from headtail.files.atomic import write_text
from headtail.files.checksums import write_sums
from headtail.files.records import read_csv, to_csv

ROWS = [
    Row(
        "cell",
        'a "name", with a comma',
        "test",
        "softmax",
        "mixture(uniform,queue):tail",
        64.0,
        1,
        2,
        30,
        "tail",
        "psp@1",
        0.1,
    ),
    Row(
        "",
        "data",
        "explain",
        "softmax",
        "softmax",
        None,
        0,
        0.5,
        0,
        "full",
        "lean",
        1 / 3,
        -1e-300,
        2.0,
    ),
    Row("", "zählt", "test", "", "most-popular", None, 0, 0, 0, "head", "recall@1", math.nan),
]


def test_rows_come_back_with_every_digit(tmp_path):
    path = tmp_path / "results.csv"
    write_text(path, to_csv(ROWS, Row))
    again = read_rows(path)
    assert again[:2] == ROWS[:2]
    assert math.isnan(again[2].value)
    assert again[2].dataset == "zählt"
    assert path.read_text().splitlines()[0].split(",") == list(COLUMNS)


def test_rows_read_and_written_again_are_the_same_bytes(tmp_path):
    path = tmp_path / "results.csv"
    write_text(path, to_csv(ROWS, Row))  # an epoch given as the integer 2 among them
    assert to_csv(read_rows(path), Row) == path.read_text()


def test_errors_of_classes_come_back_and_are_no_other_rows(tmp_path):
    path = tmp_path / CLASSES
    rows = [
        ClassError("data", "softmax", None, 0, 7, "a cat, asleep", 12, 50, 1 / 3),
        ClassError("data", "uniform:tail", 8, 1, 8, "", 0, 0, math.nan),
    ]
    write_text(path, to_csv(rows, ClassError))
    again = read_csv(path, ClassError)
    assert again[0] == rows[0]
    assert (again[1].m, again[1].name, math.isnan(again[1].error)) == (8.0, "", True)
    assert to_csv(again, ClassError) == path.read_text()
    assert path.read_text().splitlines()[0] == "dataset,scheme,m,seed,label,name,train,test,error"
    with pytest.raises(
        HeadtailError, match="is not a results file of headtail: its columns must be run, dataset"
    ):
        read_rows(path)
    path.write_text(path.read_text().replace(",12,50,", ",12,some,"))
    with pytest.raises(HeadtailError, match=r"classes.csv` is damaged in row 2: invalid literal"):
        read_csv(path, ClassError)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda text: "",
            "is not a results file of headtail: its columns must be run, dataset, split",
        ),
        (lambda text: text.replace("metric", "measure", 1), "is not a results file of headtail"),
        (
            lambda text: text[: text.rindex("most-popular")],
            r"is damaged in row 4: it has 5 columns instead of 14",
        ),
        (
            lambda text: text.replace("0.1,,", "much,,"),
            "is damaged in row 2: could not convert string to float: 'much'",
        ),
        (lambda text: text.replace("0.1,,", ",,"), "is damaged in row 2"),
        (lambda text: text.replace("64.0,1,", "64.0,one,"), "is damaged in row 2: invalid literal"),
        (lambda text: text.replace("zählt", "z\udcffhlt"), "is not a CSV file: 'utf-8' codec"),
    ],
)
def test_a_damaged_results_file_is_refused_with_its_row_and_the_way_out(tmp_path, damage, sentence):
    path = tmp_path / "results.csv"
    path.write_bytes(damage(to_csv(ROWS, Row)).encode("utf-8", "surrogateescape"))
    with pytest.raises(HeadtailError, match=sentence) as raised:
        read_rows(path)
    assert "results.csv" in str(raised.value)
    assert str(raised.value).endswith("Delete it and run the comparison again.")


def comparison(folder):
    for name in ("data", "made_by", "failures"):
        write_text(folder / f"{name}.json", json.dumps({"name": "zählt"}))
    write_text(folder / "schemes.json", json.dumps({"softmax": {"name": "softmax"}}))
    write_text(folder / "run.toml", 'schemes = ["softmax"]\n')
    write_text(folder / "results.csv", to_csv(ROWS[:2], Row))
    write_sums(folder, ["data.json", "results.csv", "run.toml"], ["made_by.json"])
    return folder


def test_a_comparison_is_read_from_its_folder(tmp_path):
    found = Comparison.read(comparison(tmp_path))
    assert found.rows == ROWS[:2]
    assert found.classes == []
    assert found.settings == {"schemes": ["softmax"]}
    assert found.data == {"name": "zählt"}


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "data.json",
            None,
            "is not a finished comparison: `.*data.json` cannot be read. Pass the folder of one",
        ),
        ("results.csv", None, r"is damaged: `results.csv` cannot be read \(No such file"),
        ("results.csv", "x", "is damaged: `results.csv` does not match its checksum"),
        ("made_by.json", "{}", "is damaged: `made_by.json` does not match its checksum"),
        (
            "schemes.json",
            "{",
            "is damaged: .* Delete it and run the same command again; finished runs are kept",
        ),
        ("failures.json", "[]", "failures.json` is damaged: it holds no JSON object"),
        ("run.toml", "x", "is damaged"),
    ],
)
def test_a_damaged_comparison_is_refused_in_one_sentence(tmp_path, name, text, sentence):
    folder = comparison(tmp_path)
    (folder / name).unlink() if text is None else (folder / name).write_text(text)
    with pytest.raises(HeadtailError, match=sentence) as raised:
        Comparison.read(folder)
    assert str(raised.value).count("again") <= 1, "one sentence, not one wrapped in another"
