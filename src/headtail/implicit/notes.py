"""What an explanation leaves out or cannot say, in words."""

from __future__ import annotations

import torch

from headtail.core.weightings import InfoNCE
from headtail.implicit.by_score import notes_on
from headtail.implicit.examples import inverse_in_m
from headtail.losses import Loss, SampledLoss
from headtail.samplers import FixedSampler, WithinBatch


def notes_of(loss: Loss, batch_size: int, never_drawn: int, *, untrained: bool) -> list[str]:
    """What does not hold for this loss."""
    notes = []
    if loss.post_hoc:
        adjusted = f"f − {loss.post_hoc:g}·log π"
        notes.append(f"Answers are adjusted afterwards, {adjusted}, which leans to the tail.")
    if loss.settings.collisions == "none":
        notes.append(
            "Collisions are kept, so the positive also counts as its own negative: that is left "
            "out here."
        )
    if isinstance(loss, SampledLoss) and _counts_copies(loss):
        notes.append(
            "Only the example's own slot is masked: copies of the positive in the batch count as "
            "negatives. "
            f"ρ, which is for y' ≠ y, leaves them out; they {_effect_of_copies(loss)}."
        )
    if loss.options.get("label_smoothing"):
        notes.append("Label smoothing is left out here.")
    notes += notes_on(loss)
    if isinstance(loss, SampledLoss):
        notes += _notes_of_sampling(loss, batch_size, never_drawn)
    if untrained and loss.piece is not None and loss.piece.cosine and _is_fixed(loss):
        notes.append(
            "An untrained model's cosines are all 0, where these negatives cost nothing: pass "
            "scores to see noise."
        )
    return notes


def _notes_of_sampling(loss: SampledLoss, batch_size: int, never_drawn: int) -> list[str]:
    sampler = loss.sampler
    if not isinstance(sampler, FixedSampler):
        return [
            "The q of these negatives moves with the model: it can be measured on a trained one "
            "only."
        ]
    notes = []
    if never_drawn:
        notes.append(
            f"{never_drawn:,} labels are never drawn, so they are never pushed down, whatever the "
            "weights say."
        )
    if not inverse_in_m(sampler, loss.weighting, batch_size):
        notes.append(
            "These weights are not of the form η/m: more negatives change the loss itself, which "
            "grows like log m."
        )
    nothing = torch.zeros(sampler.num_labels, dtype=torch.float64)
    if sampler.variance_of_sum(nothing, 0, batch_size) is None:
        notes.append(
            "How these negatives depend on each other is not known, so the variance has no formula."
        )
    elif not sampler.independent(batch_size):
        notes.append(
            "These draws are not independent: the variance is exact for this m, and there is no "
            "formula for another."
        )
    return notes


def _is_fixed(loss: Loss) -> bool:
    return isinstance(loss, SampledLoss) and isinstance(loss.sampler, FixedSampler)


def _counts_copies(loss: SampledLoss) -> bool:
    """Whether copies of the positive in the batch count as negatives."""
    if not isinstance(loss.sampler, WithinBatch):
        return False
    settings = loss.settings
    if settings.collisions == "slot":
        return True
    by_default = settings.collisions is None and settings.known_positives is None
    return by_default and loss.weighting.collisions == "slot"


def _effect_of_copies(loss: SampledLoss) -> str:
    if loss.piece:
        return "push its own label down"
    effect = "divide it by about 1 + ρ(y, y)"
    if isinstance(loss.weighting, InfoNCE):
        effect += " = 1 + m · π_y, which leans further to the tail"
    return effect
