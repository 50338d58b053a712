"""The exact best labels of hidden states, block by block."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from headtail.answers.scored_table import ScoredTable
from headtail.core.listed import Listed
from headtail.core.topk import TopK, better, without_excluded
from headtail.device.host_memory import is_far
from headtail.device.parts import parts
from headtail.errors import HeadtailError, Setting
from headtail.kernels.dispatch import topk_kernel

BLOCK_SCORES = 2**24
"""How many scores are held at a time."""
EXPORTED_BLOCK = 2**16
"""Labels per block where the size of a batch is unknown, and more where there would be more than
"""
MOST_BLOCKS = 64
"""blocks, because an exported graph lists them all."""

P = ParamSpec("P")
R = TypeVar("R")


def without_gradients(answer: Callable[P, R]) -> Callable[P, R]:
    """As `torch.no_grad()`; but an exported graph that switches gradients off cannot be saved."""

    @wraps(answer)
    def answer_alone(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_exporting():
            return answer(*args, **kwargs)
        with torch.no_grad():
            return answer(*args, **kwargs)

    return answer_alone


def best_labels(
    table: ScoredTable, hidden: Float[Tensor, "b d"], k: int, excluded: Listed | None = None
) -> TopK:
    """The k best of all labels; `[b, L]` scores are never held whole.

    Args:
        table: scores the labels.
        hidden: `[b, d]`.
        k: at most L.
        excluded: labels that must not be returned, by example. Where fewer than k remain, the rest
            has index −1 and value −∞.
    """
    best = _best_of_parts if is_far(table.weight) else _best
    found = best(table, hidden, k, excluded)
    return found if excluded is None else without_excluded(found)


def _best(table: ScoredTable, hidden: Tensor, k: int, excluded: Listed | None) -> TopK:
    kernel = None if table.cosine else topk_kernel(hidden, table.weight, k)
    if kernel is None:
        return _by_blocks(table, hidden, k, excluded)
    shift = None
    if table.post_hoc:  # the kernel adds it before scores are divided by the temperature
        shift = (-table.temperature * table.adjustment(slice(None))).float()
    bias = None if table.bias is None else table.bias.squeeze(1)
    values, indices = kernel(hidden, table.weight, bias, shift, k, excluded)
    return TopK(values / table.temperature, indices)


def _best_of_parts(table: ScoredTable, hidden: Tensor, k: int, excluded: Listed | None) -> TopK:
    """Of a table in host memory, whose parts are copied to the device, one after the other."""
    best: TopK | None = None
    for rows in parts(table.weight):
        part = table.near(rows)
        within = None if excluded is None else excluded.within(rows)
        here = _best(part, hidden, min(k, len(part)), within)
        best = better(best, TopK(here.values, here.indices + rows.start), k)
    assert best is not None, "a head has labels"
    return best


def refuse_not_finite(
    table: ScoredTable, hidden: Float[Tensor, "b d"], best: Float[Tensor, "b k"]
) -> None:
    """Refuse answers whose best score is NaN or infinite, which says nothing about the labels.

    NaN counts as the highest score everywhere, so the first column shows all of them: to whoever
    looks at scores on a GPU, where this check would make the host wait.

    Args:
        table: what scored the labels.
        hidden: `[b, d]` the hidden states.
        best: `[b, k]` the best scores, highest first.
    """
    if torch.compiler.is_compiling() or best.device.type != "cpu" or not best.shape[1]:
        return
    highest = best[:, 0]
    wrong = highest.isnan() | (highest == torch.inf)
    if not bool(wrong.any()):
        return
    named = {"hidden": hidden, "head.weight": table.weight, "head.bias": table.bias}
    for name, values in named.items():
        number = 0 if values is None else int((~values.isfinite()).sum())
        if values is not None and number:
            raise HeadtailError(
                Setting(name),
                f" has {number:,} of {values.numel():,} values that are NaN or infinite, so that "
                "labels have no order. Look for the step at which training diverged.",
            )
    raise HeadtailError(
        Setting("hidden"),
        f" and the label table are so large that {int(wrong.sum()):,} of {len(wrong):,} rows have "
        "scores beyond the largest number. Scale them down.",
    )


def _by_blocks(table: ScoredTable, hidden: Tensor, k: int, excluded: Listed | None) -> TopK:
    if torch.compiler.is_exporting():
        block = max(EXPORTED_BLOCK, -(-len(table) // MOST_BLOCKS))
    else:
        block = max(1, BLOCK_SCORES // max(1, len(hidden)))
    best: TopK | None = None
    for start in range(0, len(table), block):
        scores = table.scores(hidden, slice(start, start + block))
        if excluded is not None:
            excluded.rule_out(scores, start)
        here = scores.topk(min(k, scores.shape[1]), dim=1)
        best = better(best, TopK(here.values, here.indices + start), k)
    assert best is not None, "a head has labels"
    return best
