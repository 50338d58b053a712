"""Triples of a knowledge graph: a point is (head, relation), its labels are tails."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from headtail.core.targets import Ragged
from headtail.data.bag import Bag
from headtail.data.cache import Entry, Store, cached, key_of
from headtail.data.points import DataSet, Points, Progress
from headtail.data.readers.log_splits import VALIDATION
from headtail.data.reading import Reading
from headtail.data.tables.columns import Columns, DataTables, check_same_kind, renamed
from headtail.data.tables.vocabulary import Vocabulary, label_names
from headtail.errors import HeadtailError

PARTS = ("train", "validation", "test")
ROLES = ("head", "relation", "tail")
SEED = 0


def read_tables(tables: DataTables, reading: Reading, progress: Progress | None) -> DataSet:
    """Read triples as `reading` says.

    A point has two features, its head and its relation. A training point has all tails of the two
    as labels; a test point is one triple, and `known` holds all tails of its head and relation in
    any part, for filtered ranking. Labels are the entities of training, as heads or as tails. Test
    triples with others, or with other relations, are left out.
    """
    files = list(tables.parts.values())
    holdout = None if tables.test is not None else reading.holdout
    columns = [[getattr(part.roles, role) for role in ROLES] for part in files]
    recipe = {"reader": "triples", "holdout": holdout, "columns": columns}
    recipe["parts"] = list(tables.parts)
    validated = tables.validation is not None and holdout is not None
    recipe |= {"validation": "given"} if validated else {}
    build = partial(_build, tables, holdout, progress)
    entry = cached(files, recipe | {"with": "names of relations, rows"}, build)
    if _repeated_elsewhere(entry):
        recipe["tested"] = "once"
    notes = [
        "Read as triples: a point is a head with a relation, its labels are the tails.",
        tables.train.note(ROLES),
        *_notes(entry, holdout, validated),
    ]
    data = DataSet(
        tables.train.table.title,
        _points(entry, "train"),
        _points(entry, "test"),
        _points(entry, "validation") if len(entry.arrays["validation_labels"]) else None,
        label_names=label_names(entry),
        notes=tuple(notes),
        digest=key_of(files, recipe),
        relations=entry.facts["relation_names"],
    )
    return renamed(data, tables)


def _build(
    tables: DataTables, holdout: float | None, progress: Progress | None, store: Store
) -> None:
    train = tables.train
    relations = Vocabulary.of(relation for _, relation, _ in _read(train, progress))
    entities = Vocabulary.of(
        name for head, _, tail in _read(train, progress) for name in (head, tail)
    )
    store.facts |= {"left_out": 0, "repeated": {}}
    triples = {}
    for name, part in tables.parts.items():
        found = _encoded(part, entities, relations, store, progress)
        triples[name] = _once(found, in_order=name == "train")
        store.facts["repeated"][name] = len(found) - len(triples[name])
    if holdout is not None:
        share = VALIDATION if tables.validation is None else 0.0
        held = _held_out(triples["train"], holdout, share)
        triples |= held if share else {name: held[name] for name in ("train", "test")}
    for name in ("train", "test"):
        if not len(triples[name]):
            raise HeadtailError(
                f"`{tables.parts.get(name, train).path}` leaves no triple to {name} on. Write a "
                "head, a relation and a tail per row."
            )
    entities.save(store)
    store.facts |= {"entities": len(entities), "relations": len(relations)}
    store.facts["relation_names"] = relations.names.to_pylist()
    for name in PARTS:
        rows = triples.get(name, np.empty((0, 4), np.int64))
        store.append(f"{name}_queries", rows[:, 0] * len(relations) + rows[:, 1])
        store.append(f"{name}_labels", rows[:, 2].astype(np.int32))
        store.append(f"{name}_rows", rows[:, 3])


def _read(
    columns: Columns, progress: Progress | None
) -> Iterator[tuple[pa.Array, pa.Array, pa.Array]]:
    """Heads, relations and tails, block by block."""
    names = [getattr(columns.roles, role) for role in ROLES]
    if None in names:
        raise HeadtailError(
            f"`{columns.path}` has the columns {columns.listed}, but triples need `head`, "
            "`relation` and `tail`. Rename the columns."
        )
    for first, batch in columns.read(names, progress):
        head, relation, tail = (columns.ids(batch.column(name), name, first) for name in names)
        if head.type != tail.type:
            head, tail = head.cast(pa.large_string()), tail.cast(pa.large_string())
        yield head, relation, tail


def _encoded(
    columns: Columns,
    entities: Vocabulary,
    relations: Vocabulary,
    store: Store,
    progress: Progress | None,
) -> np.ndarray:
    """`[n, 4]` ids of the triples with known names, and their rows."""
    blocks = [np.empty((0, 4), np.int64)]
    first = 0
    for triple in _read(columns, progress):
        ids = []
        for role, values, known in zip(ROLES, triple, (entities, relations, entities), strict=True):
            check_same_kind(known, values, columns, role)
            ids.append(known.ids(values))
        ids.append(np.arange(first, first + len(triple[0])))
        first += len(triple[0])
        block = np.stack(ids, axis=1).astype(np.int64)
        usable = (block >= 0).all(axis=1)
        store.facts["left_out"] += int((~usable).sum())
        blocks.append(block[usable])
    return np.concatenate(blocks)


def _once(triples: np.ndarray, in_order: bool) -> np.ndarray:
    """Different triples, each where it is first: in their own order, or in that of their rows."""
    _, first = np.unique(triples[:, :3], axis=0, return_index=True)
    return triples[first if in_order else np.sort(first)]


def _held_out(triples: np.ndarray, share: float, validated: float) -> dict[str, np.ndarray]:
    """Random shares of the triples for testing and validation, always the same."""
    order = np.random.default_rng(SEED).permutation(len(triples))
    test = round(share * len(triples))
    validation = test + round(validated * (len(triples) - test))
    parts = {"test": order[:test], "validation": order[test:validation]}
    parts["train"] = order[validation:]
    return {name: triples[np.sort(rows)] for name, rows in parts.items()}


def _points(entry: Entry, part: str) -> Points:
    queries, labels = (entry.arrays[f"{part}_{name}"] for name in ("queries", "labels"))
    entities, relations = entry.facts["entities"], entry.facts["relations"]
    known = None
    if part == "train":
        order = queries.argsort(stable=True)
        queries, numbers = queries[order].unique_consecutive(return_counts=True)
        labels = Ragged(labels[order], torch.cat([torch.zeros(1).long(), numbers.cumsum(0)]))
    else:
        known = _known(entry, queries)
        labels = Ragged(labels, torch.arange(len(queries) + 1))
    columns = torch.stack([queries // relations, entities + queries % relations], dim=1)
    offsets = torch.arange(len(queries) + 1) * 2
    bag = Bag(offsets, columns.flatten().int(), torch.ones(2 * len(queries)), entities + relations)
    rows = None if part == "train" else entry.arrays[f"{part}_rows"]
    return Points(bag, labels, entities, rows=rows, known=known)


def _known(entry: Entry, queries: Tensor) -> Ragged:
    """All tails of each of these queries, in any part."""
    everywhere = torch.cat([entry.arrays[f"{part}_queries"] for part in PARTS])
    tails = torch.cat([entry.arrays[f"{part}_labels"] for part in PARTS]).long()
    pairs = torch.unique(torch.stack([everywhere, tails]), dim=1)
    begin = torch.searchsorted(pairs[0].contiguous(), queries)
    number = torch.searchsorted(pairs[0].contiguous(), queries, right=True) - begin
    offsets = torch.cat([torch.zeros(1).long(), number.cumsum(0)])
    steps = torch.arange(int(offsets[-1])) - offsets[:-1].repeat_interleave(number)
    return Ragged(pairs[1][begin.repeat_interleave(number) + steps].int(), offsets)


def _repeated_elsewhere(entry: Entry) -> int:
    """How many test and validation triples repeat another."""
    return sum(number for name, number in entry.facts["repeated"].items() if name != "train")


def _notes(entry: Entry, holdout: float | None, validated: bool) -> list[str]:
    notes = []
    if holdout is not None:
        others = f", {VALIDATION:.0%} of the others for validation"
        given = "; the validation part is given" if validated else others
        notes.append(f"Split at random: {holdout:.0%} of the triples are for testing{given}.")
    if left_out := entry.facts["left_out"]:
        notes.append(
            f"{left_out:,} test or validation triples have an entity or a relation that never "
            "occurs in training and are left out."
        )
    repeated = {
        "training": entry.facts["repeated"]["train"],
        "test or validation": _repeated_elsewhere(entry),
    }
    for part, number in repeated.items():
        if number:
            notes.append(f"{number:,} {part} triples repeat another and count once.")
    return notes
