"""ScoredTable: a label table with all that decides a label's score."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor

from headtail.core.frequencies import LabelFrequencies
from headtail.losses.inputs import directions
from headtail.rows.rounding import widened


@dataclass(frozen=True, eq=False)
class ScoredTable:
    r"""A label table that scores hidden states: $f_y = (s(x, w_y) + b_y) / T - \tau \log \pi_y$.

    Attributes:
        weight: `[L, d]` w, with its weight decay.
        bias: `[L, 1]` b, or None.
        cosine: whether s is the cosine; else it is the dot product.
        temperature: T.
        labels: know π.
        post_hoc: τ of post-hoc logit adjustment.
    """

    weight: Float[Tensor, "L d"]
    bias: Float[Tensor, "L 1"] | None
    cosine: bool
    temperature: float | Tensor
    labels: LabelFrequencies
    post_hoc: float = 0.0

    def __len__(self) -> int:
        return len(self.weight)

    def adjustment(self, labels: slice) -> Float64[Tensor, " n"]:
        r"""$\tau \log \pi_y$ of these labels."""
        every = torch.arange(len(self), device=self.weight.device)
        return self.post_hoc * self.labels.log_prior(every[labels])

    def scores(self, hidden: Float[Tensor, "b d"], labels: slice) -> Float[Tensor, "b n"]:
        """`[b, n]` the scores of these labels, in float32 at least."""
        scores = self._unadjusted(hidden, labels)
        if self.post_hoc:
            scores = scores - self.adjustment(labels).to(scores.dtype)
        return scores

    def _unadjusted(self, hidden: Tensor, labels: slice) -> Tensor:
        weight = self.weight[labels]
        bias = None if self.bias is None else self.bias[labels].squeeze(1)
        if self.cosine:
            hidden = directions(hidden)
            weight = directions(weight)
        if not torch.is_autocast_enabled(hidden.device.type):
            # Scores in bfloat16, with their 8 bits, would often be equal.
            hidden = widened(hidden)
            weight = widened(weight)
        # In fewer digits than float32, the sum would be rounded before it is widened.
        fused = bias is not None and bias.dtype == hidden.dtype == torch.float32
        scores = widened(F.linear(hidden, weight, bias if fused else None))
        if bias is not None and not fused:
            scores = scores + bias
        if not isinstance(self.temperature, Tensor) and self.temperature == 1:
            return scores  # a division by 1 would be a wasted pass over memory
        return scores / self.temperature
