"""The best labels of points over all labels, never over sampled ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from headtail.collectives.gather import gather
from headtail.collectives.ranks import Ranks
from headtail.data.bag import Bag, ragged_rows
from headtail.data.histories import Histories
from headtail.data.points import Features, Points
from headtail.encoders import Model

POINTS_AT_ONCE = 1024
"""Points that are scored at a time."""
POINTS_AT_ONCE_ON_GPU = 2**14
"""The same on a GPU, where preparing a table for a search costs as much as searching it for a
thousand points.
"""
IMAGE_NUMBERS_AT_ONCE = 2**23
"""Most colour values of images in a block: the layers of a network make many more of them."""
SCORES_AT_ONCE = 2**24
"""Scores of all labels that are held at a time, to look up those of the best labels."""


def blocks(points: Points, model: Model, most: int) -> Iterator[tuple[Int[Tensor, " k"], Features]]:
    """Ids and features of the points, on the model's device, block by block; image files are
    decoded ahead.

    Args:
        points: what to go through.
        model: takes the features.
        most: points in a block, at most.
    """
    if len(points) == 0:
        return
    points.check_questions()
    if points.image_size is not None:
        most = min(most, max(1, IMAGE_NUMBERS_AT_ONCE // points.num_features))
    features = points.features
    if isinstance(features, Histories):
        most = model.most_at_once(features, most)
    parts = torch.arange(len(points)).split(most)
    if isinstance(features, Bag):
        loaded = map(features.rows, parts)
    elif isinstance(features, Histories):
        loaded = (model.inputs(features.rows(ids)) for ids in parts)
    elif isinstance(features, Tensor):
        loaded = (features[ids] for ids in parts)
    else:
        loaded = features.stream(parts, train=False, seed=0, workers=torch.get_num_threads())
    device = model.head.weight.device
    for ids, block in zip(parts, loaded, strict=True):
        yield ids, block.to(device)


def top_labels(
    model: Model,
    points: Points,
    k: int,
    *,
    at_once: int | None = None,
    post_hoc: float | None = None,
) -> Int[Tensor, "n k"]:
    """The best labels of each point over all labels, best first, without those it has seen.

    Args:
        model: scores the labels.
        points: n points.
        k: labels per point.
        at_once: points that are scored at a time; by default what suits the device.
        post_hoc: τ of post-hoc logit adjustment, see `LabelHead.topk`; by default the model's own.

    Returns:
        `[n, k]` label ids; −1 where there are no more.
    """
    return top_labels_by_tau(model, points, k, (post_hoc,), at_once=at_once)[0]


@torch.no_grad()
def top_labels_by_tau(
    model: Model,
    points: Points,
    k: int,
    taus: Sequence[float | None],
    *,
    at_once: int | None = None,
) -> list[Int[Tensor, "n k"]]:
    """`top_labels` for each τ of post-hoc logit adjustment; points are encoded only once.

    Where ranks share the model, each answers its part of the points, and all get all answers.
    """
    number = len(points)
    if model.ranks is not None:
        points = points.select(own_points(number, model.ranks))
    device = model.head.weight.device
    if at_once is None:
        at_once = POINTS_AT_ONCE if device.type == "cpu" else POINTS_AT_ONCE_ON_GPU
    most = min(k, points.num_labels)
    rows: list[list[Tensor]] = [[] for _ in taus]
    for ids, features in blocks(points, model, at_once):
        seen = None if points.seen is None else ragged_rows(points.seen, ids)
        hidden = model.encode(features)
        for tau, of_tau in zip(taus, rows, strict=True):
            best = model.head.topk(hidden, most, post_hoc=tau, exclude=seen)
            of_tau.append(best.indices.cpu())
    none = torch.zeros(0, most, dtype=torch.int64)
    tops = [F.pad(torch.cat([none, *of_tau]), (0, k - most), value=-1) for of_tau in rows]
    if model.ranks is None:
        return tops
    return [gather(top, model.ranks)[:number] for top in tops]


def own_points(number: int, ranks: Ranks) -> Int[Tensor, " n"]:
    """Ids of the points that this rank answers for: as many on each rank, so that all take part in
    as many searches; behind the last point, it again.
    """
    each = -(-number // ranks.size)
    return (torch.arange(each) + ranks.rank * each).clamp(max=number - 1)


@torch.no_grad()
def scores_of(model: Model, points: Points, top: Int[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """The logits of these labels of each point, without any post-hoc adjustment."""
    at_once = max(1, SCORES_AT_ONCE // points.num_labels)
    rows = []
    for ids, features in blocks(points, model, at_once):
        logits = model.head.logits(model.encode(features)).cpu()
        rows.append(logits.gather(1, top[ids].clamp(min=0)))
    return torch.cat(rows) if rows else torch.zeros(0, top.shape[1])


@torch.no_grad()
def encoded_pairs(
    model: Model, points: Points, number: int, seed: int = 0
) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]:
    """Hidden states and labels of random (point, label) pairs, at most all there are."""
    point_of = torch.arange(len(points)).repeat_interleave(points.labels.offsets.diff())
    pairs = torch.randperm(len(point_of), generator=torch.Generator().manual_seed(seed))[:number]
    chosen, where = point_of[pairs].unique(return_inverse=True)
    device = model.head.weight.device
    features_of = blocks(points.select(chosen), model, POINTS_AT_ONCE)
    hidden = torch.cat([model.encode(features) for _, features in features_of])
    return hidden[where.to(device)], points.labels.values[pairs].long().to(device)
