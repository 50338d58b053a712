"""The caller's own negatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from headtail.core.draw import Draw
from headtail.core.labels import Labels
from headtail.errors import HeadtailError, check_count, check_ids, check_number
from headtail.samplers.interfaces import FixedSampler
from headtail.samplers.sampler import Claims, Step


@final
class Given(FixedSampler):
    r"""Negatives that you drew yourself, with their log q (`audit` can check it).

    What it does to head and tail depends on your q; `explain` reports it if log q is a function.

    Args:
        num_labels: L.
        ids: `[m]` or `[b, m]` your negatives.
        log_q: their log-probabilities, same shape; or a function that returns log q of any ids.
        log_q_target: `[b]` log q of the positives, for relative weights; not needed with a
            function.
        m: the effective number of negatives; the width of `ids` by default.

    >>> given = Given(100, ids=torch.tensor([4, 8]), log_q=torch.tensor([0.01, 0.02]).log())
    >>> given.draw(torch.tensor([1, 2, 3])).log_q.exp()
    tensor([0.0100, 0.0200], dtype=torch.float64)
    """

    ids: Tensor
    of_ids: Tensor | None
    of_target: Tensor | None

    def __init__(
        self,
        num_labels: int,
        ids: Int[Tensor, "*b m"],
        log_q: Tensor | Callable[[Tensor], Tensor],
        log_q_target: Tensor | None = None,
        m: float | None = None,
    ) -> None:
        super().__init__()
        check_ids("ids", ids, num_labels)
        if isinstance(log_q, Tensor) and log_q.shape != ids.shape:
            raise HeadtailError(
                f"`log_q` must have the shape of `ids`, {list(ids.shape)}, but got "
                f"{list(log_q.shape)}."
            )
        check_count("num_labels", num_labels)
        self.function = None if isinstance(log_q, Tensor) else log_q
        self.num_labels = num_labels
        self.register_buffer("ids", ids.long(), persistent=False)
        self.register_buffer("of_ids", _log_probabilities("log_q", log_q), persistent=False)
        self.register_buffer(
            "of_target", _log_probabilities("log_q_target", log_q_target), persistent=False
        )
        self._m = float(ids.shape[-1]) if m is None else check_number("m", m, low=0)
        if self._m == 0 and ids.numel():
            raise HeadtailError(
                "`m` must be above 0 where there are negatives. Leave it out to count them."
            )

    def pick(self, step: Step) -> Draw:
        """The ids as given."""
        if self.ids.dim() == 2 and len(self.ids) != len(step.pairs.label):
            raise HeadtailError(
                f"`ids` has {len(self.ids)} rows, but the batch has {len(step.pairs.label)} "
                "targets. Give one row for each."
            )
        return self.describe(self.ids, step.pairs.label, self._m)

    def describe(self, ids: Tensor, label: Tensor, m: float, batch_size: int | None = None) -> Draw:
        """The ids with the caller's log q."""
        if self.of_ids is None:
            return super().describe(ids, label, m, batch_size)
        return Draw(ids, self.of_ids, self.of_target, m)

    def log_q(self, ids: Int[Tensor, ...], batch_size: int | None = None) -> Float64[Tensor, ...]:
        """log q of any labels, if it was given as a function."""
        if self.function is None:
            raise HeadtailError(
                "`Given` knows the log q of its own ids only. Pass `log_q` as a function of ids to "
                "mix, explain or audit it."
            )
        return self.function(ids).detach().double()

    def expected_m(self, batch_size: int | None = None) -> float:
        """As given."""
        return self._m

    def variance_of_sum(
        self, term: Float64[Tensor, " L"], label: int, batch_size: int | None = None
    ) -> float | None:
        """None: how the caller's draws depend on each other is not known."""
        return None

    def independent(self, batch_size: int | None = None) -> bool:
        """Not known."""
        return False

    @property
    def claims(self) -> Claims:
        """What it may miss is unknown, so it may."""
        shared = self.ids.dim() == 1
        return Claims(shared=shared, knows_every_q=self.function is not None, may_miss=True)

    def log_support(self, ids: Int[Tensor, ...]) -> Float64[Tensor, ...]:
        """log q, if it was given as a function; else every label may be drawn."""
        if self.function is None:
            return torch.zeros_like(ids, dtype=torch.float64)
        return super().log_support(ids)

    def for_labels(self, labels: Labels) -> Given:
        """The same negatives."""
        log_q = self.of_ids if self.function is None else self.function
        assert log_q is not None
        return Given(labels.num_labels, self.ids, log_q, self.of_target, self._m)


def _log_probabilities(
    name: str, values: Tensor | Callable[[Tensor], Tensor] | None
) -> Tensor | None:
    if not isinstance(values, Tensor):
        return None
    values = values.detach().double()
    if bool((values.isnan() | (values > 1e-6)).any()):
        raise HeadtailError(
            f"`{name}` must be log-probabilities, at most 0, but some are NaN or above 0. Pass "
            "`q.log()`."
        )
    return values
