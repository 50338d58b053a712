"""ItemHead: a label head with a second tower, which computes the rows from features of items."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtail.core.labels import Labels
from headtail.core.targets import Pairs, Target
from headtail.data.bag import Bag, Picked
from headtail.encoders.bottleneck import Bottleneck
from headtail.errors import HeadtailError, PythonName
from headtail.head import LabelHead
from headtail.losses import Loss, SampledLoss
from headtail.losses.options import Options
from headtail.rows.look_up import look_up
from headtail.samplers import Draw


class ItemHead(LabelHead):
    r"""A label head that computes its rows: $e_y = \mathrm{tower}(x_y) + r_y$.

    The tower is a linear layer over the features x of the items. The residual r is learnt for
    labels that occur in training and 0 for all others, so that cold items, which training never
    saw, are scored by their features alone. While a model is evaluated, `weight` holds all rows.

    Args:
        labels: the label distribution; cold labels have a count of 0.
        dim: d.
        loss: what to train; its sampler must not look at the model.
        items: the features of each label.
        sparse: as for `LabelHead`.

    >>> from headtail import SoftmaxLoss
    >>> items = Bag(torch.tensor([0, 1, 2]), torch.tensor([0, 0]).int(), torch.ones(2), 1)
    >>> head = ItemHead(Labels.from_counts([3, 0]), 4, SoftmaxLoss(), items).eval()
    >>> torch.equal(head.weight[0], head.weight[1])  # equal features, and nothing is learnt yet
    True
    """

    def __init__(
        self, labels: Labels, dim: int, loss: Loss, items: Bag, *, sparse: bool = False
    ) -> None:
        super().__init__(labels, dim, loss, sparse=sparse)
        if len(items) != labels.num_labels:
            raise HeadtailError(
                f"`items` has features of {len(items):,} labels, but `labels` has "
                f"{labels.num_labels:,}. Make them equal."
            )
        if isinstance(loss, SampledLoss) and loss.sampler.claims.looks_at_model:
            raise HeadtailError(
                "Features of items need a sampler that does not look at the model, but ",
                PythonName(f"headtail.{type(loss.sampler).__name__}"),
                " does. Choose another scheme, for example `within-batch:importance`.",
            )
        self.tower = Bottleneck(items.num_columns, dim, sparse=sparse)
        self.residual = nn.Parameter(torch.zeros(labels.num_labels, dim))
        del self.weight  # computed below, never learnt
        self.register_buffer("weight", torch.zeros_like(self.residual), persistent=False)
        self.register_buffer("is_seen", labels.counts > 0)
        for name in ("offsets", "columns", "values"):
            self.register_buffer(f"item_{name}", getattr(items, name))
        self._items = items.check()
        self._is_current = False

    @property
    def items(self) -> Bag:
        """The features of each label, checked again only where new ones were loaded."""
        tensors = (self.item_offsets, self.item_columns, self.item_values)
        kept = (self._items.offsets, self._items.columns, self._items.values)
        if any(new is not old for new, old in zip(tensors, kept, strict=True)):
            self._items = Bag(*tensors, len(self.tower.weight))  # pyright: ignore[reportArgumentType, reportCallIssue]
        return self._items

    def rows(self, ids: Int[Tensor, ...]) -> Float[Tensor, "... d"]:
        """The rows of these labels; gradients flow into tower and residuals."""
        flat = ids.reshape(-1).long()
        residual = look_up(self.residual, flat, sparse=self.sparse)
        seen = self.is_seen[flat].to(residual.dtype)[:, None]  # pyright: ignore[reportIndexIssue]
        made = self.tower(Picked(self.items, flat)) + residual * seen
        return made.reshape(*ids.shape, -1)

    def forward(
        self,
        hidden: Float[Tensor, "b d"],
        target: Target,
        *,
        draw: Draw | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[Options],
    ) -> Tensor:
        """The training loss of one batch, as `LabelHead.forward`."""
        self._is_current = False
        loss = self.loss
        if not isinstance(loss, SampledLoss):
            every = torch.arange(len(self.residual), device=hidden.device)
            return loss(hidden, self.rows(every), target, **options)
        settings = loss.settings_with(options)
        pairs = Pairs.of(target, num_labels=len(self.residual), ignore_index=settings.ignore_index)
        if draw is None:
            draw = loss.draw(hidden, self.weight, pairs, generator)
        # One look-up for both, so that each table gets one gradient.
        made = self.rows(torch.cat([pairs.label, draw.ids.reshape(-1)]))
        positive, negatives = made.split([len(pairs.label), draw.ids.numel()])
        negatives = negatives.reshape(*draw.ids.shape, -1)
        return loss.of_embeddings(hidden, positive, negatives, target, draw, **options)

    def grow(self, *_: Any, **__: Any) -> None:
        """Not possible: build a head with the features of all items instead."""
        raise HeadtailError(
            "A head with features of items does not grow. Build one with the features of all items."
        )

    @torch.no_grad()
    def flush(self) -> None:
        """Apply pending weight decay, and compute the rows that are read from now on."""
        super().flush()
        if self._is_current:
            return
        every = torch.arange(len(self.residual), device=self.residual.device)
        for ids in every.split(1 << 16):
            self.weight[ids] = self.rows(ids)
        self._is_current = True

    def _catch_up(self, rows: Int[Tensor, " n"]) -> None:
        self.flush()  # all rows are computed together, once after each step

    def train(self, mode: bool = True) -> ItemHead:
        """As torch's; for evaluation, all rows are computed first."""
        self._is_current = False  # weights may have been loaded
        super().train(mode)
        return self
