"""What sampling does to the loss and to the push on labels, by slice, on a trained model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtail.core.slices import NAMES, Slices
from headtail.losses import ExactLoss, Loss, SampledLoss

__all__ = ["Examples", "SamplingShift", "sampling_shifts"]


@dataclass(frozen=True)
class SamplingShift:
    r"""How a sampled loss differs from its target on a model, on average over draws.

    Attributes:
        loss_gap: by slice of the positive (nan for one without examples), exact loss minus mean
            sampled loss, in nats: the Jensen gap of the logarithm, about σ²/(2mμ²) where that is
            small.
        push: by slice of the labels, by how much less sampled negatives push their scores down
            than all labels do, per positive of that slice:
            Σ_x (P(s | x) − E P̂(s | x)) / Σ_x 1{y ∈ s}. Above 0, the slice gains score.
    """

    loss_gap: dict[str, float]
    push: dict[str, float]


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples of a model, in batches as training has them.

    Attributes:
        hidden: `[n, d]` hidden states.
        target: `[n]` their labels.
        weight: `[L, d]` label table.
        bias: `[L]`, added to the scores.
        size: examples in a batch; those that do not fill one are left out.
    """

    hidden: Float[Tensor, "n d"]
    target: Int[Tensor, " n"]
    weight: Float[Tensor, "L d"]
    bias: Float[Tensor, " L"]
    size: int

    def batches(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Hidden states and targets."""
        size = min(self.size, len(self.target))
        full = len(self.target) // size * size
        return zip(self.hidden[:full].split(size), self.target[:full].split(size), strict=True)


def sampling_shifts(
    exact: ExactLoss,
    losses: Mapping[str, SampledLoss],
    examples: Examples,
    slices: Slices,
    *,
    repeats: int = 4,
) -> dict[str, SamplingShift]:
    """Compare sampled losses with their target, by slice.

    Args:
        exact: the target.
        losses: sampled losses by name.
        examples: of a trained model.
        slices: head, torso and tail.
        repeats: draws of each loss for each batch, to average over.

    >>> from headtail import Labels, scheme
    >>> _ = torch.manual_seed(0)
    >>> labels, table = Labels.zipf(50), torch.randn(50, 4)
    >>> few = Examples(torch.randn(64, 4), torch.randint(50, (64,)), table, torch.zeros(50), 32)
    >>> names = ("tilted:importance@4", "uniform:importance@4")
    >>> losses = {name: scheme(name, labels) for name in names}
    >>> found = sampling_shifts(scheme("softmax", labels), losses, few, labels.slices())
    >>> [abs(each.loss_gap["head"]) < 0.001 for each in found.values()]  # tilted has no noise
    [True, False]
    """
    of_label = slices.of_label.long().to(examples.weight.device)
    totals = {name: _Totals.zeros() for name in losses}
    for hidden, target in examples.batches():
        truth = _by_slice(exact, hidden, target, examples, of_label)
        for name, loss in losses.items():
            for _ in range(repeats):
                sampled = _by_slice(loss, hidden, target, examples, of_label)
                totals[name].add(truth, sampled)
    return {name: total.summary() for name, total in totals.items()}


@dataclass(frozen=True, eq=False)
class _Sums:
    """Of a batch, by slice: losses and number of its positives, and push on its labels."""

    loss: Tensor
    push: Tensor
    positives: Tensor


def _by_slice(
    loss: Loss, hidden: Tensor, target: Tensor, examples: Examples, of_label: Tensor
) -> _Sums:
    bias = examples.bias.detach().requires_grad_()
    with torch.enable_grad():
        each = loss(hidden, examples.weight, target, bias=bias, reduction="none", ignore_index=None)
        [push] = torch.autograd.grad(each.sum(), [bias])
    positive = of_label[target]
    return _Sums(
        _summed(each.detach(), positive),
        _summed(push, of_label),
        torch.bincount(positive, minlength=len(NAMES)).double(),
    )


def _summed(values: Tensor, of: Tensor) -> Tensor:
    return values.new_zeros(len(NAMES), dtype=torch.float64).index_add_(0, of, values.double())


@dataclass(frozen=True, eq=False)
class _Totals:
    """Sums of differences over batches and draws."""

    loss: Tensor
    push: Tensor
    positives: Tensor

    @classmethod
    def zeros(cls) -> _Totals:
        return cls(*(torch.zeros(len(NAMES), dtype=torch.float64) for _ in range(3)))

    def add(self, exact: _Sums, sampled: _Sums) -> None:
        self.loss.add_((exact.loss - sampled.loss).cpu())
        self.push.add_((exact.push - sampled.push).cpu())
        self.positives.add_(exact.positives.cpu())

    def summary(self) -> SamplingShift:
        by = self.positives  # 0/0 is nan: nothing is known of a slice without examples
        loss, push = (self.loss / by).tolist(), (self.push / by).tolist()
        return SamplingShift(_named(loss), _named(push))


def _named(values: list[float]) -> dict[str, float]:
    named: dict[str, float] = {}
    named.update(zip(NAMES, values, strict=True))
    return named
