"""The paper's encoder: sparse features, one linear hidden layer."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtail.bags import weighted_bag
from headtail.data.points import Bag, Features
from headtail.errors import check_count
from headtail.models.dropout import dropout, shift_and_drop
from headtail.optim import catch_up, owed


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

    def forward(self, features: Features) -> Float[Tensor, "n d"]:
        """`[n, d]` hidden states."""
        values = features.values if isinstance(features, Bag) else features
        values = dropout(values, self.feature_dropout, self.training)
        if self.normalise:
            # Lengths are those before dropout; a point without features stays at the bias.
            scale = lengths(features).clamp(min=torch.finfo(torch.float32).tiny).reciprocal()
            values = values * (_each(features, scale) if isinstance(features, Bag) else scale[:, None])
        if isinstance(features, Bag):
            if owed(self.weight) is not None:  # lazy weight decay reaches a row before it is read
                catch_up(self.weight, features.columns.long().unique())
            hidden = weighted_bag(replace(features, values=values), self.weight, sparse=self.sparse)
        else:
            hidden = values @ self.weight
        return shift_and_drop(hidden, self.bias, self.dropout, self.training)


def _each(bag: Bag, per_point: Float[Tensor, " n"]) -> Float[Tensor, " nnz"]:
    """A number a point, repeated for each of its features."""
    return per_point.repeat_interleave(bag.offsets.diff(), output_size=len(bag.values))


def lengths(features: Features) -> Float[Tensor, " n"]:
    """`[n]` the Euclidean length of each point's features."""
    if not isinstance(features, Bag):
        return torch.linalg.vector_norm(features, dim=1)
    return torch.segment_reduce(features.values.square(), "sum", offsets=features.offsets, initial=0.0, unsafe=True).sqrt()
