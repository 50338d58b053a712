"""on_model: how well sampled losses approximate the exact one, on a trained model and its data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from headtail.device.timing import Timed, replayed_seconds, seconds_of
from headtail.errors import HeadtailError, check_count
from headtail.implicit.sampling_errors import (
    Gradient,
    GradientErrors,
    effective_negatives,
    gradients_of,
    variance_of_sums,
)
from headtail.losses import ExactLoss, SampledLoss
from headtail.samplers import Draw, Scorer

LARGEST_TABLE = 2**29
"""Largest label table, in numbers: six dense gradients of it are held in memory."""


@dataclass(frozen=True)
class OnModel:
    """What sampling does to the loss and its gradients on a trained model.

    Attributes:
        scheme: its name.
        m: effective number of negatives.
        loss: mean sampled loss over the probes.
        bias: mean sampled loss minus the exact loss.
        squared_error: σ²/(mμ²) for the softmax, the variance for decoupled losses: mean over the
            probes. Exact where the sampler has a formula, else measured, which misses rare draws.
        effective: number of negatives of equal weight that would be as good: mean of (Σ t)² / Σ t²
            over the terms t of the sum.
        hidden: errors of the hidden states' gradients, averaged over examples.
        table: error of the label table's gradient. Error and cosine are those of a whole batch:
            examples that share a draw have correlated errors, which do not average out. The bias
            is that of all probes together, while the rest of their batch changes.
        draw_seconds: time to draw for a batch, the fastest of all repeats, because other processes
            can only slow it down. On a GPU, as a CUDA graph, like the steps of training.
        step_seconds: time to draw and to compute the loss of a batch and its gradients, measured
            in the same way.
    """

    scheme: str
    m: float
    loss: float
    bias: float
    squared_error: float
    effective: float
    hidden: Gradient
    table: Gradient
    draw_seconds: float
    step_seconds: float


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples of a trained model on which losses are measured.

    Attributes:
        hidden: `[n, d]` hidden states; the first `sets · probes` are the probes, and the rest of a
            batch is drawn from all others.
        target: `[n]` their labels.
        weight: `[L, d]` label table.
        bias: `[L]` or `[L, 1]`, or None.
        probes: number of examples measured in a batch. Few, because they stay the same while the
            others change, and within-batch negatives should rarely be other probes.
        sets: sets of probes to average over.
        size: examples in a batch.
    """

    hidden: Float[Tensor, "n d"]
    target: Int[Tensor, " n"]
    weight: Float[Tensor, "L d"]
    bias: Tensor | None = None
    probes: int = 16
    sets: int = 4
    size: int = 256

    def __post_init__(self) -> None:
        probes = check_count("probes", self.probes) * check_count("sets", self.sets)
        targets = len(self.target)
        least = max(self.size, probes)
        if len(self.hidden) != targets or targets < least or self.probes > self.size:
            raise HeadtailError(
                f"`size` is {self.size} and {probes} probes are needed, {self.probes} per batch, "
                f"but there are {len(self.hidden)} hidden states and {targets} targets. Pass at "
                f"least {least} of both, equally many, and at most `size` probes per batch."
            )
        if self.weight.numel() > LARGEST_TABLE:
            raise HeadtailError(
                f"`weight` has {self.weight.numel():,} numbers, too many for exact gradients (at "
                f"most {LARGEST_TABLE:,})."
            )

    def rows_of(self, probe_set: int) -> slice:
        """The rows of a set of probes."""
        return slice(probe_set * self.probes, (probe_set + 1) * self.probes)

    def drawn(self, probe_set: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Hidden states and targets of a batch: a set of probes, and others at random."""
        probes = self.rows_of(probe_set)
        others = torch.randperm(len(self.target) - self.probes, generator=generator)
        others = others[: self.size - self.probes]
        others += self.probes * (others >= probes.start)
        rows = torch.cat([torch.arange(probes.start, probes.stop), others]).to(self.target.device)
        return self.hidden[rows], self.target[rows]


def on_model(
    exact: ExactLoss,
    losses: Mapping[str, SampledLoss],
    batch: Batch,
    *,
    repeats: int = 4,
    generator: torch.Generator | None = None,
    progress: Callable[[Sequence[str]], Iterable[str]] = iter,
) -> list[OnModel]:
    """Compare sampled losses with the exact one they are meant to approximate.

    Args:
        exact: the wanted loss, over all labels.
        losses: sampled losses by name.
        batch: examples of a trained model.
        repeats: draws of each loss for each set of probes, to average over.
        generator: source of randomness, on the CPU.
        progress: wraps the loop over names, which runs once per set, for a progress bar.

    >>> from headtail import Labels, scheme
    >>> labels, hidden, table = Labels.zipf(50), torch.randn(64, 4), torch.randn(50, 4)
    >>> examples = Batch(hidden, torch.randint(50, (64,)), table, probes=8, size=32, sets=2)
    >>> losses = {"model": scheme("model:importance@4", labels)}
    >>> [result] = on_model(scheme("softmax", labels), losses, examples)
    >>> result.squared_error < 1e-12  # every draw gives the exact loss
    True
    """
    check_count("repeats", repeats)
    results: dict[str, list[OnModel]] = {name: [] for name in losses}
    truth = None
    for i, name in enumerate(progress(list(losses) * batch.sets)):
        if i % len(losses) == 0:
            truth = _Truth.of(exact, batch, i // len(losses), generator)
        assert truth is not None, "a set begins with its truth"
        results[name].append(_measure(name, losses[name], truth, batch, max(2, repeats), generator))
    return [_mean(parts) for parts in results.values()]


def exactly(name: str, exact: ExactLoss, batch: Batch, repeats: int = 3) -> OnModel:
    """The exact loss itself as such a row: no error, and the time it takes."""
    truth = _Truth.of(exact, batch, 0)
    hidden = batch.hidden[: batch.size]
    target = batch.target[: batch.size]

    def step() -> object:
        return gradients_of(
            lambda h, w: exact(h, w, target, bias=batch.bias, ignore_index=None),
            hidden,
            batch.weight,
        )

    device = batch.weight.device
    seconds = [*(seconds_of(step, device) for _ in range(repeats)), *replayed_seconds(step, device)]
    every = float(len(batch.weight))
    none = Gradient(0.0, 0.0, 1.0)
    return OnModel(
        name, every, float(truth.loss.mean()), 0.0, 0.0, every, none, none, 0.0, min(seconds)
    )


def best_within(results: Iterable[OnModel], seconds: float) -> OnModel | None:
    """The smallest error of the table's gradient within so many seconds per step."""
    fast = [result for result in results if result.step_seconds <= seconds]
    return min(fast, key=lambda result: result.table.error, default=None)


def quickest_with(results: Iterable[OnModel], cosine: float) -> OnModel | None:
    """The fastest result with at least this mean cosine of the table's gradient."""
    good = [result for result in results if result.table.cosine >= cosine]
    return min(good, key=lambda result: result.step_seconds, default=None)


def frontier(results: Iterable[OnModel]) -> list[OnModel]:
    """Results that no other beats in both time and error of the table's gradient, fastest first."""
    best: list[OnModel] = []
    for result in sorted(results, key=lambda result: (result.step_seconds, result.table.error)):
        if not best or result.table.error < best[-1].table.error:
            best.append(result)
    return best


@dataclass(frozen=True, eq=False)
class _Truth:
    """The exact loss of each example in a set of probes, and its gradients."""

    loss: Float64[Tensor, " p"]
    hidden: Tensor
    table: Tensor
    probe_set: int
    label: Int[Tensor, " p"]
    model: Scorer
    whole: _Whole

    @classmethod
    def of(
        cls,
        exact: ExactLoss,
        batch: Batch,
        probe_set: int,
        generator: torch.Generator | None = None,
    ) -> _Truth:
        rows = batch.rows_of(probe_set)
        hidden = batch.hidden[rows]
        label = batch.target[rows]
        truth = gradients_of(
            lambda h, w: exact(h, w, label, bias=batch.bias, reduction="none"),
            hidden,
            batch.weight,
        )
        model = Scorer(hidden, batch.weight, batch.bias, exact.temperature, exact.settings.score)
        whole = _Whole.of(exact, batch, *batch.drawn(probe_set, generator))
        return cls(*truth, probe_set, label, model, whole)


class _Whole(NamedTuple):
    """A batch as training sees it, and the exact gradient of its mean loss."""

    hidden: Tensor
    target: Tensor
    table: Tensor

    @classmethod
    def of(cls, exact: ExactLoss, batch: Batch, hidden: Tensor, target: Tensor) -> _Whole:
        total = torch.zeros_like(batch.weight)
        for h, y in zip(hidden.split(batch.probes), target.split(batch.probes), strict=True):
            total += gradients_of(
                lambda a, b, y=y: exact(a, b, y, bias=batch.bias, reduction="none"), h, batch.weight
            )[2]
        return cls(hidden, target, total / len(target))

    def draw(self, loss: SampledLoss, batch: Batch) -> Draw:
        """Draw as training does."""
        return loss.draw(self.hidden, batch.weight, self.target, bias=batch.bias, ignore_index=None)

    def step(self, loss: SampledLoss, batch: Batch, draw: Draw) -> Tensor:
        """A training step without the optimiser: the table's row-sparse gradient, computed by the
        kernels that training uses.
        """
        hidden = self.hidden.detach().requires_grad_()
        weight = batch.weight.detach().requires_grad_()
        bias = None if batch.bias is None else batch.bias.detach().requires_grad_()
        with torch.enable_grad():
            loss(
                hidden, weight, self.target, bias=bias, draw=draw, sparse=True, ignore_index=None
            ).backward()
        return torch.zeros_like(weight) if weight.grad is None else weight.grad


def _measure(
    name: str,
    loss: SampledLoss,
    truth: _Truth,
    batch: Batch,
    repeats: int,
    generator: torch.Generator | None,
) -> OnModel:
    """One sampled loss on one set of probes."""
    whole = truth.whole
    device = batch.weight.device
    hidden = GradientErrors(truth.hidden, rows=True)
    table = GradientErrors(truth.table, rows=False)
    step = GradientErrors(whole.table, rows=False)
    values = []
    effective = []
    draws = []
    steps = []
    draw = None
    for _ in range(repeats):
        order = torch.randperm(len(batch.target), generator=generator)
        loss.sampler.refresh(batch.target[order.to(batch.target.device)])
        with Timed(draws, device):
            draw = whole.draw(loss, batch)
        with Timed(steps, device):
            gradient = whole.step(loss, batch, draw)
        step.add(gradient.to_dense())
        few, each, *gradients = _on_probes(loss, truth, batch, generator)
        for errors, gradient in zip((hidden, table), gradients, strict=True):
            errors.add(gradient)
        values.append(each)
        effective.append(effective_negatives(loss, few, truth.label, truth.model))
    assert draw is not None, "there are at least two repeats"
    if truth.probe_set == 0:
        training = loss.sampler.training
        loss.sampler.eval()  # a refresh from the whole table is not part of a step
        draws += replayed_seconds(lambda: whole.draw(loss, batch), device)
        steps += replayed_seconds(lambda: whole.step(loss, batch, draw), device)
        loss.sampler.train(training)
    sampled = torch.stack(values)
    return OnModel(
        scheme=name,
        m=float(draw.m),
        loss=float(sampled.mean()),
        bias=float((sampled - truth.loss).mean()),
        squared_error=float(_squared_error(loss, truth, sampled, batch.size).mean()),
        effective=sum(effective) / repeats,
        hidden=hidden.summary(),
        table=replace(step.summary(), bias=table.summary().bias),
        draw_seconds=min(draws),
        step_seconds=min(draws) + min(steps),
    )


def _on_probes(
    loss: SampledLoss, truth: _Truth, batch: Batch, generator: torch.Generator | None
) -> tuple[Draw, Tensor, Tensor, Tensor]:
    """A draw among other examples, and the loss and gradients of the probes with it."""
    hidden, target = batch.drawn(truth.probe_set, generator)
    draw = _first(loss.draw(hidden, batch.weight, target, bias=batch.bias), batch.probes)
    return draw, *gradients_of(
        lambda h, w: loss(h, w, truth.label, bias=batch.bias, draw=draw, reduction="none"),
        hidden[: batch.probes],
        batch.weight,
    )


def _squared_error(loss: SampledLoss, truth: _Truth, sampled: Tensor, size: int) -> Tensor:
    """The variance of each probe's sum by its formula, or else that of its sampled losses."""
    variance = variance_of_sums(loss, truth.model, truth.label, truth.loss, size)
    if variance is not None:
        return variance
    return (sampled if loss.piece else sampled.exp() * (-truth.loss).exp()).var(0)


def _mean(parts: list[OnModel]) -> OnModel:
    """The mean over sets of probes; of times, the minimum."""

    def mean(number: Callable[[OnModel], float]) -> float:
        return sum(number(part) for part in parts) / len(parts)

    def gradient(of: Callable[[OnModel], Gradient]) -> Gradient:
        return Gradient(
            bias=mean(lambda part: of(part).bias),
            error=mean(lambda part: of(part).error),
            cosine=mean(lambda part: of(part).cosine),
        )

    return replace(
        parts[0],
        loss=mean(lambda part: part.loss),
        bias=mean(lambda part: part.bias),
        squared_error=mean(lambda part: part.squared_error),
        effective=mean(lambda part: part.effective),
        hidden=gradient(lambda part: part.hidden),
        table=gradient(lambda part: part.table),
        draw_seconds=min(part.draw_seconds for part in parts),
        step_seconds=min(part.step_seconds for part in parts),
    )


def _first(draw: Draw, n: int) -> Draw:
    """The draw as the first n examples see it."""
    target = draw.log_q_target
    keep = draw.log_keep
    return replace(
        draw,
        ids=draw.ids if draw.shared else draw.ids[:n],
        log_q=draw.log_q if draw.shared else draw.log_q[:n],
        log_q_target=target[:n] if isinstance(target, Tensor) else target,
        log_keep=keep[:n] if isinstance(keep, Tensor) else keep,
    )
