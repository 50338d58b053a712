"""Draw: the sampled negatives of one step, and how likely each was."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.lookup import constant
from headtail.errors import HeadtailError, check_count, check_ids


@dataclass(frozen=True, eq=False)
class Draw:
    r"""Negatives with the one promise every sampler keeps: for each label $y'$ other than the
    positive $y$,

    $$\mathbb{E}\big[\text{number of times } y' \text{ stands in ids}\big] = m \cdot q_{y'} \cdot
    e^{-\text{log\_keep}}.$$

    Args:
        ids: `[m]` shared by the batch, or `[b, m]`.
        log_q: log q of each id, same shape.
        log_q_target: `[b]` log q of each positive; None if nobody knows it (only relative weights
            ask).
        m: the effective number of negatives. Not always `ids.shape[-1]`: see `WithinBatch`.
        log_keep: 0 where collisions are masked later; `[b]` log(1 − q_y) where the positive was
            excluded while drawing.
        slots: for within-batch negatives, the places of the batch they were taken from:
            `items[draw.slots]` are their embeddings in a two-tower model.
        marginal: False where `log_q` is no probability of the label itself but still makes 1/(m·q)
            unbiased: see `Resampled`.
    """

    ids: Int[Tensor, "*b m"]
    log_q: Float64[Tensor, "*b m"]
    log_q_target: Float64[Tensor, " b"] | None
    m: float
    log_keep: Float64[Tensor, " b"] | float = 0.0
    slots: Int[Tensor, " m"] | None = None
    marginal: bool = True
    log_m: Float64[Tensor, ""] = field(init=False, repr=False)
    """log m, −inf where there are no negatives at all; a tensor, so that compiled code need not
    know its value.
    """

    def __post_init__(self) -> None:
        check_ids("ids", self.ids, None)
        log_m = math.log(self.m) if self.m > 0 else -math.inf
        object.__setattr__(self, "ids", self.ids.long())
        object.__setattr__(self, "log_m", constant(log_m, self.ids.new_empty(())))
        if self.ids.dim() not in (1, 2) or self.log_q.shape != self.ids.shape:
            raise HeadtailError(
                "`ids` must have shape [m] or [b, m] and `log_q` the same, but got "
                f"{list(self.ids.shape)} and "
                f"{list(self.log_q.shape)}. Pass one log-probability for each negative."
            )

    @property
    def shared(self) -> bool:
        """Whether all examples of the batch see the same negatives."""
        return self.ids.dim() == 1


def every_label(num_labels: int, device: torch.device | None = None) -> Draw:
    """The draw that holds each label exactly once, m·q = 1: with it, a sampled loss is the exact
    one.

    >>> every_label(3).ids
    tensor([0, 1, 2])
    """
    ids = torch.arange(check_count("num_labels", num_labels), device=device)
    log_q = torch.full((num_labels,), -math.log(num_labels), dtype=torch.float64, device=device)
    return Draw(ids, log_q, None, float(num_labels))
