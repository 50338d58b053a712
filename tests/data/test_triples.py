"""Triples of a knowledge graph: queries, their tails, and what else is right."""

from __future__ import annotations

from itertools import pairwise

import pandas as pd
import pytest

from headtail import HeadtailError
from headtail.data.load import load

TRAIN = [
    ("a", "likes", "b"),
    ("a", "likes", "c"),
    ("b", "is in", "c"),
    ("c", "likes", "a"),
    ("a", "likes", "b"),
]
TEST = [("a", "likes", "d"), ("a", "likes", "a"), ("b", "likes", "c"), ("a", "knows", "b")]
VALID = [("a", "likes", "a"), ("b", "likes", "a")]


def write(path, triples, header=None):
    lines = ["\t".join(triple) for triple in triples]
    path.write_text("\n".join(([header] if header else []) + lines) + "\n")


@pytest.fixture
def folder(tmp_path):
    for name, triples in (("train", TRAIN), ("test", TEST), ("valid", VALID)):
        write(tmp_path / f"{name}.txt", triples)
    return tmp_path


def lists(ragged, names):
    ends = pairwise(ragged.offsets.tolist())
    return [[names[i] for i in ragged.values[a:b].tolist()] for a, b in ends]


def test_a_point_is_a_head_with_a_relation_and_known_are_all_its_tails(folder):
    data = load(folder)
    names = data.label_names
    assert names == ["a", "b", "c"]
    relations = ["is in", "likes"]
    queries = data.train.features.columns.reshape(-1, 2).tolist()
    asked = [(names[head], relations[relation - 3]) for head, relation in queries]
    assert data.train.num_features == 3 + 2
    assert dict(zip(asked, lists(data.train.labels, names), strict=True)) == {
        ("a", "likes"): ["b", "c"],
        ("b", "is in"): ["c"],
        ("c", "likes"): ["a"],
    }
    assert lists(data.test.labels, names) == [["a"], ["c"]]
    assert lists(data.test.known, names) == [["a", "b", "c"], ["a", "c"]]
    assert len(data.validation) == 2
    assert data.notes == (
        "Read as triples: a point is a head with a relation, its labels are the tails.",
        "column 1 → head, column 2 → relation, column 3 → tail.",
        "2 test or validation triples have an entity or a relation that never occurs in training "
        "and are left out.",
        "1 training triples repeat another and count once.",
    )


def test_test_triples_count_once_and_keep_their_rows(folder):
    write(folder / "test.txt", [TEST[0], TEST[2], TEST[1], TEST[2], TEST[1]])
    data = load(folder)
    assert lists(data.test.labels, data.label_names) == [["c"], ["a"]]
    assert data.test.rows.tolist() == [1, 2]
    assert "2 test or validation triples repeat another and count once." in data.notes
    write(folder / "test.txt", [TEST[2], TEST[1]])
    assert not any("test or validation triples repeat" in note for note in load(folder).notes)


def test_words_behind_words_are_tails_only_if_some_are_heads(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(
        "".join(f"u{i % 9}\titem{i % 5}\t{['view', 'buy'][i % 2]}\n" for i in range(60))
    )
    with pytest.raises(HeadtailError, match=r"`user='1'`.*`item='2'`.*`format='triples'`"):
        load(path)
    assert load(path, format="triples").notes[0].startswith("Read as triples")
    assert load(path, user="1", item="2").notes[0].startswith("Read as interactions")


def test_named_columns_and_numbers_are_read_too(tmp_path):
    frame = pd.DataFrame({"tail": [1, 2, 3] * 9, "head": range(27), "relation": [0, 1, 0] * 9})
    data = load(frame)
    assert data.notes[1] == "head → head, relation → relation, tail → tail."
    assert "Split at random: 20% of the triples are for testing" in data.notes[2]
    assert (len(data.test), len(data.validation)) == (5, 2)
    write(tmp_path / "a.txt", [(str(i), str(i % 3), str(5 * i)) for i in range(30)])
    with pytest.raises(HeadtailError, match=r"columns without names.*format='triples'"):
        load(tmp_path / "a.txt")
    assert load(tmp_path / "a.txt", format="triples").notes[0].startswith("Read as triples")


def test_what_is_wrong_with_triples_is_one_sentence(tmp_path):
    frame = pd.DataFrame({"head": [1], "tail": [2]})
    with pytest.raises(HeadtailError, match=r"`head`, `tail`, but triples need `head`, `relation`"):
        load(frame, format="triples")
    frame = pd.DataFrame(TRAIN, columns=["head", "relation", "tail"])
    with pytest.raises(HeadtailError, match=r"`test` leaves no triple to test on"):
        load(frame, test=frame.assign(head="nobody"))


@pytest.mark.parametrize("when", ["2017-09-{:02}T08:55:09Z", "2017-09-{:02}", "15058977{:02}"])
def test_times_behind_a_user_and_an_item_are_no_tails(when, tmp_path):
    rows = [f"usr_{i % 3}\tit_{i % 4}\t{when.format(1 + i % 28)}\n" for i in range(60)]
    (tmp_path / "log.tsv").write_text("".join(rows))
    notes = load(tmp_path / "log.tsv").notes
    assert "column 1 → user, column 2 → item, column 3 → time." in notes


def test_numbers_behind_words_are_tails_only_if_they_are_heads(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"e{i % 5}\tlikes{i % 3}\t{20 + i}\n" for i in range(60)))
    with pytest.raises(HeadtailError, match=r"`user='1'`.*`time='3'`.*`format='triples'`"):
        load(path)
    path.write_text("".join(f"{20 + i % 5}\tlikes{i % 3}\t{20 + i}\n" for i in range(60)))
    assert load(path).notes[0].startswith("Read as triples")


def test_a_given_validation_part_is_validated_on(tmp_path):
    rows = [(f"e{i % 9}", f"r{i % 2}", f"e{i % 7}") for i in range(100)]
    write(tmp_path / "train.txt", rows)
    write(tmp_path / "dev.txt", rows[:5])
    data = load(tmp_path)
    assert len(data.validation) == 5
    assert "are for testing; the validation part is given." in data.notes[2]
