"""Fixed distributions drawn by inverting their cumulative mass: with replacement, without, or
excluding the positive.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.draw import Draw
from headtail.errors import HeadtailError, Setting, check_count
from headtail.samplers.interfaces import FixedSampler, iid_variance
from headtail.samplers.sampler import Claims, Step

EXCLUDED = Setting("exclude_target", True)
CLAIMS = {
    excluded: Claims(shared=not excluded, excludes_target=excluded, replayable=True)
    for excluded in (False, True)
}
"""With the positive excluded or not."""


class InverseSampler(FixedSampler):
    r"""A distribution $q_y = \text{mass}_y / \text{total}$, laid out as intervals on $[0,
    \text{total})$ and drawn by random points.

    Subclasses give the layout: `total`, `mass`, `below` and `end` (where a label's interval starts
    and ends) and `label_at`, which must be their exact inverse where the positive is excluded.
    """

    total: float

    def __init__(
        self, num_labels: int, num_negatives: int, *, replacement: bool, exclude_target: bool
    ) -> None:
        super().__init__()
        self.num_labels = check_count("num_labels", num_labels)
        self.num_negatives = check_count("num_negatives", num_negatives)
        self.replacement = bool(replacement)
        self.exclude_target = bool(exclude_target)
        if exclude_target and not replacement:
            raise HeadtailError(
                EXCLUDED,
                " draws with replacement only. Drop one of the two: without replacement, a draw "
                "that hits the positive is masked in the loss.",
            )
        if exclude_target and num_labels == 1:
            raise HeadtailError(
                EXCLUDED, " leaves nothing to draw from when there is only 1 label."
            )
        if not replacement and num_negatives > num_labels:
            raise HeadtailError(
                Setting("num_negatives"),
                f" is {num_negatives}, but without replacement there are only {num_labels} labels "
                "to draw. Write ",
                Setting("num_negatives", num_labels),
                ", or draw with replacement.",
            )

    @property
    def claims(self) -> Claims:
        """One draw for the whole batch, or one for each example where its positive is excluded."""
        return CLAIMS[self.exclude_target]

    @abstractmethod
    def mass(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """Length of each label's interval."""

    @abstractmethod
    def below(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """Where each label's interval starts."""

    @abstractmethod
    def end(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """Where each label's interval ends, as `label_at` sees it."""

    @abstractmethod
    def label_at(self, points: Float64[Tensor, ...]) -> Int[Tensor, ...]:
        """The label whose interval holds each point of [0, total)."""

    def log_q(self, ids: Int[Tensor, ...], batch_size: int | None = None) -> Float64[Tensor, ...]:
        """log q = log mass − log total."""
        return self.mass(ids).log() - math.log(self.total)

    def log_keep(self, label: Int[Tensor, " b"]) -> Float64[Tensor, " b"] | float:
        """log(1 − q_y) if the positive is excluded."""
        return torch.log1p(-self.log_q(label).exp()) if self.exclude_target else 0.0

    def pick(self, step: Step) -> Draw:
        """Labels at m random points, at m evenly spaced points, or at random points outside the
        positive's interval.
        """
        label = step.pairs.label
        options = {"dtype": torch.float64, "device": label.device, "generator": step.generator}
        if not self.replacement:
            ids = self.systematic(torch.rand(1, **options))
        elif self.exclude_target:
            shares = torch.rand(len(label), self.num_negatives, **options)
            ids = self.others_at(shares, label[:, None])
        else:
            ids = self.label_at(torch.rand(self.num_negatives, **options) * self.total)
        return self.describe(ids, label, float(self.num_negatives))

    def others_at(self, shares: Float64[Tensor, "b m"], label: Int[Tensor, "b 1"]) -> Tensor:
        """`[b, m]` labels at these shares of a line without each positive's own interval.

        Points are compared with the interval's two ends, so that no rounding puts one inside it
        or behind the end of the line.
        """
        start = self.below(label)
        end = self.end(label)
        rest = start + (self.total - end)
        points = torch.minimum(shares * rest, torch.nextafter(rest, torch.zeros_like(rest)))
        points = torch.where(points < start, points, end + (points - start))
        return self.label_at(points.clamp(max=math.nextafter(self.total, 0.0)))

    def systematic(self, offset: Float64[Tensor, " one"]) -> Int[Tensor, " m"]:
        """m evenly spaced points after one random offset: label y is hit with probability exactly
        m·q_y, never twice.
        """
        m = self.num_negatives
        steps = torch.arange(m, dtype=torch.float64, device=offset.device)
        return self.label_at((steps + offset) * (self.total / m))

    def extra_repr(self) -> str:
        """Size and options."""
        replacement = "" if self.replacement else ", replacement=False"
        excluded = ", exclude_target=True" if self.exclude_target else ""
        sizes = f"num_labels={self.num_labels}, num_negatives={self.num_negatives}"
        return f"{sizes}{replacement}{excluded}"

    def expected_m(self, batch_size: int | None = None) -> float:
        """m, whatever the batch."""
        return float(self.num_negatives)

    def independent(self, batch_size: int | None = None) -> bool:
        """Only with replacement."""
        return self.replacement

    def variance_of_sum(
        self, term: Float64[Tensor, " L"], label: int, batch_size: int | None = None
    ) -> float | None:
        """m·V_q[t] for independent draws; without replacement, an integral over the offset."""
        if not self.replacement:
            return self._systematic_variance(term)
        q = self.log_q(torch.arange(self.num_labels, device=term.device)).exp()
        if self.exclude_target:
            q[label] = 0.0
            q = q / q.sum()
        return self.num_negatives * iid_variance(q, term)[1]

    def _systematic_variance(self, term: Tensor) -> float:
        # As the offset u runs over [0, 1), the sum changes only where u passes the fractional
        # position of a label's end: there that label leaves and the next enters. Between these
        # points the sum is constant, so the integral is a finite sum.
        ids = torch.arange(self.num_labels, device=term.device)
        ids = ids[self.mass(ids) > 0]
        if len(ids) < 2:
            return 0.0
        layout = term[ids]
        spacing = self.total / self._steps()
        ends = (self.below(ids) + self.mass(ids))[:-1] / spacing
        at, by = (ends - ends.floor()).sort()
        sums = torch.cat([layout.new_zeros(1), layout.diff()[by].cumsum(0)])
        widths = torch.cat([at, at.new_ones(1)]) - torch.cat([at.new_zeros(1), at])
        mean = (widths * sums).sum()
        return float((widths * (sums - mean) ** 2).sum())

    def _steps(self) -> int:
        return self.num_negatives
