"""on_model: how well sampled losses stand for the exact one, on a trained model and its data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from headtail.core.weightings import FromMargin
from headtail.device.timing import Timed, replayed_seconds, seconds_of
from headtail.errors import HeadtailError, check_count
from headtail.losses import ExactLoss, SampledLoss
from headtail.samplers import Draw, FixedSampler, ModelSampler, Resampled, Scorer, Step

LARGEST_TABLE = 2**29
"""Numbers of a label table whose dense gradient is held six times over."""
LOOKED_AT_ONCE = 2**22
"""Probabilities that are held at a time."""


@dataclass(frozen=True)
class Gradient:
    """A sampled gradient against the exact one.

    Attributes:
        bias: length of its mean error, in units of the exact gradient; what noise adds to it is
            taken off.
        error: root of its mean squared error, alike.
        cosine: mean cosine between the two.
    """

    bias: float
    error: float
    cosine: float


@dataclass(frozen=True)
class OnModel:
    """What sampling does to the loss and its gradients on a trained model.

    Attributes:
        scheme: its name.
        m: effective number of negatives.
        loss: mean sampled loss over the probes.
        bias: that less the exact loss.
        squared_error: σ²/(mμ²) for the softmax, the variance for decoupled losses: mean over the
            probes. Exact where the sampler has a formula, else measured, which misses what is rare.
        effective: number of negatives of equal weight that would be as good: mean of (Σ t)² / Σ t²
            over the terms t of the sum.
        hidden: of the hidden states, each for itself.
        table: of the label table. Error and cosine are those of a whole batch: examples that share
            a draw err together, and their errors do not average out. The bias is that of all probes
            together, while the rest of their batch changes.
        draw_seconds: to draw for a batch, the quickest of all: whoever shares the machine only
            makes it slower. On a GPU, as a CUDA graph, as training takes its steps.
        step_seconds: to draw, take the loss of a batch and its gradients, alike.
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
    """Examples of a trained model to look at.

    Attributes:
        hidden: `[n, d]` hidden states; the first `sets · probes` are looked at, and all take turns
            as the rest of a batch.
        target: `[n]` their labels.
        weight: `[L, d]` label table.
        bias: `[L]` or `[L, 1]`, or None.
        probes: number of examples that are looked at in one batch: few, because they stay the same
            while the others change, and for within-batch negatives should not be each other's.
        sets: of probes, over which it is averaged.
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
        looked_at = check_count("probes", self.probes) * check_count("sets", self.sets)
        have = len(self.target)
        if len(self.hidden) != have or have < max(self.size, looked_at) or self.probes > self.size:
            raise HeadtailError(
                f"`size` is {self.size} and {looked_at} probes are wanted, but there are "
                f"{len(self.hidden)} hidden states and "
                f"{have} targets. Give as many of both, at least so many, and no more probes than "
                "a batch holds."
            )
        if self.weight.numel() > LARGEST_TABLE:
            raise HeadtailError(
                f"`weight` has {self.weight.numel():,} numbers, too many for exact gradients (at "
                f"most {LARGEST_TABLE:,})."
            )

    def looked_at(self, one: int) -> slice:
        """The rows of a set of probes."""
        return slice(one * self.probes, (one + 1) * self.probes)

    def drawn(self, one: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Hidden states and targets of a batch: a set of probes, and others at random."""
        others = torch.randperm(len(self.target) - self.probes, generator=generator)[
            : self.size - self.probes
        ]
        others += self.probes * (others >= one * self.probes)
        rows = torch.cat([torch.arange(len(self.target))[self.looked_at(one)], others]).to(
            self.target.device
        )
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
    """Compare sampled losses with the exact one they are meant to stand for.

    Args:
        exact: the loss that is wanted, over all labels.
        losses: sampled ones, by name.
        batch: examples of a trained model.
        repeats: draws of each for each set of probes, over which it is averaged.
        generator: source of randomness, on the CPU.
        progress: wraps the loop over names, which goes through them once a set, for a progress bar.

    >>> from headtail import Labels, scheme
    >>> labels, hidden, table = Labels.zipf(50), torch.randn(64, 4), torch.randn(50, 4)
    >>> examples = Batch(hidden, torch.randint(50, (64,)), table, probes=8, size=32, sets=2)
    >>> [one] = on_model(scheme("softmax", labels), {"model": scheme("model:importance@4", labels)}, examples)
    >>> one.squared_error < 1e-12  # every draw gives the exact loss
    True
    """
    check_count("repeats", repeats)
    found: dict[str, list[OnModel]] = {name: [] for name in losses}
    truth = None
    for i, name in enumerate(progress(list(losses) * batch.sets)):
        one = i // len(losses)
        if i % len(losses) == 0:
            truth = _Truth.of(exact, batch, one, generator)
        assert truth is not None, "a set begins with its truth"
        found[name].append(
            _measure(name, losses[name], truth, batch, one, max(2, repeats), generator)
        )
    return [_mean(parts) for parts in found.values()]


def exactly(name: str, exact: ExactLoss, batch: Batch, repeats: int = 3) -> OnModel:
    """The exact loss itself as such a row: no error, and the time it takes."""
    truth = _Truth.of(exact, batch, 0)
    hidden = batch.hidden[: batch.size]
    target = batch.target[: batch.size]

    def step() -> object:
        return _gradients(
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


def best_within(found: Iterable[OnModel], seconds: float) -> OnModel | None:
    """The one whose table gradient errs least among those whose step takes no longer."""
    quick = [one for one in found if one.step_seconds <= seconds]
    return min(quick, key=lambda one: one.table.error, default=None)


def quickest_with(found: Iterable[OnModel], cosine: float) -> OnModel | None:
    """The quickest whose table gradient points the right way: with a mean cosine of at least so
    much.
    """
    right = [one for one in found if one.table.cosine >= cosine]
    return min(right, key=lambda one: one.step_seconds, default=None)


def frontier(found: Iterable[OnModel]) -> list[OnModel]:
    """Those that no other beats in both time and error of the table's gradient, quickest first."""
    best: list[OnModel] = []
    for one in sorted(found, key=lambda one: (one.step_seconds, one.table.error)):
        if not best or one.table.error < best[-1].table.error:
            best.append(one)
    return best


@dataclass(frozen=True, eq=False)
class _Truth:
    """The exact loss of each probe and its gradients."""

    loss: Float64[Tensor, " p"]
    hidden: Tensor
    table: Tensor
    model: Scorer
    whole: _Whole

    @classmethod
    def of(
        cls, exact: ExactLoss, batch: Batch, one: int, generator: torch.Generator | None = None
    ) -> _Truth:
        hidden = batch.hidden[batch.looked_at(one)]
        target = batch.target[batch.looked_at(one)]
        found = _gradients(
            lambda h, w: exact(h, w, target, bias=batch.bias, reduction="none"),
            hidden,
            batch.weight,
        )
        model = Scorer(hidden, batch.weight, batch.bias, exact.temperature, exact.settings.score)
        return cls(*found, model, _Whole.of(exact, batch, *batch.drawn(one, generator)))


class _Whole(NamedTuple):
    """A batch as training sees it, and the exact gradient of its mean loss."""

    hidden: Tensor
    target: Tensor
    table: Tensor

    @classmethod
    def of(cls, exact: ExactLoss, batch: Batch, hidden: Tensor, target: Tensor) -> _Whole:
        total = torch.zeros_like(batch.weight)
        for h, y in zip(hidden.split(batch.probes), target.split(batch.probes), strict=True):
            total += _gradients(
                lambda a, b, y=y: exact(a, b, y, bias=batch.bias, reduction="none"), h, batch.weight
            )[2]
        return cls(hidden, target, total / len(target))


def _measure(
    name: str,
    loss: SampledLoss,
    truth: _Truth,
    batch: Batch,
    one: int,
    repeats: int,
    generator: torch.Generator | None,
) -> OnModel:
    n = batch.probes
    label = batch.target[batch.looked_at(one)]
    whole = truth.whole
    hidden = _Errors(truth.hidden, rows=True)
    table = _Errors(truth.table, rows=False)
    step = _Errors(whole.table, rows=False)
    values = []
    effective = []
    draws = []
    steps = []
    draw = None
    for _ in range(repeats):
        loss.sampler.refresh(
            batch.target[
                torch.randperm(len(batch.target), generator=generator).to(batch.target.device)
            ]
        )
        with Timed(draws, batch.weight.device):
            draw = loss.draw(
                whole.hidden, batch.weight, whole.target, bias=batch.bias, ignore_index=None
            )
        with Timed(steps, batch.weight.device):
            found = _step(loss, whole.hidden, whole.target, batch, draw)
        step.add(found.to_dense())
        h, y = batch.drawn(one, generator)
        few = _first(loss.draw(h, batch.weight, y, bias=batch.bias), n)
        each, *gradients = _gradients(
            lambda a, b, few=few: loss(a, b, label, bias=batch.bias, draw=few, reduction="none"),
            h[:n],
            batch.weight,
        )
        for errors, gradient in zip((hidden, table), gradients, strict=True):
            errors.add(gradient)
        values.append(each)
        effective.append(_effective(loss, few, label, truth.model))
    assert draw is not None, "there are two repeats at least"
    if one == 0:
        training = loss.sampler.training
        loss.sampler.eval()  # a look at the whole table is not part of a step
        given = whole.hidden, batch.weight, whole.target
        draws += replayed_seconds(
            lambda: loss.draw(*given, bias=batch.bias, ignore_index=None), batch.weight.device
        )
        steps += replayed_seconds(
            lambda: _step(loss, whole.hidden, whole.target, batch, draw), batch.weight.device
        )
        loss.sampler.train(training)
    sampled = torch.stack(values)
    squared = _variance(loss, truth, label, batch.size)
    if squared is None:
        scale = 1.0 if loss.piece else (-truth.loss).exp()
        sums = (sampled if loss.piece else sampled.exp()) * scale
        squared = sums.var(0)
    return OnModel(
        scheme=name,
        m=draw.m,
        loss=float(sampled.mean()),
        bias=float((sampled - truth.loss).mean()),
        squared_error=float(squared.mean()),
        effective=sum(effective) / repeats,
        hidden=hidden.summary(),
        table=replace(step.summary(), bias=table.summary().bias),
        draw_seconds=min(draws),
        step_seconds=min(draws) + min(steps),
    )


def _mean(parts: list[OnModel]) -> OnModel:
    """Over sets of probes; of times, the least."""

    def mean(values: Iterable[float]) -> float:
        return sum(values) / len(parts)

    gradients = {
        name: Gradient(
            *(
                mean(getattr(getattr(one, name), key) for one in parts)
                for key in ("bias", "error", "cosine")
            )
        )
        for name in ("hidden", "table")
    }
    numbers = {
        name: mean(getattr(one, name) for one in parts)
        for name in ("loss", "bias", "squared_error", "effective")
    }
    seconds = {
        name: min(getattr(one, name) for one in parts) for name in ("draw_seconds", "step_seconds")
    }
    return replace(parts[0], **gradients, **numbers, **seconds)


def _gradients(
    loss: Callable[[Tensor, Tensor], Tensor], hidden: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of each example, and the gradients of their sum."""
    hidden = hidden.detach().requires_grad_()
    weight = weight.detach().requires_grad_()
    with torch.enable_grad():
        each = loss(hidden, weight)
        found = torch.autograd.grad(each.sum(), (hidden, weight))
    return each.detach().double(), found[0], found[1]


def _step(loss: SampledLoss, hidden: Tensor, target: Tensor, batch: Batch, draw: Draw) -> Tensor:
    """A training step but for the optimiser: the table's row-sparse gradient, by the kernels that
    training uses.
    """
    hidden = hidden.detach().requires_grad_()
    weight = batch.weight.detach().requires_grad_()
    bias = None if batch.bias is None else batch.bias.detach().requires_grad_()
    with torch.enable_grad():
        loss(
            hidden, weight, target, bias=bias, draw=draw, sparse=True, ignore_index=None
        ).backward()
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


def _first(draw: Draw, n: int) -> Draw:
    """The draw as the first n examples see it."""
    few = {
        name: value[:n]
        for name in ("log_q_target", "log_keep")
        if isinstance(value := getattr(draw, name), Tensor)
    }
    ids = {} if draw.shared else {"ids": draw.ids[:n], "log_q": draw.log_q[:n]}
    return replace(draw, **few, **ids)


def _effective(loss: SampledLoss, draw: Draw, label: Tensor, model: Scorer) -> float:
    """Mean of (Σ t)² / Σ t² over the terms of the sum, collisions left out."""
    if draw.ids.shape[-1] == 0:
        return 0.0
    a, b = loss.weighting.offsets(draw, label)
    f = model.logits(draw.ids).double()
    log_t = a[:, None] + b + (f if loss.piece is None else loss.piece.negative(-f).abs().log())
    log_t = log_t.masked_fill(draw.ids == label[:, None], -math.inf)
    one = torch.logsumexp(log_t, 1)
    two = torch.logsumexp(2 * log_t, 1)
    return float(torch.where(one > -math.inf, (2 * one - two).exp(), 0.0).mean())


def _variance(
    loss: SampledLoss, truth: _Truth, label: Tensor, batch_size: int
) -> Float64[Tensor, " p"] | None:
    """The variance of the sum for each probe, for the softmax in units of its exact one; None where
    it has no formula.
    """
    sampler = loss.sampler
    model = truth.model
    found = []
    claims = sampler.claims
    if claims.marginal and not claims.knows_every_q:
        return None
    # Examples that share a draw are looked at together: on its own, each has another q.
    size = claims.group * max(1, LOOKED_AT_ONCE // len(model.weight) // claims.group)
    for rows in torch.arange(len(label), device=label.device).split(size):
        few = replace(model, input=model.input[rows])
        y = label[rows]
        f = few.logits(slice(0, len(model.weight))).double()
        relative = f - f.gather(1, y[:, None]) - truth.loss[rows, None]
        cost = relative.exp() if loss.piece is None else loss.piece.negative(-f)
        # the positive is masked
        variance = _variance_of(loss, few, y, cost.scatter(1, y[:, None], 0.0), batch_size)
        if variance is None:
            return None
        found.append(variance)
    return torch.cat(found)


def _variance_of(
    loss: SampledLoss, model: Scorer, label: Tensor, cost: Tensor, batch_size: int
) -> Tensor | None:
    """The variance of Σ w·cost over the draws."""
    sampler = loss.sampler
    every = torch.arange(cost.shape[1], device=label.device)
    step = Step.expected(label, batch_size, model)
    if isinstance(sampler, Resampled):
        assert isinstance(loss.weighting, FromMargin), "others are refused"
        term = loss.weighting.margin.log_rho(label, every).exp() * cost
        return sampler.variance_of_target(step, term)
    assert isinstance(sampler, FixedSampler | ModelSampler), "a sampler without q is a pool"
    log_q = sampler.log_q_given(step, every)
    of_target = log_q.gather(1, label[:, None]).squeeze(1)
    keep = sampler.log_keep_given(step)
    draw = Draw(every.expand_as(log_q), log_q, of_target, sampler.expected_m(batch_size), keep)
    a, b = loss.weighting.offsets(draw, label)
    # 0 · inf: what is never drawn has an infinite weight, and the positive no cost.
    term = torch.where((log_q == -math.inf) | (cost == 0), 0.0, (a[:, None] + b).exp() * cost)
    return sampler.variance_given(step, term)


class _Errors:
    """Sums over draws of what a gradient differs from the exact one, row by row or as a whole."""

    def __init__(self, exact: Tensor, *, rows: bool) -> None:
        self.exact = exact
        self.rows = rows
        self.count = 0
        self.total = torch.zeros_like(exact)
        self.squares = 0.0
        self.cosines = 0.0
        self.length = self._dot(exact, exact).sqrt()

    def _dot(self, one: Tensor, two: Tensor) -> Tensor:
        products = (one * two).sum(1, dtype=torch.float64)
        return products if self.rows else products.sum()

    def add(self, gradient: Tensor) -> None:
        error = gradient - self.exact
        self.squares = self.squares + self._dot(error, error)
        self.total += error
        lengths = self._dot(gradient, gradient).sqrt() * self.length
        # A gradient of nothing points nowhere.
        self.cosines = self.cosines + torch.where(
            lengths > 0, self._dot(gradient, self.exact) / lengths.clamp(min=1e-300), 0.0
        )
        self.count += 1

    def summary(self) -> Gradient:
        """Means over draws, and then over rows whose exact gradient is not 0."""
        mean = self.total / self.count
        of_mean = self._dot(mean, mean)
        of_each = torch.as_tensor(self.squares) / self.count
        # The mean of n errors has a squared length of bias² + variance/n.
        bias = (of_mean - (of_each - of_mean) / (self.count - 1)).clamp(min=0).sqrt()
        some = self.length > 0
        parts = (
            bias / self.length,
            of_each.sqrt() / self.length,
            torch.as_tensor(self.cosines) / self.count,
        )
        return Gradient(*(float(part[some].mean()) if bool(some.any()) else 0.0 for part in parts))
