"""SASRec: a causal transformer over the items of a sequence."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtail.encoders.dropout import dropout
from headtail.encoders.sequence import SequenceEncoder
from headtail.errors import HeadtailError, Setting, check_count

START = 0.02
"""Standard deviation of the initial weights of items and layers, as in transformers. Items learn
faster from it than from rows of length 1.
"""


class SASRec(SequenceEncoder):
    """Self-attentive sequential recommendation (Kang and McAuley, 2018), with each layer's
    normalisation before it, as in later versions.

    Learned positions are added to the items; each layer is causal attention and a network of two
    linear maps with a rectifier, both with shortcuts.

    Args:
        num_items: how many items there are.
        dim: d.
        layers: layers.
        heads: heads of each attention, which must divide d.
        **options: `length`, `tied`, `sparse`, `dropout`, `device`, `dtype` of `SequenceEncoder`.

    >>> encoder = SASRec(100, 8, length=5, tied=False)
    >>> encoder(torch.tensor([[3, 1, 4], [1, 5, -1]])).shape
    torch.Size([2, 3, 8])
    """

    def __init__(
        self, num_items: int, dim: int = 64, *, layers: int = 2, heads: int = 2, **options: Any
    ) -> None:
        super().__init__(num_items, dim, **options)
        if dim % check_count("heads", heads):
            raise HeadtailError(
                Setting("heads"),
                f" must divide the size of the hidden layer, but {heads} does not divide {dim}. "
                "Write ",
                Setting("heads", 1),
                ", or choose another ",
                Setting("dim"),
                ".",
            )
        if self.weight is not None:
            nn.init.normal_(self.weight, std=START)
        self.positions = nn.Parameter(torch.empty(self.length, dim))
        nn.init.normal_(self.positions, std=START)
        count = check_count("layers", layers)
        self.layers = nn.ModuleList(_Layer(dim, heads, self.dropout) for _ in range(count))
        self.norm = nn.LayerNorm(dim)

    def forward(self, items: Int[Tensor, "n T"]) -> Float[Tensor, "n T d"]:
        """`[n, T, d]` hidden states."""
        placed = self.embed(items) + self.positions[: items.shape[1]]
        hidden = dropout(placed, self.dropout, self.training)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.norm(hidden)


class _Layer(nn.Module):
    """Causal attention, then two linear maps, each behind a normalisation and with a shortcut."""

    def __init__(self, dim: int, heads: int, share: float) -> None:
        super().__init__()
        self.heads = heads
        self.share = share
        self.attention_norm = nn.LayerNorm(dim)
        self.inputs = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)
        self.network_norm = nn.LayerNorm(dim)
        self.wide = nn.Linear(dim, 4 * dim)
        self.narrow = nn.Linear(4 * dim, dim)
        for linear in (self.inputs, self.output, self.wide, self.narrow):
            nn.init.normal_(linear.weight, std=START)
            nn.init.zeros_(linear.bias)

    def forward(self, hidden: Float[Tensor, "n T d"]) -> Float[Tensor, "n T d"]:
        """One layer."""
        hidden = hidden + self._drop(self._attend(self.attention_norm(hidden)))
        inner = self._drop(F.relu(self.wide(self.network_norm(hidden))))
        return hidden + self._drop(self.narrow(inner))

    def _attend(self, hidden: Tensor) -> Tensor:
        n, length, dim = hidden.shape
        parts = self.inputs(hidden).view(n, length, 3, self.heads, dim // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        share = self.share if self.training else 0.0
        # Causal, and padding is behind every item that counts: no other mask is needed.
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=share, is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(n, length, dim))

    def _drop(self, hidden: Tensor) -> Tensor:
        return dropout(hidden, self.share, self.training)
