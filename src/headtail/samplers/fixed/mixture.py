"""Several samplers at once, with the right q."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from headtail.core.draw import Draw
from headtail.core.labels import Labels
from headtail.errors import HeadtailError
from headtail.samplers.interfaces import FixedSampler, ModelSampler, Part
from headtail.samplers.sampler import Claims, Sampler, Step, check_part


class Mixture(Sampler):
    r"""Negatives of several samplers together: $m = \sum_k m_k$ and $m \cdot q_{y'} = \sum_k m_k
    \cdot q^{(k)}_{y'}$.

    A label drawn by one part could also have come from the others, so its q is the *sum* over the
    parts; using each part's own q would count some labels twice. Mixing a little uniform into a
    head-heavy sampler tames the noise of rare labels.

    `Mixture(parts)` is a `ModelMixture` if a part follows the model, else a `FixedMixture`: what
    both have in common is here.

    Args:
        parts: the samplers, each with its own number of negatives. None of them may exclude the
            positive (q would not be separable).

    >>> labels = Labels.from_counts([6, 2, 2])
    >>> mixture = Mixture([Uniform(labels, 3), Frequency(labels, 1)])
    >>> mixture.draw(torch.tensor([0])).m
    4.0
    >>> mixture.log_q(torch.tensor([0])).exp()  # (3/4)(1/3) + (1/4)(6/10)
    tensor([0.4000], dtype=torch.float64)
    """

    def __new__(cls, parts: Sequence[Sampler] = ()) -> Mixture:
        """One of the two kinds; a copy or a pickle names its class, and gets its parts later."""
        if cls is not Mixture:
            return super().__new__(cls)
        listed = parts if isinstance(parts, Sequence) else ()
        follows = any(isinstance(part, ModelSampler) for part in listed)
        return object.__new__(ModelMixture if follows else FixedMixture)

    def __init__(self, parts: Sequence[Sampler]) -> None:
        super().__init__()
        is_list = isinstance(parts, Sequence) and len(parts) > 0
        if not is_list or not all(isinstance(part, Sampler) for part in parts):
            raise HeadtailError(
                "`parts` must be a list of at least one sampler, for example `[Uniform(labels, "
                "32), WithinBatch(labels)]`."
            )
        sizes = {part.num_labels for part in parts}
        if len(sizes) > 1:
            raise HeadtailError(
                f"`parts` must share one label set, but theirs have {sorted(sizes)} labels."
            )
        if not all(isinstance(part, Part) for part in parts):
            raise HeadtailError(
                "`parts` must each know their q, but `Resampled` does not: mix samplers into its "
                "`pool` instead."
            )
        if any(part.claims.excludes_target for part in parts):
            raise HeadtailError(
                "`parts` must not exclude the positive: drop `exclude_target=True`, and the loss "
                "masks collisions."
            )
        for part in parts:
            check_part(part, "Mixture")
        inner = [part.samplers if isinstance(part, Mixture) else [part] for part in parts]
        self.parts = nn.ModuleList(itertools.chain(*inner))
        self.num_labels = sizes.pop()

    @property
    def name(self) -> str:
        """The public name of both kinds."""
        return "Mixture"

    @property
    def samplers(self) -> list[Part]:
        """The parts."""
        return [part for part in self.parts if isinstance(part, Part)]

    @property
    def claims(self) -> Claims:
        """What holds for all parts together."""
        parts = [part.claims for part in self.samplers]
        return Claims(
            looks_at_model=any(part.looks_at_model for part in parts),
            shared=all(part.shared for part in parts),
            knows_every_q=all(part.knows_every_q for part in parts),
            may_miss=all(part.may_miss for part in parts),
            group=math.lcm(*(part.group for part in parts)),
            memory=max(part.memory for part in parts),
            source=next((part.source for part in parts if part.source), None),
            replayable=all(part.replayable for part in parts),
        )

    def pick(self, step: Step) -> Draw:
        """Draw from each part; the shares of the parts are those of this batch."""
        # The parts' shares of m are numbers on the host.
        step = step._replace(fixed_size=False)
        draws = [part.pick(step) for part in self.samplers]
        sizes = [float(draw.m) for draw in draws]
        ids = [draw.ids for draw in draws]
        label = step.pairs.label
        if any(not draw.shared for draw in draws):
            ids = [part.expand(len(label), -1) for part in ids]
        ids = torch.cat(ids, -1)
        if not self.claims.looks_at_model:
            log_q, log_q_target = (self.fixed_log_q(t, sizes) for t in (ids, label))
            return Draw(ids, log_q, log_q_target, sum(sizes))
        both = torch.cat([label[:, None], ids], 1)
        log_q = mean_of([part.log_q_given(step, both) for part in self.samplers], sizes)
        return Draw(ids, log_q[:, 1:], log_q[:, 0], sum(sizes))

    def fixed_log_q(self, ids: Int[Tensor, ...], sizes: list[float]) -> Float64[Tensor, ...]:
        """log Σ (m_k / m)·q_k of the parts that are fixed."""
        fixed = [part for part in self.samplers if isinstance(part, FixedSampler)]
        return mean_of([part.log_q(ids) for part in fixed], sizes)

    def expected_m(self, batch_size: int | None = None) -> float:
        """Σ m_k."""
        return sum(part.expected_m(batch_size) for part in self.samplers)

    def m_given(self, step: Step) -> float:
        """Σ m_k."""
        return sum(self.sizes_given(step))

    def sizes_given(self, step: Step) -> list[float]:
        """m_k of each part in this step."""
        return [part.m_given(step) for part in self.samplers]

    def independent(self, batch_size: int | None = None) -> bool:
        """If all parts are, and are independent of each other."""
        return self.parts_independent() and all(
            part.independent(batch_size) for part in self.samplers
        )

    def parts_independent(self) -> bool:
        """Whether no two parts see the same batches."""
        sources = [part.claims.source for part in self.samplers if part.claims.source]
        return len(sources) == len(set(sources))

    def log_support(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """A label may be drawn if a part may draw it."""
        return torch.stack([part.log_support(ids) for part in self.samplers]).amax(0)

    def for_labels(self, labels: Labels) -> Mixture:
        """The same parts over the grown label set."""
        return Mixture([part.for_labels(labels) for part in self.samplers])


@final
class FixedMixture(Mixture, FixedSampler):
    """A mixture of fixed samplers, with one q for all examples of a batch."""

    def log_q(self, ids: Int[Tensor, ...], batch_size: int | None = None) -> Float64[Tensor, ...]:
        """log Σ (m_k / m)·q_k."""
        return self.fixed_log_q(ids, [part.expected_m(batch_size) for part in self.samplers])

    def log_q_given(self, step: Step, ids: Int[Tensor, "*p k"]) -> Float64[Tensor, "p k"]:
        """The same with the parts' shares of this step."""
        log_q = self.fixed_log_q(ids, self.sizes_given(step))
        return log_q.expand(len(step.pairs.label), ids.shape[-1])

    def variance_of_sum(
        self, term: Float64[Tensor, " L"], label: int, batch_size: int | None = None
    ) -> float | None:
        """The sum over parts that draw independently; None for two that see the same batches."""
        if not self.parts_independent():
            return None
        fixed = [part for part in self.samplers if isinstance(part, FixedSampler)]
        parts = [part.variance_of_sum(term, label, batch_size) for part in fixed]
        known = [variance for variance in parts if variance is not None]
        return sum(known) if len(known) == len(parts) else None


@final
class ModelMixture(Mixture, ModelSampler):
    """A mixture with a part that follows the model, so that each example has its own q."""

    def log_q_given(self, step: Step, ids: Int[Tensor, "*p k"]) -> Float64[Tensor, "p k"]:
        """log Σ (m_k / m)·q_k."""
        log_q = [part.log_q_given(step, ids) for part in self.samplers]
        return mean_of(log_q, self.sizes_given(step))

    def variance_given(
        self, step: Step, term: Float64[Tensor, "p L"]
    ) -> Float64[Tensor, " p"] | None:
        """The sum over parts that draw independently; None for two that see the same batches."""
        if not self.parts_independent():
            return None
        parts = [part.variance_given(step, term) for part in self.samplers]
        known = [variance for variance in parts if variance is not None]
        return torch.stack(known).sum(0) if len(known) == len(parts) else None


def mean_of(log_q: list[Tensor], sizes: list[float]) -> Tensor:
    """log Σ (m_k / m)·q_k; −inf where there are no negatives."""
    total = sum(sizes)
    terms = [math.log(m / total) + part for m, part in zip(sizes, log_q, strict=True) if m > 0]
    return torch.logsumexp(torch.stack(terms), 0) if terms else torch.full_like(log_q[0], -math.inf)
