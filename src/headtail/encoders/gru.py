"""GRU4Rec: a recurrent network over the items of a sequence."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from headtail.encoders.dropout import dropout
from headtail.encoders.sequence import SequenceEncoder
from headtail.errors import check_count


class GRU4Rec(SequenceEncoder):
    """Gated recurrent units over the items of a session (GRU4Rec; Hidasi et al., 2016).

    Args:
        num_items: how many items there are.
        dim: d, of the items and of the recurrent state.
        layers: layers.
        **options: `length`, `tied`, `sparse`, `dropout`, `device`, `dtype` of `SequenceEncoder`.

    >>> import torch
    >>> GRU4Rec(100, 8, tied=False)(torch.tensor([[3, 1, 4], [1, 5, -1]])).shape
    torch.Size([2, 3, 8])
    """

    def __init__(self, num_items: int, dim: int = 64, *, layers: int = 1, **options: Any) -> None:
        super().__init__(num_items, dim, **options)
        # One module per layer: dropout between them is that of the other encoders.
        self.layers = nn.ModuleList(
            nn.GRU(dim, dim, batch_first=True) for _ in range(check_count("layers", layers))
        )

    def forward(self, items: Int[Tensor, "n T"]) -> Float[Tensor, "n T d"]:
        """`[n, T, d]` hidden states."""
        hidden = dropout(self.embed(items), self.dropout, self.training)
        for layer in self.layers:
            hidden = dropout(layer(hidden)[0], self.dropout, self.training)
        return hidden
