"""Measure samplers on a trained model, against the exact gradient of its loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from headtail.core.labels import Labels
from headtail.data.points import Points
from headtail.encoders import Model
from headtail.errors import HeadtailError, Sentence
from headtail.evaluation.topk import encoded_pairs
from headtail.implicit.quality import Batch, OnModel, exactly, on_model
from headtail.losses import ExactLoss, SampledLoss
from headtail.schemes import check_batch, parse, scheme

SAMPLERS = ("uniform", "frequency(0.5)", "within-batch", "resampled", "block", "hard", "model")
"""Measured by default; `model` becomes `tilted` where the target has a margin."""
NUMBERS = (16, 64, 256)
"""Numbers of negatives that are measured by default."""
ENCODED_PAIRS = 4096
"""Smallest number of pairs to encode, where the data have as many."""
ExactTarget = Literal["softmax", "logit-adjusted", "equalised", "adaptive"]
WEIGHTINGS: dict[ExactTarget, str] = {
    "softmax": "importance",
    "logit-adjusted": "tail",
    "equalised": "equalised",
    "adaptive": "adaptive",
}
"""The weighting with which sampling approximates each loss over all labels."""


@dataclass(frozen=True)
class SamplerSettings:
    """What to measure on a model.

    Attributes:
        target: the loss over all labels to approximate; None for that of the model's own scheme.
        samplers: samplers without weights; empty for `SAMPLERS`.
        numbers: numbers of negatives for each sampler.
        batch_size: examples in a batch.
        repeats: draws of each sampler for each set of examples, to average over.
        seed: seed of the randomness.
    """

    target: ExactTarget | None = None
    samplers: tuple[str, ...] = ()
    numbers: Sequence[int] = NUMBERS
    batch_size: int = 256
    repeats: int = 4
    seed: int = 0


@dataclass(frozen=True)
class MeasuredSamplers:
    """Samplers as measured on a model.

    Attributes:
        results: one per scheme; the last is the exact loss.
        left_out: schemes that could not be measured, with the reason.
        target: the loss that they approximate.
        examples: the examples they were measured on.
    """

    results: list[OnModel]
    left_out: dict[str, Sentence]
    target: ExactTarget
    examples: Batch


def measure_samplers(
    model: Model,
    trained_with: str,
    points: Points,
    settings: SamplerSettings,
    progress: Callable[[Sequence[str]], Iterable[str]] = iter,
) -> MeasuredSamplers:
    """Measure every sampler with each number of negatives on a trained model.

    Args:
        model: the model.
        trained_with: name of the scheme it was trained with.
        points: data points to take examples from.
        settings: what to measure.
        progress: wraps the loop over schemes, for a progress bar.
    """
    family = parse(trained_with).family
    prefix = "" if family == "softmax" else f"{family}/"
    target = settings.target or target_of(trained_with) or "softmax"
    name = family if target == "softmax" else prefix + target
    head = model.head
    exact = scheme(name, head.labels)
    assert isinstance(exact, ExactLoss), "a target is a loss over all labels"
    losses, left_out = _losses(prefix, target, head.labels, settings)
    head.flush()
    number = max(ENCODED_PAIRS, 2 * settings.batch_size)
    hidden, label = encoded_pairs(model, points, number, settings.seed)
    size = min(settings.batch_size, len(label))
    probes = max(1, size // 16)
    with torch.no_grad():
        examples = Batch(
            hidden, label, head.weight, head.bias, probes=probes, sets=min(4, size), size=size
        )
        generator = torch.Generator().manual_seed(settings.seed)
        torch.manual_seed(settings.seed)
        results = on_model(
            exact,
            losses,
            examples,
            repeats=settings.repeats,
            generator=generator,
            progress=progress,
        )
        results.append(exactly(name, exact, examples))
    return MeasuredSamplers(results, left_out, target, examples)


def target_of(name: str) -> ExactTarget | None:
    """The loss over all labels that a scheme is or approximates; None if it cannot be a target.

    >>> [target_of(name) for name in ("block:tail@8", "contrastive", "uniform:constant")]
    ['logit-adjusted', 'softmax', None]
    """
    parsed = parse(name)
    part = parsed.margin or parsed.weighting
    known: dict[str, ExactTarget] = {"unit": "softmax"}
    for target, weighting in WEIGHTINGS.items():
        known |= {target: target, weighting: target}
    return None if part is None or part.args else known.get(part.name)


def _losses(
    prefix: str, target: ExactTarget, labels: Labels, settings: SamplerSettings
) -> tuple[dict[str, SampledLoss], dict[str, Sentence]]:
    """Sampled losses by name, and those that cannot be built, with the reason."""
    losses = {}
    left_out = {}
    default = SAMPLERS if target == "softmax" else (*SAMPLERS[:-1], "tilted")
    for sampler in settings.samplers or default:
        names = [f"{prefix}{sampler}:{WEIGHTINGS[target]}@{m}" for m in settings.numbers]
        error = None
        for name in names:
            try:
                check_batch(name, settings.batch_size)
                with warnings.catch_warnings():
                    # Training has already warned of labels that are never drawn.
                    warnings.simplefilter("ignore")
                    loss = scheme(name, labels)
            except HeadtailError as refusal:
                error = refusal
                left_out[name] = refusal.sentence
                continue
            assert isinstance(loss, SampledLoss), "a sampler and a weighting make a sampled loss"
            losses[name] = loss
        if settings.samplers and error is not None and losses.keys().isdisjoint(names):
            raise error  # it was requested, and no number of negatives suits it
    return losses, left_out
