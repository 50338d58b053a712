r"""Long-tail profiles: which images of a balanced set stay, so that its labels become imbalanced as
in the literature.

With L labels in the order of their ids, n images of the most frequent and imbalance ρ (Cui et al.
2019; Cao et al. 2019):

* **exp**: label i keeps $\lfloor n \rho^{-i / (L - 1)} \rfloor$ images;
* **step**: the first ⌊L/2⌋ labels keep n, the others $\lfloor n / \rho \rfloor$.

The first images of each label in the order of the file are kept, so that they are the same for
everybody without a seed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Literal, TypeAlias

import torch
from jaxtyping import Int64
from torch import Tensor

from headtail.data.bag import ragged_rows
from headtail.data.cache import Store, cached
from headtail.data.points import DataSet, Points
from headtail.errors import HeadtailError, Setting, check_choice, check_number

Profile: TypeAlias = Literal["exp", "step"]
AT_ONCE = 4096
"""Images copied at once."""
NEAR = 1e-9
"""A float this near to a whole number, as a share, may be on either side of it."""


def profile_counts(profile: Profile, num_labels: int, most: int, imbalance: float) -> list[int]:
    """The number of images that each label keeps.

    >>> sum(profile_counts("exp", 100, 500, 100)), sum(profile_counts("step", 100, 500, 100))
    (10847, 25250)
    """
    check_choice("profile", profile, ("exp", "step"))
    check_number("imbalance", imbalance, low=1)
    ratio = Fraction(str(imbalance))
    last = max(num_labels - 1, 1)
    if profile == "exp":
        counts = [_floor_of_root(most, ratio, i, last) for i in range(num_labels)]
    else:
        half = num_labels // 2
        counts = [most] * half + [math.floor(most / ratio)] * (num_labels - half)
    if min(counts) == 0:
        raise HeadtailError(
            Setting("imbalance"),
            f" of {imbalance:g} leaves the rarest label without an image, because the most "
            f"frequent has {most:,}. Write ",
            Setting("imbalance", most),
            " or less.",
        )
    return counts


def long_tail(data: DataSet, profile: Profile, imbalance: float = 100) -> DataSet:
    """The data set with its training images thinned to a profile; test images stay as they are.

    Small images are copied into the cache once and memory-mapped; of image files, only the list
    changes.

    Args:
        data: images with one label each.
        profile: "exp" or "step".
        imbalance: ρ, images of the most frequent label over those of the rarest.
    """
    train = data.train
    if train.image_size is None or bool((train.labels.offsets.diff() != 1).any()):
        raise HeadtailError(
            Setting("profile", profile),
            f" needs images with one label each, which `{data.name}` lacks. Leave it out.",
        )
    held = torch.bincount(train.labels.values.long(), minlength=train.num_labels)
    counts = profile_counts(profile, train.num_labels, int(held.max()), imbalance)
    if len(short := (held < torch.tensor(counts)).nonzero()):
        label = int(short[0])
        raise HeadtailError(
            Setting("profile", profile),
            f" at an imbalance of {imbalance:g} needs {counts[label]:,} images of label {label}, "
            f"but there are {int(held[label]):,}. Choose a larger ",
            Setting("imbalance"),
            ", or the other profile.",
        )
    thinned = _thinned(data, first_of_each(train.labels.values, counts), [profile, imbalance])
    rule = (
        "label i keeps n·ρ^(−i/(L−1))"
        if profile == "exp"
        else "the first half of the labels keeps n, the second n/ρ"
    )
    note = (
        f"Profile {profile}, n = {int(held.max()):,} and ρ = {imbalance:g}: {rule} images, the "
        f"first ones in the file; {len(thinned):,} of {len(train):,} stay for training."
    )
    mark = f"{profile}{imbalance:g}"
    return replace(
        data,
        name=f"{data.name}-{mark}",
        train=thinned,
        notes=(*data.notes, note),
        digest=f"{data.digest}-{mark}",
    )


def first_of_each(labels: Tensor, counts: list[int]) -> Int64[Tensor, " k"]:
    """Ids of the first `counts[y]` points of each label y, in the original order.

    >>> first_of_each(torch.tensor([1, 0, 0, 1, 0]), [2, 1])
    tensor([0, 1, 2])
    """
    order = labels.long().argsort(stable=True)
    ordered = labels[order].long()
    start = torch.searchsorted(ordered, torch.arange(len(counts)))
    place = torch.arange(len(order)) - start[ordered]
    return order[place < torch.tensor(counts)[ordered]].sort().values


def _floor_of_root(most: int, ratio: Fraction, i: int, last: int) -> int:
    """⌊most · ratio^(−i/last)⌋, exactly: where floats are too coarse, whole numbers decide."""
    value = most * float(ratio) ** (-i / last)
    near = round(value)
    if abs(value - near) > NEAR * value:
        return math.floor(value)
    return near if near**last * ratio**i <= most**last else near - 1


def _thinned(data: DataSet, ids: Tensor, recipe: list[str | float]) -> Points:
    train = data.train
    labels = ragged_rows(data.train.labels, ids)
    images = train.features
    rows = ids if train.rows is None else train.rows[ids]
    if not isinstance(images, Tensor):
        return replace(train, features=images.rows(ids), labels=labels, rows=rows)

    def build(store: Store) -> None:
        for part in ids.split(AT_ONCE):
            store.append("images", images[part].numpy())

    entry = cached([], {"reader": "image profile", "of": data.digest, "profile": recipe}, build)
    return replace(train, features=entry.arrays["images"], labels=labels, rows=rows)
