"""Rows that change their rank, because labels were added and every rank holds more of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from headtail.collectives.ranks import Ranks
from headtail.core.placement import Placement, Share

ROWS_AT_ONCE = 2**16
"""Rows that are initialised from one seed, whatever rank holds them."""


def moved_rows(tensor: Tensor, before: Placement, after: Placement, ranks: Ranks) -> Tensor:
    """This rank's rows after a table has grown: those that existed, from whichever rank had them.
    New rows are not among them. Every rank must call it.

    Args:
        tensor: `[n, …]` this rank's rows before.
        before: where rows were.
        after: where they are now.
        ranks: who hold them.
    """
    old = [before.share(rank, ranks.size) for rank in range(ranks.size)]
    new = [after.share(rank, ranks.size) for rank in range(ranks.size)]
    here = ranks.rank
    wanted = [_common(_span(new[here]), _span(share)) for share in old]
    given = [_common(_span(old[here]), _span(share)) for share in new]
    moved = tensor.new_empty(sum(stop - start for start, stop in wanted), *tensor.shape[1:])
    first = new[here].start
    work = []
    group = ranks.group
    for rank in range(ranks.size):
        send = tensor[given[rank][0] - old[here].start : given[rank][1] - old[here].start]
        receive = moved[wanted[rank][0] - first : wanted[rank][1] - first]
        if rank == here:
            receive.copy_(send)
            continue
        if len(send):
            sent = send.contiguous()
            work.append(dist.P2POp(dist.isend, sent, group=group, group_peer=rank))
        if len(receive):
            work.append(dist.P2POp(dist.irecv, receive, group=group, group_peer=rank))
    for waiting in dist.batch_isend_irecv(work) if work else []:
        waiting.wait()
    return moved


def _span(share: Share) -> tuple[int, int]:
    return share.start, share.stop


def _common(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """The rows in both, as an empty run at the start of the first where there are none."""
    start, stop = max(one[0], other[0]), min(one[1], other[1])
    return (start, stop) if start < stop else (one[0], one[0])


def move_table(
    table: Tensor,
    before: Placement,
    after: Placement,
    ranks: Ranks,
    optimizer: torch.optim.Optimizer | None,
    seed: int | None,
) -> None:
    """Give a parameter, which stays the same object, its rows after growing, and its optimiser
    their state.

    Args:
        table: this rank's rows.
        before: where rows were.
        after: where they are now.
        ranks: who hold them.
        optimizer: of the table, or None.
        seed: of new rows; without one, they are 0.
    """
    share = after.share(ranks.rank, ranks.size)
    state = {} if optimizer is None else optimizer.state.get(table, {})
    per_row = {
        name: value
        for name, value in state.items()
        if isinstance(value, Tensor) and value.dim() and len(value) == len(table)
    }
    for name, value in per_row.items():
        assert optimizer is not None
        moved = moved_rows(value, before, after, ranks)
        first = first_value([optimizer], table, name)
        new = value.new_full((len(share) - len(moved), *value.shape[1:]), first)
        state[name] = torch.cat([moved, new])
    moved = moved_rows(table.detach(), before, after, ranks)
    fresh = moved.new_zeros(len(share) - len(moved), *moved.shape[1:])
    if seed is not None:
        fill_rows(fresh, share.stop - len(fresh), seed)
    table.grad = None
    table.set_(torch.cat([moved, fresh]))  # pyright: ignore[reportArgumentType]


def fill_rows(table: Tensor, start: int, seed: int) -> None:
    """Fill rows with random directions of length about 1. The values of a row depend on its number
    and on the seed alone, not on who holds it.

    Args:
        table: `[n, d]` rows, changed in place.
        start: the number of the first of them.
        seed: of the random numbers.
    """
    dim = table.shape[1]
    stop = start + len(table)
    for block in range(start - start % ROWS_AT_ONCE, stop, ROWS_AT_ONCE):
        # torch seeds with 32 bits. An odd factor keeps blocks apart.
        mixed = (seed + block // ROWS_AT_ONCE * 0x9E3779B1) % 2**32
        generator = torch.Generator().manual_seed(mixed)
        rows = torch.randn(ROWS_AT_ONCE, dim, generator=generator, dtype=torch.float32)
        rows = rows[max(start - block, 0) : stop - block] * dim**-0.5
        place = max(block - start, 0)
        table[place : place + len(rows)] = rows.to(table)


def first_value(optimizers: Iterable[torch.optim.Optimizer], table: Tensor, state: str) -> float:
    """What an optimiser's state of new rows begins with: 0, except for Adagrad's sums."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    own = next((g for g in groups if any(p is table for p in g["params"])), {})
    return own.get("initial_accumulator_value", 0.0) if state == "sum" else 0.0
