"""The labels of the batch and a uniform part of all others, each once: the classes of PartialFC."""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.labels import Labels
from headtail.errors import HeadtailError, Setting, check_count, check_kind
from headtail.samplers.fixed.uniform import Uniform
from headtail.samplers.interfaces import FixedSampler
from headtail.samplers.sampler import Claims, Step


@final
class PartialFC(FixedSampler):
    r"""All labels of the batch and u labels drawn uniformly without replacement, each counted once,
    as in insightface's PartialFC (An et al. 2022).

    For an example with positive y, another label is in the sample unless neither the B − 1 other
    examples nor the uniform draw hold it, with probability

    $$p_{y'} = 1 - (1 - \pi_{y'})^{B-1} \, (1 - u/L), \qquad m = \sum_{y'} p_{y'}, \qquad q_{y'} =
    p_{y'} / m.$$

    A plain softmax over the sample, as in PartialFC, has weights w = 1 (`InfoNCE`), so ρ = p: rare
    negatives weigh about u/L of what they would, and frequent ones more, because batches hold them
    more often. It leans to the tail where counts differ. With `Importance` weights, 1/p, it is the
    softmax over all labels.

    insightface draws as many others as fill the sample up to a fixed size. Here u does not depend
    on the batch, so that p is exact.

    Args:
        labels: their unsmoothed frequencies are π.
        num_negatives: u.

    >>> draw = PartialFC(Labels.zipf(100), 10).draw(torch.tensor([3, 3, 7]))
    >>> draw.ids[:2], 10 < len(draw.ids) <= 12
    (tensor([3, 7]), True)
    """

    def __init__(self, labels: Labels, num_negatives: int) -> None:
        super().__init__()
        check_kind("labels", labels, Labels, "Labels.from_counts(counts)")
        if check_count("num_negatives", num_negatives) > labels.num_labels:
            raise HeadtailError(
                Setting("num_negatives"),
                f" is {num_negatives}, but each label is drawn once at most, and there are only "
                f"{labels.num_labels}. Write ",
                Setting("num_negatives", labels.num_labels),
                " or less.",
            )
        self.labels = labels
        self.uniform = Uniform(labels, num_negatives, replacement=False)
        self.num_labels = labels.num_labels
        self._sizes: dict[int, float] = {}

    @property
    def num_negatives(self) -> int:
        """u."""
        return self.uniform.num_negatives

    @property
    def claims(self) -> Claims:
        """One draw for the whole batch."""
        return Claims(source="batch", replayable=True, alone=True)

    def pick(self, step: Step) -> Draw:
        """Labels of the batch in order, then others. Repeated ones are left out, or void where the
        shape is fixed.
        """
        label = step.pairs.label  # ignored targets have a label of the batch too
        options = {"dtype": torch.float64, "device": label.device, "generator": step.generator}
        others = self.uniform.systematic(torch.rand(1, **options))
        own = label.sort().values
        void = torch.zeros_like(torch.cat([own, others]), dtype=torch.bool)
        if len(own):
            void[1 : len(own)] = own[1:] == own[:-1]
            place = torch.searchsorted(own, others).clamp_(max=len(own) - 1)
            void[len(own) :] = own[place] == others
        ids = torch.cat([own, others])
        size = step.batch_size
        if step.fixed_size:
            log_q, log_q_target = self.log_q(ids, size), self.log_q(label, size)
            return Draw(ids, log_q, log_q_target, self.expected_m(size), void=void)
        return self.describe(ids[~void], label, self.expected_m(size), size)

    def log_q(self, ids: Int[Tensor, ...], batch_size: int | None = None) -> Float64[Tensor, ...]:
        """log p − log m."""
        return self._log_inclusion(ids, batch_size) - math.log(self.expected_m(batch_size))

    def log_q_given(self, step: Step, ids: Int[Tensor, "*p k"]) -> Float64[Tensor, "p k"]:
        """The same for this step."""
        log_q = self.log_q(ids, step.batch_size)
        return log_q.expand(len(step.pairs.label), ids.shape[-1])

    def expected_m(self, batch_size: int | None = None) -> float:
        """Σ p."""
        size = _checked(batch_size)
        if size not in self._sizes:
            every_label = torch.arange(self.num_labels)
            self._sizes[size] = float(self._log_inclusion(every_label, size).exp().sum())
        return self._sizes[size]

    def _log_inclusion(self, ids: Tensor, batch_size: int | None) -> Tensor:
        others = max(0, _checked(batch_size) - 1)
        share = self.num_negatives / self.num_labels
        pi = self.labels.log_frequency(ids).exp()
        absent = (1 - pi).pow(others)
        return torch.log1p(-(1 - share) * absent)

    def variance_of_sum(
        self, term: Float64[Tensor, " L"], label: int, batch_size: int | None = None
    ) -> float | None:
        """None: labels of the batch and uniform ones depend on each other."""
        return None

    def independent(self, batch_size: int | None = None) -> bool:
        """No: no label is drawn twice."""
        return False

    def takes_all(self, batch_size: int) -> bool:
        """Never without the number of targets that count, which q depends on."""
        return False

    def extra_repr(self) -> str:
        """Size and number."""
        return f"num_labels={self.num_labels}, num_negatives={self.num_negatives}"

    def for_labels(self, labels: Labels) -> PartialFC:
        """With the grown label set's frequencies."""
        return PartialFC(labels, self.num_negatives)


def _checked(batch_size: int | None) -> int:
    if batch_size is None:
        raise HeadtailError(
            "`batch_size` decides how likely `PartialFC` draws a label: pass it, for example "
            "`batch_size=256`."
        )
    return batch_size
