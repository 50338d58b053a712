"""TopK: the best labels of each example, and the best of two such lists."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import _register_namedtuple


class TopK(NamedTuple):
    """The k best labels of each example, best first."""

    values: Float[Tensor, "b k"]
    indices: Int[Tensor, "b k"]


# Without a name, torch cannot save an exported program that returns it.
_register_namedtuple(TopK, serialized_type_name="headtail.TopK")


def without_excluded(best: TopK) -> TopK:
    """No label where only excluded ones are left, whose score is −∞."""
    return TopK(best.values, best.indices.masked_fill(best.values == -torch.inf, -1))


def better(best: TopK | None, more: TopK, k: int) -> TopK:
    """The k best of both."""
    if best is None:
        return more
    values = torch.cat([best.values, more.values], 1)
    indices = torch.cat([best.indices, more.indices], 1)
    top = values.topk(min(k, values.shape[1]), dim=1)
    return TopK(top.values, indices.gather(1, top.indices))
