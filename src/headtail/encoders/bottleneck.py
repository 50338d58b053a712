"""The paper's encoder: sparse features, one linear hidden layer."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from headtail.data.bag import Bag, Picked
from headtail.data.points import Features
from headtail.device.side_streams import side_stream, wait_for
from headtail.encoders.dropout import dropout, shift_and_drop, sum_of_parts
from headtail.encoders.weighted_bag import check_bag, length_of_each_entry, weighted_bag
from headtail.errors import check_count
from headtail.kernels.dispatch import bag_kernels, dropout_kernels
from headtail.kernels.gradient import RowGradient
from headtail.rows.decay import catch_up, decays, flush
from headtail.rows.gradients import for_autograd
from headtail.rows.link import linked


class Bottleneck(nn.Module):
    r"""$h = \frac{x}{\lVert x \rVert} W + c$: features to one linear hidden layer, 512 wide.

    Args:
        num_features: D.
        dim: d, the width.
        sparse: give W row-sparse gradients, for row optimisers.
        normalise: scale each point's features to length 1.
        feature_dropout: share of features dropped in training.
        dropout: share of the hidden layer dropped in training.
        device: of W.
        dtype: of W; sums are float32 in any case.

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        shape = check_count("num_features", num_features), check_count("dim", dim)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(dim, device=device))
        nn.init.normal_(self.weight, std=dim**-0.5)
        self.sparse = sparse
        self.normalise = normalise
        self.feature_dropout = feature_dropout
        self.dropout = dropout
        self.register_state_dict_pre_hook(flush)
        self.register_load_state_dict_pre_hook(flush)

    def forward(self, features: Features | Picked) -> Float[Tensor, "n d"]:
        """`[n, d]` hidden states."""
        if isinstance(features, Picked) and self._fuses():
            bags = bag_kernels(self.weight)
            drops = dropout_kernels(self.weight)
            if bags is not None and drops is not None:
                tables = self.weight, self.bias
                return _Encode.apply(bags, drops, *tables, features, self.normalise, self.dropout)  # pyright: ignore[reportReturnType]
        dense = isinstance(features, Tensor)
        product = self._dense_product(features) if dense else self._sum(features)
        return shift_and_drop(product, self.bias, self.dropout, self.training)

    def _dense_product(self, features: Tensor) -> Float[Tensor, "n d"]:
        values = dropout(features, self.feature_dropout, self.training)
        if self.normalise:  # by the length that the features had before dropout
            length = torch.linalg.vector_norm(features, dim=1, keepdim=True)
            values = values / length.clamp(min=torch.finfo(torch.float32).tiny)
        return values @ self.weight.to(values.dtype)

    def _fuses(self) -> bool:
        """Whether `_Encode` computes this step.

        It is for training with dropout of the hidden layer, none of the features, and no lazy
        weight decay to catch up with.
        """
        trains = self.training and torch.is_grad_enabled() and self.sparse
        drops_hidden_only = self.dropout > 0 and self.feature_dropout == 0
        return trains and drops_hidden_only and not decays(self.weight)

    def _sum(self, features: Bag | Picked) -> Float[Tensor, "n d"]:
        drops = self.training and self.feature_dropout > 0
        lazy = decays(self.weight)
        normalise = self.normalise
        if isinstance(features, Picked) and (drops or lazy):
            features = features.gathered()
        if drops or lazy:
            check_bag(features, self.weight)
        if isinstance(features, Bag) and lazy:  # lazy weight decay reaches a row before it is read
            catch_up(self.weight, features.columns.long().unique())
        if isinstance(features, Bag) and drops:
            values = dropout(features.values, self.feature_dropout)
            if normalise:  # by the length that the features had before dropout
                values = values / length_of_each_entry(features)
            features = features.with_tensors(features.offsets, features.columns, values)
            normalise = False
        return weighted_bag(features, self.weight, normalise=normalise, sparse=self.sparse)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: nothing may be left pending."""
        flush(self)
        return vars(self).copy()


class _Encode(torch.autograd.Function):
    """`shift_and_drop(weighted_bag(…), bias, share)` in one node."""

    @staticmethod
    def forward(
        ctx: Any,
        bags: Any,
        drops: Any,
        weight: Tensor,
        bias: Tensor,
        picked: Picked,
        normalise: bool,
        share: float,
    ) -> Tensor:
        check_bag(picked, weight)
        rows = picked.bag.offsets, picked.bag.columns, picked.bag.values, picked.ids
        out = torch.empty(len(picked), weight.shape[1], device=weight.device)
        # The rows that get a gradient follow from the ids: found while the sum is computed.
        with side_stream(weight.device, "entries"):
            counters = linked(weight).counters
            ctx.entries = bags.entries(*rows, normalise, picked.most, len(weight), counters)
        ctx.read = rows  # the side stream reads them, so they must not be freed before backward
        with side_stream(weight.device, "noise"):
            ctx.drops = drops
            ctx.drop = drops.drop_for(out, share)
            ctx.tables = (weight, bias)
        bags.weighted_bag(*rows, weight, normalise, out)
        wait_for(weight.device, "noise")
        drops.forward(out, bias.detach(), ctx.drop)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        weight, bias = ctx.tables
        rows, points, coefs, grouped = ctx.entries
        grad_sum, parts = ctx.drops.backward(grads[0].contiguous(), ctx.drop)
        wait_for(weight.device, "entries")
        node_of_weight, node_of_bias = (node for node, _ in ctx.next_functions)
        grad_bias = sum_of_parts(bias, parts, node_of_bias)
        gradient = RowGradient(rows, grad_sum, points, coefs, grouped)
        grad_weight = for_autograd(weight, gradient, node_of_weight)
        return None, None, grad_weight, grad_bias, None, None, None
