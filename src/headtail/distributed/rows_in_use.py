"""Which rows of its table a rank uses in a step, for the targets and draws of all ranks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from headtail.core.placement import Share
from headtail.core.targets import Pairs
from headtail.kernels.dispatch import placing_kernels


class OwnTargets(NamedTuple):
    """The targets of all ranks as one rank sees them.

    Attributes:
        positive: `[p]` the place of each target among the rank's rows; −1 where another rank holds
            it or it does not count.
        label: `[p]` the targets, with 0 in place of labels that do not exist.
        scale: `[p]` their factors in the loss; NaN for labels that do not exist, as the loss of one
            process on a GPU has them.
    """

    positive: Int64[Tensor, " p"]
    label: Int64[Tensor, " p"]
    scale: Float[Tensor, " p"]


def own_targets(share: Share, pairs: Pairs, scale: Float[Tensor, " p"]) -> OwnTargets:
    """The targets of all ranks as the rank with this share sees them."""
    kernels = placing_kernels(pairs.label)
    if kernels is not None:
        runs = share.placement.runs(pairs.label.device)
        return OwnTargets(*kernels.own_targets(pairs.label, pairs.skipped, scale, runs, share))
    exists = (pairs.label >= 0) & (pairs.label < share.placement.num_labels)
    positive = share.own_places(pairs.label)
    return OwnTargets(
        positive if pairs.skipped is None else positive.masked_fill(pairs.skipped, -1),
        torch.where(exists, pairs.label, 0),
        scale.masked_fill(~exists, torch.nan),
    )


def rows_in_use(
    positive: Int64[Tensor, " p"], drawn: Int64[Tensor, " m"], out: Int64[Tensor, " n"]
) -> Int64[Tensor, " m"]:
    """The row of each entry of a table's gradient, for positives and draws; returns the draws'.

    Entries without a row of their own (−1) borrow rows of the draws, so that no other row is
    touched. If the rank holds none of the draws, row 0 gets a zero gradient, which Adam and
    momentum notice.

    Args:
        positive: places of the targets.
        drawn: places of the draws.
        out: `[p + m]` is filled.

    >>> rows_in_use(torch.tensor([7, -1]), torch.tensor([-1, 4, 5]), torch.empty(5).long())
    tensor([4, 4, 5])
    """
    kernels = placing_kernels(drawn)
    if kernels is not None:
        return kernels.rows_in_use(positive, drawn, out)
    held = drawn >= 0
    borrowed = drawn.gather(0, held.int().argmax(0, keepdim=True)).clamp(min=0)
    negatives = torch.where(held, drawn, borrowed)
    spread = negatives.repeat(-(-len(positive) // len(negatives)))[: len(positive)]
    torch.cat([torch.where(positive >= 0, positive, spread), negatives], out=out)
    return out[len(positive) :]
