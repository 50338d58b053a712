"""Text files as people have them: each is read as meant, or refused with what is wrong."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from headtail import HeadtailError
from headtail.data.load import load

RNG = np.random.default_rng(0)
NUMBER = 300
LOG = pd.DataFrame(
    {
        "user": RNG.integers(0, 20, NUMBER),
        "item": RNG.integers(0, 30, NUMBER),
        "time": 1_500_000_000 + np.sort(RNG.integers(0, 10**7, NUMBER)),
    }
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.csv"


def same(data, wanted=LOG):
    """Whether data are what the log in memory is read as."""
    expected = load(wanted)
    assert data.label_names == expected.label_names
    for part in ("train", "validation", "test"):
        found, meant = getattr(data, part), getattr(expected, part)
        assert found.labels.values.tolist() == meant.labels.values.tolist()
    assert data.test.users.to_pylist() == expected.test.users.to_pylist()


def refused(path, sentence, **options):
    with pytest.raises(HeadtailError, match=sentence):
        load(path, **options)


def test_names_that_repeat_are_numbered_and_named(path):
    LOG.assign(other=LOG.item + 1).to_csv(path, index=False)
    path.write_text(path.read_text().replace("other", "item", 1))
    data = load(path)
    same(data)
    assert "user → user, item → item, time → time; item.1 is not used." in data.notes


def test_names_that_repeat_in_memory_are_refused():
    table = pa.table([[1, 2], [1, 2], [3, 4]], names=["user", "item", "item"])
    refused(table, r"`data` has two columns `item`\. Rename one")
    refused(LOG.set_axis(["user", "item", "item"], axis=1), r"a name of its own")


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_values_in_quotes_may_go_over_lines(tmp_path, ending):
    path = tmp_path / f"log.{ending}"
    texts = LOG.assign(title='one\nline, "and"\tanother')
    texts.to_csv(path, index=False, sep="," if ending == "csv" else "\t")
    same(load(path))


def test_a_single_quote_mark_in_a_tab_file_is_a_letter(tmp_path):
    path = tmp_path / "log.tsv"
    titles = ['"Heroes' if row == 7 else "Low" for row in range(NUMBER)]
    rows = zip(LOG.user, LOG.item, LOG.time, titles, strict=True)
    lines = ["\t".join(map(str, row)) for row in rows]
    path.write_text("\n".join(["user\titem\ttime\ttitle", *lines]) + "\n")
    same(load(path))


def test_lines_above_the_header_are_bad_lines_and_blank_ones_are_not(path):
    LOG.to_csv(path, index=False)
    text = path.read_text()
    path.write_text("\n\n" + text)
    same(load(path))
    path.write_text("# my log\n\n" + text)
    refused(path, r"log.csv, line 1 is above the header\. Correct the line, or leave")
    data = load(path, skip_bad_lines=True)
    same(data)
    assert any("skipped 1 bad line, the first is line 1 is above" in note for note in data.notes)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"log.csv` is empty"),
        (b"\n \n", r"log.csv` is empty"),
        ("user,item,time\n1,2,3\n".encode("utf-16"), r"is UTF-16 text\. Convert it"),
        (b"user,item,time\n1,2\0,3\n", r"has NUL bytes, so it is damaged or not UTF-8"),
        (b"user,item,time\n1,2,1500000000\n", r"holds a single interaction"),
        (b"user,item,time\n1,2,10:30:00\n1,3,10:31:00\n", r"holds time32\[s\], which has no date"),
    ],
)
def test_what_is_no_log_is_one_sentence(path, content, sentence):
    path.write_bytes(content)
    refused(path, sentence)


def test_a_spreadsheet_is_named_as_one(tmp_path):
    (tmp_path / "log.xlsx").write_bytes(b"PK\3\4")
    refused(tmp_path / "log.xlsx", r"is a spreadsheet\. Save the sheet as CSV")


@pytest.mark.parametrize("row", [5, 250])
@pytest.mark.parametrize("word", ["NA", "#N/A", "None"])
def test_words_for_nothing_among_numbers_are_missing_values(path, word, row, monkeypatch):
    # Blocks and first lines so small that the word is in none of the first.
    monkeypatch.setattr("headtail.data.tables.delimited.BLOCK", 1 << 10)
    seen = "headtail.data.tables.delimited.first_lines"
    monkeypatch.setattr(seen, lambda path: path.read_text().splitlines()[:20])
    LOG.assign(user=[word if i == row else u for i, u in enumerate(LOG.user)]).to_csv(
        path, index=False
    )
    refused(path, rf"column `user`: row {row} \(from 0\) is null")


def test_words_for_nothing_among_words_are_words(path):
    named = LOG.assign(user=["NA" if user == 3 else f"u{user}" for user in LOG.user])
    named.to_csv(path, index=False)
    same(load(path), named)


@pytest.mark.parametrize("first", [0, 250])
def test_ids_too_large_for_numbers_are_strings(path, first, monkeypatch):
    monkeypatch.setattr("headtail.data.tables.delimited.BLOCK", 1 << 10)
    seen = "headtail.data.tables.delimited.first_lines"
    monkeypatch.setattr(seen, lambda path: path.read_text().splitlines()[:20])
    large = LOG.assign(
        user=[str(2**63 + u if row >= first else u) for row, u in enumerate(LOG.user)]
    )
    large.to_csv(path, index=False)
    same(load(path), large)


def test_days_are_not_shown_as_a_date(path):
    LOG.assign(time=LOG.time / 86_400 + 25_569).to_csv(path, index=False)
    assert not any("1970" in note for note in load(path).notes)


def test_the_row_of_an_error_counts_rows_that_the_rating_drops(path):
    frame = LOG.assign(rating=np.arange(NUMBER) % 2, user=LOG.user.astype("Int64"))
    frame.loc[101, "user"] = None
    frame.to_csv(path, index=False)
    refused(path, r"column `user`: row 101 \(from 0\) is null", min_rating=1)
    times = LOG.assign(rating=np.arange(NUMBER) % 2, time=LOG.time.astype(str))
    times.loc[101, "time"] = "yesterday"
    times.to_csv(path, index=False)
    refused(path, r"row 101 \(from 0\): `yesterday`", min_rating=1)


def test_texts_without_a_label_are_counted(path):
    rows = [f"the cat {row % 9},{'ab'[row % 2] if row % 4 else ''}" for row in range(80)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    assert "Texts without a label in log.csv, which teach nothing: 20." in load(path).notes


def test_a_single_label_is_noted(path):
    LOG.assign(item=1).to_csv(path, index=False)
    assert "There is a single label: every answer is right." in load(path).notes


def test_folders_inside_a_folder_without_data_are_named(path):
    (path.parent / "inner").mkdir()
    LOG.to_csv(path.parent / "inner" / "ratings.csv", index=False)
    refused(path.parent, r"holds nothing to read, only the folders inner: name one of them\.")


def test_decimals_of_databases_are_numbers():
    def decimals(column):
        return [Decimal(int(value)) for value in column]

    rated = LOG.assign(rating=np.arange(NUMBER) % 5)
    columns = {name: decimals(rated[name]) for name in rated}
    same(load(pd.DataFrame(columns)))
    few, wanted = load(pd.DataFrame(columns), min_rating=3), load(rated, min_rating=3)
    assert few.test.labels.values.tolist() == wanted.test.labels.values.tolist()
    halves = [user + Decimal("0.5") for user in columns["user"]]
    refused(pd.DataFrame(columns | {"user": halves}), r"column `user` holds fractions")


def test_ids_of_another_type_are_refused_by_their_column():
    refused(LOG.assign(user=LOG.user > 3), r"column `user` holds bool, but ids of users must be")


def test_names_in_arrays_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", features=np.eye(6), labels=np.array(list("abcabc")))
    refused(tmp_path / "a.npz", r"`labels` holds strings, but arrays must hold numbers\.")


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_bad_line_that_is_not_utf_8_is_refused_without_a_traceback(path):
    LOG.to_csv(path, index=False)
    path.write_bytes(path.read_bytes() + b"1,2,\xff3,4,5\n")
    refused(path, r"log.csv` is not readable as a table: CSV parse error: Row #302: Expected 3 col")


@pytest.mark.parametrize("token", ["9" * 5000, "²"])
def test_lines_with_ids_that_python_cannot_convert_are_refused(path, token):
    path.write_text(f"1 2 3\n2 3\n{token} 4 5 6\n")
    with pytest.raises(HeadtailError):
        load(path)


def test_json_that_is_nested_deeply_is_refused(tmp_path):
    path = tmp_path / "log.json"
    path.write_text('{"a": ' * 10_000 + "1" + "}" * 10_000)
    refused(path, "log.json")


@pytest.mark.parametrize("items", ["[null, 1, 2]", '[null, "a"]', "[null, null, 2.0, 0.0]"])
def test_a_list_in_json_that_begins_with_null_is_refused(tmp_path, items):
    path = tmp_path / "log.jsonl"
    path.write_text(f'{{"items": {items}, "target": 3}}\n' + '{"items": [], "target": 2}\n')
    refused(path, "has a list that begins with null, which cannot be read. Drop it")
