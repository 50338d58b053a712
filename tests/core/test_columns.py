"""Labels from columns of any kind, their names, and files of them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from headtail import HeadtailError, Labels, Ragged

ANIMALS = ["dog", "cat", "dog", "ant", "dog"]
NUMBERS = [30, -4, 30, 7, 30]
LISTS = [["dog", "cat"], [], ["dog"], ["ant", "dog"]]


def numpy_object(rows: list[Any]) -> np.ndarray:
    array = np.empty(len(rows), dtype=object)
    array[:] = rows
    return array


def pandas(rows: list[Any], **options: Any) -> Any:
    return pytest.importorskip("pandas").Series(rows, **options)


def polars(rows: list[Any], **options: Any) -> Any:
    return pytest.importorskip("polars").Series(rows, **options)


def arrow(rows: list[Any]) -> Any:
    return pytest.importorskip("pyarrow").array(rows)


def chunked(rows: list[Any]) -> Any:
    """In two chunks, whose dictionaries differ."""
    return pytest.importorskip("pyarrow").chunked_array([rows[:2], rows[2:]])


def encoded(rows: list[Any]) -> Any:
    """With a dictionary that holds a value which no row has."""
    pa = pytest.importorskip("pyarrow")
    values = [*dict.fromkeys(rows), "zebra" if isinstance(rows[0], str) else 99]
    return pa.DictionaryArray.from_arrays([values.index(row) for row in rows], values)


ONE = {
    "list": list,
    "tuple": tuple,
    "numpy": np.array,
    "numpy objects": numpy_object,
    "pandas": pandas,
    "pandas objects": lambda rows: pandas(rows, dtype=object),
    "polars": polars,
    "arrow": arrow,
    "chunked arrow": chunked,
    "arrow dictionary": encoded,
}
MANY = {
    "list": list,
    "tuples": lambda rows: [tuple(row) for row in rows],
    "arrays": lambda rows: [np.array(row, dtype=object) for row in rows],
    "numpy objects": numpy_object,
    "pandas": pandas,
    "polars": polars,
    "arrow": arrow,
    "chunked arrow": chunked,
    "missing for none": lambda rows: arrow([row or None for row in rows]),
    "None for none": lambda rows: [row or None for row in rows],
}


@pytest.mark.parametrize("form", ONE)
def test_a_column_of_strings_becomes_labels_in_sorted_order_and_ids(form):
    column = ONE[form](ANIMALS)
    labels = Labels.from_column(column, smoothing=1)
    assert labels.names == ["ant", "cat", "dog"]
    assert labels.counts.tolist() == [1, 1, 3]
    assert labels.smoothing == 1
    ids = labels.ids(column)
    assert isinstance(ids, torch.Tensor)
    assert ids.dtype == torch.int64
    assert [labels.names[i] for i in ids.tolist()] == ANIMALS


@pytest.mark.parametrize("form", [*ONE, "tensor", "narrow", "unsigned"])
def test_a_column_of_numbers_becomes_labels_named_by_numbers(form):
    more = {
        "tensor": torch.tensor,
        "narrow": lambda rows: np.array(rows, dtype=np.int16),
        "unsigned": lambda rows: polars([row + 4 for row in rows], dtype=None),
    }
    column = (ONE | more)[form](NUMBERS)
    shift = 4 if form == "unsigned" else 0
    labels = Labels.from_column(column)
    assert labels.names == [-4 + shift, 7 + shift, 30 + shift]
    assert all(type(name) is int for name in labels.names)
    assert labels.counts.tolist() == [1, 1, 3]
    assert labels.ids(column).tolist() == [2, 0, 2, 1, 2]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("form", MANY)
def test_a_column_of_lists_has_several_labels_per_row(form):
    column = MANY[form](LISTS)
    labels = Labels.from_column(column)
    assert labels.names == ["ant", "cat", "dog"]
    assert labels.counts.tolist() == [1, 1, 3]
    ids = labels.ids(column)
    assert isinstance(ids, Ragged)
    assert ids.values.tolist() == [2, 1, 2, 0, 2]
    assert ids.offsets.tolist() == [0, 2, 2, 3, 5]


def test_categories_of_pandas_keep_their_order_and_their_codes():
    pd = pytest.importorskip("pandas")
    column = pd.Series(pd.Categorical(ANIMALS, categories=["dog", "cow", "cat", "ant"]))
    labels = Labels.from_column(column)
    assert labels.names == ["dog", "cow", "cat", "ant"]
    assert labels.counts.tolist() == [3, 0, 1, 1]
    assert labels.ids(column).tolist() == column.cat.codes.tolist()
    assert Labels.from_column(column.array).names == labels.names


def test_equal_columns_in_different_forms_and_orders_give_the_same_ids():
    labels = Labels.from_column(ANIMALS)
    assert Labels.from_column(ANIMALS[::-1]).names == labels.names
    assert labels.ids(arrow(["ant", "dog"])).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("dog", "a column of labels .* but got str"),
        (None, "but got NoneType"),
        (Ragged.from_lists([[0]]), "but got Ragged"),
        ({"a": 1}, "but got dict"),
        ([0.5, 1.5], "strings or whole numbers, but holds float"),
        (np.array([1.0]), "but holds float64"),
        (np.array([True]), "but holds bool"),
        (["a", 1], "but holds int and str"),
        ([True, False], "but holds bool"),
        ([["a"], "b"], "mixes lists with single values"),
        ([["a"], [["b"]]], "values that are neither"),
        (["a", None, None], r"no value in row 1 \(2 are missing in all\)"),
        ([["a"], [None]], "no value in row 1"),
        (["a", float("nan")], "no value in row 1"),
        ([], "no label"),
        (np.zeros((2, 2), dtype=int), r"array of shape \[2, 2\]"),
    ],
)
def test_what_is_not_a_column_of_labels_is_refused(column, words):
    with pytest.raises(HeadtailError, match=words):
        Labels.from_column(column)


def test_missing_values_of_frames_are_refused_by_their_row():
    pd = pytest.importorskip("pandas")
    pl = pytest.importorskip("polars")
    columns = [
        pd.Series(["a", None]),
        pd.Series([1, None], dtype="Int64"),
        pd.Series(["a", None], dtype="category"),
        pl.Series([1, None]),
        arrow([1, None]),
        chunked(["a", None, "b"]),
    ]
    for column in columns:
        with pytest.raises(HeadtailError, match="no value in row 1"):
            Labels.from_column(column)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (["dog", "cow", "owl"], r"'cow' in row 1, .*2 values in all; a label is named 'ant'"),
        ([["dog"], [], ["dog", "cow"]], "'cow' in row 2"),
        (["dog", None], "no value in row 1"),
        ([3], "has 3 in row 0"),
    ],
)
def test_values_without_a_label_are_refused_unless_they_get_an_id(column, words):
    labels = Labels.from_column(ANIMALS)
    with pytest.raises(HeadtailError, match=words):
        labels.ids(column)
    ids = labels.ids(column, unknown=-100)
    values = ids.values if isinstance(ids, Ragged) else ids
    assert int((values == -100).sum()) == sum(
        name not in ("dog", "cat", "ant")
        for row in column
        for name in (row if isinstance(row, list) else [row])
    )


def test_names_stay_with_labels_that_are_updated_grown_or_moved():
    labels = Labels.from_column(ANIMALS)
    assert labels.update(torch.tensor([0])).names == labels.names
    assert labels.to("cpu").names == labels.names
    grown = labels.grow([2], names=["bee"])
    assert grown.names == ["ant", "cat", "dog", "bee"]
    assert grown.ids(["bee"]).tolist() == [3]  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(HeadtailError, match="The new labels have no names"):
        labels.grow([2])
    with pytest.raises(HeadtailError, match="The old labels have no names"):
        Labels.from_counts([1]).grow([2], names=["bee"])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a"], "`names` has 1 names, but there are 2 labels"),
        (("a", "b"), "`names` must be a list"),
    ],
)
def test_names_of_other_labels_are_refused(names, words):
    with pytest.raises(HeadtailError, match=words):
        Labels.from_counts([1, 2], names=names)


def test_names_that_repeat_or_are_missing_have_no_ids():
    with pytest.raises(HeadtailError, match="has 'a' twice"):
        Labels.from_counts([1, 2], names=["a", "a"]).ids(["a"])
    with pytest.raises(HeadtailError, match="no names, so ids are their names"):
        Labels.from_counts([1, 2]).ids(["a"])


@pytest.mark.parametrize("names", [["käse", "a\nb"], [5, -(2**60)], None])
def test_saved_labels_are_loaded_as_they_were(tmp_path, names):
    labels = Labels(torch.tensor([1.5, 2.0]).double(), 0.25, names)
    labels.save(tmp_path / "labels.safetensors")
    again = Labels.load(str(tmp_path / "labels.safetensors"))
    assert torch.equal(again.counts, labels.counts)
    assert again.counts.dtype == torch.float64
    assert (again.smoothing, again.names) == (0.25, names)
    assert [path.name for path in tmp_path.iterdir()] == ["labels.safetensors"]


def test_files_that_hold_no_labels_are_refused(tmp_path):
    from headtail.files.tensors import save_tensors

    with pytest.raises(HeadtailError, match=r"cannot be read as labels.*labels\.save"):
        Labels.load(tmp_path / "none.safetensors")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(HeadtailError, match="cannot be read as labels"):
        Labels.load(tmp_path / "text")
    save_tensors(tmp_path / "other", {"counts": torch.ones(1)}, {})
    with pytest.raises(HeadtailError, match="does not hold labels"):
        Labels.load(tmp_path / "other")


def sparse(rows: list[list[int]]) -> Any:
    from scipy.sparse import csr_matrix

    dense = np.zeros((len(rows), 4))
    for i, row in enumerate(rows):
        dense[i, row] = 0.5
    dense[0, 1] = 9
    matrix = csr_matrix(dense)
    matrix.data[matrix.data == 9] = 0  # stored, but a zero
    return matrix


TARGETS = [[2], [0, 3], [], [3]]


@pytest.mark.parametrize(
    "form",
    [
        list,
        numpy_object,
        pandas,
        polars,
        arrow,
        sparse,
        lambda rows: sparse(rows).tocoo(),
        lambda rows: sparse(rows).toarray() > 0,
    ],
)
def test_targets_in_any_form_are_counted(form):
    assert Labels.from_targets(form(TARGETS), num_labels=4).counts.tolist() == [1, 0, 1, 2]


@pytest.mark.parametrize("form", [list, np.array, pandas, polars, arrow, torch.tensor])
def test_single_targets_in_any_form_are_counted(form):
    ids = [2, 0, 3, 3]
    assert Labels.from_targets(form(ids)).counts.tolist() == [1, 0, 1, 2]
    assert Labels.from_batches([form(ids)], 5).counts.tolist() == [1, 0, 1, 2, 0]
    assert Labels.zipf(4).update(form(ids)).total == Labels.zipf(4).total + 4


def test_a_sparse_matrix_knows_the_number_of_labels():
    assert Labels.from_targets(sparse([[0]])).num_labels == 4


def test_columns_of_strings_need_neither_pandas_nor_pyarrow():
    code = """
import sys
for name in ("pandas", "polars", "pyarrow"):
    sys.modules[name] = None
import numpy as np
from headtail import Labels
assert Labels.from_column(["b", "a"]).names == ["a", "b"]
assert Labels.from_column(np.array(["b", "a"])).names == ["a", "b"]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
