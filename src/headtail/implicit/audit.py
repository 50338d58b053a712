"""audit: does a sampler really draw what it claims?"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import torch
from jaxtyping import Float64, Int
from torch import Tensor, nn

from headtail.core.labels import Labels, check_labels
from headtail.errors import HeadtailError, check_count, check_ids
from headtail.implicit.audit_pool import mean_weights
from headtail.samplers import (
    Draw,
    FixedSampler,
    Frequency,
    Given,
    ModelSampler,
    Sampler,
    Scorer,
    Step,
)

SMALLEST_EXPECTED = 5.0
"""Labels are pooled until a cell expects this many draws: the usual condition for χ²."""


@dataclass(frozen=True)
class Audit:
    """The verdict on a claimed q.

    Attributes:
        draws: number of independent calls, one random slot of each.
        statistic: Pearson's χ².
        freedom: its degrees of freedom.
        p_value: how often a true claim would look at least this bad; below 0.001 the claim is
            rejected.
        impossible: draws of labels with a claimed q of 0.
        log_q_error: largest difference between the log q returned with a draw and the claimed one.
        worst: (label, observed, expected) for the labels that deviate most.
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


class Batches(TypedDict, total=False):
    """Keywords of `audit` about the batches that a headtail sampler draws for.

    Attributes:
        batch_size: targets in each call; 64 by default.
        target: y, the positive of the example that looks at the slots; a rarest label by default.
        input: `[batch_size, d]` and
        weight: `[L, d]`, for samplers that look at the model: one fixed input.
        generator: source of randomness.
    """

    batch_size: int
    target: int | None
    input: Tensor | None
    weight: Tensor | None
    generator: torch.Generator | None


def audit(
    sampler: Sampler | Callable[[], Any],
    labels: Labels | None = None,
    *,
    log_q: Any = None,
    draws: int = 20_000,
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
    **batches: Unpack[Batches],
) -> Audit:
    """Draw, and test by χ² whether labels appear as often as the claimed q predicts.

    Slots of one call may depend on each other (within a batch, without replacement), so one
    uniformly random slot of each independent call is counted. Queues are refilled between calls.

    For a headtail sampler the whole claim of a `Draw` is tested: for an example with positive y, a
    random slot out of n holds another label y' with probability m·q_y'·e^(−log_keep) / n. So a
    wrong m is detected as well as a wrong q. The positive's own cell has the remaining probability.

    Draws from a pool (`Resampled`) carry no q of a label. For them the test is that each label
    counts once on average when its draws are divided by the weights they carry.

    Args:
        sampler: a headtail sampler, or any function without arguments that returns label ids, so
            that other libraries can be audited.
        labels: where batches come from; needed for headtail's samplers.
        log_q: `[L]` the claim to test; needed for a function, the sampler's own by default.
        draws: number of calls.
        progress: wraps the loop, for a progress bar.
        **batches: `batch_size`, `target`, `input`, `weight` and `generator`: see `Batches`.

    >>> from headtail import Uniform
    >>> labels = Labels.zipf(100)
    >>> audit(Uniform(labels, 8), labels, generator=torch.Generator().manual_seed(0)).passed
    True
    >>> # a real bug: ids are sorted, then cut off, so rare labels are never drawn
    >>> rare_never_drawn = lambda: torch.randint(100, (64,)).unique()[:8]
    >>> audit(rare_never_drawn, log_q=torch.full((100,), 0.01).log()).passed
    False
    """
    check_count("draws", draws)
    seen = _Seen(**batches)
    if isinstance(sampler, Sampler):
        sampler, draw, first = _drawing(sampler, labels, seen)
        if not sampler.claims.marginal:
            softmax = _softmax(sampler, seen)
            return Audit(draws, *mean_weights(draw, softmax, first, draws, progress))
        call, expected = _headtail_call(draw, _claimed(sampler, first, log_q, seen), first)
    else:
        call, expected = _foreign_call(sampler, log_q)
    return _counted(call, expected, progress(range(draws)), seen.generator)


@dataclass(frozen=True, eq=False)
class _Seen:
    """What the audited sampler sees: see `Batches`."""

    batch_size: int = 64
    target: int | None = None
    input: Tensor | None = None
    weight: Tensor | None = None
    generator: torch.Generator | None = None


Call = Callable[[], tuple[Tensor, Tensor | None]]
"""Returns ids, and the error of their log q where they carry one."""


def _foreign_call(sampler: Any, log_q: Any) -> tuple[Call, Tensor]:
    """Draws of any function, and the probability of each label."""
    if not callable(sampler) or isinstance(sampler, nn.Module):
        got = type(sampler).__name__
        raise HeadtailError(
            f"`sampler` must be a headtail sampler or a function that returns ids, but got {got}. "
            "Write for example `audit(loss.sampler, labels)`."
        )
    if log_q is None:
        raise HeadtailError(
            "`log_q` is missing: pass the log-probability of each label to test, shape [L]."
        )
    return (lambda: (torch.as_tensor(sampler()), None)), _probabilities(log_q)


def _counted(
    call: Call, expected: Tensor, calls: Iterable[int], generator: torch.Generator | None
) -> Audit:
    """Count one random slot of each call, and test the counts."""
    observed = torch.zeros(len(expected), dtype=torch.int64)
    error = 0.0
    for _ in calls:
        ids, log_error = call()
        check_ids("ids", ids, len(expected))
        if ids.numel() == 0:
            raise HeadtailError(
                "`sampler` returned no ids. Let it draw at least one label in each call."
            )
        slots = ids.reshape(-1, ids.shape[-1])[0] if ids.dim() else ids.reshape(1)
        slot = int(torch.randint(len(slots), (1,), generator=_cpu(generator)))
        observed[int(slots[slot])] += 1
        if log_error is not None:
            error = max(error, float(log_error.reshape(-1, ids.shape[-1])[0, slot]))
    return _judge(observed, expected * int(observed.sum()), error)


def _probabilities(log_q: Any) -> Tensor:
    log_q = torch.as_tensor(log_q).detach().cpu().double()
    total = float(log_q.exp().sum())
    if log_q.dim() != 1 or bool(log_q.isnan().any()) or abs(total - 1) > 1e-6:
        raise HeadtailError(
            f"`log_q` must be one log-probability per label, summing to 1, but sums to {total:.6g}."
        )
    return log_q.exp()


def _drawing(
    sampler: Sampler, labels: Labels | None, seen: _Seen
) -> tuple[Sampler, Callable[[], Draw], int]:
    """The sampler, a function that draws for batches starting with a positive, and that label."""
    if labels is None:
        raise HeadtailError(
            "`labels` is missing: batches of targets are drawn from its frequencies."
        )
    check_labels(labels)
    if labels.num_labels != sampler.num_labels:
        raise HeadtailError(
            f"`labels` has {labels.num_labels} labels, but the sampler {sampler.num_labels}. Pass "
            "the same ones."
        )
    if isinstance(sampler, Given):
        raise HeadtailError(
            "`Given` holds one fixed draw, which cannot be audited. Write "
            "`audit(function_that_draws, log_q=…)`."
        )
    counts = labels.counts.cpu()
    first = seen.target
    if first is None:
        first = int(torch.where(counts > 0, counts, counts.max() + 1).argmin())
    check_ids("target", torch.tensor([first]), labels.num_labels)
    claims = sampler.claims
    generator = seen.generator
    device = sampler.device or (torch.device("cpu") if generator is None else generator.device)
    if claims.looks_at_model and seen.weight is not None:
        device = seen.weight.device
    any_target = torch.tensor([0])
    # Batches follow the data, unsmoothed, as real ones do.
    data = Frequency(Labels(counts), num_negatives=check_count("batch_size", seen.batch_size))
    if claims.memory or claims.looks_at_model:
        # The caller's queue keeps its content, and a sampler's view of the model stays fixed during
        # the test.
        sampler = copy.deepcopy(sampler).train(not claims.looks_at_model)
    past = Frequency(Labels(counts), num_negatives=max(seen.batch_size, claims.memory))

    def draw() -> Draw:
        if claims.memory:
            sampler.refresh(past.draw(any_target, generator=_cpu(generator)).ids.to(device))
        batch = data.draw(any_target, generator=_cpu(generator)).ids
        batch[0] = first
        batch = batch.to(device)
        options = {"generator": generator, "fixed_size": True}
        return sampler.draw(batch, input=seen.input, weight=seen.weight, **options)

    return sampler, draw, first


def _headtail_call(
    draw: Callable[[], Draw], claimed: Float64[Tensor, " L"], first: int
) -> tuple[Call, Tensor]:
    """A call that returns (ids, error of their log q), and the probability of each label in a
    random slot.
    """

    def call() -> tuple[Tensor, Tensor | None]:
        drawn = draw()
        log_q = claimed[drawn.ids.cpu()]
        # A claim of q = 0 counts as an impossible draw; any other log q that is not finite has an
        # infinite error.
        error = (drawn.log_q.cpu() - log_q).abs().nan_to_num(nan=math.inf)
        # A place that holds no negative counts like one that holds the positive.
        ids = drawn.ids if drawn.void is None else drawn.ids.masked_fill(drawn.void, first)
        return ids.cpu(), torch.where(log_q == -math.inf, 0.0, error)

    sample = draw()
    keep = float(sample.log_keep[0]) if isinstance(sample.log_keep, Tensor) else sample.log_keep
    expected = claimed.exp() * (sample.m * math.exp(-keep) / max(1, sample.ids.shape[-1]))
    expected[first] = 0.0
    expected[first] = max(0.0, 1.0 - float(expected.sum()))
    return call, expected


def _claimed(sampler: Sampler, first: int, log_q: Any, seen: _Seen) -> Float64[Tensor, " L"]:
    """`[L]` log q as claimed for the first example."""
    if log_q is not None:
        return _probabilities(log_q).log()
    if isinstance(sampler, FixedSampler):
        return sampler.log_q(torch.arange(sampler.num_labels), seen.batch_size)
    assert isinstance(sampler, ModelSampler), "a sampler without q is a pool"
    model = _model(sampler, seen)
    label = torch.full((seen.batch_size,), first, device=model.weight.device)
    with torch.no_grad():
        every = torch.arange(sampler.num_labels, device=model.weight.device)
        return sampler.log_q_given(Step.expected(label, seen.batch_size, model), every)[0].cpu()


def _softmax(sampler: Sampler, seen: _Seen) -> Float64[Tensor, " L"]:
    model = _model(sampler, seen)
    first = Scorer(model.input[:1], model.weight)
    return first.logits(slice(0, len(first.weight)))[0].double().softmax(0).cpu()


def _model(sampler: Sampler, seen: _Seen) -> Scorer:
    input = seen.input
    weight = seen.weight
    if input is None or weight is None:
        raise HeadtailError(
            f"`{sampler.name}` looks at the model: pass `input` and `weight` to `audit`."
        )
    if len(input) != seen.batch_size:
        raise HeadtailError(
            f"`input` has {len(input)} rows, but `batch_size` is {seen.batch_size}. Give one row "
            "for each target."
        )
    return Scorer(input.detach(), weight.detach())


def _judge(observed: Int[Tensor, " L"], expected: Float64[Tensor, " L"], error: float) -> Audit:
    from scipy.stats import chi2  # imported where used: `import headtail` stays fast

    draws = int(observed.sum())
    # A rounding error in the probability of the positive's own cell does not make it possible.
    expected = torch.where(expected > draws * 1e-12, expected, 0.0)
    possible = expected > 0
    impossible = int(observed[~possible].sum())
    # Pool in order of claimed probability, ties by id: neighbours in a pool are alike, and a
    # preference for low ids shows.
    order = expected.argsort(descending=True, stable=True)
    order = order[possible[order]]
    # Each pooled label expects less than the limit, so a pool twice as wide never falls below it,
    # except at the ends.
    cell = (expected[order].cumsum(0) / (2 * SMALLEST_EXPECTED)).floor().long()
    cell = torch.where(expected[order] >= SMALLEST_EXPECTED, -1 - torch.arange(len(order)), cell)
    _, cell = torch.unique(cell, return_inverse=True)
    pooled = torch.zeros(int(cell.max()) + 1, dtype=torch.float64).index_add_(
        0, cell, expected[order]
    )
    seen = torch.zeros_like(pooled).index_add_(0, cell, observed[order].double())
    # The first and last pool may be cut short: they join the smallest other cell.
    small = pooled < SMALLEST_EXPECTED
    if bool(small.any()) and bool((~small).any()):
        host = int(torch.where(small, math.inf, pooled).argmin())
        pooled[host] += pooled[small].sum()
        seen[host] += seen[small].sum()
        pooled = pooled[~small]
        seen = seen[~small]
    statistic = float(((seen - pooled) ** 2 / pooled).sum())
    freedom = len(pooled) - 1
    if freedom == 0 and int(possible.sum()) > 1:
        raise HeadtailError(
            f"`draws` is {draws}, too few to test {int(possible.sum())} labels. Use several "
            "thousand."
        )
    p_value = float(chi2.sf(statistic, freedom)) if freedom else 1.0
    surprise = (observed - expected).abs() / expected.clamp(min=1.0).sqrt()
    worst = [
        (int(i), int(observed[i]), float(expected[i]))
        for i in surprise.topk(min(5, len(surprise))).indices
    ]
    return Audit(
        draws, statistic, freedom, 0.0 if impossible else p_value, impossible, error, worst
    )


def _cpu(generator: torch.Generator | None) -> torch.Generator | None:
    return generator if generator is None or generator.device.type == "cpu" else None
