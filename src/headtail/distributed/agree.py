"""Whether all ranks have the same: labels, settings and version."""

from __future__ import annotations

import hashlib
import re
from importlib.metadata import version

import torch

from headtail.collectives.ranks import Ranks
from headtail.core.sharded_labels import ShardedLabels
from headtail.errors import HeadtailError
from headtail.losses import Loss

DIGEST_BITS = 56
"""Bits of a digest: an int64 holds one beside a few flags."""


def check_agreement(ranks: Ranks, labels: ShardedLabels, loss: Loss, facts: dict[str, str]) -> None:
    """Refuse ranks that would train different things; every rank raises the same error.

    Args:
        ranks: who must all call it.
        labels: this rank's.
        loss: to be trained.
        facts: what else must be equal, by what it is.
    """
    totals = labels.totals
    counts = (totals.total, totals.lowest, totals.never_seen, labels.smoothing)
    same = {
        "versions of headtail or torch": f"{version('headtail')} {torch.__version__}",
        "numbers of labels": f"{labels.placement.grown}",
        "counts of labels": f"{counts}",
        "losses": _described(loss),
    }
    refuse_differences(ranks, same | facts)
    if labels.num_labels < ranks.size or not min(_lengths(labels, ranks)):
        raise HeadtailError(
            f"`mesh` has {ranks.size} ranks for {labels.num_labels:,} labels, which leaves a rank "
            "without labels. Use fewer ranks."
        )


def refuse_differences(ranks: Ranks, facts: dict[str, str]) -> None:
    """Refuse ranks whose facts are not those of the first rank, by what they are."""
    own = [digest_of(fact) for fact in facts.values()]
    first, *others = ranks.numbers(own, torch.device("cpu"))
    for rank, other in enumerate(others, 1):
        for what, mine, theirs in zip(facts, first, other, strict=True):
            if mine != theirs:
                raise HeadtailError(
                    f"Ranks have different {what}: rank {rank} has others than rank 0. Start the "
                    "same program, with the same data and settings, on all ranks."
                )


def digest_of(text: str) -> int:
    """A whole number below 2^`DIGEST_BITS`, the same in all processes."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=DIGEST_BITS // 8).digest())


def without_addresses(text: str) -> str:
    """A description without addresses of functions and numbers of GPUs, which differ between
    processes.
    """
    return re.sub(r" at 0x[0-9a-f]+|, device='[^']*'", "", text)


def _described(loss: Loss) -> str:
    """All that decides a loss."""
    weights = getattr(loss, "weighting", None) or getattr(loss, "margin", None)
    described = f"{loss} {weights} {type(loss.temperature)} {loss.settings} {loss.post_hoc}"
    return without_addresses(described)


def _lengths(labels: ShardedLabels, ranks: Ranks) -> list[int]:
    return [len(labels.placement.share(rank, ranks.size)) for rank in range(ranks.size)]
