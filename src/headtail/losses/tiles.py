"""Scores of a chunk of examples in tiles of labels, each small enough to stay in cache while it is
worked on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from headtail.core.margins import Separable
from headtail.kernels.dispatch import exact_kernels
from headtail.losses.inputs import Inputs
from headtail.losses.options import Settings
from headtail.rows.rounding import widened

LN_2 = math.log(2)


class Tile(NamedTuple):
    """Scores `[c, w]` of some labels, and room for as many numbers of at least float32."""

    labels: slice
    scores: Tensor
    spare: Tensor


class Tiles:
    """The scores of a chunk, tile after tile, in memory that all chunks of a batch share.

    They are stored as multiples of log 2: powers of 2 are computed faster than those of e.

    Args:
        weight: `[L, d]` label table, in the type of the products.
        offset: `[L]` what is added to the scores, at least in float32, or None.
        rows: the most examples of a chunk.
        width: labels of a tile.
    """

    def __init__(self, weight: Tensor, offset: Tensor | None, rows: int, width: int) -> None:
        self.weight = weight
        self.offset = None if offset is None else offset / LN_2
        self.width = width
        self.wide = widened(weight[:0]).dtype
        # The last number is where pairs of other chunks are written.
        self.flat = weight.new_empty(rows * len(weight) + 1)
        self.kernels = exact_kernels(weight.device, weight.dtype)
        room = 0 if self.kernels is not None else rows * width
        # In fewer digits than float32, the sum would be rounded.
        adds = self.kernels is None and weight.dtype == self.wide
        self._product_adds = adds and offset is not None
        self.spare = weight.new_empty(room, dtype=self.wide)
        self.highest: list[Tensor] = []

    def places(self, row: Int[Tensor, " p"], label: Int[Tensor, " p"], rows: int) -> Tensor:
        """Where the scores of these examples and labels are stored in a chunk of so many rows."""
        start = label // self.width * self.width
        width = (len(self.weight) - start).clamp(max=self.width)
        return start * rows + row * width + (label - start)

    def fill(self, chunk: Chunk, *, with_positives: bool) -> Filled:
        """Compute all scores of a chunk, and what their numerators add up to.

        Without kernels, scores become numerators here, relative to the largest of their tile.
        """
        sums = []
        self.highest = []
        positive = torch.zeros_like(chunk.place, dtype=self.wide)
        first_label = chunk.label // self.width * self.width  # of the positive's tile
        for labels, scores, spare in self._each(len(chunk.states)):
            self._multiply(chunk.states, labels, scores)
            if with_positives:
                stored = self.flat[chunk.place].to(self.wide)
                positive = torch.where(first_label == labels.start, stored, positive)
            else:
                self.flat.index_fill_(0, chunk.place, -torch.inf)
            if self.kernels is not None:  # which leave scores as they are
                high, total = self.kernels.sums(scores, self._offset(labels))
            else:
                high, total = self._exponentials_(scores, spare, labels)
            self.highest.append(high)
            sums.append(total)
        largest = self.highest[0]
        total = sums[0]
        if len(sums) > 1:
            high = torch.stack(self.highest)
            largest = high.amax(0)
            total = (torch.stack(sums) * (high - largest).exp2_()).sum(0)
        if self.offset is not None and not self._product_adds:
            positive = positive + self.offset[chunk.label]
        return Filled(largest, total, (positive - largest[chunk.row]) * LN_2)

    def _exponentials_(
        self, scores: Tensor, spare: Tensor, labels: slice
    ) -> tuple[Float[Tensor, " c"], Float[Tensor, " c"]]:
        """Replace scores by e^(score − high), with the largest score of each row, which is
        returned, and their sum.
        """
        wide = scores
        if scores.dtype != self.wide:
            wide = spare.copy_(scores)
            wide = wide if self.offset is None else wide.add_(self.offset[labels])
        # A row without any label has the sum 0, and −inf − −inf would be no number.
        high = wide.amax(1).clamp_(min=torch.finfo(self.wide).min)
        total = wide.sub_(high[:, None]).exp2_().sum(1)
        if wide is not scores:
            scores.copy_(wide)
        return high, total

    def numerators(
        self, filled: Filled, place: Int[Tensor, " p"], value: Float[Tensor, " p"]
    ) -> Iterator[tuple[slice, Tensor]]:
        """Tiles of numerators relative to the largest score of each row, with these values in these
        places.
        """
        value = value.to(self.flat.dtype)
        tiles = self._each(len(filled.largest))
        for high, (labels, scores, spare) in zip(self.highest, tiles, strict=True):
            if self.kernels is not None:
                self.kernels.exponentials_(scores, self._offset(labels), filled.largest)
            else:
                # Multiplying types that differ is slow on a CPU.
                is_wide = scores.is_cuda or scores.dtype == self.wide
                wide = scores if is_wide else spare.copy_(scores)
                wide.mul_((high - filled.largest).exp2_()[:, None])
                if wide is not scores:
                    scores.copy_(wide)
            # All places, whatever their tile: earlier tiles are done, and later ones are written
            # again.
            self.flat[place] = value
            yield labels, scores

    def _each(self, rows: int) -> Iterator[Tile]:
        num_labels = len(self.weight)
        for start in range(0, num_labels, self.width):
            stop = min(start + self.width, num_labels)
            scores = self.flat[rows * start : rows * stop].view(rows, -1)
            spare = self.spare[: scores.numel()].view(rows, -1) if len(self.spare) else self.spare
            yield Tile(slice(start, stop), scores, spare)

    def _multiply(self, states: Tensor, labels: slice, scores: Tensor) -> None:
        """The scores of a tile, with the offset where the product adds it."""
        if self._product_adds:
            scores.copy_(self.offset[labels])  # pyright: ignore[reportOptionalSubscript]
        beta = int(self._product_adds)
        scores.addmm_(states, self.weight[labels].T, beta=beta, alpha=1 / LN_2)

    def _offset(self, labels: slice) -> Tensor | None:
        return None if self.offset is None else self.offset[labels]


class Filled(NamedTuple):
    """What the numerators of a chunk add up to.

    Attributes:
        largest: `[c]` the largest score of each row, as a multiple of log 2.
        total: `[c]` Σ e^(score − largest).
        below: `[p]` score − largest of the positive of each pair, if it is one of the terms.
    """

    largest: Float[Tensor, " c"]
    total: Float[Tensor, " c"]
    below: Float[Tensor, " p"]


@dataclass(frozen=True, eq=False)
class Targets:
    """What the loss of a batch depends on besides scores.

    Attributes:
        label: `[p]` the positive label of each pair.
        row: `[p]` the row of each pair.
        in_order: whether pair i is row i.
        scale: `[p]` each pair's factor in the reduced loss.
        row_scale: `[b]` the sum of the factors of a row's pairs.
        share: `[p]` that of all pairs with the same row and label, over the one of the row.
        log_positive: `[p]` log ρ₁ where the positive is apart from the sum; None where ρ(y, y) = 1,
            so that it is one of the terms.
        log_negative: `[L]` log ρ₂, or None where ρ₂ = 1.
        smoothing: ε.
    """

    label: Int[Tensor, " p"]
    row: Int[Tensor, " p"]
    in_order: bool
    scale: Float[Tensor, " p"]
    row_scale: Float[Tensor, " b"]
    share: Float[Tensor, " p"]
    log_positive: Float[Tensor, " p"] | None
    log_negative: Float[Tensor, " L"] | None
    smoothing: float

    @classmethod
    def of(cls, inputs: Inputs, margin: Separable, settings: Settings, smoothing: float) -> Targets:
        """From checked inputs; pairs of a margin that is not neutral have a row each."""
        label = inputs.pairs.label
        num_labels = len(inputs.weight)
        wide = widened(inputs.hidden[:0]).dtype
        scale = settings.scale(inputs.pairs)
        if not isinstance(scale, Tensor):
            scale = torch.full(label.shape, scale, device=label.device)
        scale = row_scale = at_place = scale.to(wide)
        row = torch.arange(len(label), device=label.device)
        in_order = inputs.pairs.example is None or not margin.neutral
        if not in_order:
            row = inputs.pairs.example_of()
            row_scale = scale.new_zeros(len(inputs.hidden)).index_add_(0, row, scale)
            at_place = _summed_by(row * num_labels + label, scale)
        share = torch.where(at_place == 0, 0.0, at_place / row_scale[row])
        log_positive = None if margin.neutral else margin.log_positive(label).to(wide)
        log_negative = None
        if not margin.one_for_negatives:
            every_label = torch.arange(num_labels, device=label.device)
            log_negative = margin.log_negative(every_label).to(wide)
        return cls(
            label, row, in_order, scale, row_scale, share, log_positive, log_negative, smoothing
        )

    def with_margin(self, log_rho: Float[Tensor, " p"] | None) -> Targets:
        """With a further margin of each pair, where there is one."""
        if log_rho is None:
            return self
        assert self.log_positive is not None, "the positive is apart from the sum"
        return replace(self, log_positive=self.log_positive + log_rho.to(self.log_positive.dtype))


class Chunk(NamedTuple):
    """Some rows, and the pairs that belong to them.

    Attributes:
        rows: which rows.
        states: `[c, d]` their hidden states, in the type of the products.
        pairs: which pairs; all where any may belong to these rows.
        label: `[p]` the label of each of these pairs, and
        row: `[p]` its row, counted from the first one here.
        place: `[p]` where its score is stored.
        inside: `[p]` whether a pair belongs to these rows; None where all do.
    """

    rows: slice
    states: Tensor
    pairs: slice
    label: Int[Tensor, " p"]
    row: Int[Tensor, " p"]
    place: Int[Tensor, " p"]
    inside: Tensor | None

    @classmethod
    def of(cls, rows: slice, states: Tensor, targets: Targets, tiles: Tiles) -> Chunk:
        """The pairs of these rows. Where they are in any order, all pairs are looked at: the host
        would wait for the number of a GPU's.
        """
        count = len(states)
        pairs = rows if targets.in_order else slice(None)
        row = targets.row[pairs] - rows.start
        inside = None if targets.in_order else (row >= 0) & (row < count)
        row = row.clamp(0, count - 1)
        label = targets.label[pairs]
        place = tiles.places(row, label, count)
        if inside is not None:
            place = place.where(inside, len(tiles.flat) - 1)
        return cls(rows, states, pairs, label, row, place, inside)

    def put(self, loss: Tensor, of_pairs: Tensor) -> None:
        """Store the loss of these pairs."""
        if self.inside is not None:
            of_pairs = torch.where(self.inside, of_pairs, loss)
        loss[self.pairs] = of_pairs


def _summed_by(key: Int[Tensor, " p"], values: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
    """The sum of the values of all pairs with the same key, in an order that is always the same."""
    ordered, order = key.sort()
    sums = F.pad(values.double()[order].cumsum(0), (1, 0))
    first = torch.searchsorted(ordered, key)
    behind = torch.searchsorted(ordered, key, right=True)
    return (sums[behind] - sums[first]).to(values.dtype)


def add_product(total: Tensor, left: Tensor, right: Tensor, *, fresh: bool = False) -> None:
    """`total += left @ right`, or `total = left @ right` where it holds nothing yet."""
    if total.dtype == left.dtype:
        total.addmm_(left, right, beta=0 if fresh else 1)
        return
    # Only CUDA has products that are not rounded to the type of their factors.
    kept = {"out_dtype": total.dtype} if left.is_cuda else {}
    product = torch.mm(left, right, **kept)  # pyright: ignore[reportArgumentType, reportCallIssue]
    if fresh:
        total.copy_(product)
    else:
        total.add_(product)
