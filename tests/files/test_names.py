"""Names from outside: visible where they are shown, and the same again after a file."""

from __future__ import annotations

import csv
import tomllib
from dataclasses import dataclass

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headtail import Labels
from headtail.core.html import frame, sentences
from headtail.files.atomic import write_text
from headtail.files.names import csv_cell, encodable, original, shown
from headtail.files.records import read_csv, to_csv
from headtail.training.config import read_toml, to_toml

HOSTILE = (
    "caf\udce9",
    "\ud83d\ude00",
    "\x1b[31mred\x1b[0m",
    "\x9b31m",
    "nul\0nul",
    "a\rb",
    "a\nb",
    "\u202eevil\u2066",
    "zero\u200bwidth",
    "line\u2028line",
    '"quoted", with commas',
    "=cmd|'/C calc'!A0",
    "\\udce9",
    "\\u005cudce9",
    "[red]rich[/red]",
    "</script>",
    "del\x7f",
    "😀",
    "x" * 200_000,
)
PIECES = ["\\", "u005c", "udce9", "u003d", "\udce9", "\ud83d", "=", "@", "f(", "x", "é", "\n"]
TEXTS = st.lists(st.sampled_from(PIECES)).map("".join)


@dataclass(frozen=True)
class Named:
    name: str
    number: float


@given(TEXTS)
def test_what_is_written_is_utf_8_and_comes_back(text):
    for write in (encodable, csv_cell):
        written = write(text)
        written.encode()
        assert original(written) == text


@given(st.text(st.characters(codec=None), max_size=50))
def test_what_is_shown_is_one_line_of_visible_characters(text):
    line = shown(text)
    line.encode()
    assert not any(c in line for c in "\n\r\x1b\x9b\u202e\u2066\u200b\u2028\x07\x08")


def test_ordinary_names_of_any_script_are_shown_as_they_are():
    for name in ("naïve café", "日本語　文", "می‌خواهم", "👩‍💻", "a b", "[x](y)"):
        assert shown(name) == name
        assert encodable(name) == csv_cell(name) == name


def test_a_joiner_between_ascii_letters_is_shown():
    assert shown("pay\u200dpal") == "pay\\u200dpal"


def test_long_text_loses_its_middle():
    assert len(shown("x" * 1_000_000)) == 2000
    assert shown("a" * 50 + "z" * 50, most=5) == "aa…zz"


def test_only_names_that_spreadsheets_run_are_changed_in_csv():
    for name in ("-5", "+1", "@home", "-", "a=b", "1+1"):
        assert csv_cell(name) == name
    for name in ("=HYPERLINK(A1)", "+cmd|' /C calc'!A0", "@SUM(1)", "-f(2)", "='file:///x'#$a.A1"):
        assert csv_cell(name)[0] == "\\"


def test_records_with_any_name_come_back_from_csv(tmp_path):
    records = [Named(name, float(i)) for i, name in enumerate(HOSTILE)]
    path = tmp_path / "named.csv"
    write_text(path, to_csv(records, Named))
    assert read_csv(path, Named) == records


def test_other_readers_of_csv_find_the_same_cells(tmp_path):
    names = [name for name in HOSTILE if len(name) < 1000]
    path = tmp_path / "named.csv"
    write_text(path, to_csv([Named(name, 0.0) for name in names], Named))
    with path.open(newline="", encoding="utf-8") as file:
        cells = [row[0] for row in csv.reader(file)][1:]
    assert cells == [csv_cell(name) for name in names]
    assert pd.read_csv(path)["name"].tolist() == cells


@pytest.mark.parametrize("name", HOSTILE)
def test_any_name_comes_back_from_toml(name):
    text = to_toml({"lr": {name: 0.1}, "schemes": [name]}, {"path": name})
    tomllib.loads(text.encode().decode())
    expected = {"lr": {name: 0.1}, "schemes": [name], "data": {"path": name}}
    assert read_toml(text) == expected


def test_labels_with_any_names_are_saved_and_loaded(tmp_path):
    # JSON makes one character of two halves that follow each other.
    labels = Labels.from_column([name for name in HOSTILE if name != "\ud83d\ude00"])
    labels.save(tmp_path / "labels.safetensors")
    assert Labels.load(tmp_path / "labels.safetensors").names == labels.names


def test_a_notebook_shows_names_as_visible_text():
    page = Labels.from_column(["<b>\u202e", "a\x1b", "x\udce9"])._repr_html_()
    assert "&lt;b&gt;\\u202e" in page
    assert "a\\x1b" in page
    page.encode()
    assert "\u202e" not in frame("x\u202e", "y\u202e", sentences(["z\u202e"]))


def test_a_file_with_a_name_that_is_not_utf_8_can_be_written(tmp_path):
    path = tmp_path / "caf\udce9.txt"
    write_text(path, "x")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
