"""Label counts from a file."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from headtail.core.labels import Labels
from headtail.data.cache import Store, cached
from headtail.data.guarded import fragile_files, read_in_child_first
from headtail.data.limits import check_limits
from headtail.data.packed import MAX_EXPANSION
from headtail.data.progress import Progress
from headtail.data.readers.npz_files import npy_array
from headtail.data.reading import Reading
from headtail.errors import HeadtailError, Setting, check_exists, need
from headtail.files.cache_folder import cache_folder
from headtail.files.regular import named_in_utf8

if TYPE_CHECKING:
    import pyarrow as pa

Counted: TypeAlias = tuple[np.ndarray, list[str] | None]
"""Counts, and the names of labels that are not ids."""

ROWS = 1 << 20
"""Rows of a piece of a table that is counted in one process."""


def read_counts(
    path: Path,
    smoothing: float = 0.0,
    *,
    max_memory: float | None = None,
    max_seconds: float | None = None,
) -> Labels:
    """Read how often each label occurs, from a `.npy` array, text or Parquet.

    Text has one number per line, label 0 first, or `label,count` lines; labels that are ids may
    then come in any order. A first line without a number is a header. A `.parquet` file has a
    column `count`, and may have a column `label`. Labels that are not ids are the names.

    Args:
        path: of the file.
        smoothing: pseudo-count added to every label in the prior.
        max_memory: GiB that the process that reads Parquet first may take; see `load`.
        max_seconds: seconds that it may take.
    """
    reading = Reading(max_memory=max_memory, max_seconds=max_seconds)
    check_limits(reading)
    if not path.is_file():
        raise HeadtailError(
            f"`{path}` is not a file of counts. Write a `.npy` array or a text file with one count "
            "per line."
        )
    read = {".npy": _from_npy, ".parquet": _from_parquet}.get(path.suffix, _from_text)
    if read is _from_parquet:
        work = partial(_check_parquet, path)
        read_in_child_first(work, fragile_files([path]), reading, purpose="read counts")
    counts, names = read(path)
    try:
        return Labels.from_counts(counts, smoothing, names)
    except HeadtailError as error:
        raise HeadtailError(f"{path}: ", error.sentence) from error


def count_labels(
    path: Path | str,
    column: str | None = None,
    smoothing: float = 0.0,
    progress: Progress | None = None,
    *,
    max_memory: float | None = None,
    max_seconds: float | None = None,
    max_expansion: float = MAX_EXPANSION,
) -> Labels:
    """Count the labels in a column of a table of any size: a file, or a folder of shards.

    The table is read in pieces, in several processes if it is large. Memory holds the names of the
    labels, not the rows; the counts are exact.

    Args:
        path: of the table, in any format that `load` reads; of a folder, all tables are counted.
        column: of labels, or of lists of labels; by default the column that is called so, or else
            that of items.
        smoothing: pseudo-count added to every label in the prior.
        progress: called with what is done and how much of it.
        max_memory: GiB that the process that reads Parquet, Arrow, Feather and zstd files first may
            take; see `load`.
        max_seconds: seconds that it may take.
        max_expansion: how many times its own size a compressed file may become; see `load`.

    Returns:
        Labels with their names, sorted.
    """
    path = check_exists(Path(path))
    reading = Reading(max_memory=max_memory, max_seconds=max_seconds, max_expansion=max_expansion)
    check_limits(reading)
    need("pyarrow", extra="data", to="Reading tables")
    fragile = fragile_files([path])
    # What a child has counted is in the cache; other tables are not worth a copy there.
    count = _count_once if fragile else _count_column
    work = partial(count, path, column, reading)
    read_in_child_first(work, fragile, reading, progress, purpose=f"count {column or ''}")
    counts, names = work(progress)
    return Labels.from_counts(counts, smoothing, names.to_pylist())


def _count_once(
    path: Path, column: str | None, reading: Reading, progress: Progress | None
) -> tuple[np.ndarray, pa.Array]:
    """`_count_column`, the second time from the cache."""
    from headtail.data.tables.open import open_table
    from headtail.data.tables.vocabulary import save_ids, saved_ids

    def build(store: Store) -> None:
        counts, names = _count_column(path, column, reading, progress)
        store.append("counts", counts)
        save_ids(store, "names", names)

    recipe = {"reader": "label counts", "column": column}
    entry = cached([open_table(path, reading)], recipe, build)
    names = saved_ids(entry, "names")
    assert names is not None, "an entry without names is not written"
    return entry.arrays["counts"].numpy(), names


def _count_column(
    path: Path, column: str | None, reading: Reading, progress: Progress | None
) -> tuple[np.ndarray, pa.Array]:
    from headtail.data.processes import Processes, processes_for
    from headtail.data.tables.columns import Columns
    from headtail.data.tables.tally import ColumnPiece, add_up, tally_column

    columns = Columns.of(path, reading=reading)
    chosen = column or columns.roles.label or columns.lists or columns.item
    if chosen not in columns.names:
        wrong = "none of them is one of labels" if column is None else f"none is called `{column}`"
        raise HeadtailError(
            f"`{path}` has the columns {columns.listed}, and {wrong}. Name the column of labels "
            "with ",
            Setting("column"),
            ".",
        )
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".counts.") as folder:
        tables = columns.table.pieces(ROWS)
        pieces = [
            ColumnPiece(replace(columns, table=table), chosen, Path(folder) / str(number))
            for number, table in enumerate(tables)
        ]
        with Processes(processes_for([columns.table.rows], len(pieces))) as processes:
            report = progress and partial(progress, f"counting {chosen}")
            counted = processes.map(tally_column, pieces, report)
        written = [path for of_piece in counted for path in of_piece]
        if not written:
            raise HeadtailError(f"`{path}`, column `{chosen}` holds no label.")
        names, counts = add_up(written)
    return counts, names.names


def _from_npy(path: Path) -> Counted:
    try:
        counts = npy_array(path)
    except HeadtailError as error:
        raise HeadtailError(
            f"{path} is not a readable `.npy` array of numbers. Save it with `numpy.save(path, "
            "counts)`."
        ) from error
    if counts.dtype.kind not in "iuf":
        raise HeadtailError(
            f"{path} holds {counts.dtype}, not numbers. Save an integer array of counts."
        )
    if counts.ndim != 1:
        raise HeadtailError(
            f"{path} holds an array of shape {list(counts.shape)}. Save one count per label."
        )
    return counts if counts.dtype.kind in "iu" else counts.astype(np.float64), None


def _check_parquet(path: Path, _: Progress | None) -> None:
    _from_parquet(path)


def _from_parquet(path: Path) -> Counted:
    need("pyarrow", extra="data", to="Reading Parquet files")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(named_in_utf8(path))
    except (pa.ArrowException, OSError) as error:
        raise HeadtailError(
            f"{path} is not a readable Parquet file; it may be cut short. Write or copy it again."
        ) from error
    names = table.column_names
    if names.count("count") > 1 or names.count("label") > 1:
        raise HeadtailError(f"{path} has two columns of the same name. Rename one of them.")
    column = "count" if "count" in names else names[0] if len(names) == 1 else None
    kind = None if column is None else table.schema.field(column).type
    if kind is None or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        held = ", ".join(f"{field.name} ({field.type})" for field in table.schema)
        raise HeadtailError(
            f"{path} holds {held}, but needs a column `count` of numbers, and may have a column "
            "`label`."
        )
    if table[column].null_count or ("label" in names and table["label"].null_count):
        raise HeadtailError(
            f"{path} has rows without a count or without a label. Drop them, or write 0."
        )
    labels = [str(name) for name in table["label"].to_pylist()] if "label" in names else []
    counts = table[column].to_numpy()
    return _in_label_order(
        path, labels, counts.astype(np.int64 if counts.dtype.kind in "iu" else np.float64)
    )


def _from_text(path: Path) -> Counted:
    names: list[str] = []
    counts: list[float] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                fields = line.replace(",", " ").replace("\t", " ").split()
                if not fields:
                    continue
                if len(fields) > 2:
                    raise HeadtailError(
                        f"{path}, line {number}: expected a count, or a label and its count, but "
                        f"found {len(fields)} fields."
                    )
                try:
                    counts.append(float(fields[-1]))
                except ValueError as error:
                    if number == 1:  # a header
                        continue
                    raise HeadtailError(
                        f"{path}, line {number}: expected a count, but found {fields[-1][:40]!r}."
                    ) from error
                names += fields[:-1]
    except UnicodeDecodeError as error:
        raise HeadtailError(
            f"{path} is not text. Write one count per line, or save an array with `numpy.save`."
        ) from error
    if not counts:
        raise HeadtailError(f"{path} holds no counts. Write one number per line, label 0 first.")
    array, named = _in_label_order(path, names, np.array(counts))
    whole = np.isfinite(array).all() and (array == np.round(array)).all()
    return array.astype(np.int64) if whole else array, named


def _in_label_order(path: Path, names: list[str], counts: np.ndarray) -> Counted:
    """Counts by label id where labels are ids; labels with other names keep the file's order."""
    if not names:
        return counts, None
    if not all(name.isascii() and name.isdigit() and len(name) < 19 for name in names):
        return counts, names
    ids = np.array([int(name) for name in names])
    if len(ids) != len(counts) or not np.array_equal(np.sort(ids), np.arange(len(counts))):
        raise HeadtailError(
            f"{path}: in `label,count` lines, each label id from 0 to {len(counts) - 1} must occur "
            "once."
        )
    ordered = np.empty_like(counts)
    ordered[ids] = counts
    return ordered, None
