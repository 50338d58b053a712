"""audit: does a sampler really draw what it claims?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from headtail.errors import HeadtailError, check_ids, check_positive_int
from headtail.labels import Labels
from headtail.samplers import Frequency, Sampler

SMALLEST_EXPECTED = 5.0
"""Labels are pooled until a cell expects this many draws: the usual condition for χ²."""


@dataclass(frozen=True)
class Audit:
    """The verdict on a claimed q.

    Attributes:
        draws: number of independent calls, one random slot of each.
        statistic: Pearson's χ².
        freedom: its degrees of freedom.
        p_value: how often a true claim would look at least this bad; below 0.001 the claim is not believed.
        impossible: draws of labels whose claimed q is 0.
        log_q_error: largest difference between the log q returned with a draw and the claimed one.
        worst: (label, observed, expected) for the labels that stand out most.
    """

    draws: int
    statistic: float
    freedom: int
    p_value: float
    impossible: int
    log_q_error: float
    worst: list[tuple[int, int, float]]

    @property
    def passed(self) -> bool:
        """Whether the claim is believable."""
        return self.p_value >= 1e-3 and self.impossible == 0 and self.log_q_error < 1e-5


def audit(
    sampler: Sampler | Callable[[], Any],
    labels: Labels | None = None,
    *,
    log_q: Float[Tensor, " L"] | None = None,
    draws: int = 20_000,
    batch_size: int = 64,
    target: int | None = None,
    input: Tensor | None = None,
    weight: Tensor | None = None,
    generator: torch.Generator | None = None,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Audit:
    """Draw, and test by χ² whether labels come as often as the claimed q says.

    Slots of one call may depend on each other (within a batch, without replacement), so one uniformly random slot of each
    independent call is counted: those are independent draws from q for every sampler. Queues are refilled between calls.

    Args:
        sampler: a headtail sampler, or any function without arguments that returns label ids, so that other libraries can be
            audited.
        labels: where batches come from; needed for headtail's samplers.
        log_q: `[L]` the claim to test; needed for a function, the sampler's own by default.
        draws: number of calls.
        batch_size: targets in each call.
        target: the first example's positive, for samplers that exclude it; its slots are the ones counted.
        input: `[b, d]` and
        weight: `[L, d]`, for samplers that look at the model: one fixed input.
        generator: source of randomness.
        progress: wraps the loop, for a progress bar.

    >>> from headtail import Uniform
    >>> labels = Labels.zipf(100)
    >>> audit(Uniform(labels, 8), labels, generator=torch.Generator().manual_seed(0)).passed
    True
    >>> rare_never_drawn = lambda: torch.randint(100, (64,)).unique()[:8]  # sorted, then cut: a real bug
    >>> audit(rare_never_drawn, log_q=torch.full((100,), 0.01).log()).passed
    False
    """
    check_positive_int("draws", draws)
    if isinstance(sampler, Sampler):
        call, claimed = _headtail_call(sampler, labels, batch_size, target, input, weight, generator)
        claimed = claimed if log_q is None else log_q.double()
    elif callable(sampler):
        if log_q is None:
            raise HeadtailError("`log_q` is missing: say which log-probability of each label you want to test, shape [L].")
        call, claimed = (lambda: (torch.as_tensor(sampler()), None)), log_q.double()
    else:
        raise HeadtailError(
            f"`sampler` must be a headtail sampler or a function that returns ids, but got {type(sampler).__name__}."
        )
    if claimed.dim() != 1 or bool(claimed.isnan().any()) or abs(float(claimed.exp().sum()) - 1) > 1e-6:
        raise HeadtailError(
            f"`log_q` must be one log-probability a label, summing to 1, but sums to {float(claimed.exp().sum()):.6g}."
        )
    observed = torch.zeros(len(claimed), dtype=torch.int64)
    error, counted = 0.0, 0
    for _ in progress(range(draws)):
        ids, said = call()
        check_ids("ids", ids, len(claimed))
        if ids.numel() == 0:
            continue
        slot = int(torch.randint(ids.shape[-1], (1,), generator=_cpu(generator)))
        label = int(ids.reshape(-1, ids.shape[-1])[0, slot])
        observed[label] += 1
        counted += 1
        if said is not None:
            # In units of log-probability; a claim of 0 is judged as an impossible draw instead.
            difference = abs(float(said.reshape(-1, ids.shape[-1])[0, slot]) - float(claimed[label]))
            error = max(error, difference) if math.isfinite(difference) else error
    return _judge(observed, claimed, counted, error)


def _headtail_call(
    sampler: Sampler,
    labels: Labels | None,
    batch_size: int,
    target: int | None,
    input: Tensor | None,
    weight: Tensor | None,
    generator: torch.Generator | None,
) -> tuple[Callable[[], tuple[Tensor, Tensor | None]], Tensor]:
    if labels is None:
        raise HeadtailError("`labels` is missing: batches of targets are drawn from its frequencies.")
    if labels.num_labels != sampler.num_labels:
        raise HeadtailError(f"`labels` has {labels.num_labels} labels, but the sampler {sampler.num_labels}.")
    # Batches follow the data, unsmoothed, as real ones do.
    data = Frequency(Labels(labels.counts), num_negatives=batch_size)
    first = int(labels.counts.argmax()) if target is None else target
    anyone = torch.tensor([0])
    excluded = bool(getattr(sampler, "exclude_target", False))
    fixed = excluded or target is not None or input is not None
    memory = int(max([batch_size, *[getattr(part, "capacity", 0) for part in sampler.modules()]]))
    refill = Frequency(Labels(labels.counts), num_negatives=memory)
    has_memory = any(hasattr(part, "capacity") for part in sampler.modules())

    def call() -> tuple[Tensor, Tensor | None]:
        if has_memory:
            sampler.refresh(refill.draw(anyone, generator=generator).ids)
        batch = data.draw(anyone, generator=generator).ids
        if fixed:
            batch[0] = first
        draw = sampler.draw(batch, input=input, weight=weight, generator=generator)
        # What is counted for an excluded positive is q / (1 − q_y).
        keep = draw.log_keep[:1] if isinstance(draw.log_keep, Tensor) else draw.log_keep
        rows = draw.log_q if draw.shared else draw.log_q[:1]
        return draw.ids, rows - keep

    claimed = sampler.log_q(torch.arange(sampler.num_labels), batch_size).double()
    if excluded:
        claimed = claimed - torch.as_tensor(sampler.log_keep(torch.tensor([first])))
        claimed[first] = -math.inf
    return call, claimed


def _judge(observed: Int[Tensor, " L"], claimed: Float64[Tensor, " L"], draws: int, error: float) -> Audit:
    from scipy.stats import chi2  # imported where used: `import headtail` stays fast

    expected = draws * claimed.exp()
    possible = expected > 0
    impossible = int(observed[~possible].sum())
    # Pool in order of claimed probability, ties by id: neighbours in a pool are alike, and a preference for low ids shows.
    order = expected.argsort(descending=True, stable=True)
    order = order[possible[order]]
    # Each label here expects less than the limit, so a pool twice as wide never falls below it, except at the ends.
    cell = (expected[order].cumsum(0) / (2 * SMALLEST_EXPECTED)).floor().long()
    cell = torch.where(expected[order] >= SMALLEST_EXPECTED, -1 - torch.arange(len(order)), cell)
    _, cell = torch.unique(cell, return_inverse=True)
    pooled = torch.zeros(int(cell.max()) + 1, dtype=torch.float64).index_add_(0, cell, expected[order])
    seen = torch.zeros_like(pooled).index_add_(0, cell, observed[order].double())
    # The first and last pool may be cut short: they join the smallest other cell.
    small = pooled < SMALLEST_EXPECTED
    if bool(small.any()) and bool((~small).any()):
        host = int(torch.where(small, math.inf, pooled).argmin())
        pooled[host] += pooled[small].sum()
        seen[host] += seen[small].sum()
        pooled, seen = pooled[~small], seen[~small]
    statistic = float(((seen - pooled) ** 2 / pooled).sum())
    freedom = len(pooled) - 1
    p_value = float(chi2.sf(statistic, freedom)) if freedom else 1.0
    surprise = (observed - expected).abs() / expected.clamp(min=1.0).sqrt()
    worst = [(int(i), int(observed[i]), float(expected[i])) for i in surprise.topk(min(5, len(surprise))).indices]
    return Audit(draws, statistic, freedom, 0.0 if impossible else p_value, impossible, error, worst)


def _cpu(generator: torch.Generator | None) -> torch.Generator | None:
    return generator if generator is None or generator.device.type == "cpu" else None
