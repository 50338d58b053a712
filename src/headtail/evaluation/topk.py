"""Evaluation over all labels, never over sampled ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.targets import Pairs, Ragged
from headtail.data.points import Bag, Features, Points, ragged_rows
from headtail.encoders import Model
from headtail.implicit.implied import implied_margin_of
from headtail.losses import DecoupledLoss, Loss, SampledLoss, SoftmaxLoss
from headtail.samplers import Scorer

BLOCK = 1024
"""Points that are scored at a time."""
LARGE_BLOCK = 2**14
"""The same on a GPU, where preparing a table for a search costs as much as searching it for a
thousand points.
"""
PICTURE_NUMBERS = 2**23
"""Numbers of pictures, at most, in a block: the layers of a network make many more of them."""


def blocks(
    points: Points, device: torch.device, most: int
) -> Iterator[tuple[Int[Tensor, " k"], Features]]:
    """Ids and features, on the device, of some points after the others; picture files are decoded
    ahead.
    """
    if len(points) == 0:
        return
    most = (
        most
        if points.picture is None
        else min(most, max(1, PICTURE_NUMBERS // points.num_features))
    )
    parts = torch.arange(len(points)).split(most)
    features = points.features
    if isinstance(features, Bag):
        found = map(features.rows, parts)
    elif isinstance(features, Tensor):
        found = (features[ids] for ids in parts)
    else:
        found = features.stream(parts, train=False, seed=0, workers=torch.get_num_threads())
    for ids, some in zip(parts, found, strict=True):
        yield ids, some.to(device)


@torch.no_grad()
def top_labels(model: Model, points: Points, k: int) -> Int[Tensor, "n k"]:
    """`[n, k]` the best labels of each point over all labels, best first, without those it has
    seen; −1 where there are no more.
    """
    device = model.head.weight.device
    found = []
    block = BLOCK if device.type == "cpu" else LARGE_BLOCK
    for ids, features in blocks(points, device, block):
        seen = None if points.seen is None else ragged_rows(points.seen, ids)
        more = 0 if seen is None else int(seen.offsets.diff().max())
        top = model.top(features, min(k + more, points.num_labels)).cpu()
        found.append(top[:, :k] if seen is None else _without(top, seen, k))
    if not found:
        return torch.zeros(0, k, dtype=torch.int64)
    return F.pad(torch.cat(found), (0, max(0, k - points.num_labels)), value=-1)


def _without(top: Tensor, seen: Ragged, k: int) -> Tensor:
    """The first k of each row that are not among its seen labels."""
    owner = torch.arange(len(top)).repeat_interleave(seen.offsets.diff())
    taken = torch.isin(
        (torch.arange(len(top))[:, None] << 40) | top, (owner << 40) | seen.values.long()
    )
    order = taken.to(torch.int8).argsort(dim=1, stable=True)[:, :k]
    return top.gather(1, order).masked_fill(taken.gather(1, order), -1)


@torch.no_grad()
def encoded_pairs(
    model: Model, points: Points, number: int, seed: int = 0
) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]:
    """Hidden states and labels of random (point, label) pairs, at most all there are."""
    point_of = torch.arange(len(points)).repeat_interleave(points.labels.offsets.diff())
    pairs = torch.randperm(len(point_of), generator=torch.Generator().manual_seed(seed))[:number]
    some, where = point_of[pairs].unique(return_inverse=True)
    device = model.head.weight.device
    hidden = [model.encode(features) for _, features in blocks(points.select(some), device, BLOCK)]
    return torch.cat(hidden)[where.to(device)], points.labels.values[pairs].long().to(device)


def implicit_loss_of(loss: Loss, batch_size: int, model: Scorer | None = None) -> Loss:
    """The loss over all labels that a scheme implicitly optimises, for these very hidden states
    where it follows the model.
    """
    margin = implied_margin_of(loss, batch_size, model)
    temperature = loss.temperature
    if loss.piece is None:
        return SoftmaxLoss(margin, temperature=temperature, score=loss.settings.score)
    return DecoupledLoss(margin, loss.piece, temperature=temperature, score=loss.settings.score)


class Validation:
    """What is measured on held-out points after every epoch.

    Args:
        points: the held-out points.
        labels: the training distribution.
        metric: "implicit-loss" (what the scheme implicitly optimises, over all labels, mean over
            pairs; lower is better), "recall@10" or "precision@1".
        batch_size: B, which decides what within-batch schemes optimise.
    """

    def __init__(self, points: Points, labels: Labels, metric: str, batch_size: int) -> None:
        self.points = points
        self.labels = labels
        self.metric = metric
        self.batch_size = batch_size
        self._implicit: Loss | None = None

    def measure(self, model: Model) -> float:
        """The metric of a model in evaluation mode."""
        if self.metric == "implicit-loss":
            return self._loss(model)
        k = 10 if self.metric == "recall@10" else 1
        top = top_labels(model, self.points, k)
        values = self.points.labels.values.long()
        offsets = self.points.labels.offsets
        owner = torch.arange(len(self.points)).repeat_interleave(offsets.diff())
        hit = (top[owner] == values[:, None]).any(1).double()
        if self.metric == "recall@10":
            return float(hit.mean())
        labelled = int((offsets.diff() > 0).sum())
        return float(hit.sum()) / max(1, labelled)

    @torch.no_grad()
    def _loss(self, model: Model) -> float:
        head = model.head
        follows = isinstance(head.loss, SampledLoss) and head.loss.follows_model
        if self._implicit is None and not follows:
            self._implicit = implicit_loss_of(head.loss, self.batch_size)
        head.flush()
        total = torch.zeros((), dtype=torch.float64, device=head.weight.device)
        for ids, features in blocks(self.points, total.device, BLOCK // 4):
            labels = ragged_rows(self.points.labels, ids)
            if len(labels.values) == 0:
                continue
            target = Ragged(labels.values.long().to(total.device), labels.offsets.to(total.device))
            hidden = model.encode(features)
            implicit = self._implicit
            if implicit is None:
                rows = Pairs.of(target).rows(hidden)
                settings = head.loss.settings
                scorer = Scorer(rows, head.weight, head.bias, head.loss.temperature, settings.score)
                implicit = implicit_loss_of(head.loss, self.batch_size, scorer)
            total += implicit(hidden, head.weight, target, bias=head.bias, reduction="sum").double()
        return float(total) / self.points.num_pairs
