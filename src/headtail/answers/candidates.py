"""The exact best of some labels, at a cost that does not depend on the number of all labels."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor
from torch.nn.functional import pad

from headtail.answers.scored_table import ScoredTable
from headtail.answers.topk import BLOCK_SCORES, best_labels
from headtail.core.listed import Listed, PerExample
from headtail.core.targets import Ragged
from headtail.core.topk import TopK
from headtail.errors import check_ids

Candidates: TypeAlias = Int[Tensor, " c"] | Bool[Tensor, " L"] | Sequence[int] | PerExample
"""Labels to choose from: the same for all examples, or listed for each."""


def candidates_of(
    candidates: Candidates, num_rows: int, num_labels: int, device: torch.device
) -> Int64[Tensor, " c"] | Listed:
    """From any form of them, checked: ids that all examples share, distinct and in order, or pairs.

    Args:
        candidates: as the user gave them.
        num_rows: b.
        num_labels: L.
        device: where they go.
    """
    if not isinstance(candidates, Ragged | Tensor) and _are_ids(candidates):
        candidates = torch.tensor([int(label) for label in candidates], dtype=torch.int64)  # pyright: ignore[reportArgumentType]
    if isinstance(candidates, Tensor) and candidates.dim() == 1 and not candidates.is_nested:
        if candidates.dtype == torch.bool and len(candidates) == num_labels:
            return candidates.to(device).nonzero().flatten()
        check_ids("candidates", candidates, num_labels)
        return candidates.long().to(device).unique()
    return Listed.of("candidates", candidates, num_rows, num_labels, device)  # pyright: ignore[reportArgumentType]


def best_of(
    table: ScoredTable,
    hidden: Float[Tensor, "b d"],
    k: int,
    candidates: Int64[Tensor, " c"] | Listed,
    excluded: Listed | None = None,
) -> TopK:
    """The k best of the candidates; index −1 and value −∞ where fewer remain.

    Args:
        table: scores the labels.
        hidden: `[b, d]`.
        k: how many labels to return.
        candidates: what `candidates_of` returned.
        excluded: labels that must not be returned, by example.
    """
    if isinstance(candidates, Listed):
        pairs = candidates.distinct(len(table), but=excluded)
        return _best_pairs(_scores_of(table, hidden, pairs), pairs, len(hidden), k)
    if len(candidates) == 0:
        return _filled_up(TopK(hidden[:, :0], candidates.expand(len(hidden), 0)), k)
    if excluded is not None:
        excluded = _within(excluded, candidates)
    best = best_labels(table.part(candidates), hidden, min(k, len(candidates)), excluded)
    labels = candidates[best.indices.clamp(min=0)]
    return _filled_up(TopK(best.values, labels.masked_fill(best.indices < 0, -1)), k)


def _filled_up(best: TopK, k: int) -> TopK:
    """Of k columns: index −1 and value −∞ where there are fewer."""
    missing = (0, k - best.indices.shape[1])
    return TopK(pad(best.values, missing, value=-torch.inf), pad(best.indices, missing, value=-1))


def _are_ids(candidates: object) -> bool:
    try:
        return all(
            isinstance(label, Integral) and not isinstance(label, bool)
            for label in candidates  # pyright: ignore[reportGeneralTypeIssues]
        )
    except TypeError:
        return False


def _within(excluded: Listed, candidates: Tensor) -> Listed:
    """The excluded pairs that are candidates, by their place among these."""
    place = torch.searchsorted(candidates, excluded.label).clamp(max=len(candidates) - 1)
    here = candidates[place] == excluded.label
    return Listed(excluded.row[here], place[here])


def _scores_of(table: ScoredTable, hidden: Tensor, pairs: Listed) -> Float[Tensor, " p"]:
    """The scores of pairs, some at a time: their rows are copied."""
    at_once = max(1, BLOCK_SCORES // hidden.shape[1])
    parts = zip(pairs.row.split(at_once), pairs.label.split(at_once), strict=True)
    return torch.cat([table.scores_of_pairs(hidden[row], label) for row, label in parts])


def _best_pairs(scores: Tensor, pairs: Listed, num_rows: int, k: int) -> TopK:
    """The k best pairs of each row, without a matrix as wide as the longest row."""
    order = scores.argsort(descending=True, stable=True)
    order = order[pairs.row[order].argsort(stable=True)]
    row = pairs.row[order]
    number = row.bincount(minlength=num_rows)
    rank = torch.arange(len(row), device=row.device) - (number.cumsum(0) - number)[row]
    taken = rank < k
    place = row[taken], rank[taken]
    values = scores.new_full((num_rows, k), -torch.inf)
    labels = row.new_full((num_rows, k), -1)
    values[place] = scores[order][taken]
    labels[place] = pairs.label[order][taken]
    return TopK(values, labels)
