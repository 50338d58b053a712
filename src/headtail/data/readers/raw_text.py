"""Raw texts with labels: points with sparse features, fitted on the training part."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headtail.core.targets import Ragged
from headtail.data.bag import Bag
from headtail.data.cache import Entry, Store, cached, key_of
from headtail.data.digests import digest as file_digest
from headtail.data.points import DataSet, Points, Progress
from headtail.data.readers.text_sources import Texts, TextSource
from headtail.data.reading import Reading
from headtail.data.split import held_out_rows
from headtail.data.text_features import Names, TermCounter, TextFeatures, Trained
from headtail.errors import HeadtailError, check_count, need


@dataclass(frozen=True)
class LabelCodes:
    """The ids of labels as texts name them.

    Attributes:
        names: of the labels.
        ids: the id of each name; None where texts name labels by their ids.
        known: with `ids`, the names behind the ids of the source, where that has any.
    """

    names: Names
    ids: dict[str, int] | None
    known: list[str] | None = None

    @classmethod
    def learnt(cls, labels: set[str]) -> LabelCodes:
        """Labels that are named by themselves, in order: whole numbers by size, words as usual."""
        if all(_is_number(label) for label in labels):
            numbers = sorted(map(int, labels))
            return cls(numbers, {str(number): i for i, number in enumerate(numbers)})
        names = sorted(labels)
        return cls(names, {name: i for i, name in enumerate(names)})

    @classmethod
    def of(cls, trained: Trained, known: list[str] | None) -> LabelCodes:
        """The labels of a model, for texts whose labels are ids of `known`, or names."""
        names = trained.label_names
        return cls(names, {str(name): i for i, name in enumerate(names)}, known)

    def of_text(self, labels: list[str] | list[int], where: Callable[[], str]) -> list[int]:
        """The ids of a text's labels; unknown ones are left out."""
        if self.ids is None:
            return [_checked_id(label, len(self.names), where) for label in labels]
        if self.known is not None:
            labels = [self.known[_checked_id(i, len(self.known), where)] for i in labels]
        ids = (self.ids.get(str(label), -1) for label in labels)
        return [i for i in ids if i >= 0]


def read_texts(
    parts: dict[str, TextSource],
    reading: Reading,
    progress: Progress | None = None,
    *,
    names: list[str] | None = None,
    trained: Trained | None = None,
    columns: list[str | None] | None = None,
) -> DataSet:
    """Read raw texts, or take their features from the cache.

    Args:
        parts: sources by the names of their parts: "train", perhaps "test" and "validation".
        reading: how; without a test part, `holdout` of the texts are held out.
        progress: called with what is being done and the share of it that is done.
        names: of the labels, where texts name them by their ids.
        trained: read the texts for this model, instead of fitting features and labels to the
            training part.
        columns: of a table, and what separates labels in them.
    """
    check_count("max_terms", reading.max_terms)
    check_count("ngrams", reading.ngrams)
    holdout = None if "test" in parts else reading.holdout
    recipe = {
        "reader": "raw text",
        "parts": list(parts),
        "holdout": holdout,
        "features": [reading.text_features, reading.max_terms, reading.ngrams],
        "names": _digest(names),
        "columns": columns,
        "items": reading.item_features and file_digest(reading.item_features),
    }
    files = [file for source in parts.values() for file in source.files]
    digest = key_of(files, recipe)
    if trained is not None and trained.digest == digest:
        trained = None  # the same data, read in the same way
    if trained is not None:
        recipe["for"] = [trained.features.digest(), _digest(trained.label_names)]
    entry = cached(files, recipe, partial(_build, parts, reading, names, trained, progress))
    return _data_set(parts, entry, digest, holdout)


def _build(
    parts: dict[str, TextSource],
    reading: Reading,
    names: list[str] | None,
    trained: Trained | None,
    progress: Progress | None,
    store: Store,
) -> None:
    if trained is None:
        fitted, labels = _fit(parts, reading, progress)
        labels |= _described(reading)
        codes = LabelCodes.learnt(labels) if names is None else LabelCodes(names, None)
    else:
        fitted = trained.features
        codes = LabelCodes.of(trained, names)
    for name, tensor in fitted.tensors().items():
        store.append(name, tensor.numpy())
    store.append("label_names", np.frombuffer(json.dumps(codes.names).encode(), np.uint8))
    store.facts["text"] = fitted.facts()
    for part, source in parts.items():
        _append(part, source, fitted, codes, progress, store)


def _fit(
    parts: dict[str, TextSource], reading: Reading, progress: Progress | None
) -> tuple[TextFeatures, set[str]]:
    """Features and labels of the training part."""
    source = parts["train"]
    held_out = np.zeros(0, bool)
    if "test" not in parts:
        number = sum(len(block.texts) for block in source.blocks())
        if number < 2:
            raise HeadtailError(
                f"`{source.name}` holds {number} texts, too few to hold some out. Pass a test file."
            )
        held_out = np.zeros(number, bool)
        held_out[held_out_rows(number, reading.holdout)[1].numpy()] = True
    counter = TermCounter(reading.ngrams) if reading.text_features == "tfidf" else None
    labels: set[str] = set()
    for first, block in _blocks(source, f"counting words in {source.name}", progress):
        tested = held_out[first : first + len(block.texts)]
        own = np.flatnonzero(~tested).tolist() if len(tested) else range(len(block.texts))
        labels.update(str(label) for i in own for label in block.labels[i])
        if counter is not None:
            counter.add(block.texts[i] for i in own)
    if not labels:
        raise HeadtailError(
            f"`{source.name}` has no label at all, so nothing can be learnt. Texts without labels "
            "belong in a test file."
        )
    if counter is None:
        return TextFeatures("hashing", reading.ngrams, reading.max_terms), labels
    if not counter.counts:
        raise HeadtailError(f"`{source.name}` holds no words, so nothing can be learnt.")
    return counter.features(reading.max_terms), labels


def _described(reading: Reading) -> set[str]:
    """Labels that have features, whether training has them or not."""
    if reading.item_features is None:
        return set()
    need("pyarrow", extra="data", to="Reading features of items")
    from headtail.data.readers.item_features import described_items

    names = described_items(reading)
    return set() if names is None else {str(name) for name in names.to_pylist()}


def _append(
    part: str,
    source: TextSource,
    fitted: TextFeatures,
    codes: LabelCodes,
    progress: Progress | None,
    store: Store,
) -> None:
    """Write the features and labels of one part."""
    features = pairs = empty = unknown = 0
    for name in ("features", "labels"):
        store.append(f"{part}.{name}.offsets", np.zeros(1, np.int64))
    for first, block in _blocks(source, f"reading {source.name}", progress):
        matrix = fitted.rows(block.texts)
        store.append(f"{part}.features.offsets", matrix.indptr[1:].astype(np.int64) + features)
        store.append(f"{part}.features.columns", matrix.indices.astype(np.int32))
        store.append(f"{part}.features.values", matrix.data)
        ids = [
            codes.of_text(labels, partial(_place, source, first + i))
            for i, labels in enumerate(block.labels)
        ]
        ends = np.cumsum([len(row) for row in ids], dtype=np.int64) + pairs
        store.append(f"{part}.labels.offsets", ends)
        values = np.array([label for row in ids for label in row], np.int32)
        store.append(f"{part}.labels.values", values)
        features += matrix.nnz
        pairs += len(values)
        unknown += sum(map(len, block.labels)) - len(values)
        empty += sum(not text.strip() for text in block.texts)
    if f"{part}.features.columns" not in store.dtypes:
        raise HeadtailError(f"`{source.name}` is empty. Write one text per line.")
    store.facts[part] = {"empty": empty, "unknown": unknown}


def _blocks(
    source: TextSource, what: str, progress: Progress | None
) -> Iterator[tuple[int, Texts]]:
    """The blocks of a source, each with the row of its first text."""
    first = 0
    for block in source.blocks():
        yield first, block
        first += len(block.texts)
        if progress is not None:
            progress(what, block.share)


def _data_set(
    parts: dict[str, TextSource], entry: Entry, digest: str, holdout: float | None
) -> DataSet:
    names = json.loads(entry.arrays["label_names"].numpy().tobytes())
    text = TextFeatures.saved(entry.arrays, entry.facts["text"])
    points = {part: _points(entry, part, text.num_columns, len(names)) for part in parts}
    train = points["train"]
    test = points.get("test")
    whole = None
    if test is None:
        assert holdout is not None
        whole = train
        rows = held_out_rows(len(whole), holdout)
        train, test = (whole.select(ids) for ids in rows)
    return DataSet(
        name=parts["train"].name,
        train=train,
        test=test,
        validation=points.get("validation"),
        label_names=None if names == list(range(len(names))) else names,
        notes=tuple(_notes(parts, entry, text, holdout)),
        digest=digest,
        whole=whole,
        text=text,
    )


def _points(entry: Entry, part: str, num_columns: int, num_labels: int) -> Points:
    arrays = entry.arrays
    features = Bag(
        arrays[f"{part}.features.offsets"],
        arrays[f"{part}.features.columns"],
        arrays[f"{part}.features.values"],
        num_columns,
    )
    labels = Ragged(arrays[f"{part}.labels.values"], arrays[f"{part}.labels.offsets"])
    return Points(features, labels, num_labels)


def _notes(
    parts: dict[str, TextSource], entry: Entry, text: TextFeatures, holdout: float | None
) -> Iterator[str]:
    words = "single words" if text.ngrams == 1 else f"up to {text.ngrams} words"
    what = f"{text.num_columns:,} terms of {words}, from the training texts"
    if text.kind == "hashing":
        what = f"terms of {words}, hashed to {text.num_columns:,} columns"
    yield f"Read as raw text: the features are {what}."
    if holdout is not None:
        yield f"There is no test file: {holdout:.0%} of the texts are held out for testing."
    lengths = entry.arrays["train.labels.offsets"].diff()
    without = int((lengths == 0).sum())
    if 0 < without < len(lengths):
        yield f"Texts without a label in {parts['train'].name}, which teach nothing: {without:,}."
    for part, source in parts.items():
        facts = entry.facts[part]
        if facts["empty"]:
            yield f"Empty texts in {source.name}: {facts['empty']:,}."
        if facts["unknown"]:
            yield (
                f"Labels in {source.name} that never occur in training and are left out: "
                f"{facts['unknown']:,}."
            )


def _is_number(label: str) -> bool:
    """Whether a label is a whole number as it is usually written; one above int64 is a name."""
    return label.isdecimal() and len(label) < 20 and str(int(label)) == label and int(label) < 2**63


def _checked_id(label: str | int, number: int, where: Callable[[], str]) -> int:
    text = str(label)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < number):
        raise HeadtailError(
            f"{where()}: label `{text[:40]}` is not a label's number, from 0 to {number - 1:,}."
        )
    return int(text)


def _place(source: TextSource, row: int) -> str:
    path = source.files[-1]
    return f"{path if isinstance(path, Path) else source.name}, text {row + 1:,}"


def _digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()
