"""Scorer: a model as samplers see it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scorer:
    r"""The logits of a training step, $f_{y} = (\langle h, w_{y} \rangle + c_{y}) / T$, of any labels, for sampling from them.

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

    def logits(self, rows: slice | Tensor) -> Float[Tensor, "p k"]:
        """`[p, k]` logits, at least in float32, of k labels: a range of them, `[k]` ids, or `[p, k]` ids for each pair its own."""
        input, weight = _wide(self.input), _wide(self.weight[rows])
        if self.score == "cosine":
            input, weight = F.normalize(input, dim=-1), F.normalize(weight, dim=-1)
        f = input @ weight.T if weight.dim() == 2 else torch.einsum("pd,pkd->pk", input, weight)
        f = f if self.bias is None else f + _wide(self.bias.detach().reshape(-1)[rows])
        return f / self.temperature


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
