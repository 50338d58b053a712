"""The same log in every format that people keep it in, and what is wrong with a file."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch

from headtail import HeadtailError
from headtail.data.load import load
from headtail.data.tables.open import open_table

RNG = np.random.default_rng(0)
NUMBER = 300
LOG = pd.DataFrame(
    {
        "user_id": RNG.integers(1, 20, NUMBER),
        "item_id": RNG.integers(1, 30, NUMBER),
        "rating": RNG.integers(1, 11, NUMBER) / 2,
        "timestamp": 874_724_710 + RNG.permutation(NUMBER) * 1000,
    }
)
ARROW = pa.Table.from_pandas(LOG)


def lines(separator: str, columns: list[str], header: bool = False) -> str:
    return LOG[columns].to_csv(None, sep=separator, header=header, index=False)


ALL = list(LOG.columns)
TYPED = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
RECORDS = LOG.to_json(None, orient="records", lines=True)


def write_stream(path):
    with pa.ipc.new_stream(str(path), ARROW.schema) as writer:
        writer.write_table(ARROW)


WRITERS = {
    "log.arrow": write_stream,
    "ratings.csv": lambda path: path.write_text(lines(",", ALL, header=True)),
    "semicolons.csv": lambda path: path.write_text(lines(";", ALL, header=True)),
    "bom.csv": lambda path: path.write_text("\ufeff" + lines(",", ALL, header=True)),
    "ratings.tsv": lambda path: path.write_text(lines("\t", ALL, header=True)),
    "pipes.txt": lambda path: path.write_text(lines("|", ALL, header=True)),
    "u.data": lambda path: path.write_text(lines("\t", ALL)),
    "ratings.dat": lambda path: path.write_text(lines("\t", ALL).replace("\t", "::")),
    "blanks.txt": lambda path: path.write_text(lines("\t", ALL).replace("\t", "   ")),
    "shop.inter": lambda path: path.write_text(TYPED + lines("\t", ALL)),
    "log.jsonl": lambda path: path.write_text(RECORDS),
    "log.json": lambda path: path.write_text(RECORDS),
    "log.ndjson": lambda path: path.write_text(RECORDS),
    "log.parquet": lambda path: pq.write_table(ARROW, path),
    "log.feather": lambda path: pyarrow.feather.write_feather(LOG, str(path)),
    "base.base": lambda path: path.write_text(lines("\t", ALL)),
}
PACKERS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}


def examples(data, part="test"):
    """(items before, next item) of a part, with the names of the items."""
    points = getattr(data, part)
    names = data.label_names or range(points.num_labels)
    histories = points.features
    found = []
    for i in range(len(points)):
        start = int(histories.offsets[histories.row[i]])
        before = histories.items[start : start + int(histories.end[i])].tolist()
        found.append(([names[j] for j in before if j >= 0], names[int(points.labels.values[i])]))
    return found


def expected():
    return examples(load(LOG))


@pytest.mark.parametrize("name", WRITERS)
def test_a_log_is_the_same_in_every_format(tmp_path, name):
    path = tmp_path / name
    WRITERS[name](path)
    data = load(path)
    assert data.notes[0].startswith("Read as sequences: the items of each user in the order of")
    assert examples(data) == expected()


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("name", ["ratings.csv", "ratings.dat", "log.jsonl", "log.parquet"])
def test_a_compressed_log_is_the_same(tmp_path, name, ending):
    WRITERS[name](tmp_path / name)
    packed = tmp_path / (name + ending)
    packed.write_bytes(PACKERS[ending]((tmp_path / name).read_bytes()))
    (tmp_path / name).unlink()
    assert examples(load(packed)) == expected()


def test_a_cut_archive_and_a_zip_are_one_sentence(tmp_path):
    whole = gzip.compress(lines(",", ALL, header=True).encode())
    (tmp_path / "a.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(HeadtailError, match=r"a.csv.gz` is cut off: the archive ends too early"):
        load(tmp_path / "a.csv.gz")
    (tmp_path / "b.csv").write_bytes(b"PK\3\4 and so on")
    with pytest.raises(HeadtailError, match=r"b.csv` is a zip archive. Unpack it"):
        load(tmp_path / "b.csv")


@pytest.mark.parametrize(
    "names",
    [
        ("part-0000.csv", "part-0001.csv", "part-0002.csv"),
        ("train-00000-of-00003.csv", "train-00001-of-00003.csv", "train-00002-of-00003.csv"),
        ("a.csv", "b.csv", "c.csv"),
    ],
)
def test_a_folder_of_shards_is_one_table(tmp_path, names):
    for name, rows in zip(names, np.array_split(np.arange(NUMBER), 3), strict=True):
        LOG.iloc[rows].to_csv(tmp_path / name, index=False)
    (tmp_path / "_SUCCESS").write_text("")
    data = load(tmp_path)
    assert examples(data) == expected()
    assert "is in 3 files, which are read in their order." in data.notes[-1]


def test_parts_may_be_folders_of_shards(tmp_path):
    for part, rows in (("train", range(200)), ("test", range(200, 300))):
        (tmp_path / part).mkdir()
        for number, shard in enumerate(np.array_split(np.array(rows), 2)):
            LOG.iloc[shard].to_parquet(tmp_path / part / f"part-{number}.parquet")
    data = load(tmp_path)
    assert "The test part is given" in data.notes[2]
    assert len(data.test) <= 100


def test_shards_with_other_columns_are_refused(tmp_path):
    LOG.to_csv(tmp_path / "part-0.csv", index=False)
    LOG[ALL[:2]].to_csv(tmp_path / "part-1.csv", index=False)
    with pytest.raises(
        HeadtailError, match=r"part-1.csv` has other columns than .*part-0.csv`: no"
    ):
        load(tmp_path)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_shards_may_have_their_columns_in_any_order(tmp_path, ending):
    def write(frame, name):
        path = tmp_path / f"{name}.{ending}"
        frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)

    write(LOG[:150], "may")
    write(LOG[150:][ALL[::-1]], "june")
    data, same = load(tmp_path), load(pd.concat([LOG[150:], LOG[:150]]))
    assert examples(data) == examples(same)
    assert examples(data, "train") == examples(same, "train")


def test_text_shards_are_read_with_types_that_fit_all_of_them(tmp_path):
    LOG[:150].assign(rating=3).to_csv(tmp_path / "part-0.csv", index=False)
    LOG[150:].assign(rating=3.5).to_csv(tmp_path / "part-1.csv", index=False)
    assert not any("rating below" in note for note in load(tmp_path, min_rating=3).notes)
    users = LOG[150:][ALL[0]].astype(str)
    LOG[150:].assign(**{ALL[0]: "u" + users}).to_csv(tmp_path / "part-1.csv", index=False)
    note = f"{ALL[0]} is read as words: not all files of the part have numbers or dates in it."
    assert note in load(tmp_path).notes


def test_other_shards_with_another_type_are_refused_with_the_column(tmp_path):
    LOG[:150].to_parquet(tmp_path / "part-0.parquet")
    users = LOG[150:][ALL[0]].astype(str)
    LOG[150:].assign(**{ALL[0]: users}).to_parquet(tmp_path / "part-1.parquet")
    said = rf"part-1.parquet` has .*string in column `{ALL[0]}`, where .*part-0.parquet` has int64"
    with pytest.raises(HeadtailError, match=said):
        load(tmp_path)


def test_the_ratings_of_a_folder_are_read_and_what_is_beside_them_is_named(tmp_path):
    LOG.to_csv(tmp_path / "ratings.csv", index=False)
    (tmp_path / "movies.csv").write_text("movieId,title\n1,Toy Story (1995)\n")
    (tmp_path / "README.txt").write_text("Not data.")
    data = load(tmp_path)
    assert examples(data) == expected()
    assert "Files that are not read: movies.csv." in data.notes


def test_a_part_in_two_formats_is_refused(tmp_path):
    LOG.to_csv(tmp_path / "train.csv", index=False)
    LOG.to_parquet(tmp_path / "train.parquet")
    with pytest.raises(HeadtailError, match=r"train.csv and train.parquet, which are both train"):
        load(tmp_path)


def test_a_type_that_does_not_fit_later_values_is_widened(tmp_path, monkeypatch):
    monkeypatch.setattr("headtail.data.tables.delimited.BLOCK", 1 << 12)
    rows = [f"{i % 50},{i}" for i in range(2000)] + ["7,B000FA64PK"]
    (tmp_path / "a.csv").write_text("user,item\n" + "\n".join(rows) + "\n")
    table = open_table(tmp_path / "a.csv")
    assert [str(kind) for kind in table.schema.types] == ["int64", "string"]
    assert table.rows == 2001
    assert sum(len(batch) for _, batch in table.read(["item"])) == 2001


def test_numbers_that_begin_with_0_are_names(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\n1,0005019281\n2,5019281\n1,7\n2,8\n")
    assert str(open_table(tmp_path / "a.csv").schema.field("item").type) == "string"


def test_quoted_values_may_hold_the_separator_and_newlines(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"a, b\nand c",x\nplain,"y ""z"""\n')
    (batch,) = [batch for _, batch in open_table(tmp_path / "a.csv").read(["text", "label"])]
    assert batch.to_pydict() == {"text": ["a, b\nand c", "plain"], "label": ["x", 'y "z"']}


def test_lines_with_other_numbers_of_columns_are_refused_or_counted(tmp_path):
    text = lines(",", ALL, header=True).splitlines()
    text[7] = "1,2"
    text[9] = "1,2,3,4,5"
    (tmp_path / "a.csv").write_text("\n".join(text) + "\n")
    with pytest.raises(HeadtailError, match=r"a.csv, line 8 has 2 columns where others have 4"):
        load(tmp_path / "a.csv")
    data = load(tmp_path / "a.csv", skip_bad_lines=True)
    assert "skipped 2 bad lines, the first is line 8 has 2 columns" in " ".join(data.notes)
    pq.write_table(ARROW, tmp_path / "a.parquet")
    with pytest.raises(HeadtailError, match=r"`skip_bad_lines` would do nothing"):
        load(tmp_path / "a.parquet", skip_bad_lines=True)


def test_lines_in_the_order_of_time_are_sequences(tmp_path):
    (tmp_path / "Beauty.txt").write_text("1 5\n1 7\n2 5\n1 9\n2 7\n2 5\n1 5\n2 9\n2 7\n")
    data = load(tmp_path / "Beauty.txt")
    assert data.notes[:2] == (
        "Read as sequences: the items of each user in the order of the rows; each is "
        "predicted from those before it.",
        "column 1 → user, column 2 → item.",
    )
    assert examples(data, "train") == [([5], 7), ([5], 7), ([5, 7], 5)]
    assert examples(data) == [([5, 7], 5), ([5, 7, 5], 7)]
    assert "3 interactions repeat another of the same user and item. They are kept." in data.notes


def test_users_with_their_items_in_lines_are_read_as_lightgcn_writes_them(tmp_path):
    (tmp_path / "train.txt").write_text("0 3 5 7\n1 5\n2 7 3\n")
    (tmp_path / "test.txt").write_text("0 9\n1 3 7\n2 \n")
    data = load(tmp_path)
    assert data.notes[0].startswith("Read as interactions")
    assert data.label_names == [3, 5, 7]
    assert data.test.users.to_pylist() == [1]
    assert data.test.labels.values.tolist() == [0, 2]


def test_users_with_their_items_in_lines_alone_are_refused_with_both_readings(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("0 3 5 7 3\n1 5 3 7\n2 7 3 5 5 7\n")
    with pytest.raises(HeadtailError, match=r"fits two readings: .*'sequences'.*'interactions'"):
        load(path)
    assert examples(load(path, format="sequences"))[0] == ([3, 5, 7], 3)
    assert load(path, format="interactions").train.users.to_pylist() == [0, 1, 2]


def test_folders_and_files_beside_what_is_read_are_named(tmp_path):
    rows = "user,item,time\n" + "".join(f"{i % 7},{i % 5},{i}\n" for i in range(60))
    for name in ("may", "june/part", ".hidden", "empty"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "may" / "log.csv").write_text(rows)
    (tmp_path / "june" / "part" / "log.csv").write_text(rows)
    (tmp_path / ".hidden" / "log.csv").write_text(rows)
    (tmp_path / "log.csv").write_text(rows)
    assert "Folders that are not read: june, may." in load(tmp_path).notes
    (tmp_path / "may").rename(tmp_path / "train")
    notes = load(tmp_path).notes
    assert "Files that are not read: log.csv." in notes
    assert "Folders that are not read: june." in notes


def test_lines_of_numbers_that_may_or_may_not_begin_with_a_user_are_refused(tmp_path):
    others = "".join(f"{user} 3 5 7 8 1\n" for user in range(20, 10, -1))
    (tmp_path / "a.txt").write_text("7 3 5 7 8\n1 5 3 8 7\n7 7 3 8 5 1\n8 5\n" + others)
    with pytest.raises(HeadtailError, match=r"fits two readings: .*interactions.*sequences"):
        load(tmp_path / "a.txt")
    data = load(tmp_path / "a.txt", format="sequences")
    assert examples(data)[0] == ([7, 3, 5, 7], 8)
    data = load(tmp_path / "a.txt", format="interactions")
    assert data.train.users.to_pylist() == [1, 7, 8, *range(11, 21)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "1\t2\t3\n4\t1\t7\n9\t2\t13\n",
            r"3 columns without names.*`user='1'`.*`format='triples'`",
        ),
        ("1,2,x,3,4\n1,3,y,5,6\n", r"5 columns without names, which fit more than one reading"),
        ("a,b\n1,x\n2,y\n", r"has the columns `a`, `b`, and it is not clear what they are for"),
        ("user,item\n", r"holds no rows"),
    ],
)
def test_columns_that_could_be_anything_are_refused(tmp_path, text, sentence):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(HeadtailError, match=sentence):
        load(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.jsonl", "[1, 2]\n", r"is not JSON lines: it begins with `\[1, 2\]`"),
        ("a.jsonl", '{"user": 1}\n{"user": "a"}\n', r"is not readable as JSON lines: .*changed"),
        ("a.csv", "", r"is empty"),
        ("a.csv", "just words\nand more\n", r"has no columns: .* Separate values by commas"),
        ("a.feather", "no", r"is not a readable Feather or Arrow file; it may be cut short"),
        ("a.xyz", "some words and more\nother\n", r"a.xyz` is not recognised, neither by its"),
    ],
)
def test_what_is_no_table_is_one_sentence(tmp_path, name, content, sentence):
    (tmp_path / name).write_text(content)
    with pytest.raises(HeadtailError, match=sentence):
        load(tmp_path / name)


def test_text_of_labels_and_features_stays_what_it_is(tmp_path):
    (tmp_path / "a.txt").write_text("3 4 3\n0,2 1:0.5\n1 0:2\n2 3:1\n")
    assert load(tmp_path / "a.txt").notes[0].startswith("Read as text: labels, then features")
    (tmp_path / "a.csv").write_text("user,item\n1,2\n")
    with pytest.raises(HeadtailError, match=r"the ending .csv does not fit the format xc"):
        load(tmp_path / "a.csv", format="xc")


def test_recbole_sequences_have_a_list_and_the_next_item(tmp_path):
    header = "session_id:token\titem_id_list:token_seq\titem_id:token\n"
    (tmp_path / "shop.train.inter").write_text(header + "1\t3 5\t7\n2\t5\t3\n3\t3 7\t5\n")
    (tmp_path / "shop.test.inter").write_text(header + "4\t5 3\t7\n")
    (tmp_path / "shop.valid.inter").write_text(header + "5\t7\t3\n")
    data = load(tmp_path)
    assert examples(data, "train") == [([3, 5], 7), ([5], 3), ([3, 7], 5)]
    assert examples(data) == [([5, 3], 7)]
    assert examples(data, "validation") == [([7], 3)]


def test_a_record_of_nested_json_is_a_column_that_is_not_used(tmp_path):
    rows = [
        {
            "reviewerID": f"A{i % 4}",
            "asin": f"B{i % 7}",
            "unixReviewTime": i,
            "style": {"size": "L"},
        }
        for i in range(60)
    ]
    (tmp_path / "reviews.json").write_text("\n".join(map(json.dumps, rows)))
    data = load(tmp_path / "reviews.json")
    assert data.notes[1] == (
        "reviewerID → user, asin → item, unixReviewTime → time; style is not used."
    )
    assert torch.equal(data.test.features.row.unique(), torch.arange(4))


def gowalla(frame):
    times = pd.to_datetime(frame.timestamp, unit="s").dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    return frame.assign(at=times, x=30.5)[["user_id", "at", "x", "item_id"]]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (gowalla(LOG).to_csv(None, sep="\t", header=False, index=False), ("1", "4", "2")),
        (LOG.to_csv(None), ()),
        (lines(",", ALL, header=True).replace("\n", "\r\n"), ()),
    ],
    ids=["columns by number", "an index without a name", "Windows"],
)
def test_columns_may_be_chosen_by_number_and_lines_end_anyhow(tmp_path, text, options):
    (tmp_path / "a.csv").write_text(text, newline="")
    data = load(tmp_path / "a.csv", **dict(zip(("user", "item", "time"), options, strict=False)))
    assert examples(data) == expected()


@pytest.mark.parametrize(
    "text",
    [
        "ham\tGo until jurong point, crazy.. Available only\nspam\tFree entry in 2 a wkly comp\n",
        "0.5\t1\n0.7\t2\n",
        "3\tBears claw back into the black\tReuters short sellers\n2\tOil and Economy\tOther\n",
    ],
    ids=["label and text", "fractions", "label, title and text"],
)
def test_texts_and_numbers_without_names_are_not_taken_for_ids(tmp_path, text):
    (tmp_path / "a.tsv").write_text(text * 5)
    with pytest.raises(HeadtailError, match=r"without names.*`label='1'`, `text='2'`"):
        load(tmp_path / "a.tsv")


def test_a_few_rows_without_names_are_read_as_those_of_training(tmp_path):
    (tmp_path / "train.txt").write_text(lines("\t", ALL))
    (tmp_path / "test.txt").write_text("3\t7\t1\t999999999\n")
    assert len(load(tmp_path).test) == 1
    assert len(load(tmp_path / "train.txt", test=tmp_path / "test.txt").test) == 1


def test_users_with_items_and_ratings_alone_are_interactions(tmp_path):
    (tmp_path / "a.csv").write_text(lines(",", ALL[:3]) * 2)
    notes = " ".join(load(tmp_path / "a.csv").notes)
    assert notes.startswith("Read as interactions")
    assert "column 1 → user, column 2 → item; column 3 is not used." in notes
    assert "whatever their column 3; with `min_rating=4`" in notes
    repeats = 2 * NUMBER - len(LOG[ALL[:2]].drop_duplicates())
    assert f"{repeats} interactions repeat another of the same user and item." in notes


def test_text_that_is_not_utf_8_is_reported(tmp_path):
    (tmp_path / "a.csv").write_bytes("user,item\n1,café\n1,b\n".encode("latin1"))
    with pytest.raises(HeadtailError, match=r"column `item` is not UTF-8 text. Convert it"):
        load(tmp_path / "a.csv")


def test_users_of_one_item_leave_nothing_to_test(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\n1,2\n2,2\n")
    with pytest.raises(HeadtailError, match=r"leaves no item to test on: no user has two"):
        load(tmp_path / "a.csv")


def test_reading_reports_its_progress(tmp_path):
    LOG.to_csv(tmp_path / "ratings.csv", index=False)
    reported = []
    load(tmp_path / "ratings.csv", progress=lambda what, share: reported.append((what, share)))
    steps = list(dict.fromkeys(what for what, _ in reported))
    assert steps[:2] == ["looking at ratings.csv", "reading ratings.csv"]
    assert reported[-1] == ("sorting", 1.0)


@pytest.mark.parametrize("name", ["log.csv", "log.txt"])
def test_semicolons_with_decimal_commas(name, tmp_path):
    path = tmp_path / name
    LOG.to_csv(path, sep=";", decimal=",", index=False)
    table = open_table(path)
    assert table.schema.names == ALL
    assert table.schema.field("rating").type == pa.float64()
    points = tmp_path / "points.csv"
    LOG.to_csv(points, index=False)
    for options in ({}, {"min_rating": 3.5}):
        same(load(path, **options).train, load(points, **options).train)


def test_lists_in_a_file_of_semicolons_are_no_fractions(tmp_path):
    path = tmp_path / "lists.csv"
    path.write_text("user;items\n" + "".join(f"{i};{i % 7},{i % 5}\n" for i in range(40)))
    assert open_table(path).schema.field("items").type == pa.list_(pa.int64())


def same(one, other):
    assert torch.equal(one.labels.values, other.labels.values)
    assert torch.equal(one.features.items, other.features.items)


def test_a_shard_with_two_columns_of_one_name_is_refused(tmp_path):
    twice = pa.Table.from_arrays([*ARROW.columns, ARROW.column(0)], [*ALL, "user_id"])
    for number, table in enumerate((ARROW, twice)):
        pq.write_table(table, tmp_path / f"train-{number:05}-of-00002.parquet")
    with pytest.raises(HeadtailError, match=r"-00001-of-00002.parquet` has two columns `user_id`"):
        load(tmp_path)


@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_a_column_with_a_name_that_is_not_utf_8_is_refused(tmp_path, ending):
    path = tmp_path / f"log.{ending}"
    write = pq.write_table if ending == "parquet" else pyarrow.feather.write_feather
    write(ARROW.rename_columns([*ALL[:-1], "tiXme"]), path)
    path.write_bytes(path.read_bytes().replace(b"tiXme", b"ti\xffme"))
    with pytest.raises(HeadtailError, match=r"has a column with a name that is not UTF-8\. Rename"):
        load(path)
