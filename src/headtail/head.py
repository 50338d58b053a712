"""LabelHead: the label table, trained on sampled negatives, answering with exact top-k."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtail.answers.candidates import Candidates, best_of, candidates_of
from headtail.answers.scored_table import ScoredTable, check_hidden
from headtail.answers.top_labels import TopLabels
from headtail.answers.topk import best_labels, refuse_not_finite, without_gradients
from headtail.collectives.ranks import refuse_reducer
from headtail.core.draw import Draw
from headtail.core.labels import Labels, check_labels
from headtail.core.listed import Listed, PerExample
from headtail.core.targets import Target
from headtail.core.topk import TopK
from headtail.errors import (
    HeadtailError,
    Setting,
    check_choice,
    check_count,
    check_ids,
    check_number,
)
from headtail.implicit.implied import implied_margin_of, lean_of, refuse_to_correct_twice
from headtail.losses import Loss, SampledLoss
from headtail.losses.captured import Call, Captured, HeadGraphs
from headtail.losses.of_head import check_loss
from headtail.losses.options import Options
from headtail.rows.decay import catch_up, flush, forgive
from headtail.rows.look_up import look_up
from headtail.rows.new_rows import add_rows
from headtail.rows.table_module import PLACEMENTS, Placement, TableModule, new_table


class LabelHead(TableModule):
    """The last layer for very many labels: `head(hidden, target)` is the training loss,
    `head.topk(hidden, k)` the answer.

    Args:
        labels: the label distribution.
        dim: d, the size of the hidden states.
        loss: what to train, for example `SampledSoftmaxLoss(WithinBatch(labels), Tail(labels))`.
        bias: learn a bias for each label.
        sparse: give the table row-sparse gradients, for `RowSGD`, `RowAdagrad`, `RowAdam`: a step
            then costs the same at ten thousand labels and at a hundred million.
        device: where the table is made and used.
        dtype: of the table, and of the hidden states; a bias has at least the digits of float32.
        placement: "host" keeps the table, and the state of its row optimiser, in host memory,
            pinned: a GPU reads and updates the rows of a step there, so that it trains a table that
            is larger than its own memory. Needs `sparse=True`.

    >>> from headtail import SampledSoftmaxLoss, Tail, WithinBatch
    >>> labels = Labels.zipf(1000)
    >>> loss = SampledSoftmaxLoss(WithinBatch(labels), Tail(labels))
    >>> head = LabelHead(labels, 16, loss, sparse=True)
    >>> hidden, target = torch.randn(8, 16), torch.randint(1000, (8,))
    >>> head(hidden, target).backward()
    >>> head.weight.grad.is_sparse, head.topk(hidden, 5).indices.shape
    (True, torch.Size([8, 5]))
    """

    def __init__(
        self,
        labels: Labels,
        dim: int,
        loss: Loss,
        *,
        bias: bool = False,
        sparse: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        placement: Placement = "device",
    ) -> None:
        super().__init__()
        check_labels(labels)
        check_choice("placement", placement, PLACEMENTS)
        check_loss(loss, labels, sparse, placement)
        self.labels = labels
        self.loss = loss
        self.sparse = sparse
        self.placement = placement
        self._lean: tuple[Loss, float] | None = None  # of this loss, once it is needed
        self._graphs = HeadGraphs()
        shape = (labels.num_labels, check_count("dim", dim))
        self.weight = new_table(shape, placement, device, dtype)
        self.bias = None
        if bias:
            wide = torch.promote_types(self.weight.dtype, torch.float32)
            self.bias = new_table((shape[0], 1), placement, device, wide)
        self.reset_parameters()
        # What is saved has its weight decay, and what is loaded is not decayed for the past.
        self.register_state_dict_pre_hook(flush)
        self.register_load_state_dict_pre_hook(flush)

    def reset_parameters(self) -> None:
        """Start with random directions of length about 1 and no bias."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        for table in (self.weight, self.bias):
            if table is not None:
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
        """The training loss of one batch.

        Args:
            hidden: `[b, d]`, or `[B, T, d]` for the positions of sequences.
            target: `[b]` ids, padded `[b, k]` ids or a `Ragged`; of positions `[B, T]` ids, −100
                where nothing is predicted.
            draw: negatives that were drawn ahead; by default the loss draws them.
            generator: source of the negatives' randomness.
            **options: options that change from batch to batch: `known_positives`, `sample_weight`.
        """
        loss = self.loss
        weight = self.weight
        bias = self.bias
        if self.sparse:
            refuse_reducer(weight)
        if not isinstance(loss, SampledLoss):
            if draw is not None:
                raise HeadtailError("`draw` has no meaning for an exact loss. Leave it out.")
            return loss(hidden, weight, target, bias=bias, **options)
        if self.sparse and self.training:
            if draw is None and generator is None and not options:
                value = self._graphs.loss(Call(loss, hidden, target, weight, bias))
                if value is not None:
                    return value
            elif self._graphs.serves(hidden):
                self._graphs.tell("options change from call to call")
        return loss(
            hidden,
            weight,
            target,
            bias=bias,
            draw=draw,
            sparse=self.sparse,
            generator=generator,
            **options,
        )

    def capture(self, on: bool = True) -> LabelHead:
        """Whether training steps of a sparse head run as CUDA graphs, on a GPU; they do by default.

        After three calls with the same shapes, `head(hidden, target)` replays one graph for draw,
        loss and gradients, and `step()` of a row optimiser one for the update. Results are those
        of the uncaptured step. `weight.grad` is the gradient, in memory that later steps write to
        again: clone it, or keep the tensor itself and not a part of it. A warning says once why a
        head is not captured.

        Args:
            on: with False, every step runs eagerly, and graphs are freed.
        """
        self._graphs.free()
        self._graphs = HeadGraphs(on)
        return self

    @property
    def captured(self) -> Captured:
        """What is captured as CUDA graphs: shapes of hidden states, and the memory they need."""
        return self._graphs.captured

    def rows(self, ids: Int[Tensor, ...]) -> Float[Tensor, "... d"]:
        """The rows of these labels, with their weight decay; gradients flow into the table.

        Look labels up with it where inputs and answers share a table, instead of indexing `weight`.

        Args:
            ids: label ids of any shape.

        >>> from headtail import SoftmaxLoss
        >>> LabelHead(Labels.zipf(5), 3, SoftmaxLoss()).rows(torch.tensor([[0, 4]])).shape
        torch.Size([1, 2, 3])
        """
        check_ids("ids", ids, len(self.weight))
        return look_up(self.weight, ids, sparse=self.sparse)

    @torch.no_grad()
    def logits(self, hidden: Float[Tensor, "b d"]) -> Float[Tensor, "b L"]:
        """Scores of all labels at once: `[b, L]`, so for small L only."""
        check_hidden(hidden, self.weight)
        self.flush()
        return self._table().scores(hidden, slice(None))

    @without_gradients
    def topk(
        self,
        hidden: Float[Tensor, "b d"],
        k: int,
        *,
        candidates: Candidates | None = None,
        exclude: PerExample | None = None,
        post_hoc: float | None = None,
        correct_twice: bool = False,
    ) -> TopK:
        r"""The exact k best labels, block by block: `[b, L]` scores are never held whole.

        Args:
            hidden: `[b, d]`.
            k: how many labels to return.
            candidates: labels to choose from: `[c]` ids or a mask `[L]` for all examples, or for
                each example a `Ragged`, a list of lists, or `[b, c]` ids padded with −1. Only their
                rows are read; where there are fewer than k, the rest is as for `exclude`.
            exclude: labels that must not be returned, for each example: a `Ragged`, a list of
                lists, or `[b, e]` ids padded with −1. The answer is exact however many they are;
                where fewer than k labels remain, the rest has index −1 and value −∞.
            post_hoc: τ; ranks by $f_{y} - \tau \log \pi_{y}$ (post-hoc logit adjustment), which
                leans to the tail. By default that of the loss: 0, unless it was built from a
                `+post-hoc` scheme.
            correct_twice: allow `post_hoc` on top of a loss that already leans to the tail.
        """
        check_hidden(hidden, self.weight)
        self._check_k(k)
        post_hoc = self._checked_post_hoc(post_hoc, correct_twice)
        shape = (hidden.shape[0], len(self.weight), hidden.device)
        excluded = None if exclude is None else Listed.of("exclude", exclude, *shape)
        if candidates is None:
            self.flush()
            table = self._table(post_hoc)
            best = best_labels(table, hidden, k, excluded)
            refuse_not_finite(table, hidden, best.values)
            return best
        chosen = candidates_of(candidates, *shape)
        rows = chosen if isinstance(chosen, Tensor) else chosen.label.unique()
        self._catch_up(rows)
        table = self._table(post_hoc)
        best = best_of(table, hidden, k, chosen, excluded)
        refuse_not_finite(table, hidden, best.values)
        return best

    def exported(
        self, k: int, *, post_hoc: float | None = None, correct_twice: bool = False
    ) -> TopLabels:
        """`topk` as a module of its own, for `torch.export` and for serving.

        It holds a copy of the table, with bias, cosine, temperature and post-hoc adjustment folded
        in, and nothing that training needs. `module(hidden)` is the tuple (values, indices) of
        `topk`, for batches of any size.

        Args:
            k: how many labels to return.
            post_hoc: τ, as in `topk`.
            correct_twice: as in `topk`.

        >>> from headtail import SoftmaxLoss
        >>> head = LabelHead(Labels.zipf(50), 4, SoftmaxLoss(), bias=True)
        >>> sizes = ({0: torch.export.Dim("batch")},)
        >>> example = (torch.ones(2, 4),)
        >>> program = torch.export.export(head.exported(3), example, dynamic_shapes=sizes)
        >>> values, indices = program.module()(torch.ones(5, 4))
        >>> bool((indices == head.topk(torch.ones(5, 4), 3).indices).all())
        True
        """
        self._check_k(k)
        return TopLabels(self.scored_table(post_hoc, correct_twice), k)

    def scored_table(
        self, post_hoc: float | None = None, correct_twice: bool = False
    ) -> ScoredTable:
        """All that decides scores, with caught-up rows; for exports, which fold it into vectors.

        Args:
            post_hoc: τ, as in `topk`.
            correct_twice: as in `topk`.
        """
        post_hoc = self._checked_post_hoc(post_hoc, correct_twice)
        self.flush()
        return self._table(post_hoc)

    @torch.no_grad()
    def grow(
        self,
        labels: Labels,
        optimizer: torch.optim.Optimizer | None = None,
        loss: Loss | None = None,
    ) -> None:
        """Take new labels in: they get rows, counts and negatives; old rows and their optimiser
        state stay as they are.

        Args:
            labels: the grown labels, for example `head.labels.grow([3, 1])`; old labels keep their
                ids.
            optimizer: its state for this table gets rows for the new labels (row optimisers do so
                by themselves).
            loss: a loss for the grown labels, where the present one cannot grow by itself.
        """
        check_labels(labels)
        old = len(self.weight)
        new = labels.num_labels
        if new < old:
            raise HeadtailError(
                f"`labels` has {new} labels, fewer than the {old} the head has. Labels can be "
                "added, not removed."
            )
        loss = self.loss.for_labels(labels) if loss is None else loss
        check_loss(loss, labels, self.sparse, self.placement)
        self.flush()
        fresh = torch.empty(
            new - old, self.weight.shape[1], device=self.weight.device, dtype=self.weight.dtype
        )
        add_rows(self.weight, nn.init.normal_(fresh, std=fresh.shape[1] ** -0.5), optimizer)
        if self.bias is not None:
            add_rows(self.bias, self.bias.new_zeros(new - old, 1), optimizer)
        self.labels = labels
        self.loss = loss.to(self.weight.device).train(self.training)
        self._lean = None

    def flush(self) -> None:
        """Apply the weight decay that row optimisers have left pending to all rows.

        `logits`, `topk`, `eval`, `state_dict`, pickle and `copy.deepcopy` do it. Call it before
        anything else reads or writes `weight`: before an average of weights is updated, before an
        export, before weights are sent to other processes. It costs O(L) if decay is pending.
        """
        if not torch.compiler.is_exporting():
            flush(self)
        elif self.training:  # what is pending cannot be seen here; for evaluation, nothing is
            raise HeadtailError(
                "`torch.export` needs rows with their weight decay. Call `model.eval()` before."
            )

    def _catch_up(self, rows: Int[Tensor, " n"]) -> None:
        """Make these rows of the table ready to be read."""
        for table in self.parameters(recurse=False):
            catch_up(table, rows)

    def train(self, mode: bool = True) -> LabelHead:
        """As torch's; for evaluation, rows receive their pending weight decay first."""
        if not mode:
            self.flush()
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and deepcopy: nothing may be left pending."""
        self.flush()
        return self.__dict__.copy()

    def extra_repr(self) -> str:
        """Labels and size."""
        return (
            f"num_labels={len(self.weight)}, dim={self.weight.shape[1]}, "
            f"bias={self.bias is not None}, sparse={self.sparse}"
            + (", placement=host" if self.placement == "host" else "")
        )

    def _table(self, post_hoc: float = 0.0) -> ScoredTable:
        cosine = self.loss.settings.score == "cosine"
        temperature = self.loss.temperature
        return ScoredTable(self.weight, self.bias, cosine, temperature, self.labels, post_hoc)

    def _check_k(self, k: int) -> None:
        if check_count("k", k) > len(self.weight):
            message = f" is {k}, but there are only {len(self.weight)} labels."
            raise HeadtailError(Setting("k"), message)

    def _checked_post_hoc(self, post_hoc: float | None, correct_twice: bool) -> float:
        """τ, by default that of the loss."""
        post_hoc = self.loss.post_hoc if post_hoc is None else check_number("post_hoc", post_hoc)
        if post_hoc:
            self.labels.require_positive_prior("topk(post_hoc=…)")
            if not correct_twice:
                self._refuse_to_correct_twice()
        return post_hoc

    def _refuse_to_correct_twice(self) -> None:
        if self._lean is None or self._lean[0] is not self.loss:
            if torch.compiler.is_exporting():
                raise HeadtailError(
                    "While a model is exported, `topk(post_hoc=…)` cannot find out whether its "
                    "loss leans to the tail already. Export `head.exported(k, post_hoc=…)`."
                )
            self._lean = self.loss, lean_of(implied_margin_of(self.loss, batch_size=2), self.labels)
        refuse_to_correct_twice(self._lean[1])
