"""Whether all ranks have the same: labels, settings and version."""

from __future__ import annotations

import hashlib
from importlib.metadata import version

import torch

from headtail.collectives.ranks import Ranks
from headtail.core.sharded_labels import ShardedLabels
from headtail.errors import HeadtailError
from headtail.losses import Loss


def check_agreement(
    ranks: Ranks, labels: ShardedLabels, dim: int, loss: Loss, *, bias: bool
) -> None:
    """Refuse ranks that would train different things; every rank raises the same error."""
    totals = labels.totals
    counts = (totals.total, totals.lowest, totals.never_seen, labels.smoothing)
    facts = {
        "versions of headtail or torch": f"{version('headtail')} {torch.__version__}",
        "numbers of labels": f"{labels.placement.grown}",
        "counts of labels": f"{counts}",
        "sizes of hidden states": f"{dim}",
        "losses": f"{loss} {bias}",
    }
    refuse_differences(ranks, facts)
    if labels.num_labels < ranks.size or not min(_lengths(labels, ranks)):
        raise HeadtailError(
            f"`mesh` has {ranks.size} ranks for {labels.num_labels:,} labels, which leaves a rank "
            "without labels. Use fewer ranks."
        )


def refuse_differences(ranks: Ranks, facts: dict[str, str]) -> None:
    """Refuse ranks whose facts are not those of the first rank, by what they are."""
    own = [
        int.from_bytes(hashlib.blake2b(fact.encode(), digest_size=7).digest())
        for fact in facts.values()
    ]
    first, *others = ranks.numbers(own, torch.device("cpu"))
    for rank, other in enumerate(others, 1):
        for what, mine, theirs in zip(facts, first, other, strict=True):
            if mine != theirs:
                raise HeadtailError(
                    f"Ranks have different {what}: rank {rank} has others than rank 0. Start the "
                    "same program, with the same data and settings, on all ranks."
                )


def _lengths(labels: ShardedLabels, ranks: Ranks) -> list[int]:
    return [len(labels.placement.share(rank, ranks.size)) for rank in range(ranks.size)]
