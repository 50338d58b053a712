"""Counts of training examples in whatever form they come, as int64 or float64 tensors."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headtail.errors import HeadtailError

LARGEST_INT = torch.iinfo(torch.int64).max
SHORTER = (torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint32)
"""Whole numbers that int64 holds."""


def as_counts(counts: Any) -> Tensor:
    """Counts as a tensor, from a list, an array or a tensor."""
    try:
        tensor = torch.as_tensor(counts)
        # A list of floats would become float32, which stops counting at 2^24.
        in_list = isinstance(counts, list | tuple) and tensor.is_floating_point()
        return torch.as_tensor(counts, dtype=torch.float64) if in_list else tensor
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        # Whole numbers beyond int64, and arrays that torch does not know.
        if not isinstance(counts, list | tuple | np.ndarray):
            got = type(counts).__name__
            raise HeadtailError(
                f"`counts` must be a list, array or tensor of numbers, but got {got}."
            ) from error
        return _number_by_number(list(counts))


def _number_by_number(counts: list[Any]) -> Tensor:
    for label, value in enumerate(counts):
        if isinstance(value, bool) or not isinstance(value, Real):
            raise HeadtailError(
                f"`counts` must be one number per label, of shape [L], but label {label} has "
                f"{value!r}."
            )
    if all(isinstance(value, Integral) and abs(int(value)) <= LARGEST_INT for value in counts):
        return torch.tensor([int(value) for value in counts])
    try:
        return torch.tensor([float(value) for value in counts], dtype=torch.float64)
    except OverflowError as error:
        raise HeadtailError(
            "`counts` must not be larger than the largest float64, 1.8e308."
        ) from error


def checked_counts(counts: Any) -> Tensor:
    """One number per label, as int64 or float64."""
    if not isinstance(counts, Tensor) or counts.dim() != 1 or counts.numel() == 0:
        shape = list(counts.shape) if isinstance(counts, Tensor) else type(counts).__name__
        raise HeadtailError(
            f"`counts` must be one number per label, of shape [L], but got {shape}. Pass "
            "`Labels.from_counts(counts)`."
        )
    if counts.layout != torch.strided or counts.is_nested:
        raise HeadtailError(
            f"`counts` must be a plain tensor, but got a {counts.layout}. Pass `counts.to_dense()`."
        )
    return widened_counts(counts.detach())


def widened_counts(counts: Tensor) -> Tensor:
    """Counts as int64, or as float64 for floats and what int64 does not hold.

    float32 stops counting at 2^24, so it is widened before that.
    """
    if counts.dtype in (torch.int64, torch.float64):
        return counts
    if counts.dtype == torch.float32:
        return counts.double()
    if counts.dtype == torch.uint64:
        signed = counts.view(torch.int64)  # those from 2^63 on appear as negative
        above = signed < 0
        return signed.double() + above.double() * 2.0**64 if bool(above.any()) else signed
    if counts.dtype in SHORTER:
        return counts.long()
    raise HeadtailError(
        f"`counts` must be whole numbers, float32 or float64, but got {counts.dtype}. Pass "
        "`counts.long()`."
    )
