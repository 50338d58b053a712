"""Tables with a column of texts and a column of labels."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from headtail.cli import main
from headtail.data.load import load
from headtail.data.reading import Reading
from headtail.errors import HeadtailError
from headtail.evaluation.predictions import points_of, predict
from headtail.training.open_model import open_model
from tests.data.test_raw_text import names_of

TEXTS = ["red shoe", "blue hat", "red hat", "blue, big shoe"]
LABELS = ["a", "b", "a", "c"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "shop").mkdir()
    return tmp_path / "shop"


def write(path, columns: dict) -> None:
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        separator = {".csv": ",", ".tsv": "\t"}[path.suffix]
        rows = [columns.keys(), *zip(*columns.values(), strict=True)]
        lines = [separator.join(f'"{value}"' for value in row) for row in rows]
        path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("ending", [".parquet", ".feather", ".jsonl", ".csv", ".tsv"])
def test_columns_of_text_and_label_are_found_in_every_format(shop, ending):
    write(shop / f"train{ending}", {"text": TEXTS, "label": LABELS})
    write(shop / f"test{ending}", {"text": TEXTS[:2], "label": ["c", "owl"]})
    data = load(shop)
    assert data.label_names == ["a", "b", "c"]
    assert names_of(data.train, data.label_names) == [["a"], ["b"], ["a"], ["c"]]
    assert names_of(data.test, data.label_names) == [["c"], []]
    assert data.text.terms == ("blue", "hat", "red", "shoe")
    assert data.notes[0].startswith("Read as raw text")
    assert "text → text, label → label" in data.notes[1]


def test_lists_are_several_labels_and_nulls_none(shop):
    write(shop / "train.parquet", {"text": TEXTS, "labels": [[7, 9], [9], [], None]})
    write(shop / "test.parquet", {"text": TEXTS[:2]})
    data = load(shop)
    assert data.label_names == [7, 9]
    assert names_of(data.train, data.label_names) == [[7, 9], [9], [], []]
    assert data.test.num_pairs == 0


def test_a_value_is_split_into_labels_only_where_a_separator_is_named(shop):
    write(shop / "train.csv", {"text": TEXTS, "label": ["a|b", "b", "a | c", "a"]})
    write(shop / "test.csv", {"text": TEXTS[:1], "label": ["b|a"]})
    assert "a|b" in load(shop).label_names
    data = load(shop, Reading(label_separator="|"))
    assert data.label_names == ["a", "b", "c"]
    assert names_of(data.test, data.label_names) == [["b", "a"]]


def test_columns_can_be_named(shop):
    columns = {
        "text": TEXTS,
        "note": ["x y", "x", "y", "z x"],
        "label": LABELS,
        "kind": [1, 1, 2, 2],
    }
    write(shop / "all.parquet", columns)
    data = load(shop / "all.parquet", Reading(text="note", label="kind", holdout=0.25, ngrams=1))
    assert set(data.text.terms) <= {"x", "y", "z"}
    assert set(data.label_names) == {1, 2}
    assert len(data.whole) == 4
    assert "text, label are not used" in data.notes[1]


def test_names_of_a_hub_name_the_labels(shop):
    features = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    noted = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"text": TEXTS, "label": [0, 1, 1, 1]}).replace_schema_metadata(noted)
    for part in ("train", "test"):
        pq.write_table(table, shop / f"{part}.parquet")
    data = load(shop)
    assert data.label_names == ["no", "yes"]
    assert names_of(data.train, data.label_names)[0] == ["no"]


def test_a_text_column_that_the_test_part_lacks_is_named(shop):
    write(shop / "train.parquet", {"text": TEXTS, "label": LABELS})
    write(shop / "test.parquet", {"words": TEXTS, "label": LABELS})
    with pytest.raises(HeadtailError, match="has no column `text`, as training has, only `words`"):
        load(shop)


def test_a_model_answers_tables_with_or_without_labels(shop):
    texts = [f"{topic} {topic} thing" for topic in ("red", "blue", "green") for _ in range(20)]
    write(shop / "train.csv", {"text": texts, "label": [text.split()[0] for text in texts]})
    run = str(shop / "run")
    small = ["--dim", "8", "--epochs", "8", "--lr", "0.5", "--scheme", "softmax", "--device", "cpu"]
    assert main(["train", str(shop / "train.csv"), "--out", run, *small]) == 0
    (shop / "new.txt").write_text("a green thing\nblue blue\n")
    new = {"text": ["a green thing", "blue blue"]}
    write(shop / "new.parquet", new)
    write(shop / "new.csv", new | {"label": ["what", "ever"]})
    write(shop / "new.jsonl", new | {"id": [1, 2]})
    opened = open_model(run, pa.table(new))
    best = predict(opened.model, points_of(opened.data), 1).labels[:, 0].tolist()
    assert [opened.data.label_names[i] for i in best] == ["green", "blue"]
    for name in ("new.txt", "new.parquet", "new.csv", "new.jsonl"):
        out = shop / "best.parquet"
        command = ["predict", run, str(shop / name), "--k", "1", "--out", str(out)]
        assert main([*command, "--device", "cpu"]) == 0, name
        assert pq.read_table(out)["label"].to_pylist() == ["green", "blue"], name


def test_a_frame_with_texts_and_labels_is_read_as_raw_text():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS * 3, "label": LABELS * 3})
    data = load(frame)
    assert set(data.label_names) <= {"a", "b", "c"}
    assert data.text.terms
