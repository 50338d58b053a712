"""The best labels of all ranks, from the best of each."""

from __future__ import annotations

from dataclasses import dataclass
from types import EllipsisType

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from headtail.answers.candidates import best_of
from headtail.answers.scored_table import ScoredTable
from headtail.answers.topk import best_labels
from headtail.collectives.gather import gather_rows
from headtail.collectives.ranks import Ranks
from headtail.core.listed import Listed
from headtail.core.placement import Share
from headtail.core.topk import TopK, better, without_excluded
from headtail.distributed.same_call import (
    Facts,
    digest_of_facts,
    facts_of_states,
    refuse_unlike,
)
from headtail.rows.decay import catch_up
from headtail.rows.rounding import widened


@dataclass(frozen=True, eq=False)
class Asked:
    """What one rank asks for.

    Attributes:
        hidden: `[b, d]`.
        k: at most L, and the same on all ranks.
        excluded: labels that must not be returned, by example; or None.
        candidates: labels to choose from, the same for all examples or listed for each; None for
            all labels.
    """

    hidden: Float[Tensor, "b d"]
    k: int
    excluded: Listed | None = None
    candidates: Int64[Tensor, " c"] | Listed | None = None


def best_of_all(table: ScoredTable, share: Share, asked: Asked, ranks: Ranks) -> TopK:
    """The k best labels of this rank's hidden states: each rank finds its own k best for the hidden
    states of all, and these are merged.

    Args:
        table: this rank's labels; rows that are read get their weight decay first.
        share: which rows they are.
        asked: by this rank.
        ranks: who must all call it.
    """
    everyone = _of_all(asked, ranks, _facts(table, asked))
    if any(other.candidates is not None for other in everyone):
        parts = [_own_best(table, share, other) for other in everyone]
    else:
        parts = [_own_best(table, share, _joined(everyone))]
    values = ranks.gather(torch.cat([part.values for part in parts]))
    indices = ranks.gather(torch.cat([part.indices for part in parts]))
    first = sum(len(other.hidden) for other in everyone[: ranks.rank])
    own = slice(first, first + len(asked.hidden))
    merged = TopK(values[0, own], indices[0, own])
    for rank in range(1, ranks.size):
        merged = better(merged, TopK(values[rank, own], indices[rank, own]), asked.k)
    some = asked.excluded is not None or asked.candidates is not None
    return without_excluded(merged) if some else merged


def _own_best(table: ScoredTable, share: Share, asked: Asked) -> TopK:
    """The k best labels of this rank; where it has fewer, the rest has the value −∞."""
    k = asked.k
    excluded = None if asked.excluded is None else _own_pairs(asked.excluded, share)
    chosen = asked.candidates
    few = min(k, len(table))
    if isinstance(chosen, Listed):
        chosen = _own_pairs(chosen, share)
        _catch_up(table, chosen.label.unique())
        best = best_of(table, asked.hidden, k, chosen, excluded)
    elif chosen is not None:
        places = share.own_places(chosen)
        places = places[places >= 0].sort().values
        _catch_up(table, places)
        best = best_of(table, asked.hidden, k, places, excluded)
    elif few:
        _catch_up(table, ...)
        best = best_labels(table, asked.hidden, few, excluded)
    else:
        best = TopK(asked.hidden[:, :0], torch.zeros_like(asked.hidden[:, :0], dtype=torch.int64))
    missing = (0, k - best.values.shape[1])
    labels = share.labels(best.indices.clamp(min=0))
    values = F.pad(widened(best.values), missing, value=-torch.inf)
    return TopK(values, F.pad(labels, missing))


def _catch_up(table: ScoredTable, places: Tensor | EllipsisType) -> None:
    for rows in (table.weight, table.bias):
        if rows is not None:
            catch_up(rows, places)


def _own_pairs(pairs: Listed, share: Share) -> Listed:
    """Pairs with labels of this rank, by their places."""
    places = share.own_places(pairs.label)
    here = places >= 0
    return Listed(pairs.row[here], places[here])


def _facts(table: ScoredTable, asked: Asked) -> Facts:
    """What all ranks must ask for alike."""
    alike = {"`k`": f"{asked.k}", "`post_hoc`": f"{float(table.post_hoc)}"}
    return alike | facts_of_states(asked.hidden)


def _of_all(asked: Asked, ranks: Ranks, facts: Facts) -> list[Asked]:
    """What each rank asks for.

    Args:
        asked: by this rank.
        ranks: who must all call it.
        facts: what they must ask for alike.
    """
    device = asked.hidden.device
    lists = [_columns(asked.excluded, device), _columns(asked.candidates, device)]
    kinds = [_kind(asked.excluded), _kind(asked.candidates)]
    own = [digest_of_facts(facts), len(asked.hidden), *map(len, lists), *kinds]
    digests, sizes, *lengths = map(list, zip(*ranks.numbers(own, device), strict=True))
    if len(set(digests)) > 1:
        refuse_unlike(ranks, "`topk`", facts)
    hidden = gather_rows(asked.hidden.detach(), ranks, sizes).split(sizes)
    columns = [
        gather_rows(own, ranks, length).split(length) if any(length) else [own[:0]] * ranks.size
        for own, length in zip(lists, lengths[:2], strict=True)
    ]
    return [
        Asked(
            hidden[rank],
            asked.k,
            *(_uncolumned(columns[i][rank], lengths[2 + i][rank]) for i in range(2)),  # pyright: ignore[reportArgumentType]
        )
        for rank in range(ranks.size)
    ]


NOTHING, SHARED, BY_EXAMPLE = range(3)
"""How labels are listed."""


def _kind(listed: Tensor | Listed | None) -> int:
    if listed is None:
        return NOTHING
    return BY_EXAMPLE if isinstance(listed, Listed) else SHARED


def _columns(listed: Tensor | Listed | None, device: torch.device) -> Int64[Tensor, "n 2"]:
    """As it travels: rows and labels."""
    if listed is None:
        return torch.zeros(0, 2, dtype=torch.int64, device=device)
    if isinstance(listed, Listed):
        return torch.stack([listed.row, listed.label], 1)
    return torch.stack([torch.zeros_like(listed), listed], 1)


def _uncolumned(columns: Tensor, kind: int) -> Tensor | Listed | None:
    """The inverse of `_columns`."""
    if kind == NOTHING:
        return None
    return Listed(columns[:, 0], columns[:, 1]) if kind == BY_EXAMPLE else columns[:, 1]


def _joined(everyone: list[Asked]) -> Asked:
    """The questions of all ranks as one, where all labels are candidates."""
    pairs = []
    first = 0
    for asked in everyone:
        if asked.excluded is not None:
            pairs.append(Listed(asked.excluded.row + first, asked.excluded.label))
        first += len(asked.hidden)
    excluded = None
    if pairs:
        excluded = Listed(torch.cat([p.row for p in pairs]), torch.cat([p.label for p in pairs]))
    return Asked(torch.cat([asked.hidden for asked in everyone]), everyone[0].k, excluded)
