"""ShardedLabelHead: a label table whose rows are spread over ranks."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtail.answers.scored_table import ScoredTable, check_hidden
from headtail.answers.topk import without_gradients
from headtail.collectives.ranks import Ranks
from headtail.core.draw import Draw
from headtail.core.labels import Labels
from headtail.core.listed import Listed, PerExample
from headtail.core.placement import Placement, Share
from headtail.core.sharded_labels import ShardedLabels
from headtail.core.targets import Target
from headtail.core.topk import TopK
from headtail.core.weightings import FromMargin
from headtail.distributed.agree import check_agreement
from headtail.distributed.joint_batch import JointBatch, OwnBatch
from headtail.distributed.own_draws import OwnPart, every_own_label, own_part, own_part_of
from headtail.distributed.sharded_loss import OwnRows, sharded_loss
from headtail.distributed.sharded_topk import best_of_all
from headtail.errors import HeadtailError, Setting, check_count, check_kind, check_number
from headtail.head import check_loss
from headtail.losses import ExactLoss, Loss, SampledLoss
from headtail.losses.options import Options
from headtail.rows.decay import flush

ROWS_AT_ONCE = 2**16
"""Rows that are initialised from one seed, whatever rank holds them."""


class ShardedLabelHead(nn.Module):
    r"""A `LabelHead` whose table is spread over ranks: rank r of n holds and updates L/n rows.

    Every rank calls it with its own part of the batch. Hidden states and targets are gathered; each
    rank scores its own positives and negatives; one or two numbers per target are summed. Rows of
    the table never travel, and nothing that travels grows with L. The loss is that of all ranks'
    batches together, the same number on every rank.

    * Negatives are drawn by each rank from its own labels, with their exact q (`Stratified`);
      within-batch negatives and queues are those of the joint batch.
    * Row optimisers need no communication: `RowAdagrad(head.parameters())` on each rank.
    * The gradients of hidden states are multiplied by the number of ranks, because
      `DistributedDataParallel` and FSDP average those of the encoder.

    Args:
        labels: the label distribution, whole (`Labels`) or spread over ranks
            (`headtail.distributed.sharded_labels`).
        dim: d, the size of the hidden states.
        loss: what to train, as for `LabelHead`.
        mesh: the ranks: a mesh with one dimension, or a process group; by default all processes.
        bias: learn a bias for each label.
        sparse: give the table row-sparse gradients; False for exact losses.
        device: where the rank's rows are made.
        dtype: of the table, and of the hidden states.

    The first weights follow from torch's random state on rank 0, and are the same for any number of
    ranks.
    """

    def __init__(
        self,
        labels: Labels | ShardedLabels,
        dim: int,
        loss: Loss,
        mesh: Any = None,
        *,
        bias: bool = False,
        sparse: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.ranks = Ranks.of(mesh)
        check_loss(loss, labels, sparse)
        self.labels = _shared(labels, self.ranks)
        self.loss = loss
        self.sparse = sparse
        self.dim = check_count("dim", dim)
        check_agreement(self.ranks, self.labels, self.dim, loss, bias=bias)
        self.part: OwnPart | None = None
        if isinstance(loss, SampledLoss):
            ranks = self.ranks
            self.part = own_part_of(loss.sampler, self.labels, ranks.rank, ranks.size)
        shape = (len(self.share), dim)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = None
        if bias:
            wide = torch.promote_types(self.weight.dtype, torch.float32)
            self.bias = nn.Parameter(torch.empty(shape[0], 1, device=device, dtype=wide))
        self.reset_parameters()
        self.register_state_dict_pre_hook(flush)
        self.register_load_state_dict_pre_hook(flush)

    @property
    def share(self) -> Share:
        """The rows of this rank."""
        return self.labels.share

    @property
    def placement(self) -> Placement:
        """Where the rows of all labels are."""
        return self.labels.placement

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Start with random directions of length about 1 and no bias. Every rank must call it.

        The values of a row depend on its number and on torch's random state on rank 0.
        """
        seed = self.ranks.numbers([int(torch.randint(2**30, ()))], torch.device("cpu"))[0][0]
        start, stop = self.share.start, self.share.stop
        first = start - start % ROWS_AT_ONCE
        for block in range(first, stop, ROWS_AT_ONCE):
            # torch seeds with 32 bits. An odd factor keeps blocks apart.
            mixed = (seed + block // ROWS_AT_ONCE * 0x9E3779B1) % 2**32
            generator = torch.Generator().manual_seed(mixed)
            rows = torch.randn(ROWS_AT_ONCE, self.dim, generator=generator)
            rows = rows[max(start - block, 0) : stop - block] * self.dim**-0.5
            place = max(block - start, 0)
            self.weight[place : place + len(rows)] = rows.to(self.weight)
        if self.bias is not None:
            self.bias.zero_()

    def forward(
        self,
        hidden: Float[Tensor, "*b d"],
        target: Target,
        *,
        draw: Draw | None = None,
        generator: torch.Generator | None = None,
        **options: Unpack[Options],
    ) -> Tensor:
        """The training loss of the batches of all ranks, which must all call it.

        Args:
            hidden: `[b, d]`, or `[B, T, d]` for the positions of sequences; b may differ by rank.
            target: as for `LabelHead`.
            draw: negatives that were drawn ahead, the same on all ranks.
            generator: source of the negatives' randomness; that of rank 0 decides.
            **options: options that change from batch to batch: `known_positives`, `sample_weight`.
        """
        settings = self.loss.settings_with(options)
        own = OwnBatch.of(hidden, target, self.labels.num_labels, settings)
        seed = int(torch.randint(2**62, (), generator=generator))
        batch = JointBatch.of(own, self.ranks, seed)
        rows = OwnRows(self.weight, self.bias, self.share, self.sparse)
        drawn = self._drawn(batch, draw)
        weighting = _weighting(self.loss)
        loss = sharded_loss(batch, rows, drawn, weighting)
        if settings.reduction != "none":
            return loss
        loss = loss[batch.own]
        return (
            loss if own.positions is None or own.pairs.multi_label else loss.reshape(own.positions)
        )

    def _drawn(self, batch: JointBatch, given: Draw | None) -> Draw:
        if isinstance(self.loss, ExactLoss):
            if given is not None:
                raise HeadtailError("`draw` has no meaning for an exact loss. Leave it out.")
            return every_own_label(self.share, self.labels.num_labels, batch.hidden.device)
        if given is not None:
            if not given.shared:
                raise HeadtailError(
                    "`draw` must be shared by the batch, `ids` of shape [m]: ranks cannot share "
                    "draws for each example."
                )
            return own_part(given, self.share)
        assert self.part is not None
        with torch.no_grad():
            drawn = self.part.pick(batch)
            if self.training:
                self.part.remember(batch)
            return drawn

    @without_gradients
    def topk(
        self,
        hidden: Float[Tensor, "b d"],
        k: int,
        *,
        exclude: PerExample | None = None,
        post_hoc: float | None = None,
    ) -> TopK:
        r"""The exact k best of all labels, for this rank's hidden states. Every rank must call it.

        Args:
            hidden: `[b, d]`; b may differ by rank.
            k: how many labels to return.
            exclude: labels that must not be returned, for each example, as for `LabelHead`.
            post_hoc: τ; ranks by $f_{y} - \tau \log \pi_{y}$. By default that of the loss.
        """
        check_hidden(hidden, self.weight)
        if check_count("k", k) > self.labels.num_labels:
            message = f" is {k}, but there are only {self.labels.num_labels} labels."
            raise HeadtailError(Setting("k"), message)
        post_hoc = self.loss.post_hoc if post_hoc is None else check_number("post_hoc", post_hoc)
        if post_hoc:
            self.labels.require_positive_prior("topk(post_hoc=…)")
        flush(self)
        table = ScoredTable(
            self.weight,
            self.bias,
            self.loss.settings.score == "cosine",
            self.loss.temperature,
            self.labels,
            post_hoc,
            self.share.labels().to(self.weight.device) if post_hoc else None,
        )
        listed = None
        if exclude is not None:
            shape = (hidden.shape[0], self.labels.num_labels, hidden.device)
            listed = Listed.of("exclude", exclude, *shape)
        return best_of_all(table, self.share, hidden, k, listed, self.ranks)

    def flush(self) -> None:
        """Apply the weight decay that row optimisers have left pending to all rows of this rank."""
        flush(self)

    def train(self, mode: bool = True) -> ShardedLabelHead:
        """As torch's; for evaluation, rows receive their pending weight decay first."""
        if not mode:
            flush(self)
        return super().train(mode)

    def extra_repr(self) -> str:
        """Labels and size."""
        return (
            f"num_labels={self.labels.num_labels}, own={len(self.weight)}, dim={self.dim}, "
            f"bias={self.bias is not None}, sparse={self.sparse}"
        )


def _shared(labels: Labels | ShardedLabels, ranks: Ranks) -> ShardedLabels:
    if isinstance(labels, ShardedLabels):
        share = labels.share
        wanted = labels.placement.share(ranks.rank, ranks.size)
        if (share.start, share.stop) != (wanted.start, wanted.stop):
            raise HeadtailError(
                f"`labels` are those of rows {share.start:,} to {share.stop:,}, but rank "
                f"{ranks.rank} of {ranks.size} holds {wanted.start:,} to {wanted.stop:,}. Make "
                "them with `headtail.distributed.sharded_labels` on the same ranks."
            )
        return labels
    check_kind("labels", labels, Labels, "Labels.from_counts(counts)")
    placement = Placement((labels.num_labels,))
    return ShardedLabels.part_of(labels, placement.share(ranks.rank, ranks.size))


def _weighting(loss: Loss) -> Any:
    if isinstance(loss, SampledLoss):
        return loss.weighting
    assert isinstance(loss, ExactLoss)
    return FromMargin(loss.margin)
