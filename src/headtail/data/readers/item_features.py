"""Features of the items that are recommended: from a table, lines or records, one item each."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from scipy import sparse

from headtail.data.bag import Bag
from headtail.data.cache import Store, cached, key_of
from headtail.data.digests import digest
from headtail.data.facts import label_counts
from headtail.data.packed import MAX_EXPANSION
from headtail.data.points import DataSet, Progress
from headtail.data.readers.raw_text_folder import holds_records, is_lines
from headtail.data.readers.text_sources import lines_of, read_records, text_of
from headtail.data.reading import Reading
from headtail.data.tables.arrow_types import is_list, is_string
from headtail.data.tables.columns import Columns
from headtail.data.text_features import TermCounter
from headtail.errors import HeadtailError, check_exists

MOST_TERMS = 1 << 17
AT_ONCE = 1 << 14
"""Texts that become features at once."""


@dataclass(frozen=True, eq=False)
class Items:
    """Features of items.

    Attributes:
        names: of the items; None where row i is label i.
        features: a row per item.
        digest: changes with the content.
    """

    names: list[str] | list[int] | None
    features: Bag
    digest: str


def read_items(
    path: Path, progress: Progress | None = None, max_expansion: float = MAX_EXPANSION
) -> Items:
    """Read features of items.

    The words of all columns of strings become tf-idf weights; columns of numbers are scaled to mean
    0 and deviation 1. The item is in the column that is called so, or else in the first. Lines of
    text and JSON records without a column of items belong to label 0, 1, ….
    """
    build = partial(_build, path, max_expansion, progress)
    entry = cached([check_exists(path)], {"reader": "items"}, build)
    arrays = entry.arrays
    features = Bag(
        arrays["offsets"], arrays["columns"], arrays["values"], entry.facts["num_columns"]
    )
    names = json.loads(arrays["names"].numpy().tobytes())
    return Items(names, features, key_of([path], {"reader": "items"}))


def described_items(reading: Reading) -> pa.Array | None:
    """The names of items that have features, int64 or strings; None where there are none."""
    if reading.item_features is None:
        return None
    names = read_items(reading.item_features, max_expansion=reading.max_expansion).names
    if names is None:
        return None
    whole = all(isinstance(name, int) for name in names)
    return pa.array(names, pa.int64() if whole else pa.large_string()).unique()


def as_named(kind: pa.DataType, described: pa.Array) -> pa.Array:
    """Names of items in the type that the data have for them."""
    if kind == described.type:
        return described
    if is_string(kind):
        return described.cast(kind)
    raise HeadtailError(
        f"The data name items by numbers, but the file of their features does not, for example "
        f"`{described[0]}`. Name items as the data do."
    )


def items_recipe(reading: Reading) -> dict[str, str]:
    """What decides which items are labels beside those of training, for a cache entry's recipe."""
    return {} if reading.item_features is None else {"items": digest(reading.item_features)}


def with_items(
    data: DataSet,
    path: Path,
    progress: Progress | None,
    max_expansion: float = MAX_EXPANSION,
) -> DataSet:
    """Data with the features of their labels."""
    items = read_items(path, progress, max_expansion)
    number = data.train.num_labels
    own = data.label_names or list(range(number))
    rows = range(len(items.features)) if items.names is None else items.names
    row_of = {str(name): row for row, name in enumerate(rows)}
    if items.names is None:
        own = list(range(number))
    empty = len(items.features)
    ids = torch.tensor([row_of.get(str(name), empty) for name in own])
    described = ids < empty
    seen = label_counts(data) > 0
    if not (described & seen).any():
        example = own[int(seen.int().argmax())]
        raise HeadtailError(
            f"`{path}` describes no item that training has, for example `{example}`; its first "
            f"item is `{next(iter(row_of), None)}`. Name items as the data do."
        )
    offsets = items.features.offsets
    with_empty = replace(items.features, offsets=torch.cat([offsets, offsets[-1:]]))
    notes = [
        f"Features of items: {items.features.num_columns:,} from {path.name}, for "
        f"{int(described.sum()):,} of {number:,} labels; {int((described & ~seen).sum()):,} of "
        "these never occur in training."
    ]
    return replace(
        data,
        items=with_empty.rows(ids),
        notes=(*data.notes, *notes),
        digest=f"{data.digest}-{items.digest}",
    )


def _build(path: Path, max_expansion: float, progress: Progress | None, store: Store) -> None:
    if holds_records(path) or (is_lines(path) and not _is_table(path)):
        names = None
        texts = _plain_texts(path, max_expansion)
        numbers = np.zeros((len(texts), 0), np.float32)
    else:
        names, texts, numbers = _of_table(path, max_expansion, progress)
    if not texts:
        raise HeadtailError(f"`{path}` is empty. Write one item per line or row.")
    parts = []
    num_terms = 0
    if any(texts):
        counter = TermCounter(1)
        counter.add(texts)
        fitted = counter.features(MOST_TERMS)
        num_terms = fitted.num_columns
        blocks = range(0, len(texts), AT_ONCE)
        parts.append(sparse.vstack([fitted.rows(texts[i : i + AT_ONCE]) for i in blocks]))
    parts.append(sparse.csr_matrix(numbers))
    matrix = sparse.csr_matrix(sparse.hstack(parts))
    store.append("offsets", matrix.indptr.astype(np.int64))
    store.append("columns", matrix.indices.astype(np.int32))
    store.append("values", matrix.data.astype(np.float32))
    store.append("names", np.frombuffer(json.dumps(names).encode(), np.uint8))
    store.facts["num_columns"] = num_terms + numbers.shape[1]


def _is_table(path: Path) -> bool:
    from headtail.data.readers.table_files import holds_table

    return holds_table(path, False)


def _plain_texts(path: Path, max_expansion: float) -> list[str]:
    if holds_records(path):
        return [text_of(record) for record in read_records(path, max_expansion)]
    return [line for lines, _ in lines_of(path, max_expansion) for line in lines]


def _of_table(
    path: Path, max_expansion: float, progress: Progress | None
) -> tuple[list[str] | list[int], list[str], np.ndarray]:
    """Names, texts and `[n, c]` numbers of the items in a table."""
    columns = Columns.of(path, reading=Reading(max_expansion=max_expansion))
    item = columns.roles.item or columns.roles.label or columns.names[0]
    kinds = {name: columns.kind(name) for name in columns.names if name != item}
    words = [
        name
        for name, kind in kinds.items()
        if is_string(kind.value_type if is_list(kind) else kind)
    ]
    numeric = [
        name
        for name, kind in kinds.items()
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    ]
    names, texts, numbers = [], [], []
    for first, batch in columns.read([item, *words, *numeric], progress):
        names += columns.ids(batch.column(item), item, first).to_pylist()
        values = [batch.column(name).to_pylist() for name in words]
        texts += [" ".join(map(_as_text, row)) for row in zip(*values, strict=True)]
        texts += [""] * (len(names) - len(texts))
        # Whole numbers above 2^53 are rounded.
        exact = [batch.column(name) for name in numeric]
        arrays = [array.cast(pa.float64(), safe=False).fill_null(np.nan) for array in exact]
        stacked = [array.to_numpy(zero_copy_only=False) for array in arrays]
        numbers.append(np.stack(stacked, 1) if stacked else np.zeros((len(batch), 0)))
    return names, texts, _standardised(np.concatenate(numbers) if numbers else np.zeros((0, 0)))


def _as_text(value: str | list[str] | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else " ".join(filter(None, value))


def _standardised(numbers: np.ndarray) -> np.ndarray:
    """Mean 0 and deviation 1 of each column; what is missing is 0."""
    missing = ~np.isfinite(numbers)
    known = np.where(missing, 0.0, numbers)
    # Squares of numbers this large would overflow; a power of two changes no digit.
    huge = np.abs(known).max(0, initial=0.0) > 1e150
    known = np.ldexp(known, np.where(huge, -600, 0))
    count = np.maximum((~missing).sum(0), 1)
    centred = np.where(missing, 0.0, known - known.sum(0) / count)
    deviation = np.sqrt((centred**2).sum(0) / count)
    return (centred / np.where(deviation > 0, deviation, 1.0)).astype(np.float32)
