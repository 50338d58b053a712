"""Scorer: a model as samplers see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

LOGITS_AT_ONCE = 2**20
"""Logits held at a time in a pass over all labels: what the caches of a CPU hold in float64."""
GPU_FACTOR = 16
"""A GPU holds this many times more at once, because launches are what costs there."""


@dataclass(frozen=True, eq=False)
class Scorer:
    r"""The logits of a training step, $f_{y} = (\langle h, w_{y} \rangle + c_{y}) / T$, of any
    labels, for sampling from them.

    Attributes:
        input: `[p, d]` hidden states, one row per pair.
        weight: `[L, d]` label table.
        bias: `[L]` or `[L, 1]`, or None.
        temperature: T.
        score: "dot", or "cosine", where hidden states and labels have length 1.
        logits_at_once: how many logits a pass over all labels may hold; 16 times more on a GPU.

    >>> scorer = Scorer(torch.ones(1, 2), torch.eye(2), bias=torch.tensor([0.0, 1.0]))
    >>> scorer.logits(slice(0, 2))
    tensor([[1., 2.]])
    """

    input: Float[Tensor, "p d"]
    weight: Float[Tensor, "L d"]
    bias: Tensor | None = None
    temperature: float | Tensor = 1.0
    score: str = "dot"
    logits_at_once: int = LOGITS_AT_ONCE

    def logits(self, rows: Any) -> Float[Tensor, "p k"]:
        """`[p, k]` logits, at least in float32, of k labels.

        Args:
            rows: a `slice` of labels, `[k]` ids, or `[p, k]` ids if each pair has its own.
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
        """Ids and logits of all labels, block by block: `[p, L]` is never held."""
        on_gpu = self.weight.device.type == "cuda"
        at_once = self.logits_at_once * (GPU_FACTOR if on_gpu else 1)
        size = max(1, at_once // max(1, len(self.input)))
        for start in range(0, len(self.weight), size):
            stop = min(start + size, len(self.weight))
            ids = torch.arange(start, stop, device=self.weight.device)
            yield ids, self.logits(slice(start, stop))

    def finite(self) -> Scorer:
        """The same with zeros for hidden states that are not finite.

        For summaries, which are still used after a training loop has skipped the step.
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
