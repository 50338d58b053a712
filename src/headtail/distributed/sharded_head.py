"""ShardedLabelHead: a label table whose rows are spread over ranks."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtail.answers.candidates import Candidates, candidates_of
from headtail.answers.scored_table import ScoredTable, check_hidden
from headtail.answers.topk import without_gradients
from headtail.collectives.ranks import Ranks
from headtail.collectives.shared import own_of
from headtail.core.draw import Draw
from headtail.core.labels import Labels
from headtail.core.listed import Listed, PerExample
from headtail.core.placement import Placement, Share
from headtail.core.sharded_labels import ShardedLabels
from headtail.core.targets import Target
from headtail.core.topk import TopK
from headtail.distributed.agree import check_agreement
from headtail.distributed.captured import ShardedGraphs, new_seed, refuse_mixed
from headtail.distributed.joint_batch import (
    REFUSED,
    JointBatch,
    OwnBatch,
    check_alike,
    replayed,
)
from headtail.distributed.moving import fill_rows, move_table
from headtail.distributed.own_draws import (
    OwnPart,
    every_own_label,
    given_part,
    own_part_of,
    picked,
    take_over,
)
from headtail.distributed.own_labels import own_labels
from headtail.distributed.same_call import Facts, LossFacts, facts_of_draw, facts_of_states
from headtail.distributed.sharded_loss import OwnRows, sharded_loss, weighting_of
from headtail.distributed.sharded_topk import Asked, best_of_all
from headtail.distributed.together import everywhere, number_of_first, refuse_everywhere, tried
from headtail.errors import HeadtailError, Setting, check_count, check_number
from headtail.losses import ExactLoss, Loss, SampledLoss
from headtail.losses.captured import Captured
from headtail.losses.graph import Call
from headtail.losses.options import Options
from headtail.rows.decay import flush, forgive
from headtail.rows.link import linked


class ShardedLabelHead(nn.Module):
    r"""A `LabelHead` whose table is spread over ranks: rank r of n holds and updates L/n rows.

    Every rank calls it with its own part of the batch. Hidden states and targets are gathered; each
    rank scores its own positives and negatives; one or two numbers per target are summed. Rows of
    the table never travel, and nothing that travels grows with L. The loss is that of all ranks'
    batches together, the same number on every rank.

    * Negatives are drawn by each rank from its own labels, with their exact q (`Stratified`);
      within-batch negatives and queues are those of the joint batch.
    * Row optimisers need no communication: `RowAdagrad(head.parameters())` on each rank.
    * Clip with `headtail.clip_grad_norm_`, which sums over ranks; torch's own sees one rank's rows.
    * The gradients of hidden states are multiplied by the number of ranks, because
      `DistributedDataParallel` and FSDP average those of the encoder.

    Args:
        labels: the label distribution, whole (`Labels`) or spread over ranks
            (`headtail.distributed.count_labels`).
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
        ranks = self.ranks = Ranks.of(mesh)
        self.labels, counts = everywhere(ranks, lambda: own_labels(labels, loss, sparse, ranks))
        self.loss = loss
        self.sparse = sparse
        self.dim = check_count("dim", dim)
        table = f"{dim} {dtype or torch.get_default_dtype()} {bias}"
        facts = {"counts of labels, label by label": counts, "sizes, dtypes or biases": table}
        check_agreement(ranks, self.labels, loss, facts)
        self.part = self._part_of(loss, self.labels)
        self._graphs = ShardedGraphs(ranks)
        self._loss_facts = LossFacts()
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
        fill_rows(self.weight, self.share.start, self.shared_seed())
        if self.bias is not None:
            self.bias.zero_()
        for table in self.parameters(recurse=False):
            forgive(table)

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
            draw: negatives that were drawn ahead, the same on all ranks. Their ids and log q are
                compared on a CPU; on a GPU only their number is, because the host would wait.
            generator: source of the negatives' randomness. Each rank draws its own by its own, and
                that of rank 0 decides what all of them draw together (`WithinBatch`, `Queue`).
            **options: options that change from batch to batch: `known_positives`, `sample_weight`;
                and others, which must be the same on all ranks.
        """
        for table in self.parameters(recurse=False):
            linked(table).ranks = self.ranks  # here, because copies and loaded ones have no link
        call = None
        # `ignore_index=None` promises that all targets count, which stages need not know.
        asked = set(options) - (
            {"ignore_index"} if options.get("ignore_index", 0) is None else set()
        )
        if self.sparse and self.training and draw is None and generator is None and not asked:
            call = Call(self.loss, hidden, target, self.weight, self.bias)  # pyright: ignore[reportArgumentType]
            value = self._graphs.loss(call)
            if value is not None:
                return value
        own, error = tried(lambda: self._own_batch(hidden, target, options))
        reason = None if call is None else self._graphs.why_not(call, self.part)
        ready = own is not None and call is not None and reason is None
        seed = new_seed(generator)
        given = draw is not None
        facts = {} if own is None else self._facts(own) | facts_of_draw(draw)
        numbers = REFUSED if own is None else own.numbers(seed, facts, given=given, ready=ready)
        table = self.ranks.numbers(numbers, self.weight.device)
        if any(map(replayed, table)):
            refuse_mixed(error)
        if own is None or REFUSED in table:
            refuse_everywhere(self.ranks, error)
        check_alike(self.ranks, table, facts)
        size = self._graphs.agreed_size(table)
        if call is not None and self.part is not None and size is not None:
            return self._graphs.begin(call, seed, self.part, self.share, size)
        batch = JointBatch.of(own, self.ranks, table)
        rows = OwnRows(self.weight, self.bias, self.share, self.sparse)
        drawn = self._drawn(batch, draw)
        loss = sharded_loss(batch, rows, drawn, weighting_of(self.loss))
        if reason:  # after all messages: a warning may be an error, and on one rank only
            self._graphs.tell(reason)
        return loss if own.settings.reduction != "none" else self._own_losses(loss, own, batch)

    def _own_losses(self, loss: Tensor, own: OwnBatch, batch: JointBatch) -> Tensor:
        """Of all losses those of this rank's targets, in the shape of its hidden states."""
        loss = own_of(loss, batch.own, self.ranks)
        if own.positions is None or batch.pairs.multi_label:
            return loss
        return loss.reshape(*own.positions)

    def _own_batch(self, hidden: Tensor, target: Target, options: Options) -> OwnBatch:
        settings = self.loss.settings_with(options)
        return OwnBatch.of(hidden, target, settings, self.weight, self.labels.num_labels)

    def _facts(self, own: OwnBatch) -> Facts:
        """What all ranks must do alike in this step."""
        of_loss = self._loss_facts.of(self.loss, own.settings)
        return of_loss | facts_of_states(own.hidden) | self._graphs.facts

    def _part_of(self, loss: Loss, labels: ShardedLabels) -> OwnPart | None:
        """The loss's sampler as this rank sees it."""
        if not isinstance(loss, SampledLoss):
            return None
        ranks = self.ranks
        return everywhere(ranks, lambda: own_part_of(loss.sampler, labels, ranks.rank, ranks.size))

    def shared_seed(self) -> int:
        """A random number of rank 0. Every rank must call it."""
        return number_of_first(self.ranks, int(torch.randint(2**30, ())))

    def _drawn(self, batch: JointBatch, given: Draw | None) -> Draw:
        if isinstance(self.loss, ExactLoss):
            if given is not None:
                raise HeadtailError("`draw` has no meaning for an exact loss. Leave it out.")
            return every_own_label(self.share, self.labels.num_labels, batch.hidden.device)
        if given is not None:
            return given_part(given, weighting_of(self.loss), batch, self.share)
        assert self.part is not None
        with torch.no_grad():
            drawn = picked(self.part, batch, remembered=self.training)
            if self.training:
                self.part.remember(batch)
            return drawn

    @without_gradients
    def topk(
        self,
        hidden: Float[Tensor, "b d"],
        k: int,
        *,
        candidates: Candidates | None = None,
        exclude: PerExample | None = None,
        post_hoc: float | None = None,
    ) -> TopK:
        r"""The exact k best labels, for this rank's hidden states. Every rank must call it.

        Args:
            hidden: `[b, d]`; b may differ by rank.
            k: how many labels to return, the same on all ranks.
            candidates: labels to choose from, as for `LabelHead`; they may differ by rank. Where
                all ranks have some, only their rows are read.
            exclude: labels that must not be returned, for each example, as for `LabelHead`.
            post_hoc: τ, the same on all ranks; labels are ranked by $f_{y} - \tau \log \pi_{y}$. By
                default that of the loss.
        """
        lists = (candidates, exclude)
        table, asked = everywhere(self.ranks, lambda: self._asked(hidden, k, *lists, post_hoc))
        return best_of_all(table, self.share, asked, self.ranks)

    def _asked(
        self,
        hidden: Tensor,
        k: int,
        candidates: Candidates | None,
        exclude: PerExample | None,
        post_hoc: float | None,
    ) -> tuple[ScoredTable, Asked]:
        """This rank's table as `topk` scores it, and what is asked of it."""
        check_hidden(hidden, self.weight)
        if check_count("k", k) > self.labels.num_labels:
            message = f" is {k}, but there are only {self.labels.num_labels} labels."
            raise HeadtailError(Setting("k"), message)
        post_hoc = self.loss.post_hoc if post_hoc is None else check_number("post_hoc", post_hoc)
        if post_hoc:
            self.labels.require_positive_prior("topk(post_hoc=…)")
        shape = (hidden.shape[0], self.labels.num_labels, hidden.device)
        excluded = None if exclude is None else Listed.of("exclude", exclude, *shape)
        chosen = None if candidates is None else candidates_of(candidates, *shape)
        table = ScoredTable(
            self.weight,
            self.bias,
            self.loss.settings.score == "cosine",
            self.loss.temperature,
            self.labels,
            post_hoc,
            self.share.labels().to(self.weight.device) if post_hoc else None,
        )
        return table, Asked(hidden, k, excluded, chosen)

    @torch.no_grad()
    def grow(
        self,
        labels: Labels | ShardedLabels,
        optimizer: torch.optim.Optimizer | None = None,
        loss: Loss | None = None,
    ) -> None:
        """Take new labels in, on all ranks together: old rows and their optimiser state keep their
        values, and some move to another rank, so that every rank holds equally many.

        Args:
            labels: the grown labels; old labels keep their ids.
            optimizer: its state for this table moves, and gets rows for the new labels.
            loss: a loss for the grown labels, where the present one cannot grow by itself. Queues
                keep what they hold if the new sampler has the same ones, and else begin empty.
        """
        before = self.placement
        loss, grown, counts = everywhere(self.ranks, lambda: self._grown(labels, loss))
        after = grown.placement
        check_agreement(self.ranks, grown, loss, {"counts of labels, label by label": counts})
        part = self._part_of(loss, grown)
        take_over(part, self.part)
        flush(self)
        seed = self.shared_seed()
        for table in self.parameters(recurse=False):
            fresh = table is self.weight
            move_table(table, before, after, self.ranks, optimizer, seed if fresh else None)
        self._graphs.free()
        self.labels = grown
        self.loss = loss.to(self.weight.device).train(self.training)
        self.part = part

    def _grown(
        self, labels: Labels | ShardedLabels, loss: Loss | None
    ) -> tuple[Loss, ShardedLabels, str]:
        """The loss and this rank's labels after growing, and a digest of counts."""
        added = labels.num_labels - self.placement.num_labels
        if added < 0:
            raise HeadtailError(
                f"`labels` has {labels.num_labels:,} labels, fewer than the "
                f"{self.placement.num_labels:,} the head has. Labels can be added, not removed."
            )
        loss = self.loss.for_labels(labels) if loss is None else loss  # pyright: ignore[reportArgumentType]
        after = self.placement.grow(added)
        return loss, *own_labels(labels, loss, self.sparse, self.ranks, after)

    def capture(
        self, on: bool = True, *, examples: int | None = None, messages: bool = False
    ) -> ShardedLabelHead:
        """Whether training steps run as CUDA graphs, on a GPU; they do by default. Every rank must
        call it alike.

        Ranks agree on it after three steps with batches of one size on all ranks, or at once where
        `examples` says how large batches are, and pad theirs to that size from then on: later
        batches may be smaller, but not larger on some ranks only. Each rank captures its own work;
        messages between ranks are sent eagerly, unless `messages` captures them too. A warning says
        once why a head is not captured.

        Args:
            on: with False, every step runs eagerly, and graphs are freed.
            examples: the most that any rank will have in a batch.
            messages: capture a whole step, messages included (NCCL only). NCCL then waits for the
                graphs before it ends: write `head.capture(False)` before
                `torch.distributed.destroy_process_group()`. A rank that is lost during such a step
                is noticed by torchrun alone.
        """
        self._graphs.free()
        most = None if examples is None else check_count("examples", examples)
        self._graphs = ShardedGraphs(self.ranks, on, most, whole=messages)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> ShardedLabelHead:
        """As torch's, for `to` and the like: graphs hold addresses, which change on all ranks."""
        moved = super()._apply(fn, recurse)
        self._graphs.free()
        return moved

    @property
    def captured(self) -> Captured:
        """What is captured as CUDA graphs: the shape of hidden states, and the memory needed."""
        return self._graphs.captured

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
