"""Uniform negatives."""

from __future__ import annotations

import math
from typing import final

import numpy as np
import torch
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.labels import Labels, number_of
from headtail.core.lookup import Same, constant
from headtail.errors import check_ids
from headtail.samplers.fixed.inverse import InverseSampler
from headtail.samplers.sampler import Step


@final
class Uniform(InverseSampler):
    r"""Every label is equally likely: $q_{y'} = 1/L$.

    With constant or importance weights it leans neither to head nor tail; with few negatives among
    many labels it is noisy, because most draws are labels that the model already scores low.

    Args:
        labels: the labels, or just their number.
        num_negatives: m.
        replacement: False draws m *different* labels (systematic sampling, inclusion m/L).
        exclude_target: draw from the other L − 1 labels, separately for each example; ids are
            `[b, m]`.

    >>> draw = Uniform(10, num_negatives=4).draw(torch.tensor([3, 7]))
    >>> draw.ids.shape, draw.m
    (torch.Size([4]), 4.0)
    """

    def __init__(
        self,
        labels: Labels | int,
        num_negatives: int,
        *,
        replacement: bool = True,
        exclude_target: bool = False,
    ) -> None:
        num_labels = number_of(labels)
        super().__init__(
            num_labels, num_negatives, replacement=replacement, exclude_target=exclude_target
        )
        self.total = float(num_labels)

    def log_q(self, ids: Tensor, batch_size: int | None = None) -> Tensor:
        """−log L each."""
        check_ids("ids", ids, self.num_labels)
        return constant(-math.log(self.num_labels), ids)

    def describe(self, ids: Tensor, label: Tensor, m: float, batch_size: int | None = None) -> Draw:
        """The `Draw` that holds these ids. Its log q is written out only for whoever reads it."""
        if torch.compiler.is_compiling():  # which leaves out what is not read by itself
            return super().describe(ids, label, m, batch_size)
        check_ids("ids", ids, self.num_labels)
        check_ids("label", label, self.num_labels)
        return self._of(ids, label, m)

    def _of(self, ids: Tensor, label: Tensor, m: float) -> Draw:
        log_q = -math.log(self.num_labels)
        return Draw(ids, Same(log_q, ids), Same(log_q, label), m, self.log_keep(label))  # pyright: ignore[reportArgumentType]

    def mass(self, ids: Tensor) -> Tensor:
        """1 each."""
        check_ids("ids", ids, self.num_labels)
        return torch.ones_like(ids, dtype=torch.float64)

    def below(self, ids: Tensor) -> Tensor:
        """Label y lies on [y, y + 1)."""
        return ids.double()

    def end(self, ids: Tensor) -> Tensor:
        """As above."""
        return ids.double() + 1

    def label_at(self, points: Tensor) -> Tensor:
        """Round down."""
        return points.long().clamp_(max=self.num_labels - 1)

    def pick(self, step: Step) -> Draw:
        """On a GPU from random integers, in fewer launches: the remainder of 63 random bits is
        uniform up to L / 2^63. On a CPU by numpy, whose calls are shorter.
        """
        label = step.pairs.label
        m = self.num_negatives
        one_draw = self.replacement and not self.exclude_target
        known = label.is_cpu or label.is_cuda
        if not one_draw or not known or torch.compiler.is_compiling():
            return super().pick(step)
        if label.is_cuda:
            bits = torch.empty(m, dtype=torch.int64, device=label.device)
            ids = bits.random_(generator=step.generator).remainder_(self.num_labels)
        else:
            points = torch.rand(m, generator=step.generator, dtype=torch.float64).numpy()
            places = (points * self.total).astype(np.int64)  # as `label_at`
            ids = torch.from_numpy(np.minimum(places, self.num_labels - 1))
        return self._of(ids, label, float(m))  # drawn here, and targets are checked

    def for_labels(self, labels: Labels) -> Uniform:
        """Uniform over the grown label set."""
        return Uniform(
            labels,
            self.num_negatives,
            replacement=self.replacement,
            exclude_target=self.exclude_target,
        )
