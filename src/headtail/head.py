"""LabelHead: the label table, trained on sampled negatives, answering with exact top-k."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtail.errors import HeadtailError, check_finite_number, check_positive_int
from headtail.implicit.implied import implied_margin_of, lean_of
from headtail.labels import Labels
from headtail.losses import Loss, SampledLoss
from headtail.optim import catch_up
from headtail.targets import Pairs, Target

BLOCK_SCORES = 2**24
"""How many scores `topk` holds at a time."""


class TopK(NamedTuple):
    """The k best labels of each example, best first."""

    values: Float[Tensor, "b k"]
    indices: Int[Tensor, "b k"]


class LabelHead(nn.Module):
    """The last layer for very many labels: `head(hidden, target)` is the training loss, `head.topk(hidden, k)` the answer.

    Args:
        labels: the label distribution.
        dim: d, the size of the hidden states.
        loss: what to train, for example `SampledSoftmaxLoss(WithinBatch(labels), Tail(labels))`.
        bias: learn a bias for each label.
        sparse: give the table row-sparse gradients, for `RowSGD`, `RowAdagrad`, `RowAdam`: a step then costs the same at ten
            thousand labels and at a hundred million.

    >>> from headtail import SampledSoftmaxLoss, Tail, WithinBatch
    >>> labels = Labels.zipf(1000)
    >>> head = LabelHead(labels, 16, SampledSoftmaxLoss(WithinBatch(labels), Tail(labels)), sparse=True)
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
    ) -> None:
        super().__init__()
        if not isinstance(labels, Labels) or not isinstance(loss, Loss):
            raise HeadtailError(
                f"`labels` must be a `Labels` and `loss` a `Loss`, but got {type(labels).__name__} and {type(loss).__name__}. "
                "Write for example `LabelHead(labels, dim, SoftmaxLoss())`."
            )
        if sparse and not isinstance(loss, SampledLoss):
            raise HeadtailError("`sparse=True` needs a sampled loss: an exact loss touches every row. Write `sparse=False`.")
        if isinstance(loss, SampledLoss) and loss.sampler.num_labels != labels.num_labels:
            raise HeadtailError(f"`loss` samples from {loss.sampler.num_labels} labels, but `labels` has {labels.num_labels}.")
        self.labels, self.loss, self.sparse = labels, loss, sparse
        shape = (labels.num_labels, check_positive_int("dim", dim))
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(shape[0], 1, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()
        # Lazy weight decay must not be forgotten in what is saved.
        self.register_state_dict_pre_hook(lambda head, *_: head._catch_up())

    def reset_parameters(self) -> None:
        """Start with random directions of length about 1 and no bias."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, hidden: Float[Tensor, "b d"], target: Target, *, generator: torch.Generator | None = None, **options: Any
    ) -> Tensor:
        """The training loss of one batch.

        Args:
            hidden: `[b, d]`.
            target: `[b]` ids, padded `[b, k]` ids or a `Ragged`.
            generator: source of the negatives' randomness.
            **options: what changes from batch to batch: `draw`, `known_positives`, `sample_weight`.
        """
        if not isinstance(self.loss, SampledLoss):
            self._catch_up()
            return self.loss(hidden, self.weight, target, bias=self.bias, **options)
        draw = options.pop("draw", None)
        if draw is None:
            draw = self.loss.draw(hidden, self.weight, target, generator)
        pairs = Pairs.of(target, num_labels=len(self.weight), ignore_index=self.loss.settings.ignore_index)
        self._catch_up(torch.cat([pairs.label, draw.ids.reshape(-1)]))
        return self.loss(hidden, self.weight, target, bias=self.bias, draw=draw, sparse=self.sparse, **options)

    @torch.no_grad()
    def logits(self, hidden: Float[Tensor, "b d"]) -> Float[Tensor, "b L"]:
        """Scores of all labels at once: `[b, L]`, so for small L only."""
        self._check_hidden(hidden)
        self._catch_up()
        return self._scores(hidden, slice(None))

    @torch.no_grad()
    def topk(self, hidden: Float[Tensor, "b d"], k: int, *, post_hoc: float = 0.0, correct_twice: bool = False) -> TopK:
        r"""The exact k best labels, block by block: `[b, L]` scores are never held whole.

        Args:
            hidden: `[b, d]`.
            k: how many labels to return.
            post_hoc: τ; ranks by $f_{y} - \tau \log \pi_{y}$ (post-hoc logit adjustment), which leans to the tail.
            correct_twice: allow `post_hoc` on top of a loss that already leans to the tail.
        """
        self._check_hidden(hidden)
        if check_positive_int("k", k) > len(self.weight):
            raise HeadtailError(f"`k` is {k}, but there are only {len(self.weight)} labels.")
        if check_finite_number("post_hoc", post_hoc):
            self._check_post_hoc(correct_twice)
        self._catch_up()
        block = max(1, BLOCK_SCORES // max(1, len(hidden)))
        best = TopK(hidden.new_empty(len(hidden), 0, dtype=torch.float32), hidden.new_empty(len(hidden), 0, dtype=torch.int64))
        for start in range(0, len(self.weight), block):
            ids = torch.arange(start, min(start + block, len(self.weight)), device=hidden.device)
            scores = self._scores(hidden, slice(start, start + block))
            if post_hoc:
                scores = scores - (post_hoc * self.labels.log_prior(ids)).to(scores.dtype)
            values = torch.cat([best.values.to(scores.dtype), scores], 1)
            indices = torch.cat([best.indices, ids.expand(len(hidden), -1)], 1)
            top = values.topk(min(k, values.shape[1]), dim=1)
            best = TopK(top.values, indices.gather(1, top.indices))
        return best

    @torch.no_grad()
    def grow(self, labels: Labels, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Take new labels in: they get rows, counts and negatives; old rows and their optimiser state stay as they are.

        Args:
            labels: the grown labels, for example `head.labels.grow([3, 1])`; old labels keep their ids.
            optimizer: its state for this table gets rows for the new labels (row optimisers do so by themselves).
        """
        old, new = len(self.weight), labels.num_labels
        if new < old:
            raise HeadtailError(f"`labels` has {new} labels, fewer than the {old} the head has. Labels can be added, not removed.")
        added = LabelHead(
            labels, self.weight.shape[1], self.loss.for_labels(labels), bias=self.bias is not None, sparse=self.sparse
        )
        self._catch_up()
        tables = [(self.weight, added.weight)] + (
            [(self.bias, added.bias)] if self.bias is not None and added.bias is not None else []
        )
        for table, fresh in tables:
            table.grad = None
            table.set_(torch.cat([table, fresh[old:].to(table)]))  # pyright: ignore[reportArgumentType] - same Parameter, more rows
            state = optimizer.state.get(table, {}) if optimizer is not None else {}
            for name, value in state.items():
                if isinstance(value, Tensor) and value.dim() and len(value) == old and name != "missed":
                    fill = optimizer.defaults.get("initial_accumulator_value", 0.0) if name == "sum" and optimizer else 0.0
                    state[name] = torch.cat([value, value.new_full((new - old, *value.shape[1:]), fill)])
        self.labels, self.loss = labels, added.loss.to(self.weight.device)

    def extra_repr(self) -> str:
        """Labels and size."""
        return f"num_labels={len(self.weight)}, dim={self.weight.shape[1]}, bias={self.bias is not None}, sparse={self.sparse}"

    def _scores(self, hidden: Tensor, block: slice) -> Tensor:
        settings, weight = self.loss.settings, self.weight[block]
        if settings.score == "cosine":
            hidden, weight = F.normalize(hidden, dim=-1), F.normalize(weight, dim=-1)
        scores = F.linear(hidden, weight)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return (scores if self.bias is None else scores + self.bias[block].squeeze(1)) / settings.temperature

    def _catch_up(self, rows: Tensor | slice = slice(None)) -> None:
        for table in (self.weight, self.bias):
            if table is not None:
                catch_up(table, rows)

    def _check_hidden(self, hidden: Tensor) -> None:
        if hidden.dim() != 2 or hidden.shape[1] != self.weight.shape[1]:
            raise HeadtailError(f"`hidden` must have shape [b, {self.weight.shape[1]}], but got {list(hidden.shape)}.")

    def _check_post_hoc(self, correct_twice: bool) -> None:
        self.labels.require_positive_prior("topk(post_hoc=…)")
        lean = lean_of(implied_margin_of(self.loss, batch_size=2), self.labels)
        if lean > 1e-6 and not correct_twice:
            raise HeadtailError(
                f"`post_hoc` would correct twice: this head's training loss already leans to the tail by {lean:.2f} nats. "
                "Drop `post_hoc`, train with an unbiased loss, or write `correct_twice=True` if you mean it."
            )
