"""JSON nested without end is refused before a parser sees it; brackets in strings are no levels."""

from __future__ import annotations

import gzip

import pytest

from headtail import HeadtailError
from headtail.data.counts import count_labels
from headtail.data.load import load
from headtail.data.tables.json_text import is_deep
from headtail.data.tables.list_columns import list_in

ROWS = [(row % 9, row // 9 % 9) for row in range(200)]


def nested(levels):
    return {
        "objects": '{"a":' * levels + "1" + "}" * levels,
        "arrays": '{"a":' + "[" * levels + "]" * levels + "}",
        "over lines": '{"a":\n' * levels + "1" + "}" * levels,
        "braces at the end of lines": '{"a":"}",\n"b":' * levels + "1" + "}" * levels,
        "escapes": '{"a\\\\":{"b\\"":' * (levels // 2) + "1" + "}" * levels,
        "old newlines": '{"a":\r' * levels + "1" + "}" * levels,
    }


def refused(work, *arguments, **options):
    with pytest.raises(HeadtailError, match=r"nested more than 200 levels deep") as error:
        work(*arguments, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("how", nested(1))
def test_json_lines_nested_without_end_get_a_sentence(tmp_path, how):
    row = '{"user": 1, "item": 2}'
    text = "\n".join([row, nested(100_000)[how], row]).encode() + b"\n"
    plain = tmp_path / "log.jsonl"
    plain.write_bytes(text)
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress(text))
    refused(load, plain)
    refused(load, packed, max_expansion=10_000)
    refused(count_labels, plain, "item")


def test_features_of_items_nested_without_end_get_a_sentence(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("user,item\n" + "".join(f"{user},{item}\n" for user, item in ROWS))
    items = tmp_path / "items.jsonl"
    items.write_text('{"item": 1, "t": "x"}\n' + nested(100_000)["objects"] + "\n")
    refused(load, log, item_features=items)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r", "\n \n"])
def test_some_levels_and_brackets_in_strings_are_read(tmp_path, newline):
    path = tmp_path / "log.jsonl"
    text = "[{" * 300 + '\\"[['
    deep = nested(190)["objects"]
    rows = [
        f'{{"user": {user}, "item": {item}, "text": "{text}", "deep": {deep}}}'
        for user, item in ROWS
    ]
    path.write_bytes(newline.join([*rows, ""]).encode())
    assert load(path).train.num_labels == 9


@pytest.mark.parametrize("how", nested(1))
def test_the_limit_is_a_number_of_levels(how):
    levels = 199 if how == "arrays" else 200  # which are in an object
    assert not is_deep(nested(levels)[how].encode())
    assert is_deep(nested(202)[how].encode())


def test_strings_that_close_what_they_do_not_open_hide_no_depth():
    line = '{"}":' * 250 + "1" + "}" * 250
    assert is_deep(line.encode())
    assert is_deep(("}" * 1_000 + nested(250)["objects"]).encode())


def test_a_line_longer_than_two_blocks_gets_a_sentence(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"user": 1, "item": "' + "x" * (13 << 20) + '"}\n')
    with pytest.raises(HeadtailError, match="a line has more than 8 MiB"):
        load(path)


@pytest.mark.parametrize("mark", ["[", "-", "1+", "not "])
def test_a_cell_nested_without_end_is_no_list(mark):
    assert list_in("[" + mark * 100_000 + "1]") is None
