"""How often each value of a column occurs: counted block by block, in files, and added up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headtail.data.processes import Report
from headtail.data.tables.arrow_types import is_list
from headtail.data.tables.columns import Columns
from headtail.data.tables.vocabulary import Vocabulary


def write_tally(path: Path, values: pa.Array) -> np.ndarray:
    """Write the different values of a block, and how often each occurs.

    Returns:
        `[n]` int32: for each value, which of the different ones it is.
    """
    encoded = values.dictionary_encode()
    codes = encoded.indices.to_numpy()
    names = encoded.dictionary
    counts = pa.array(np.bincount(codes, minlength=len(names)).astype(np.int32))
    batch = pa.record_batch([names, counts], ["name", "count"])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    return codes


class ColumnPiece(NamedTuple):
    """A piece of a table, of which one process counts a column.

    Attributes:
        columns: the piece.
        column: of values, or of lists of values.
        path: of the files to write, without their endings.
    """

    columns: Columns
    column: str
    path: Path


def tally_column(piece: ColumnPiece, report: Report) -> list[Path]:
    """Write tallies of a piece, block by block."""
    columns, column, path = piece
    written: list[Path] = []
    for first, batch in columns.read([column], lambda _, share: report(share)):
        array = batch.column(column)
        if is_list(array.type):
            values, _ = columns.ragged_ids(array, column, first)
        else:
            values = columns.ids(array, column, first)
        if len(values):
            written.append(path.with_suffix(f".{len(written)}"))
            write_tally(written[-1], values)
    return written


def add_up(paths: Sequence[Path]) -> tuple[Vocabulary, np.ndarray]:
    """Add up the blocks that `write_tally` wrote.

    The names of blocks are hashed once, all in one table; they stay in files, so that memory holds
    the different names of all blocks, and four bytes for each name of each block. Each block's file
    is replaced by one with the ids of its names, which `ids_of` reads.

    Args:
        paths: of the blocks, one or more, with values of one type.

    Returns:
        All names, sorted, and `[L]` how often each occurs.
    """
    blocks = [pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0) for path in paths]
    encoded = pa.chunked_array([block.column("name") for block in blocks]).dictionary_encode()
    names = encoded.chunk(0).dictionary
    order = pc.array_sort_indices(names).to_numpy()  # pyright: ignore[reportAttributeAccessIssue]
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    counts = np.zeros(len(order), np.int64)
    for path, block, chunk in zip(paths, blocks, encoded.chunks, strict=True):
        ids = rank[chunk.indices.to_numpy()]
        counts[ids] += block.column("count").to_numpy()  # a block has each name once
        path.unlink()
        ids.tofile(path)
    return Vocabulary(names.take(pa.array(order))), counts


def ids_of(path: Path) -> np.ndarray:
    """`[names of the block]` int32: their ids, after `add_up`."""
    return np.fromfile(path, np.int32)
