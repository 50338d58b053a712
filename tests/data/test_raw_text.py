"""Raw text in every layout, right and wrong, and its features against scikit-learn's."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from sklearn.feature_extraction.text import TfidfVectorizer

from headtail.data.load import load
from headtail.data.points import Points
from headtail.data.readers.text_sources import fasttext_source
from headtail.data.reading import Reading
from headtail.data.text_features import TermCounter, TextFeatures
from headtail.errors import HeadtailError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HEADTAIL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    """Writes files into a folder: text, or lines as gzip where the name ends so."""

    def write(**files: str | bytes) -> Path:
        place = tmp_path / "shop"
        place.mkdir(exist_ok=True)
        for name, content in files.items():
            path = place / name.replace("__", ".")
            data = content if isinstance(content, bytes) else content.encode()
            path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return place

    return write


def names_of(points: Points, names) -> list[list]:
    ends = points.labels.offsets.tolist()
    named = [names[i] for i in points.labels.values.tolist()]
    return [named[ends[i] : ends[i + 1]] for i in range(len(points))]


def corpus(number: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    words = [f"w{i}" for i in range(60)]
    return [" ".join(rng.choice(words, rng.integers(0, 20))) for _ in range(number)]


# Features


def test_features_are_those_of_scikit_learn_on_texts_it_has_not_seen():
    reference = TfidfVectorizer(
        ngram_range=(1, 2),
        token_pattern=r"(?u)\b\w+\b",
        min_df=2,
        sublinear_tf=True,
        dtype=np.float32,
    ).fit(corpus(300))
    fitted = TextFeatures.fit(corpus(300))
    assert list(fitted.terms) == list(reference.get_feature_names_out())
    new = corpus(50, seed=1)
    assert (fitted.rows(new) != reference.transform(new)).nnz == 0


@pytest.mark.parametrize("kind", ["tfidf", "hashing"])
def test_saved_features_are_the_same_to_the_last_bit(kind):
    fitted = TextFeatures.fit(corpus(300)) if kind == "tfidf" else TextFeatures("hashing", 2, 500)
    restored = TextFeatures.saved(fitted.tensors(), json.loads(json.dumps(fitted.facts())))
    new = corpus(50, seed=1)
    assert fitted.rows(new).nnz > 0
    assert (restored.rows(new) != fitted.rows(new)).nnz == 0
    assert restored.digest() == fitted.digest()


def test_the_terms_in_the_most_texts_are_kept():
    fitted = TextFeatures.fit(["b a", "b a", "b c", "c d"], ngrams=1, most=2)
    assert fitted.terms == ("a", "b"), "a and c are in two texts each"


def test_terms_that_never_repeat_are_kept_only_where_none_does():
    assert TextFeatures.fit(["x y", "x z"], ngrams=1).terms == ("x",)
    assert TextFeatures.fit(["x y", "u z"], ngrams=1).terms == ("u", "x", "y", "z")


def test_counting_forgets_the_rarest_terms_beyond_its_bound():
    counter = TermCounter(1, most=10)
    counter.add(f"often w{i}" for i in range(100))
    assert len(counter.counts) <= 10
    assert counter.counts["often"] == 100


# fastText


FAST = "__label__cat __label__pet My cat sleeps\n__label__dog the dog barks\n__label__dog my dog\n"


def test_lines_of_fasttext_have_labels_by_name_and_the_rest_is_text(folder):
    data = load(folder(train__txt=FAST, test__txt="a cat __label__cat\nmy dog\n"))
    assert data.label_names == ["cat", "dog", "pet"]
    assert names_of(data.train, data.label_names) == [["cat", "pet"], ["dog"], ["dog"]]
    assert names_of(data.test, data.label_names) == [["cat"], []]
    assert data.text.terms == ("dog", "my")
    assert data.train.features.to_dense()[2].tolist() == pytest.approx([0.5**0.5] * 2)
    assert data.notes[0].startswith("Read as raw text: the features are 2 terms")


@pytest.mark.parametrize("name", ["pets__train", "train__ft__txt__gz", "train__txt__gz"])
def test_fasttext_files_have_many_names(folder, name):
    data = load(folder(**{name: FAST * 3}))
    assert len(data.train) + len(data.test) == 9
    assert len(data.whole) == 9


def test_blank_lines_of_fasttext_are_no_texts(folder):
    blank = "\n  \r\n\t\n"
    data = load(folder(train__txt=blank + FAST.replace("\n", "\n" + blank), test__txt=FAST))
    assert names_of(data.train, data.label_names) == names_of(data.test, data.label_names)
    assert data.train.features.to_dense().tolist() == data.test.features.to_dense().tolist()
    assert not any("Empty texts" in note for note in data.notes)


def test_blocks_of_blank_lines_are_passed_over(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text(FAST + "\n" * (9 << 20) + FAST)
    texts = [text for block in fasttext_source(path).blocks() for text in block.texts]
    assert len(texts) == 6


def test_labels_and_terms_are_those_of_the_training_part(folder):
    place = folder(train__txt=FAST, test__txt="__label__owl __label__dog my owl owl\n" * 3)
    data = load(place)
    assert names_of(data.test, data.label_names) == [["dog"]] * 3
    assert "owl" not in data.label_names + list(data.text.terms)
    assert "Labels in test.txt that never occur in training and are left out: 3." in data.notes


def test_texts_that_are_held_out_decide_about_no_term_and_no_label(folder):
    lines = [f"__label__l{i} own{i} own{i} shared" for i in range(20)]
    data = load(folder(train__txt="\n".join(lines)), Reading(ngrams=1, holdout=0.25))
    trained = data.train.rows.tolist()
    assert len(trained) == 15
    assert set(data.label_names) == {f"l{i}" for i in trained}
    assert data.text.terms == ("shared",)
    held_out = TextFeatures.fit(["shared"] * 15, ngrams=1).idf
    assert data.text.idf == pytest.approx(held_out), "of 15 texts, not of 20"


# Lines of text with lines of labels


LAYOUTS = {
    "trn_X, trn_Y": ("trn_X.txt", "trn_Y.txt", "tst_X.txt", "tst_Y.txt"),
    "X.trn, Y.trn": ("X.trn.txt", "Y.trn.txt", "X.tst.txt", "Y.tst.txt"),
    "raw, X_Y": ("trn.raw.txt", "trn_X_Y.txt", "tst.raw.txt", "tst_X_Y.txt"),
    "texts": ("train_texts.txt", "train_labels.txt", "test_texts.txt", "test_labels.txt"),
    "raw_texts": ("train_raw_texts.txt", "Y.trn.txt", "test_raw_texts.txt", "Y.tst.txt"),
    "packed": ("trn_X.txt.gz", "trn_Y.txt.gz", "tst_X.txt.gz", "tst_Y.txt"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_line_i_of_one_file_has_the_labels_of_line_i_of_another(folder, layout):
    contents = ["red shoe\nblue hat\nred hat\n", "7 12\n12\n\n", "hat\n", "7\n"]
    files = dict(zip(LAYOUTS[layout], contents, strict=True))
    data = load(folder(**files))
    assert data.label_names == [7, 12]
    assert names_of(data.train, data.label_names) == [[7, 12], [12], []]
    assert names_of(data.test, data.label_names) == [[7]]
    assert data.name == "shop"


def test_one_file_of_texts_and_one_of_labels_are_held_out(folder):
    data = load(folder(X__txt="red\nred\nblue\nblue\nred\n", Y__txt="a\na\nb, c\nb\na\n"))
    assert len(data.train) == 4
    assert set(data.label_names) <= {"a", "b", "c"}
    assert "There is no test file: 20% of the texts are held out for testing." in data.notes


def test_names_with_blanks_are_separated_by_commas(folder):
    data = load(folder(trn_X__txt="x\ny\n", trn_Y__txt="new york, rome\nrome\n", tst_X__txt="x\n"))
    assert data.label_names == ["new york", "rome"]


@pytest.mark.parametrize("how", ["text", "npz"])
def test_labels_in_a_sparse_matrix_have_the_names_of_their_columns(folder, how):
    files = {"trn_X.txt": "x\ny\nx y\n", "tst_X.txt": "x\n", "Y.txt": "one\ntwo\nthree\n"}
    place = folder(**files)
    if how == "text":
        folder(**{"trn_X_Y.txt": "3 3\n0:1 2:1\n\n1:1\n", "tst_X_Y.txt": "1 3\n2:1\n"})
    else:
        for part, rows in (("trn", [[1, 0, 1], [0, 0, 0], [0, 1, 0]]), ("tst", [[0, 0, 1]])):
            scipy.sparse.save_npz(place / f"Y.{part}.npz", scipy.sparse.csr_matrix(rows))
    data = load(place)
    assert data.label_names == ["one", "two", "three"]
    assert names_of(data.train, data.label_names) == [["one", "three"], [], ["two"]]
    assert names_of(data.test, data.label_names) == [["three"]]
    assert data.notes[-1] == "Label names are from Y.txt."


# JSON lines


def records(*rows: tuple[str, str, list[int]]) -> str:
    keys = ("title", "content", "target_ind")
    return "".join(
        json.dumps({"uid": str(i), **dict(zip(keys, row, strict=True))}) + "\n"
        for i, row in enumerate(rows)
    )


TRAIN = records(("red shoe", "", [0, 2]), ("blue", "hat", [1]), ("red hat", "red", []))
NAMES = '{"uid": "B1", "title": "shoes"}\n{"uid": "B2", "title": ""}\n{"uid": "B3", "title": "é"}\n'


@pytest.mark.parametrize("ending", ["json__gz", "json"])
def test_json_lines_have_titles_contents_and_label_numbers(folder, ending):
    test = records(("hat", "", [1, 0]))
    files = {f"trn__{ending}": TRAIN, f"tst__{ending}": test, f"lbl__{ending}": NAMES}
    data = load(folder(**files))
    assert data.label_names == ["shoes", "B2", "é"]
    assert names_of(data.train, data.label_names) == [["shoes", "é"], ["B2"], []]
    assert names_of(data.test, data.label_names) == [["B2", "shoes"]]
    assert data.text.terms == ("hat", "red")


def test_json_lines_without_names_have_numbers(folder):
    data = load(folder(trn__json=TRAIN.replace("[1]", "[9]")))
    assert set(data.label_names) <= {0, 2, 9}


# Features beside names


def test_sparse_matrices_of_features_and_labels_are_read_with_names(folder):
    place = folder(
        trn_X_Xf__txt="3 4\n0:1 2:0.5\n1:1\n\n",
        trn_X_Y__txt="3 2\n0:1 1:1\n\n1:1\n",
        tst_X_Xf__txt="1 4\n3:2\n",
        tst_X_Y__txt="1 2\n0:1\n",
        Y__txt="yes\nno\n",
    )
    data = load(place)
    assert data.train.features.to_dense().tolist() == [[1, 0, 0.5, 0], [0, 1, 0, 0], [0] * 4]
    assert names_of(data.train, data.label_names) == [["yes", "no"], [], ["no"]]
    assert names_of(data.test, data.label_names) == [["yes"]]
    assert data.text is None


def test_a_file_of_names_names_the_labels_of_extreme_classification_text(folder):
    xc = "2 3 2\n0 0:1\n1 2:1\n"
    for name in ("Y__txt", "label_names__txt", "lbl__raw__txt"):
        place = folder(**{"train__txt": xc, "test__txt": xc, name: "yes\nno\n"})
        assert load(place).label_names == ["yes", "no"]
        (place / name.replace("__", ".")).unlink()
    with pytest.raises(HeadtailError, match=r"Y.txt` names 1 labels, but there are 2"):
        load(folder(train__txt=xc, Y__txt="yes\n"))


# What is wrong


BAD = {
    "but a file with their labels, such as `trn_Y.txt`, is not there": {"trn_X.txt": "x\ny\n"},
    "has 2 texts, but `.*trn_Y.txt` has labels of 3": {
        "trn_X.txt": "x\ny\n",
        "trn_Y.txt": "a\nb\na\n",
    },
    "has 3 texts, but `.*trn_Y.txt` has labels of 2": {
        "trn_X.txt": "x\ny\nz\n",
        "trn_Y.txt": "a\nb\n",
    },
    "has no label at all": {"trn_X.txt": "x\ny\n", "trn_Y.txt": "\n\n"},
    "holds no words": {"trn_X.txt": "\n..\n\n", "trn_Y.txt": "a\nb\na\n", "tst_X.txt": "x\n"},
    "trn_X.txt`, line 2 is not UTF-8 text": {"trn_X.txt": b"x\n\xff\n", "trn_Y.txt": "a\nb\n"},
    "trn_Y.txt, text 2: label `b` is not a label's number, from 0 to 1": {
        "trn_X.txt": "x\ny\n",
        "trn_Y.txt": "0\nb\n",
        "label_names.txt": "yes\nno\n",
        "tst_X.txt": "x\n",
    },
    "trn.json, text 2: label `5` is not a label's number": {
        "trn.json": records(("a", "", [0]), ("b", "", [5])),
        "tst.json": records(("a", "", [0])),
        "lbl.json": NAMES,
    },
    "trn.json`, line 4 is not a record": {"trn.json": TRAIN + "{\n"},
    "holds 1 texts, too few to hold some out": {"train.txt": "__label__a x\n"},
    "tst_X.txt` is empty": {"trn_X.txt": "x\n", "trn_Y.txt": "a\n", "tst_X.txt": ""},
    "holds raw text .trn_X.txt. and features .trn_X_Xf.txt.": {
        "trn_X.txt": "x\n",
        "trn_X_Y.txt": "1 2\n0:1\n",
        "trn_X_Xf.txt": "1 2\n0:1\n",
    },
    "`trn_X_Y.txt`, the labels of its points, is not there": {"trn_X_Xf.txt": "1 2\n0:1\n"},
    "has 1 points, but `.*trn_X_Y.txt` has 2": {
        "trn_X_Xf.txt": "1 2\n0:1\n",
        "trn_X_Y.txt": "2 2\n0:1\n1:1\n",
    },
}


@pytest.mark.parametrize("why", BAD)
def test_what_does_not_fit_is_one_sentence(folder, why):
    with pytest.raises(HeadtailError, match=why):
        load(folder(**BAD[why]))


def test_both_readings_of_a_folder_can_be_chosen(folder):
    place = folder(
        trn_X__txt="x\ny\n", trn_X_Y__txt="2 2\n0:1\n1:1\n", trn_X_Xf__txt="2 3\n0:1\n1:1\n"
    )
    assert load(place, Reading(format="raw-text")).text is not None
    assert load(place, Reading(format="xc")).train.num_features == 3


def test_empty_texts_are_points_without_features_and_are_counted(folder):
    data = load(folder(train__txt=FAST + "__label__cat\n__label__pet  \n", test__txt=FAST))
    assert data.train.features.offsets.diff().tolist()[3:] == [0, 0]
    assert "Empty texts in train.txt: 2." in data.notes


def test_options_of_text_are_used_and_refused_for_other_data(folder):
    place = folder(train__txt=FAST, test__txt=FAST)
    assert load(place, Reading(max_terms=1)).train.num_features == 1
    hashed = load(place, Reading(text_features="hashing", max_terms=64))
    assert hashed.train.num_features == 64
    assert hashed.notes[0].endswith("terms of up to 2 words, hashed to 64 columns.")
    with pytest.raises(HeadtailError, match="`max_terms` must be"):
        load(place, Reading(max_terms=0))
    with pytest.raises(HeadtailError, match=r"`ngrams` would do nothing to .* it is for raw text"):
        load("synthetic:points=200,test=50,labels=30,features=100", Reading(ngrams=1))


def test_a_large_file_is_read_block_by_block_with_progress(folder, monkeypatch):
    from headtail.data.readers import text

    lines = "".join(f"__label__l{i % 7} {line}\n" for i, line in enumerate(corpus(500)))
    place = folder(train__txt=lines, test__txt=FAST)
    whole = load(place)
    reports = []
    monkeypatch.setattr(text.line_blocks, "__defaults__", (1000, 1 << 20, 200.0))
    monkeypatch.setenv("HEADTAIL_CACHE", str(place / "other"))
    blocks = load(place, progress=lambda *report: reports.append(report))
    assert len(reports) > 20
    assert {what for what, _ in reports} == {
        "counting words in train.txt",
        "reading train.txt",
        "reading test.txt",
    }
    for name in ("offsets", "columns", "values"):
        assert getattr(whole.train.features, name).equal(getattr(blocks.train.features, name))
    assert whole.train.labels.values.equal(blocks.train.labels.values)
    assert whole.train.labels.offsets.equal(blocks.train.labels.offsets)
