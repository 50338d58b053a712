"""The dial: what post-hoc logit adjustment with each τ does to head and tail, without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headtail.core.slices import Slices
from headtail.data.facts import task_of
from headtail.data.points import DataSet
from headtail.encoders import Model
from headtail.errors import HeadtailError
from headtail.evaluation.measures import Measure, measures_of
from headtail.evaluation.topk import top_labels_by_tau
from headtail.head import LabelHead
from headtail.implicit.implied import LEAN_FROM, implied_margin_of, lean_of
from headtail.metrics import DEEPEST

LAST_TAU = 1.25
FINE_STEP = 0.125
COARSE_STEP = 0.25
CHEAP_SCORES = 2**30
"""Test points times labels up to which every fine step is measured."""
ANSWERS_AT_ONCE = 2**26
"""Answers that are held at a time: of small test sets for every τ, of very large ones for one."""
SHOWN = {
    "retrieval": ("recall@10", "coverage@10"),
    "classification": ("balanced-error", "class-weighted-error"),
}
"""What the dial shows, by the task of the data."""


class DialMeasure(NamedTuple):
    """A measure of answers that are adjusted with τ."""

    tau: float
    measure: Measure


def dial_of(
    model: Model, data: DataSet, slices: Slices, lean: float | None = None
) -> list[DialMeasure]:
    """Head, torso and tail for each τ above 0; nothing for a model that leans already.

    Args:
        model: a trained model.
        data: its test points are answered.
        slices: head, torso and tail.
        lean: of its loss, where ranks share the counts of its labels and have found it together.
    """
    if not leans_nowhere(model.head, lean):
        return []
    taus = taus_for(len(data.test) * data.test.num_labels)
    k = min(DEEPEST, data.test.num_labels)
    shown = SHOWN[task_of(data)]
    found = []
    at_once = max(1, ANSWERS_AT_ONCE // (k * len(data.test)))
    for first in range(0, len(taus), at_once):
        some = taus[first : first + at_once]
        for tau, top in zip(some, top_labels_by_tau(model, data.test, k, some), strict=True):
            measures = measures_of(top, data, slices, resamples=0)
            found += [DialMeasure(tau, each) for each in measures if each.metric in shown]
    return found


def leans_nowhere(head: LabelHead, lean: float | None = None) -> bool:
    """Whether its loss and its answers are known to lean neither to the head nor to the tail."""
    if head.loss.post_hoc:
        return False
    try:
        if lean is None:
            lean = lean_of(implied_margin_of(head.loss, batch_size=2), head.labels)
    except HeadtailError:  # the loss follows the model, and has no lean of its own
        return False
    return abs(lean) <= LEAN_FROM


def taus_for(scores: int) -> Sequence[float]:
    """The values of τ above 0 that are measured, given the number of scores that each needs.

    >>> taus_for(10**12)
    [0.25, 0.5, 0.75, 1.0, 1.25]
    """
    step = FINE_STEP if scores <= CHEAP_SCORES else COARSE_STEP
    return [step * (i + 1) for i in range(round(LAST_TAU / step))]
