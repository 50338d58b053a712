"""Sequences of items, as examples prefix → next item."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from headtail.data.cache import Entry, Store, cached, key_of
from headtail.data.points import DataSet, Progress
from headtail.data.readers.item_features import as_named, described_items
from headtail.data.readers.log_sequences import read_log
from headtail.data.readers.sequence_examples import (
    ExampleWriter,
    Sequences,
    are_examples,
    owners_of,
    places,
    points_of,
)
from headtail.data.reading import Reading
from headtail.data.tables.arrow_types import holds_ids
from headtail.data.tables.columns import AT_ONCE, Columns, DataTables, check_same_kind, renamed
from headtail.data.tables.vocabulary import Vocabulary, label_names, save_ids, saved_ids
from headtail.errors import HeadtailError, Setting, check_count

IsTarget: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Which items are targets, by how many are before and behind them in their sequence, and its row.
"""
SEED = 0


def read_tables(tables: DataTables, reading: Reading, progress: Progress | None) -> DataSet:
    """Read tables of sequences as `reading` says: lists of items, or a log of interactions."""
    if tables.train.lists is None and tables.train.is_log:
        return read_log(tables, reading, progress)
    whole = None
    alone = ()
    if tables.test is None and tables.validation is not None:
        tables = tables._replace(test=tables.validation, validation=None)
        alone = ("The validation part is the only test part.",)
    if tables.test is None:
        whole = _held_out_share(tables.train, reading)
    data = read_sequences(
        *tables,
        last=reading.last,
        whole=whole,
        progress=progress,
        described=described_items(reading),
    )
    # Where rows may be examples, the session is what separates users.
    session = ("session",) if tables.train.target else ()
    columns = tables.train.note(("user", *session, "lists", "target"))
    return renamed(replace(data, notes=(data.notes[0], columns, *alone, *data.notes[1:])), tables)


def _held_out_share(columns: Columns, reading: Reading) -> float | None:
    """The share of the sequences that is held out whole; None to leave the last items out."""
    if reading.split == "time":
        raise HeadtailError(
            Setting("split", "time"),
            f" needs a column of times, but `{columns.path}` has lists of items. Choose ",
            Setting("split", "last"),
            " or ",
            Setting("split", "session"),
            ".",
        )
    last = reading.split == "last" or (reading.split == "auto" and not are_examples(columns))
    return None if last else reading.holdout


def read_sequences(
    train: Path | Columns,
    test: Path | Columns | None = None,
    validation: Path | Columns | None = None,
    *,
    last: int = 10,
    whole: float | None = None,
    progress: Progress | None = None,
    at_once: int = AT_ONCE,
    described: pa.Array | None = None,
) -> DataSet:
    """Read sessions or histories from Parquet: a list column `items` (or the only one) of item ids.

    The session [a, b, c] becomes the examples [a] → b and [a, b] → c (`Histories`). Columns and
    labels are the same items, sorted.

    Rows of a file with a column `target` are a prefix and its target. In a test file without one,
    the last item of a list is the target. Without a test file the last item of each sequence is for
    testing, the one before it for validation; a target is then the last item of its sequence. Items
    are those of training. Test rows whose target is unknown or missing, or that have nothing before
    it, are `unlabelled`.

    Args:
        train: Parquet file, or another table.
        test: likewise, or None to leave one out.
        validation: likewise, or None; it is read only beside a test file.
        last: n, how many items before the target a bag looks at.
        whole: without a test file, hold this share of the sequences out as a whole, at random; of
            rows with a target, all rows of a user.
        progress: called with what is being done and the share of it that is done.
        at_once: ids held in memory at once.
        described: items with features, which are labels even if training lacks them.

    >>> folder = getfixture("tmp_path")
    >>> getfixture("monkeypatch").setenv("HEADTAIL_CACHE", str(folder / "cache"))
    >>> import pyarrow.parquet as pq
    >>> pq.write_table(pa.table({"items": [[7, 5, 9]]}), folder / "train.parquet")
    >>> pq.write_table(pa.table({"items": [[5, 7]], "target": [9]}), folder / "test.parquet")
    >>> data = read_sequences(folder / "train.parquet", folder / "test.parquet")
    >>> data.label_names, data.train.labels.values
    ([5, 7, 9], tensor([0, 2], dtype=torch.int32))
    >>> data.test.features.bag().to_dense()
    tensor([[0.5000, 1.0000, 0.0000]])
    """
    last = check_count("last", last)
    paths = (train, test, validation)
    files = [Columns.of(path, at_once) for path in paths if path is not None]
    source = files[0]
    source.need_lists()
    options = {} if whole is None else {"whole": whole}
    options |= {} if described is None else {"items": described.to_pylist()}
    recipe = {"reader": "sequences", "last": last} | options
    build = partial(_build, files, whole, described, progress)
    entry = cached(files, {"reader": "sequences", "with": "histories"} | options, build)
    digest = key_of(files, recipe)  # of what is trained and tested, without what else is kept
    notes = _notes(entry, test is None, whole, source)
    return replace(_data_set(entry, last, test is not None), notes=notes, digest=digest)


def _data_set(entry: Entry, last: int, given: bool) -> DataSet:
    """The parts of the data; `given` says that the test part has a file of its own."""
    numbers = entry.facts["points"]
    users = saved_ids(entry, "users")
    tested, validated = ("test", "validation") if given else ("train", "train")
    validation = unlabelled = None
    if numbers.get("validation"):
        validation = points_of(entry, validated, "validation", last)
    if numbers["unlabelled"]:
        unlabelled = points_of(entry, tested, "unlabelled", last, users)
    return DataSet(
        "sequences",
        points_of(entry, "train", "train", last),
        points_of(entry, tested, "test", last, users),
        validation,
        unlabelled=unlabelled,
        label_names=label_names(entry),
    )


def _build(
    files: list[Columns],
    whole: float | None,
    described: pa.Array | None,
    progress: Progress | None,
    store: Store,
) -> None:
    source, *others = files
    tested = None if whole is None else _tested_rows(source, whole)
    alone = not others and tested is None
    known = Vocabulary.of(_training_items(source, alone, tested, progress))
    if not len(known):
        raise HeadtailError(
            f"`{source.path}` holds no items to train on. Write sequences of 4 items or more, or "
            "pass a test file."
        )
    if described is not None:
        known = Vocabulary.of([known.names, as_named(known.names.type, described)])
    known.save(store)
    store.facts |= {"num_labels": len(known), "points": {}, "unknown": {}, "short": 0}
    if tested is not None:
        every = _target if source.target else _every
        parts = {
            "train": lambda before, behind, row: every(before, behind, row) & ~tested[row],
            "test": lambda before, behind, row: every(before, behind, row) & tested[row],
        }
        _write_parts(source, known, parts, progress, store)
        return
    if not others:
        parts = {"train": _but_last_two, "validation": _last_but_one, "test": _last}
        _write_parts(source, known, parts, progress, store)
        return
    _write_parts(source, known, {"train": _target if source.target else _every}, progress, store)
    for part, held_out in zip(("test", "validation"), others, strict=False):
        rule = _target if held_out.target else _last
        _write_parts(held_out, known, {part: rule}, progress, store)


def _write_parts(
    columns: Columns,
    known: Vocabulary,
    parts: dict[str, IsTarget],
    progress: Progress | None,
    store: Store,
) -> None:
    """Write the parts that a file holds, each with the rule for its targets."""
    tests = "test" in parts
    names = (*parts, "unlabelled") if tests else tuple(parts)
    writer = ExampleWriter(store, names[0], names)
    for sequences in _encoded(columns, known, progress, tests):
        before, behind = places(sequences.offsets)
        row = sequences.row_of(np.arange(len(before)))
        if not columns.target:
            store.facts["short"] += int(((before == 0) & (behind == 0)).sum())
        writer.add(sequences)
        labelled = {
            part: writer.add_examples(
                part, sequences, np.flatnonzero(is_target(before, behind, row))
            )
            for part, is_target in parts.items()
        }
        if tests:
            writer.add_rows("unlabelled", sequences, sequences.row_of(labelled["test"]))
            if sequences.users is not None:
                save_ids(store, "users", sequences.users)
    if "train" in parts and not store.facts["points"]["train"]:
        raise HeadtailError(
            f"`{columns.path}` gives no train example: its sequences are too short, or their "
            "targets unknown."
        )
    if tests and not columns.rows:
        raise HeadtailError(
            f"`{columns.path}` has no rows, so it gives no test example. Write a row per sequence."
        )


def _every(before: np.ndarray, behind: np.ndarray, _: np.ndarray) -> np.ndarray:
    return before > 0


def _target(before: np.ndarray, behind: np.ndarray, _: np.ndarray) -> np.ndarray:
    return behind == 0


def _last(before: np.ndarray, behind: np.ndarray, _: np.ndarray) -> np.ndarray:
    return (before > 0) & (behind == 0)


def _last_but_one(before: np.ndarray, behind: np.ndarray, _: np.ndarray) -> np.ndarray:
    return (before > 0) & (behind == 1)


def _but_last_two(before: np.ndarray, behind: np.ndarray, _: np.ndarray) -> np.ndarray:
    return (before > 0) & (behind > 1)


def _lists(
    columns: Columns, progress: Progress | None, tests: bool = False
) -> Iterator[tuple[pa.Array, np.ndarray, pa.Array | None, int, pa.Array | None]]:
    """Items one list after the other, offsets of the lists, targets where the file has them, the
    first row and, for tests, the users.
    """
    name = columns.need_lists()
    target = columns.target
    user = columns.user if tests else None
    wanted = [column for column in (name, target, user) if column]
    for first, batch in columns.read(wanted, progress):
        items, offsets = columns.ragged_ids(batch.column(name), name, first)
        targets = users = None
        if target:
            or_null = items.type if tests else None
            targets = columns.ids(batch.column(target), target, first, or_null=or_null)
        if user and holds_ids(batch.column(user).type):
            users = columns.ids(batch.column(user), user, first)
        yield items, offsets, targets, first, users


def _tested_rows(source: Columns, share: float) -> np.ndarray:
    """`[n]` which sequences are tested as a whole: always the same. Rows with a target are examples
    that may overlap: those of a user stay together.
    """
    owners = owners_of(source) if source.target else None
    number = source.rows if owners is None else int(owners.max()) + 1
    tested = np.zeros(number, bool)
    held_out = min(max(round(share * number), 1), number - 1)
    tested[np.random.default_rng(SEED).permutation(number)[:held_out]] = True
    return tested if owners is None else tested[owners]


def _training_items(
    source: Columns, alone: bool, tested: np.ndarray | None, progress: Progress | None
) -> Iterator[pa.Array]:
    for items, offsets, targets, first, _ in _lists(source, progress):
        if alone:
            # The last item is tested, the one before it validates; a target is the last one.
            kept = places(offsets)[1] > (1 if targets is None else 0)
            yield items.filter(pa.array(kept))
            continue
        rows = np.ones(len(offsets) - 1, bool)
        if tested is not None:
            rows = ~tested[first : first + len(rows)]
        yield items.filter(pa.array(rows.repeat(np.diff(offsets))))
        if targets is not None:
            check_same_kind(Vocabulary(items), targets, source, source.target or "target")
            yield targets.filter(pa.array(rows))


def _encoded(
    columns: Columns, known: Vocabulary, progress: Progress | None, tests: bool
) -> Iterator[Sequences]:
    for items, offsets, targets, first, users in _lists(columns, progress, tests):
        check_same_kind(known, items, columns, columns.need_lists())
        ids = known.ids(items)
        if targets is not None:
            check_same_kind(known, targets, columns, "target")
            ids = np.insert(ids, offsets[1:], known.ids(targets))
        begins = offsets if targets is None else offsets + np.arange(len(offsets))
        yield Sequences(ids, begins, first, users)


def _notes(entry: Entry, alone: bool, whole: float | None, source: Columns) -> tuple[str, ...]:
    note = "Read as sequences: each item is predicted from those before it"
    if whole is not None:
        owner = "user" if source.user else "session" if source.roles.session else "row"
        held = f"{owner}s" if source.target else "sequences"
        note += f", with {whole:.0%} of the {held}, chosen at random, held out for testing"
    elif alone:
        note += ", with the last item of each sequence for testing and the one before it for "
        note += "validation"
    notes = [f"{note}."]
    for part, unknown in entry.facts["unknown"].items():
        if unknown:
            share = f"{unknown:,} of {unknown + entry.facts['points'][part]:,} {part} examples"
            answered = ", or none: they are answered, but not measured"
            kept = answered if part == "test" else " and are left out"
            notes.append(f"{share} have a target that never occurs in training{kept}.")
    if short := entry.facts["short"]:
        notes.append(
            f"{short:,} sequences have only one item and give no example to train or measure on."
        )
    return tuple(notes)
