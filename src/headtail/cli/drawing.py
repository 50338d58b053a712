"""Bars and sparklines made of characters."""

from __future__ import annotations

import math

import torch
from rich.text import Text
from torch import Tensor

from headtail.core.labels import Labels
from headtail.core.margins import Margin, Separable

BARS = "▁▂▃▄▅▆▇█"
TAIL = "dodger_blue1"
HEAD = "green3"


def lean_bar(lean: float, scale: float, width: int = 8) -> Text:
    """A bar that grows to the left (head) or right (tail) of a middle line."""
    filled = 0 if scale == 0 else min(width, round(abs(lean) / scale * width))
    left = Text("·" * width, style="dim")
    right = Text("·" * width, style="dim")
    if lean < 0:
        left = Text("·" * (width - filled), style="dim") + Text("█" * filled, style=HEAD)
    elif lean > 0:
        right = Text("█" * filled, style=TAIL) + Text("·" * (width - filled), style="dim")
    return left + Text("│", style="bold") + right


def head_to_tail(margin: Margin, labels: Labels, width: int = 40) -> Text | None:
    """A sparkline of how much the loss favours each label, log ρ(y, ·) − log ρ(·, y), from the
    most frequent to the rarest.
    """
    if not isinstance(margin, Separable):
        return None
    order = labels.counts.argsort(descending=True, stable=True)
    # Ranks in equal steps of the logarithm: half of a long tail's story is in its first few labels.
    ranks = (
        torch.logspace(0, torch.log10(torch.tensor(float(len(order)))).item(), width)
        .long()
        .clamp(1, len(order))
        - 1
    )
    every = torch.arange(len(order))
    favour = margin.log_positive(every) - margin.log_negative(every)
    return sparkline(_means_of_equal_counts(favour, labels.counts)[order[ranks]].float())


def _means_of_equal_counts(values: Tensor, counts: Tensor) -> Tensor:
    """Each label's value becomes the mean over all labels of the same count, which have no order
    among them.
    """
    _, group, size = counts.unique(return_inverse=True, return_counts=True)
    total = values.new_zeros(len(size)).index_add_(0, group, values)
    return (total / size)[group]


def sparkline(values: Tensor) -> Text:
    """Bars of eight heights; a flat line is in the middle, and infinite values are left blank."""
    finite = values[torch.isfinite(values)]
    if len(finite) == 0:
        return Text("–")
    low = float(finite.min())
    span = float(finite.max() - finite.min())
    flat = span < 1e-6
    text = Text()
    for value in values.tolist():
        if not math.isfinite(value):
            text.append(" ")
            continue
        height = 3 if flat else round((value - low) / span * (len(BARS) - 1))
        text.append(BARS[height], style="dim" if flat else TAIL)
    return text


def number(value: float | None, digits: int = 3) -> str:
    """A short number, or – for None."""
    return "–" if value is None else f"{value:.{digits}g}"
