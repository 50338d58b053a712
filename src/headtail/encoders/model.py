"""Model: an encoder with a label head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtail.collectives.ranks import Ranks
from headtail.core.targets import Pairs, Ragged, Target
from headtail.data.bag import Picked
from headtail.data.batches import TrainingBatch
from headtail.data.histories import Histories
from headtail.data.points import Features
from headtail.device.side_streams import side_stream, wait_for
from headtail.encoders.bottleneck import Bottleneck
from headtail.encoders.sequence import USUAL, SequenceEncoder, last_states
from headtail.head import LabelHead
from headtail.losses import SampledLoss
from headtail.samplers import Draw, WithinBatch


class Model(nn.Module):
    """An encoder with a label head.

    Args:
        encoder: any module from features to `[n, d]` hidden states, or a `SequenceEncoder`, which
            gets items in order; others get sequences as bags.
        head: the label table with its loss.
        mask_known: whether all labels of a point are masked as negatives; for batches of whole
            points.
        ranks: those that share the head's table and every batch, each with a copy of the encoder;
            None for one process. All of them must do the same with the model.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: LabelHead,
        *,
        mask_known: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.mask_known = mask_known
        self.ranks = ranks
        if isinstance(encoder, SequenceEncoder):
            encoder.tie(head)

    def forward(self, batch: TrainingBatch) -> Float[Tensor, ""]:
        """The training loss of a batch."""
        features = batch.features
        if isinstance(features, Picked) and not isinstance(self.encoder, Bottleneck):
            features = features.gathered()  # other encoders are promised a bag
        target = self._target(batch)
        draw = self._draw_ahead(target)
        hidden = self.encoder(features).to(self.head.weight.dtype)
        hidden = hidden.flatten(0, -2)  # those of all positions, for sequences
        hidden = hidden if batch.row is None else hidden.index_select(0, batch.row)
        options = self._options(batch.target)
        if draw is not None:
            wait_for(hidden.device, "draw")
            options["draw"] = draw
        return self.head(hidden, target, **options)

    def train(self, mode: bool = True) -> Model:
        """As torch's; for evaluation, copies of the encoder receive the buffers of the first rank,
        such as statistics of the batches it has seen.
        """
        if not mode and self.ranks is not None:
            for buffer in self.encoder.buffers():
                self.ranks.copy_first(buffer)
        return super().train(mode)

    def _target(self, batch: TrainingBatch) -> Target:
        """The targets, in groups where those of one sequence would be each other's negatives."""
        loss = self.head.loss
        in_batch = isinstance(loss, SampledLoss) and isinstance(loss.sampler, WithinBatch)
        if not (in_batch and isinstance(self.encoder, SequenceEncoder)) or batch.row is None:
            return batch.target
        assert isinstance(batch.features, Tensor), "items in order"
        pairs = Pairs.of(batch.target, ignore_index=None)
        return replace(pairs, group=batch.row // batch.features.shape[1])

    def _options(self, target: Target) -> dict[str, Any]:
        """What the head needs to know about these targets."""
        options: dict[str, Any] = {}
        # The only label of a point is masked anyway.
        one_label = isinstance(target, Tensor) and target.shape[1:].numel() == 1
        if self.mask_known and not one_label:
            options["collisions"] = "known"
        if isinstance(target, Tensor) and target.dim() == 1:
            options["ignore_index"] = None  # every pair counts, so a GPU need not be asked
        return options

    def _draw_ahead(self, target: Target) -> Draw | None:
        """On a GPU, draw negatives that do not need the hidden states while these are computed."""
        loss = self.head.loss
        if not isinstance(loss, SampledLoss) or loss.sampler.claims.looks_at_model:
            return None
        if self.ranks is not None:
            return None  # each draws from its own labels
        labels = target.label if isinstance(target, Pairs) else target
        if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.device.type != "cuda":
            return None
        with side_stream(labels.device, "draw"):
            return loss.draw_ahead(target)  # pyright: ignore[reportArgumentType]

    def inputs(self, histories: Histories) -> Features:
        """Histories as the encoder reads them: items in order, or a bag."""
        if isinstance(self.encoder, SequenceEncoder):
            return histories.window(self._longest(histories))
        return histories.bag()

    def most_at_once(self, histories: Histories, most: int) -> int:
        """How many of at most so many histories to encode at once: fewer where they are long."""
        if not isinstance(self.encoder, SequenceEncoder) or self.encoder.length <= USUAL:
            return most
        return max(1, most * USUAL // self._longest(histories))

    def _longest(self, histories: Histories) -> int:
        """Items that histories are cut or padded to."""
        length: Any = self.encoder.length
        if length <= USUAL or not len(histories.end):
            return min(length, USUAL)
        return min(length, max(USUAL, int(histories.end.max())))

    def encode(self, features: Features | Histories | Picked) -> Float[Tensor, "n d"]:
        """`[n, d]` hidden states, in the dtype of the label table."""
        features = self.inputs(features) if isinstance(features, Histories) else features
        hidden = self.encoder(features)
        if isinstance(self.encoder, SequenceEncoder):
            assert isinstance(features, Tensor), "items in order"
            hidden = last_states(hidden, features)
        return hidden.to(self.head.weight.dtype)

    @torch.no_grad()
    def top(
        self, features: Features | Histories, k: int, exclude: Ragged | None = None
    ) -> Int[Tensor, "n k"]:
        """`[n, k]` the best labels of each point, best first, without those of `exclude`."""
        return self.head.topk(self.encode(features), k, exclude=exclude).indices
