"""Columns of text files with lists in their values."""

from __future__ import annotations

import pytest

from headtail import HeadtailError
from headtail.data.load import load
from headtail.data.tables.list_columns import separators_of

LISTS = [[(3 * row + step) % 11 for step in range(2 + row % 4)] for row in range(40)]


def write(path, name: str, values: list[str]):
    rows = [f'{row},"{value}"' for row, value in enumerate(values)]
    path.write_text("\n".join([f"user_id,{name}", *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("separator", "note"),
    [
        (" ", "items is split at blanks."),
        (",", "items is split at commas."),
        (", ", "items is split at commas."),
        ("|", "items is split at `|`."),
        (";", "items is split at semicolons."),
        ("[", "items holds lists in brackets."),
    ],
)
def test_lists_in_a_column_of_items_are_sequences_however_they_are_written(
    tmp_path, separator, note
):
    values = [str(row) if separator == "[" else separator.join(map(str, row)) for row in LISTS]
    data = load(write(tmp_path / "shop.csv", "items", values))
    pairs = zip(range(40), LISTS, strict=True)
    lines = "\n".join(" ".join(map(str, [user, *row])) for user, row in pairs)
    (tmp_path / "lines.txt").write_text(lines + "\n")
    same = load(tmp_path / "lines.txt", format="sequences")
    assert note in data.notes
    assert len(data.train) == len(same.train) > 20
    assert data.label_names == same.label_names
    assert data.test.labels.values.tolist() == same.test.labels.values.tolist()


def test_strings_in_brackets_are_lists_as_json_and_as_python_write_them(tmp_path):
    words = [[f"sku {element}" for element in row] for row in LISTS]
    python = [str(row) for row in words]
    json = [value.replace("'", '""') for value in python]
    one, other = (
        load(write(tmp_path / f"{name}.csv", "history", values))
        for name, values in (("python", python), ("json", json))
    )
    assert one.label_names == other.label_names
    assert "sku 3" in one.label_names


def test_several_labels_of_a_text_are_split_unless_a_setting_says_otherwise(tmp_path):
    rows = ["text,tags", *(f"the words of {i % 7},a{i % 3}|b{i % 2}" for i in range(60))]
    path = tmp_path / "notes.csv"
    path.write_text("\n".join(rows) + "\n")
    data = load(path)
    assert sorted(data.label_names) == ["a0", "a1", "a2", "b0", "b1"]
    assert "tags is split at `|`." in data.notes
    whole = load(path, label_separator="&")
    assert "a0|b0" in whole.label_names
    note = (
        "`label_separator='&'` never occurs in column `tags`: each value is one label, for example"
    )
    assert any(found.startswith(note) for found in whole.notes)
    assert not any("never occurs" in note for note in load(path, label_separator="|").notes)
    with pytest.raises(HeadtailError, match="`label_separator` is empty"):
        load(path, label_separator="")
    (tmp_path / "lists.jsonl").write_text('{"text": "my cat", "labels": ["a", "b"]}\n' * 9)
    with pytest.raises(HeadtailError, match=r"would do nothing: column `labels` .* holds lists"):
        load(tmp_path / "lists.jsonl", label_separator="|")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("title", ["1 2", "3 4"]),
        ("item", ["Toy Story", "Star Wars"]),
        ("item_id", ["3 5", "7 9"]),
        ("category", ["Home, Garden", "Tools"]),
        ("movies", ["Toy Story", "Up"]),
        ("labels", ["machine learning", "sports"]),
        ("history", ["He was ill for a long time, and then well", "He was never ill"]),
        ("items", ["3", "5"]),
    ],
)
def test_a_title_with_blanks_or_commas_stays_whole(name, values):
    assert separators_of([name], [[value] for value in values]) == {}


def test_a_later_value_that_is_not_a_list_is_one_sentence(tmp_path):
    values = [str(row) for row in LISTS] * 200
    path = write(tmp_path / "shop.csv", "items", [*values, "3 5"])
    with pytest.raises(HeadtailError, match=r"column `items`: `3 5` is not a list in brackets"):
        load(path)
