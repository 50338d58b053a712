"""Objects in memory: tables of several libraries, and matrices with labels."""

from __future__ import annotations

from itertools import pairwise

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
import torch

from headtail import HeadtailError
from headtail.comparison.workers import source_of
from headtail.data.load import load
from tests.data.test_logs import log
from tests.data.test_tables import examples

FRAME = log()


@pytest.mark.parametrize(
    "convert",
    [
        lambda frame: frame.set_index("user"),
        lambda frame: frame.astype({"user": "category"}),
        pl.from_pandas,
        pa.Table.from_pandas,
        datasets.Dataset.from_pandas,
        lambda frame: datasets.Dataset.from_pandas(frame[::-1]).select(range(399, -1, -1)),
        lambda frame: {"train": frame},
    ],
    ids=[
        "pandas with an index",
        "categories",
        "polars",
        "Arrow",
        "Hugging Face",
        "selected rows",
        "parts",
    ],
)
def test_a_table_is_the_same_in_every_library(convert):
    assert examples(load(convert(FRAME))) == examples(load(FRAME))


def test_parts_of_hugging_face_are_those_of_the_data():
    parts = {"train": FRAME[:300], "test": FRAME[300:]}
    hub = datasets.DatasetDict(
        {name: datasets.Dataset.from_pandas(part) for name, part in parts.items()}
    )
    assert examples(load(hub)) == examples(load(FRAME[:300], test=FRAME[300:]))


def test_a_test_file_goes_with_a_table_in_memory(tmp_path):
    FRAME[300:].to_csv(tmp_path / "test.csv", index=False)
    both = load(FRAME[:300], test=tmp_path / "test.csv")
    assert examples(both) == examples(load(FRAME[:300], test=FRAME[300:]))


def test_the_names_of_hugging_face_labels_are_label_names():
    features = datasets.Features(
        {
            "vector": datasets.Sequence(datasets.Value("float32"), length=2),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
        }
    )
    rows = {"vector": [[i, 1.0] for i in range(10)], "label": [0, 1] * 5}
    data = load(datasets.Dataset.from_dict(rows, features=features))
    assert data.label_names == ["cat", "dog"]
    assert data.train.features.shape == (8, 2)


def test_data_follow_their_content_and_go_to_other_processes():
    other = load(FRAME.assign(item=FRAME.item + 1))
    assert load(FRAME).digest == load(FRAME.copy()).digest != other.digest
    assert source_of(other)() is other


MATRIX = sp.random(30, 12, 0.3, format="csr", random_state=0, dtype=np.float32)
LISTS = [[i % 3, 3 + i % 2] for i in range(30)]


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        (LISTS, LISTS),
        (np.arange(30) % 5, [[i % 5] for i in range(30)]),
        (torch.arange(30) % 5, [[i % 5] for i in range(30)]),
        (pd.Series([f"l{i % 5}" for i in range(30)]), [[i % 5] for i in range(30)]),
        (
            [[f"l{i % 5}"] if i else [] for i in range(30)],
            [[i % 5] if i else [] for i in range(30)],
        ),
        (sp.csr_array(np.eye(5)[np.arange(30) % 5]), [[i % 5] for i in range(30)]),
    ],
    ids=["lists", "numpy", "torch", "pandas", "lists of strings", "indicator"],
)
@pytest.mark.parametrize("features", [MATRIX, MATRIX.toarray(), sp.coo_array(MATRIX)])
def test_features_and_labels_become_points(features, labels, wanted):
    data = load((features, labels))
    whole = data.whole
    rows = whole.features if isinstance(whole.features, torch.Tensor) else whole.features.to_dense()
    assert np.array_equal(rows.numpy(), MATRIX.toarray())
    offsets = whole.labels.offsets.tolist()
    assert [whole.labels.values[a:b].tolist() for a, b in pairwise(offsets)] == wanted
    assert whole.num_labels == 5
    assert (len(data.train), len(data.test)) == (24, 6)
    tested = load((features, labels), test=(features[:3], labels[:3]))
    assert (len(tested.train), len(tested.test), tested.whole) == (30, 3, None)


@pytest.mark.parametrize(
    ("data", "options", "sentence"),
    [
        (7, {}, r"Data of the type int cannot be read. Pass a path, a pandas or polars DataFrame"),
        ((MATRIX, LISTS, 3), {}, r"as a tuple of two, `\(features, labels\)`"),
        ((MATRIX, LISTS[:5]), {}, r"30 rows of train features, but labels of 5 points"),
        ((MATRIX[0].toarray()[0], [1]), {}, r"Features are float32 of shape \[12\]"),
        ((MATRIX, np.ones((30, 2))), {}, r"Labels have shape \[30, 2\]. Pass one label per point"),
        ((MATRIX, np.arange(30) / 7), {}, r"Labels are float64. Pass whole numbers or strings"),
        ((MATRIX, np.arange(30) - 3), {}, r"Labels must be at least 0, but got -3"),
        ((MATRIX, [[]] * 30), {}, r"no label at all"),
        ((MATRIX * np.nan, LISTS), {}, r"NaN or infinite"),
        (
            (np.array([[1, 2], [np.nan, 3]]), [0, 1]),
            {},
            r"1 values that are NaN or infinite, the first in row 1, column 0 \(from 0\)",
        ),
        ((MATRIX, LISTS), {"test": (MATRIX[:, :4], LISTS)}, r"`test` has 4 columns of features"),
        ((MATRIX, LISTS), {"user": "a"}, r"`user` would do nothing to `data`"),
        (FRAME, {"root": "."}, r"`root` would do nothing to `data`: it is for lists of images"),
        (FRAME, {"usr": "a"}, r"`usr` is not an option of reading. Did you mean `user`"),
        (FRAME, {"format": "xc"}, r"`format='xc'` does not fit a table. Tables hold images, seq"),
        ({"a": FRAME}, {}, r"The data have the parts 'a', but `train` is needed"),
        (FRAME.assign(user=[1, "a"] * 200), {}, r"`data` cannot become an Arrow table: .*user"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(data, options, sentence):
    with pytest.raises(HeadtailError, match=sentence):
        load(data, **options)


def test_matrices_come_in_parts():
    features = np.random.default_rng(0).random((30, 4))
    labels = np.arange(30) % 3
    parts = {"train": (features, labels), "test": (features[:8], labels[:8])}
    data = load(parts)
    assert (len(data.train), len(data.test), data.validation) == (30, 8, None)
    data = load({"train": (features, labels), "dev": (features[:5], labels[:5])}, holdout=0.5)
    assert (len(data.train), len(data.test), len(data.validation)) == (15, 15, 5)
    with pytest.raises(HeadtailError, match=r"as a tuple of two"):
        load({"train": (features, labels), "test": features})


def test_a_part_with_an_unknown_name_is_refused():
    with pytest.raises(HeadtailError, match=r"'tset' is not a part of data.* Did you mean `test`"):
        load({"train": FRAME, "tset": FRAME})
