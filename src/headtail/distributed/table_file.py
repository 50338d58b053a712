"""A sharded table to and from one safetensors file in the order of labels, as `LabelHead` has it.

No rank holds the table twice: blocks of labels are put together on rank 0 and written, and each
rank reads its own rows where the file lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headtail.collectives.ranks import Ranks
from headtail.distributed.sharded_head import ShardedLabelHead
from headtail.distributed.together import beside, everywhere
from headtail.errors import HeadtailError, cannot_read, check_kind
from headtail.files.streamed import Piece, as_bytes_of, blocks_of, mapped, pieces_in
from headtail.files.tensors import check_content, stream_tensors
from headtail.rows.decay import flush, forgive

BLOCK = 2**22
"""Bytes of a table that are put together, or read, at a time; messages need a few times as many."""


def export_table(head: ShardedLabelHead, path: str | Path) -> None:
    """Write the whole table to one safetensors file, which `LabelHead` can load.

    Row y of `weight` `[L, d]` and `bias` `[L, 1]` is label y. Pending weight decay is applied
    first. Every rank must call it; rank 0 writes, a few thousand labels at a time.

    Args:
        head: the table.
        path: the file, which is replaced once the new one is whole.
    """
    check_kind("head", head, ShardedLabelHead, "ShardedLabelHead(labels, dim, loss)")
    flush(head)
    facts = {"labels": head.labels.num_labels, "dim": head.dim}
    export_rows(head, Path(path), _tables(head), lambda: ({}, facts))


def export_rows(
    head: ShardedLabelHead,
    path: Path,
    tables: dict[str, Tensor],
    others: Callable[[], tuple[dict[str, Tensor], dict[str, Any]]],
) -> None:
    """Write rows of all ranks in the order of labels, and what rank 0 has beside them, to one file,
    as `save_tensors` would write it. Every rank must call it.

    Args:
        head: whose labels have these rows.
        path: the file.
        tables: `[n, …]` this rank's rows of each table, by its name in the file.
        others: whole tensors, which are not copied, and facts; only rank 0 calls it.
    """
    beside(head.ranks).finish()
    tables = dict(sorted(tables.items()))
    gathered = (block for rows in tables.values() for block in _in_label_order(head, rows))
    if head.ranks.rank:
        for _ in gathered:
            pass
    everywhere(head.ranks, lambda: head.ranks.rank or _write(path, head, tables, others, gathered))


def import_table(head: ShardedLabelHead, path: str | Path) -> None:
    """Load the table of a safetensors file with `weight` `[L, d]` and `bias` `[L, 1]`, each rank
    its own rows.

    Every rank must call it. A file of headtail is compared with its checksum first.

    Args:
        head: the table; pending weight decay of its old rows is dropped.
        path: of a file that `export_table` made, or that holds the state of a `LabelHead`.
    """
    check_kind("head", head, ShardedLabelHead, "ShardedLabelHead(labels, dim, loss)")
    import_rows(head, Path(path), _tables(head))


def import_rows(
    head: ShardedLabelHead,
    path: Path,
    tables: dict[str, Tensor],
    others: dict[str, Tensor] | None = None,
) -> None:
    """Read this rank's rows, and tensors that every rank has whole, from a file where it lies.
    Every rank must call it; rank 0 compares the file with its checksum.

    Args:
        head: whose labels have these rows.
        path: the file.
        tables: `[n, …]` this rank's rows of each table, by its name in the file, to be replaced;
            pending weight decay is dropped.
        others: whole tensors to be replaced, by their names in the file.
    """
    beside(head.ranks).finish()
    others = {} if others is None else others
    labels = head.labels.num_labels
    shapes = {name: (labels, *rows.shape[1:]) for name, rows in tables.items()}
    shapes |= {name: tuple(tensor.shape) for name, tensor in others.items()}
    files = everywhere(head.ranks, lambda: _examined(path, shapes, head.ranks.rank == 0))
    with torch.no_grad():
        for name, rows in tables.items():
            _read_own(head, rows, files[name])
            forgive(rows)
        for name, tensor in others.items():
            tensor.copy_(files[name])
            forgive(tensor)


def _tables(head: ShardedLabelHead) -> dict[str, Tensor]:
    """In the order of their names, which is that of checksums."""
    tables: dict[str, Tensor] = {} if head.bias is None else {"bias": head.bias}
    return tables | {"weight": head.weight}


def _label_blocks(head: ShardedLabelHead, table: Tensor) -> Iterator[Tensor]:
    """All labels, as many at a time as fit a block."""
    width = table[0].numel() * table.dtype.itemsize
    step = max(1, BLOCK // width)
    total = head.labels.num_labels
    for start in range(0, total, step):
        yield torch.arange(start, min(start + step, total))


def _in_label_order(head: ShardedLabelHead, table: Tensor) -> Iterator[Tensor]:
    """Blocks of the table on rank 0; on other ranks, which only send their rows, empty ones."""
    ranks = head.ranks
    group = beside(ranks).group
    place = Ranks.of(group).meeting_place(torch.device("cpu"))
    run = len(head.placement.share(0, ranks.size))
    for labels in _label_blocks(head, table):
        owner = head.placement.rows(labels) // run
        counts = torch.bincount(owner, minlength=ranks.size).tolist()
        places = head.share.places(labels[owner == ranks.rank])
        sent = torch.zeros(max(counts), *table.shape[1:], dtype=table.dtype)
        sent[: len(places)] = table.detach()[places.to(table.device)].cpu()
        # As bytes: not every backend sends every type of numbers.
        sent = sent.view(torch.uint8).to(place)
        if ranks.rank:
            dist.gather(sent, group=group, group_dst=0)
            yield table.new_empty(0)
            continue
        parts = [torch.empty_like(sent) for _ in range(ranks.size)]
        dist.gather(sent, parts, group=group, group_dst=0)
        block = torch.empty(len(labels), *table.shape[1:], dtype=table.dtype)
        for rank, (part, count) in enumerate(zip(parts, counts, strict=True)):
            block[owner == rank] = part.cpu().view(table.dtype)[:count]
        yield block


def _write(
    path: Path,
    head: ShardedLabelHead,
    tables: dict[str, Tensor],
    others: Callable[[], tuple[dict[str, Tensor], dict[str, Any]]],
    gathered: Iterator[Tensor],
) -> None:
    """Write the blocks of all ranks; if that fails, still take the others, which ranks send."""
    try:
        whole, facts = others()
        labels = head.labels.num_labels
        pieces = {name: Piece(t.dtype, tuple(t.shape)) for name, t in whole.items()}
        pieces |= {name: Piece(t.dtype, (labels, *t.shape[1:])) for name, t in tables.items()}

        def blocks(name: str) -> Iterator[memoryview]:
            if name in whole:
                yield from blocks_of(whole[name])
                return
            left = labels
            while left:
                block = next(gathered)
                left -= len(block)
                yield as_bytes_of(block)

        stream_tensors(path, pieces, blocks, facts)
    finally:
        for _ in gathered:
            pass


def _examined(path: Path, shapes: dict[str, tuple[int, ...]], whole: bool) -> dict[str, Tensor]:
    """Tensors of a file, mapped into memory; one that does not fit is refused.

    Args:
        path: the file.
        shapes: of the tensors that are wanted.
        whole: whether to compare the whole file with its checksum.
    """
    advice = "Export it again with `headtail.distributed.export_table`."
    try:
        pieces = pieces_in(path)
        if whole:
            check_content(path, {name: mapped(path, *piece) for name, piece in pieces.items()})
        for name, wanted in shapes.items():
            shape = pieces[name][0].shape if name in pieces else None
            if shape != wanted:
                has = "is missing" if shape is None else f"has the shape {list(shape)}"
                raise HeadtailError(
                    f"`{path}` does not fit the head: `{name}` {has}, but should have "
                    f"{list(wanted)}. Load the table of a head of as many labels."
                )
        files = {name: mapped(path, *pieces[name]) for name in shapes}
    except FileNotFoundError as error:
        raise HeadtailError(f"There is no file `{path}`. {advice}") from error
    except OSError as error:
        raise cannot_read(path, error) from error
    except ValueError as error:
        raise HeadtailError(f"`{path}` cannot be read as a table: {error}. {advice}") from error
    return files


def _read_own(head: ShardedLabelHead, table: Tensor, file: Tensor) -> None:
    """Copy this rank's rows from a file that is mapped into memory, in the file's order."""
    for labels in _label_blocks(head, table):
        places = head.share.own_places(labels)
        own = places >= 0
        rows = file[labels[own]].to(table.device, table.dtype)
        table[places[own].to(table.device)] = rows
