"""The best labels of all ranks, from the best of each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from headtail.answers.scored_table import ScoredTable
from headtail.answers.topk import best_labels
from headtail.collectives.gather import gather_rows
from headtail.collectives.ranks import Ranks
from headtail.core.listed import Listed
from headtail.core.placement import Share
from headtail.core.topk import TopK, better, without_excluded


def best_of_all(
    table: ScoredTable,
    share: Share,
    hidden: Float[Tensor, "b d"],
    k: int,
    excluded: Listed | None,
    ranks: Ranks,
) -> TopK:
    """The k best labels of this rank's hidden states: each rank finds its own k best for the hidden
    states of all, and these are merged.

    Args:
        table: this rank's labels.
        share: which rows they are.
        hidden: `[b, d]` of this rank.
        k: at most L.
        excluded: labels that must not be returned, by example.
        ranks: who must all call it.
    """
    number = 0 if excluded is None else len(excluded.row)
    numbers = ranks.numbers([len(hidden), number, excluded is not None], hidden.device)
    sizes, excluding, asked = (list(column) for column in zip(*numbers, strict=True))
    first = sum(sizes[: ranks.rank])
    everyone = gather_rows(hidden.detach(), ranks, sizes)
    joint = _of_all(excluded, hidden, ranks, excluding, first) if any(asked) else None
    best = _own_best(table, share, everyone, k, joint)
    values = ranks.gather(best.values)
    indices = ranks.gather(best.indices)
    own = slice(first, first + len(hidden))
    merged = TopK(values[0, own], indices[0, own])
    for rank in range(1, ranks.size):
        merged = better(merged, TopK(values[rank, own], indices[rank, own]), k)
    return merged if excluded is None else without_excluded(merged)


def _own_best(
    table: ScoredTable, share: Share, hidden: Tensor, k: int, excluded: Listed | None
) -> TopK:
    """The k best labels of this rank; where it has fewer, the rest has the value −∞."""
    own = None
    if excluded is not None:
        places = share.places(excluded.label)
        here = share.holds(places)
        own = Listed(excluded.row[here], places[here])
    few = min(k, len(table))
    if not few:
        rest = hidden.new_full((len(hidden), k), -torch.inf, dtype=torch.float32)
        return TopK(rest, torch.zeros_like(rest, dtype=torch.int64))
    best = best_labels(table, hidden, few, own)
    labels = share.labels(best.indices.clamp(min=0))
    values = F.pad(best.values, (0, k - few), value=-torch.inf)
    return TopK(values, F.pad(labels, (0, k - few)))


def _of_all(
    own: Listed | None, hidden: Tensor, ranks: Ranks, sizes: list[int], first: int
) -> Listed:
    """The excluded pairs of all ranks, with rows of the joint batch."""
    if own is None:
        pairs = torch.zeros(0, 2, dtype=torch.int64, device=hidden.device)
    else:
        pairs = torch.stack([own.row + first, own.label], 1)
    row, label = gather_rows(pairs, ranks, sizes).unbind(1)
    return Listed(row, label)
