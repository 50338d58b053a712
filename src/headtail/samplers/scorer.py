"""Scorer: a model as samplers see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

SCORES_AT_ONCE = 2**20
"""Logits that are held at a time when all labels are walked over: what a CPU's caches hold in
float64.
"""
MORE_ON_GPU = 16
"""By which a GPU holds more, where launches are what costs."""


@dataclass(frozen=True, eq=False)
class Scorer:
    r"""The logits of a training step, $f_{y} = (\langle h, w_{y} \rangle + c_{y}) / T$, of any
    labels, for sampling from them.

    Attributes:
        input: `[p, d]` hidden states, one a pair.
        weight: `[L, d]` label table.
        bias: `[L]` or `[L, 1]`, or None.
        temperature: T.
        score: "dot", or "cosine", where hidden states and labels have length 1.

    >>> scorer = Scorer(torch.ones(1, 2), torch.eye(2), bias=torch.tensor([0.0, 1.0]))
    >>> scorer.logits(slice(0, 2))
    tensor([[1., 2.]])
    """

    input: Float[Tensor, "p d"]
    weight: Float[Tensor, "L d"]
    bias: Tensor | None = None
    temperature: float | Tensor = 1.0
    score: str = "dot"

    def logits(self, rows: Any) -> Float[Tensor, "p k"]:
        """`[p, k]` logits, at least in float32, of k labels: a `slice` of them, `[k]` ids, or `[p,
        k]` ids, each pair its own.
        """
        input = _wide(self.input)
        weight = _wide(self.weight[rows])
        if self.score == "cosine":
            input = F.normalize(input, dim=-1)
            weight = F.normalize(weight, dim=-1)
        f = input @ weight.T if weight.dim() == 2 else torch.einsum("pd,pkd->pk", input, weight)
        f = f if self.bias is None else f + _wide(self.bias.detach().reshape(-1)[rows])
        return f / self.temperature

    def blocks(self) -> Iterator[tuple[Int[Tensor, " k"], Float[Tensor, "p k"]]]:
        """Ids and logits of all labels, some after the others: `[p, L]` is never held."""
        scores = SCORES_AT_ONCE * (MORE_ON_GPU if self.weight.device.type == "cuda" else 1)
        size = max(1, scores // max(1, len(self.input)))
        for start in range(0, len(self.weight), size):
            stop = min(start + size, len(self.weight))
            yield (
                torch.arange(start, stop, device=self.weight.device),
                self.logits(slice(start, stop)),
            )

    def finite(self) -> Scorer:
        """The same with zeros for hidden states that are not finite: for notes that outlive a step
        that is skipped.
        """
        return replace(self, input=finite_rows(self.input))


def finite_rows(rows: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """The same with zeros for rows that are not finite.

    >>> finite_rows(torch.tensor([[1.0, 2.0], [3.0, torch.nan]]))
    tensor([[1., 2.],
            [0., 0.]])
    """
    return torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
