"""Model: an encoder with a label head."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtail.core.targets import Target
from headtail.data.points import Features, Picked
from headtail.device.side_streams import beside, wait_for
from headtail.encoders.bottleneck import Bottleneck
from headtail.head import LabelHead
from headtail.losses import SampledLoss
from headtail.samplers import Draw


class Batch(NamedTuple):
    """One training batch.

    Attributes:
        features: of the batch's different points.
        row: `[b]` which of them each target belongs to; None where target i belongs to point i.
        target: `[b]` labels, or all labels of each point, ragged or padded.
    """

    features: Features | Picked
    row: Int[Tensor, " b"] | None
    target: Target


class Model(nn.Module):
    """An encoder with a label head.

    Args:
        encoder: any module from features to `[n, d]` hidden states.
        head: the label table with its loss.
        mask_known: whether all labels of a point are masked as negatives; for batches of whole
            points.
    """

    def __init__(self, encoder: nn.Module, head: LabelHead, *, mask_known: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.mask_known = mask_known

    def forward(self, batch: Batch) -> Float[Tensor, ""]:
        """The training loss of a batch."""
        features = batch.features
        if isinstance(features, Picked) and not isinstance(self.encoder, Bottleneck):
            features = features.gathered()  # what other encoders are promised is a bag
        draw = self._draw_ahead(batch.target)
        hidden = self.encode(features)
        hidden = hidden if batch.row is None else hidden.index_select(0, batch.row)
        # then it is all that is known
        one_label = isinstance(batch.target, Tensor) and batch.target.shape[1:].numel() == 1
        options: dict[str, Any] = (
            {"collisions": "known"} if self.mask_known and not one_label else {}
        )
        if isinstance(batch.target, Tensor) and batch.target.dim() == 1:
            options["ignore_index"] = None  # every pair counts, and a GPU need not be asked
        if draw is not None:
            wait_for(hidden.device, "draw")
            options["draw"] = draw
        return self.head(hidden, batch.target, **options)

    def _draw_ahead(self, target: Target) -> Draw | None:
        """On a GPU, negatives that do not depend on the hidden states are drawn while these are
        computed.
        """
        loss = self.head.loss
        if not isinstance(loss, SampledLoss) or loss.sampler.claims.looks_at_model:
            return None
        if not isinstance(target, Tensor) or target.dim() != 1 or target.device.type != "cuda":
            return None
        with beside(target.device, "draw"):
            return loss.draw_ahead(target)

    def encode(self, features: Features | Picked) -> Float[Tensor, "n d"]:
        """`[n, d]` hidden states, in the dtype of the label table."""
        return self.encoder(features).to(self.head.weight.dtype)

    @torch.no_grad()
    def top(self, features: Features, k: int) -> Int[Tensor, "n k"]:
        """`[n, k]` the best labels of each point, best first."""
        return self.head.topk(self.encode(features), k).indices
