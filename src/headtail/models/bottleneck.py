"""The paper's encoder: sparse features, one linear hidden layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headtail.bags import check_columns, lengths, weighted_bag
from headtail.data.points import Bag, Features, Picked
from headtail.decay import catch_up, owed
from headtail.errors import check_count
from headtail.gradients import as_sparse
from headtail.kernels.gradient import RowGradient
from headtail.models.dropout import dropout, random_bytes, shift_and_drop
from headtail.optim import hand_over


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
            if isinstance(features, Picked) and self._fuses():
                return _Encode.apply(self.weight, self.bias, features, self.normalise, self.dropout)  # pyright: ignore[reportReturnType]
            return shift_and_drop(self._sum(features), self.bias, self.dropout, self.training)
        values = dropout(features, self.feature_dropout, self.training)
        if self.normalise:  # by the length that the features had before dropout
            values = values / torch.linalg.vector_norm(features, dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        return shift_and_drop(values @ self.weight, self.bias, self.dropout, self.training)

    def _fuses(self) -> bool:
        """Whether this is a plain training step on a CPU: dropout of the hidden layer, none of features, nothing owed."""
        trains = self.training and torch.is_grad_enabled() and self.sparse and self.dropout > 0 and self.feature_dropout == 0
        plain = self.weight.device.type == "cpu" and self.weight.dtype == torch.float32 and self.weight.is_contiguous()
        return trains and plain and owed(self.weight) is None

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


class _Encode(torch.autograd.Function):
    """`shift_and_drop(weighted_bag(…), bias, share)` in one node, on the CPU."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, picked: Picked, normalise: bool, share: float) -> Tensor:
        from headtail.kernels import cpu_bag, cpu_dropout

        check_columns(picked.bag, weight)
        rows = picked.bag.offsets, picked.bag.columns, picked.bag.values, picked.ids
        out = torch.empty(len(picked), weight.shape[1])
        cpu_bag.weighted_bag(*rows, weight, normalise, out)
        drop = random_bytes(out.shape, share)
        cpu_dropout.forward(out.numpy(), bias.detach().numpy(), *drop)
        ctx.table, ctx.drop, ctx.rows = weight, drop, (*rows, normalise, None, len(weight))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        from headtail.kernels import cpu_bag, cpu_dropout

        grad = grads[0].contiguous()
        of_sum, of_bias = torch.empty_like(grad), torch.empty(grad.shape[1])
        cpu_dropout.backward(grad.numpy(), of_sum.numpy(), of_bias.numpy(), *ctx.drop)
        rows, points, coefs, _ = cpu_bag.entries(*ctx.rows)
        gradient = RowGradient(rows, of_sum, points, coefs)
        return None if hand_over(ctx.table, gradient) else as_sparse(ctx.table, gradient), of_bias, None, None, None
