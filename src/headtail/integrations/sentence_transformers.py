"""Two towers in sentence-transformers: within-batch negatives, weighed as any scheme says.

    labels = count_items(train, "item_id")
    train = with_item_ids(train, "item_id", labels)
    loss = TwoTowerLoss(model, labels, weighting="tail")
    SentenceTransformerTrainer(model, args, train, loss=loss).train()

An item that is in a batch twice is known by its id, so it is never a negative of itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headtail.core.draw import Draw
from headtail.core.labels import Labels, check_labels
from headtail.core.margins import Separable
from headtail.core.targets import IGNORE_INDEX
from headtail.core.weightings import FromMargin, Weighting
from headtail.distributed import gather
from headtail.errors import HeadtailError, check_count, check_ids, check_number, need
from headtail.integrations.datasets import count_items, with_item_ids
from headtail.losses import ExactLoss, SampledDecoupledLoss, SampledLoss, SampledSoftmaxLoss
from headtail.samplers import WithinBatch
from headtail.schemes import MARGINS, WEIGHTINGS, scheme

__all__ = ["CachedTwoTowerLoss", "TwoTowerLoss", "count_items", "with_item_ids"]

_NEEDED = {"extra": "sentence-transformers", "to": "This loss"}
_gradcache = need(
    "sentence-transformers", module="sentence_transformers.base.losses.gradcache", **_NEEDED
)
_forward = need(
    "sentence-transformers", module="sentence_transformers.base.losses.merged_forward", **_NEEDED
)
_distributed = need("sentence-transformers", module="sentence_transformers.util", **_NEEDED)

Features = Iterable[dict[str, Tensor]]


class TwoTowerLoss(nn.Module):
    r"""The sampled softmax over the items of the batch, for `SentenceTransformerTrainer`:

    $$\log\Big[1 + \sum_{y' \ne y} w_{yy'}\, e^{s(f_{y'} - f_y)}\Big],$$

    where f is the cosine of anchor and item, and s the scale. The first column of the data set is
    the anchor, the second the positive, further ones are hard negatives, and `label` holds item
    ids. `"infonce"` is `MultipleNegativesRankingLoss` that knows repeated items; `"tail"` leans to
    rare items, `"importance"` to neither, `"relative"` to frequent ones: see `explain`.

    Weights rest on q = π: batches must be shuffled pairs, the trainer's default, and not those of
    `BatchSamplers.NO_DUPLICATES`.

    A hard negative counts for every anchor of the batch, as one drawn for certain, m·q = 1: 1 with
    `"infonce"` and `"importance"`, ρ with other margins, for which its id must be known.

    Args:
        model: the `SentenceTransformer`.
        labels: how often each item is a positive, as `count_items` counts.
        weighting: `"tail"`, `"importance"`, `"infonce"` or any other weighting or margin of a
            scheme, such as `"tail(0.5)"`, `"logit-adjusted(0.5)"` or `"contrastive/tail"`; or a
            `Weighting`.
        scale: 1 / temperature; scores are multiplied by it before weights correct them.
        score: `"cosine"`, or `"dot"` (then with `scale=1`).
        collisions: `"target"` masks each copy of the positive; `"slot"` only the example itself.
        gather_across_devices: take the items of all processes as negatives.
    """

    def __init__(
        self,
        model: nn.Module,
        labels: Labels,
        weighting: str | Weighting = "tail",
        *,
        scale: float = 20.0,
        score: Literal["cosine", "dot"] = "cosine",
        collisions: Literal["target", "slot"] = "target",
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__()
        check_labels(labels)
        if check_number("scale", scale) <= 0:
            raise HeadtailError(f"`scale` must be above 0, but got {scale!r}.")
        self.model = model
        self.weighting = weighting
        self.scale = scale
        self.gather_across_devices = gather_across_devices
        self.loss = _sampled_loss(
            weighting, labels, score=score, collisions=collisions, temperature=1 / scale
        )

    def forward(self, sentence_features: Features, labels: Tensor | None) -> Tensor:
        """The mean loss of one batch; `labels` are item ids, `[b]` or `[b, 1 + k]` with those of
        k hard negatives.
        """
        columns = _forward.embed_columns(self.model, sentence_features)
        return self.compute_loss_from_embeddings(columns, labels)

    def compute_loss_from_embeddings(
        self, embeddings: list[Tensor], labels: Tensor | None
    ) -> Tensor:
        """The mean loss of embedded columns: anchors, positives, hard negatives."""
        batch = self._batch(embeddings, labels)
        return batch.loss(self.loss, 0, len(batch.target))

    def get_config_dict(self) -> dict[str, Any]:
        """Settings, for the model card."""
        weighting = self.weighting
        return {
            "weighting": weighting if isinstance(weighting, str) else type(weighting).__name__,
            "scale": self.scale,
            "score": self.loss.settings.score,
            "collisions": self.loss.settings.collisions,
            "num_items": self.loss.sampler.num_labels,
            "gather_across_devices": self.gather_across_devices,
        }

    @property
    def temperature(self) -> float:
        """1 / scale."""
        return 1 / self.scale

    def _batch(self, embeddings: list[Tensor], labels: Tensor | None) -> _Batch:
        """Anchors of this process, and the items of all processes that they are scored with."""
        anchors, *items = embeddings
        ids = _checked(labels, len(anchors), len(items) - 1, self.loss)
        world = _distributed.get_world_size() if self.gather_across_devices else 1
        first = 0
        if world > 1:  # ranks may end an epoch with batches of different sizes
            sizes = gather(torch.tensor([len(anchors)], device=ids.device))
            first = int(sizes[: _distributed.get_rank()].sum())
            items = [gather(column) for column in items]
            ids = gather(ids)
        draw = self.loss.sampler.draw(ids[:, 0], fixed_size=ids.is_cuda)
        draw = _with_hard_negatives(draw, ids, self.loss.weighting)
        assert draw.slots is not None, "within-batch draws know their places"
        mine = slice(first, first + len(anchors))
        counted = (ids[:, 0] != IGNORE_INDEX).sum().clamp(min=1)
        return _Batch(
            embeddings=[anchors, items[0][mine], torch.cat(items).index_select(0, draw.slots)],
            target=ids[mine, 0],
            draw=draw,
            first=first,
            # Gradients are averaged over processes, so this is the mean over all their examples.
            share=world / counted.double(),
        )


class CachedTwoTowerLoss(_gradcache.CachedLossMixin, TwoTowerLoss):
    """`TwoTowerLoss` of batches that do not fit in memory: the same gradients, by GradCache.

    Columns are embedded in small parts without gradients; the loss of the whole batch gives the
    gradient of each embedding; then each part is embedded again, with the same dropout, and
    backpropagated. It takes about one more forward pass.

    Args:
        model: the `SentenceTransformer`.
        labels: how often each item is a positive.
        weighting: as in `TwoTowerLoss`.
        mini_batch_size: how many rows are embedded, and scored, at a time.
        mini_batch_num_tokens: instead, how many tokens are embedded at a time.
        show_progress_bar: while embedding.
        **options: of `TwoTowerLoss`.
    """

    def __init__(
        self,
        model: nn.Module,
        labels: Labels,
        weighting: str | Weighting = "tail",
        *,
        mini_batch_size: int = 32,
        mini_batch_num_tokens: int | None = None,
        show_progress_bar: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(model, labels, weighting, **options)
        self.mini_batch_size = check_count("mini_batch_size", mini_batch_size)
        if mini_batch_num_tokens is not None:
            check_count("mini_batch_num_tokens", mini_batch_num_tokens)
        self.mini_batch_num_tokens = mini_batch_num_tokens
        self.show_progress_bar = show_progress_bar
        if _gradcache.has_static_embedding_input(model):
            raise HeadtailError(
                "`CachedTwoTowerLoss` cannot split the inputs of a StaticEmbedding, which keeps "
                "no activations. Write `TwoTowerLoss(model, labels)`."
            )

    def forward(self, sentence_features: Features, labels: Tensor | None) -> Tensor:
        """The mean loss of one batch; its `backward` embeds the parts again."""
        return self.forward_cached(sentence_features, labels)

    def calculate_loss(
        self,
        reps: list[list[Tensor]],
        labels: Tensor | None = None,
        *,
        with_backward: bool = False,
    ) -> Tensor:
        """The loss of embedded parts, some rows at a time; gradients go through other processes
        once, after all rows.
        """
        batch = self._batch([torch.cat(parts) for parts in reps], labels)
        leaves = [embedding.detach().requires_grad_() for embedding in batch.embeddings]
        detached = replace(batch, embeddings=leaves)
        total = leaves[0].new_zeros(())
        for begin in range(0, len(batch.target), self.mini_batch_size):
            part = detached.loss(self.loss, begin, begin + self.mini_batch_size)
            if with_backward:
                part.backward()
            total = total + part.detach()
        if with_backward:
            gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]
            torch.autograd.backward(batch.embeddings, gradients)
        return total

    def get_config_dict(self) -> dict[str, Any]:
        """Settings, for the model card."""
        return super().get_config_dict() | {
            "mini_batch_size": self.mini_batch_size,
            "mini_batch_num_tokens": self.mini_batch_num_tokens,
        }


@dataclass(frozen=True, eq=False)
class _Batch:
    """What the loss of a batch is made of.

    Attributes:
        embeddings: anchors `[b, d]` and their positives `[b, d]`, of this process, and candidates
            `[m, d]`, one for each id of the draw.
        target: `[b]` item ids of the positives.
        draw: for the examples of all processes.
        first: the place of this process's first example among them.
        share: of one example in the loss.
    """

    embeddings: list[Tensor]
    target: Tensor
    draw: Draw
    first: int
    share: Tensor

    def loss(self, loss: SampledLoss, begin: int, end: int) -> Tensor:
        """What examples `begin` to `end` of this process add to the mean."""
        end = min(end, len(self.target))
        anchors, positives, candidates = self.embeddings
        total = loss.of_embeddings(
            anchors[begin:end],
            positives[begin:end],
            candidates,
            self.target[begin:end],
            self.draw.for_rows(self.first + begin, self.first + end),
            reduction="sum",
        )
        return total * self.share.to(total.dtype)


def _sampled_loss(weighting: str | Weighting, labels: Labels, **options: Any) -> SampledLoss:
    """The loss of a scheme over within-batch negatives, from the part of its name behind `:`."""
    if isinstance(weighting, Weighting):
        return SampledSoftmaxLoss(WithinBatch(labels), weighting, **options)
    if not isinstance(weighting, str) or ":" in weighting or "+" in weighting:
        raise HeadtailError(
            "`weighting` must be the name of a weighting or margin, or a Weighting, but got "
            f'{weighting!r}. Write for example `weighting="tail"`.'
        )
    kind, slash, name = weighting.rpartition("/")
    margin = name.partition("(")[0].strip()
    if margin not in MARGINS or margin in WEIGHTINGS:
        loss = scheme(f"{kind}{slash}within-batch:{name}", labels, **options)
        assert isinstance(loss, SampledLoss)
        return loss
    exact = scheme(weighting, labels, **options)
    assert isinstance(exact, ExactLoss)
    weights = FromMargin(exact.margin)
    if exact.piece is None:
        options["score_margin"] = exact.settings.score_margin
        return SampledSoftmaxLoss(WithinBatch(labels), weights, **options)
    return SampledDecoupledLoss(WithinBatch(labels), weights, exact.piece, **options)


def _checked(labels: Tensor | None, size: int, hard: int, loss: SampledLoss) -> Tensor:
    """Item ids `[b, 1 + k]`: of positives, then of hard negatives, −100 where they are unknown."""
    if labels is None:
        raise HeadtailError(
            "The batch has no item ids: the data set needs a column `label`. Write "
            '`train = with_item_ids(train, "item_id", labels)`.'
        )
    if hard < 0:
        raise HeadtailError(
            "The data set needs two columns of text beside `label`, anchor and positive, but has "
            "one. Add the other."
        )
    if labels.shape not in ((size,), (size, 1), (size, 1 + hard)):
        raise HeadtailError(
            f"`label` must hold one item id per row, shape [{size}], or those of positive and hard "
            f"negatives, [{size}, {1 + hard}], but got {list(labels.shape)}."
        )
    check_ids("label", labels.masked_fill(labels == IGNORE_INDEX, 0), loss.sampler.num_labels)
    ids = labels.reshape(size, -1).long()
    unknown = 1 + hard - ids.shape[1]
    if unknown and _reads_ids_of_negatives(loss.weighting):
        raise HeadtailError(
            "These weights depend on the ids of hard negatives, but `label` holds those of "
            'positives only. Write `with_item_ids(train, ["item_id", "negative_id"], labels)`, or '
            '`weighting="importance"`.'
        )
    return torch.cat([ids, ids.new_full((size, unknown), IGNORE_INDEX)], dim=1)


def _reads_ids_of_negatives(weighting: Weighting) -> bool:
    """Whether the weight of a negative that is drawn for certain depends on what it is."""
    if not isinstance(weighting, FromMargin):
        return False
    return not isinstance(weighting.margin, Separable) or not weighting.margin.one_for_negatives


def _with_hard_negatives(draw: Draw, ids: Tensor, weighting: Weighting) -> Draw:
    """The draw with all hard negatives of the batch."""
    hard = ids[:, 1:].T.flatten()
    if not len(hard):
        return draw
    # An item without a training example has π = 0, which these weights are multiples of.
    unseen = (hard < 0) & _reads_ids_of_negatives(weighting)
    places = len(ids) + torch.arange(len(hard), device=hard.device)
    return draw.with_certain(hard.masked_fill(unseen, 0), places, unseen)
