"""The nearest labels as negatives, together with cheap ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import final

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.labels import Labels
from headtail.errors import HeadtailError, check_count, check_kind
from headtail.samplers.interfaces import ModelSampler, Part
from headtail.samplers.sampler import Claims, Sampler, Step, check_part
from headtail.samplers.scorer import Scorer


@final
class Hard(ModelSampler):
    r"""The k labels of highest score, each exactly once, and some from a cheap sampler:
    $m \cdot q_{y'} = [y' \in \text{top } k] + m_c \cdot q^c_{y'}$.

    The largest terms of the sum are always included, so that only the rest is sampled; without the
    cheap part no other label would ever be pushed down. With weights from a margin it leans as that
    margin does; with constant weights it leans to labels with high scores. Finding the nearest
    labels costs a pass over the table. If the positive is among them, it is masked in the loss.

    Args:
        cheap: the sampler of the other m_c negatives; it must not exclude the positive.
        nearest: k; all labels if there are fewer.

    >>> from headtail import Uniform
    >>> hidden, table = torch.tensor([[1.0]]), torch.tensor([[0.0], [9.0], [30.0]])
    >>> draw = Hard(Uniform(3, 3), nearest=2).draw(torch.tensor([0]), input=hidden, weight=table)
    >>> draw.ids[:, :2], draw.log_q[:, :2].exp()  # (1 + 3 · 1/3) / 5
    (tensor([[2, 1]]), tensor([[0.4000, 0.4000]], dtype=torch.float64))
    """

    def __init__(self, cheap: Sampler, nearest: int) -> None:
        super().__init__()
        check_kind("cheap", cheap, Sampler, "Uniform(labels, 48)")
        if not isinstance(cheap, Part) or not cheap.claims.knows_every_q:
            raise HeadtailError(
                f"`cheap` must know the q of any label, but `{cheap.name}` does not. Write for "
                "example `Uniform(labels, 48)`."
            )
        if cheap.claims.excludes_target:
            raise HeadtailError(
                "`cheap` must not exclude the positive: write `exclude_target=False`, and the loss "
                "masks collisions."
            )
        check_part(cheap, "Hard")
        self.cheap: Part = cheap
        self.num_labels = cheap.num_labels
        self.nearest = min(check_count("nearest", nearest), self.num_labels)

    def pick(self, step: Step) -> Draw:
        """The nearest, then the cheap ones."""
        label = step.pairs.label
        top = nearest_labels(step.scorer, self.nearest)
        cheap = self.cheap.pick(step._replace(fixed_size=False))
        ids = torch.cat([top, cheap.ids.expand(len(label), cheap.ids.shape[-1])], 1)
        top_log_q = self.cheap.log_q_given(step, top)
        cheap_log_q = torch.cat([top_log_q, cheap.log_q.expand(len(label), -1)], 1)
        log_q = self._log_q(ids, top, cheap_log_q, float(cheap.m))
        cheap_log_q = self.cheap.log_q_given(step, label[:, None])
        log_q_target = self._log_q(label[:, None], top, cheap_log_q, float(cheap.m)).squeeze(1)
        return Draw(ids, log_q, log_q_target, self.nearest + float(cheap.m))

    def log_q_given(self, step: Step, ids: Int[Tensor, "*p k"]) -> Float64[Tensor, "p k"]:
        """q of the nearest and the cheap ones together."""
        cheap = self.cheap.log_q_given(step, ids)
        top = nearest_labels(step.scorer, self.nearest)
        return self._log_q(ids.expand(cheap.shape), top, cheap, self.cheap.m_given(step))

    def m_given(self, step: Step) -> float:
        """k + m_c."""
        return self.nearest + self.cheap.m_given(step)

    def _log_q(self, ids: Tensor, top: Tensor, cheap: Tensor, m: float) -> Tensor:
        """log([id in top k] + m·q) − log(k + m)."""
        order = top.sort(1).values
        at = torch.searchsorted(order, ids.contiguous()).clamp_(max=self.nearest - 1)
        among = torch.where(order.gather(1, at) == ids, 0.0, -math.inf).double()
        rest = cheap + (math.log(m) if m > 0 else -math.inf)
        return torch.logaddexp(among, rest) - math.log(self.nearest + m)

    def expected_m(self, batch_size: int | None = None) -> float:
        """k + m_c."""
        return self.nearest + self.cheap.expected_m(batch_size)

    def variance_given(
        self, step: Step, term: Float64[Tensor, "p L"]
    ) -> Float64[Tensor, " p"] | None:
        """The variance of the cheap draws: the nearest are always there."""
        return self.cheap.variance_given(step, term)

    def independent(self, batch_size: int | None = None) -> bool:
        """No: the nearest are always there."""
        return False

    def log_support(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """As for the cheap sampler: which labels will be near is unknown."""
        return self.cheap.log_support(ids)

    @property
    def claims(self) -> Claims:
        """Those of the cheap sampler, but for each example, by its scores."""
        return replace(self.cheap.claims, looks_at_model=True, shared=False)

    @property
    def samplers(self) -> list[Sampler]:
        """The cheap one."""
        return [self.cheap]

    def extra_repr(self) -> str:
        """How many are the nearest."""
        return f"nearest={self.nearest}"

    def for_labels(self, labels: Labels) -> Hard:
        """With the cheap sampler over the grown label set."""
        return Hard(self.cheap.for_labels(labels), self.nearest)


def nearest_labels(model: Scorer, k: int) -> Int[Tensor, "p k"]:
    """The k labels of highest logit of each example, best first, block by block."""
    values = None
    ids = None
    for block, f in model.blocks():
        best = f.topk(min(k, f.shape[1]), dim=1)
        here = block[best.indices]
        if values is None or ids is None:
            values = best.values
            ids = here
            continue
        values = torch.cat([values, best.values], 1)
        ids = torch.cat([ids, here], 1)
        values, order = values.topk(min(k, values.shape[1]), dim=1)
        ids = ids.gather(1, order)
    assert ids is not None, "a table has rows"
    return ids
