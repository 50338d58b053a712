"""The forms that labels have in files of arrays."""

from __future__ import annotations

import torch
from torch import Tensor

from headtail.core.targets import IGNORE_INDEX, Ragged, looks_multi_hot
from headtail.data.readers.array_files import Part, names_in


def labels_of(part: Part, number: int, may_lack: bool) -> tuple[Ragged, int | None]:
    """Labels of each point, ascending and different, and L where the array has a column per label.

    Args:
        part: of the data set.
        number: of its points.
        may_lack: whether points may have no label, which is marked by −1.
    """
    names = names_in(part.path)
    if f"{part.prefix}labels" not in names and f"{part.prefix}label_values" not in names:
        no_labels = torch.zeros(0, dtype=torch.int64)
        return Ragged(no_labels, torch.zeros(number + 1, dtype=torch.int64)), None
    if f"{part.prefix}labels" not in names:
        return _ragged(part, number), None
    labels = part.whole("labels")
    if labels.dim() not in (1, 2) or len(labels) != number:
        raise part.wrong(
            "labels",
            f" has shape {list(labels.shape)} for {number:,} points. Write a label or a row for "
            "each.",
        )
    labelled = (labels != IGNORE_INDEX) & (labels != -1)
    if labels.dim() == 1:
        row = labelled.nonzero().squeeze(1) if may_lack else torch.arange(number)
        return _once(part, "labels", row, labels[row].long(), number), None
    if labels.dtype == torch.bool:
        row, label = labels.nonzero(as_tuple=True)
        return _once(part, "labels", row, label, number), labels.shape[1]
    if looks_multi_hot(labels):
        raise part.wrong(
            "labels",
            " looks like a 0/1 matrix with a column per label. If it is one, save it as booleans.",
        )
    row, column = labelled.nonzero(as_tuple=True)
    return _once(part, "labels", row, labels[row, column], number), None


def _ragged(part: Part, number: int) -> Ragged:
    values = part.whole("label_values")
    offsets = part.whole("label_offsets").long()
    flat = values.dim() == offsets.dim() == 1 and len(offsets) == number + 1
    rising = flat and bool((offsets.diff() >= 0).all())
    if not rising or offsets[0] != 0 or offsets[-1] != len(values):
        raise part.wrong(
            "label_offsets",
            f" must be {number + 1:,} numbers, one more than points, that rise from 0 to "
            f"{values.numel():,}.",
        )
    row = torch.arange(number).repeat_interleave(offsets.diff())
    return _once(part, "label_values", row, values.long(), number)


def _once(part: Part, name: str, row: Tensor, label: Tensor, number: int) -> Ragged:
    """(Point, label) pairs as ragged labels, each label of a point once."""
    if len(bad := ((label < 0) | (label >= 2**31 - 1)).nonzero()):
        place = int(bad[0])
        raise part.wrong(
            name,
            f": row {int(row[place]):,} (from 0) has the label {int(label[place])}. Number labels "
            "from 0.",
        )
    most = int(label.max()) + 1 if len(label) else 1
    pairs = torch.unique_consecutive((row * most + label).sort().values)
    offsets = torch.zeros(number + 1, dtype=torch.int64)
    offsets[1:] = torch.bincount(pairs // most, minlength=number).cumsum(0)
    return Ragged(pairs % most, offsets)
