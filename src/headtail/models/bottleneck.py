"""The paper's encoder: sparse features, one linear hidden layer."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtail.bags import lengths, weighted_bag
from headtail.data.points import Bag, Features, Picked
from headtail.decay import catch_up, owed
from headtail.errors import check_count
from headtail.models.dropout import dropout, shift_and_drop


class Bottleneck(nn.Module):
    r"""$h = \frac{x}{\lVert x \rVert} W + c$: features to a hidden layer of width 512 with a linear activation.

    Args:
        num_features: D.
        dim: d, the width.
        sparse: give W row-sparse gradients, for row optimisers.
        normalise: scale each point's features to length 1.
        feature_dropout: share of features dropped in training.
        dropout: share of the hidden layer dropped in training.

    >>> bag = Bag(torch.tensor([0, 2, 3]), torch.tensor([0, 2, 1]).int(), torch.ones(3), 3)
    >>> Bottleneck(3, 8)(bag).shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        num_features: int,
        dim: int = 512,
        *,
        sparse: bool = False,
        normalise: bool = True,
        feature_dropout: float = 0.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(check_count("num_features", num_features), check_count("dim", dim)))
        self.bias = nn.Parameter(torch.zeros(dim))
        nn.init.normal_(self.weight, std=dim**-0.5)
        self.sparse, self.normalise, self.feature_dropout, self.dropout = sparse, normalise, feature_dropout, dropout

    def forward(self, features: Features | Picked) -> Float[Tensor, "n d"]:
        """`[n, d]` hidden states."""
        if not isinstance(features, Tensor):
            return shift_and_drop(self._sum(features), self.bias, self.dropout, self.training)
        values = dropout(features, self.feature_dropout, self.training)
        if self.normalise:  # by the length that the features had before dropout
            values = values / torch.linalg.vector_norm(features, dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        return shift_and_drop(values @ self.weight, self.bias, self.dropout, self.training)

    def _sum(self, features: Bag | Picked) -> Float[Tensor, "n d"]:
        drops = self.training and self.feature_dropout > 0
        owing = owed(self.weight) is not None
        normalise = self.normalise
        if isinstance(features, Picked) and (drops or owing):
            features = features.gathered()
        if isinstance(features, Bag) and owing:  # lazy weight decay reaches a row before it is read
            catch_up(self.weight, features.columns.long().unique())
        if isinstance(features, Bag) and drops:
            values = dropout(features.values, self.feature_dropout)
            if normalise:  # by the length that the features had before dropout
                per_point = lengths(features).clamp(min=torch.finfo(torch.float32).tiny)
                values = values / per_point.repeat_interleave(features.offsets.diff(), output_size=len(values))
            features, normalise = replace(features, values=values), False
        return weighted_bag(features, self.weight, normalise=normalise, sparse=self.sparse)
