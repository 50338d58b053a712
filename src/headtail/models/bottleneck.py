"""The paper's encoder: sparse features, one linear hidden layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
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
            values = _normalised(features, values)
        if isinstance(features, Bag):
            if owed(self.weight) is not None:  # lazy weight decay reaches a row before it is read
                catch_up(self.weight, features.columns.long().unique())
            hidden = weighted_bag(replace(features, values=values), self.weight, sparse=self.sparse)
        else:
            hidden = values @ self.weight
        return shift_and_drop(hidden, self.bias, self.dropout, self.training)


def _normalised(features: Features, values: Tensor) -> Tensor:
    """Values divided by the length of the point's features, as it was before dropout; a point without features stays as it is."""
    smallest = torch.finfo(torch.float32).tiny
    if not isinstance(features, Bag):
        return values / lengths(features).clamp(min=smallest)[:, None]
    if features.device.type != "cpu":
        per_point = lengths(features).clamp(min=smallest)
        return values / per_point.repeat_interleave(features.offsets.diff(), output_size=len(values))
    from headtail.kernels import cpu_bag

    out = torch.empty_like(values)
    cpu_bag.unit_rows(features.offsets.numpy(), values.numpy(), features.values.numpy(), np.float32(smallest), out.numpy())
    return out


def lengths(features: Features) -> Float[Tensor, " n"]:
    """`[n]` the Euclidean length of each point's features."""
    if not isinstance(features, Bag):
        return torch.linalg.vector_norm(features, dim=1)
    return torch.segment_reduce(features.values.square(), "sum", offsets=features.offsets, initial=0.0, unsafe=True).sqrt()
