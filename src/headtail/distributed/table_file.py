"""A sharded table to and from one safetensors file in the order of labels, as `LabelHead` has it.

No rank holds the table twice: blocks of labels are put together on rank 0 and written, and each
rank reads its own rows where the file lies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headtail.collectives.ranks import Ranks
from headtail.distributed.sharded_head import ShardedLabelHead
from headtail.distributed.together import beside, everywhere
from headtail.errors import HeadtailError, cannot_read, check_kind
from headtail.files.atomic import replace_file
from headtail.files.checksums import new_checksum
from headtail.files.streamed import (
    Piece,
    as_bytes_of,
    header_of,
    mapped,
    pieces_in,
    write_stream,
)
from headtail.files.tensors import check_content, facts_entry, put_checksum
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
    group = beside(head.ranks)
    group.finish()
    flush(head)
    tables = _tables(head)
    gathered = (block for table in tables.values() for block in _in_label_order(head, table))
    if head.ranks.rank:
        for _ in gathered:
            pass
    everywhere(head.ranks, lambda: head.ranks.rank or _write(Path(path), head, gathered))


def import_table(head: ShardedLabelHead, path: str | Path) -> None:
    """Load the table of a safetensors file with `weight` `[L, d]` and `bias` `[L, 1]`, each rank
    its own rows.

    Every rank must call it. A file of headtail is compared with its checksum first.

    Args:
        head: the table; pending weight decay of its old rows is dropped.
        path: of a file that `export_table` made, or that holds the state of a `LabelHead`.
    """
    check_kind("head", head, ShardedLabelHead, "ShardedLabelHead(labels, dim, loss)")
    beside(head.ranks).finish()
    path = Path(path)
    files = everywhere(head.ranks, lambda: _examined(path, head))
    with torch.no_grad():
        for name, table in _tables(head).items():
            _read_own(head, table, files[name])
            forgive(table)


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


def _write(path: Path, head: ShardedLabelHead, gathered: Iterator[Tensor]) -> None:
    """Write the blocks of all ranks; if that fails, still take the others, which ranks send."""
    try:
        replace_file(path, lambda temporary: _write_blocks(temporary, head, gathered))
    finally:
        for _ in gathered:
            pass


def _write_blocks(path: Path, head: ShardedLabelHead, gathered: Iterator[Tensor]) -> None:
    labels = head.labels.num_labels
    pieces = {
        name: Piece(table.dtype, (labels, *table.shape[1:]))
        for name, table in _tables(head).items()
    }
    facts = {"labels": labels, "dim": head.dim}
    begin, _ = header_of(pieces, {"facts": facts_entry(facts)})
    checksum = new_checksum()

    def blocks() -> Iterator[memoryview]:
        for name, piece in pieces.items():
            checksum.update(json.dumps([name, str(piece.dtype), list(piece.shape)]).encode())
            left = piece.shape[0]
            while left:
                block = next(gathered)
                left -= len(block)
                content = as_bytes_of(block)
                checksum.update(content)
                yield content

    write_stream(path, begin, blocks(), _NoChecksum())
    put_checksum(path, facts, checksum.hexdigest())


class _NoChecksum:
    """In place of a checksum of the whole file, which is not needed here."""

    def update(self, block: Any) -> None:
        """Nothing."""


def _examined(path: Path, head: ShardedLabelHead) -> dict[str, Tensor]:
    """The tables of a file, mapped into memory; one that does not fit is refused."""
    advice = "Export it again with `headtail.distributed.export_table`."
    try:
        pieces = pieces_in(path)
        if head.ranks.rank == 0:
            check_content(path, {name: mapped(path, *piece) for name, piece in pieces.items()})
        files = {}
        for name, table in _tables(head).items():
            wanted = (head.labels.num_labels, *table.shape[1:])
            shape = pieces[name][0].shape if name in pieces else None
            if shape != wanted:
                has = "is missing" if shape is None else f"has the shape {list(shape)}"
                raise HeadtailError(
                    f"`{path}` does not fit the head: `{name}` {has}, but should have "
                    f"{list(wanted)}. Load the table of a head of as many labels."
                )
            files[name] = mapped(path, *pieces[name])
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
        places = head.share.places(labels)
        own = head.share.holds(places)
        rows = file[labels[own]].to(table.device, table.dtype)
        table[places[own].to(table.device)] = rows
