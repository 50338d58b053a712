"""Which loss to train with: all labels where time and memory allow, else the whole batch as
negatives, else the sampled scheme that is expected to end closest to its target.

Time is measured, memory is counted, and the gap follows a law that was tested on data sets it was
not fitted to (`gap_law`). There the whole batch was a better choice than the law's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headtail.machine.gap_law import ExpectedGap
from headtail.machine.shape import Shape, possible
from headtail.machine.step_cost import EFFORT, StepCost, step_cost

SAMPLERS = ("within-batch", "frequency(0.5)", "uniform")
"""Samplers that the law of gaps knows, and whose steps cost about the same."""
NEGATIVES = (64, 256, 1024)
"""Numbers of negatives that are considered, where there are more labels."""
MINUTES = 60.0
"""Minutes that the label head may take in a whole training."""
EPOCHS = 20
"""Passes over the training pairs where no data decide."""

LARGER = 4
"""Factor of the larger batch that is considered."""

Verdict = Literal["all labels", "sampled", "not measured", "too slow", "nothing fits"]


@dataclass(frozen=True)
class Plan:
    """A training of the label head.

    Attributes:
        shape: of its steps; `negatives` is not used.
        pairs: training pairs.
        epochs: passes over them.
        minutes: that the steps may take.
        device: "cpu" or "cuda".
        memory: bytes that there are.
        here: whether the device is in this machine, so that steps can be measured.
        labels_per_point: on average. A loss over all labels takes points whole, with all their
            labels, as training does by default.
    """

    shape: Shape
    pairs: int
    epochs: int
    minutes: float
    device: str
    memory: int
    here: bool = True
    labels_per_point: float = 1.0

    @property
    def points(self) -> int:
        """Whole points that hold about as many pairs as a batch."""
        return max(1, round(self.shape.batch / self.labels_per_point))

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return self.epochs * math.ceil(self.pairs / self.shape.batch)

    def with_batch(self, batch: int) -> Plan:
        """The same training with another batch."""
        return replace(self, shape=replace(self.shape, batch=batch))

    def uses_whole_batch(self, candidate: Candidate) -> bool:
        """Whether all labels of the batch are its negatives."""
        return candidate.sampler == "within-batch" and candidate.m >= self.shape.batch

    def minutes_of(self, cost: StepCost) -> float | None:
        """Of the whole training; None where no step was measured."""
        return None if cost.seconds is None else self.steps * cost.seconds / 60

    def allows(self, cost: StepCost) -> bool:
        """Whether memory and, where it was measured, time suffice."""
        minutes = self.minutes_of(cost)
        return cost.fits and (minutes is None or minutes <= self.minutes)


@dataclass(frozen=True)
class Costs:
    """Steps of the label head.

    Attributes:
        all_labels: with the loss over all labels: exact where it fits, else chunked.
        sampled: by number of negatives.
    """

    all_labels: StepCost
    sampled: dict[int, StepCost]


@dataclass(frozen=True)
class Candidate:
    """A sampled scheme.

    Attributes:
        scheme: its name.
        sampler: its sampler.
        m: number of negatives.
        gap: to its target, as expected.
        cost: of a step.
    """

    scheme: str
    sampler: str
    m: int
    gap: ExpectedGap
    cost: StepCost


@dataclass(frozen=True)
class Advice:
    """What to train with.

    Attributes:
        verdict: "all labels" where time and memory allow, or nothing is faster; else "sampled";
            "not measured", where steps could not be; "too slow", where no scheme keeps to the
            minutes; "nothing fits".
        best: the sampled scheme to use; None where all labels should be, or nothing fits.
        candidates: all sampled schemes: the most negatives from the batch first, then by their
            expected gap.
    """

    verdict: Verdict
    best: Candidate | None
    candidates: tuple[Candidate, ...]


def costs_of(plan: Plan, negatives: Iterable[int]) -> Costs:
    """Measure the steps of a plan."""

    def cost(method: Literal["exact", "chunked", "sampled"], shape: Shape) -> StepCost:
        return step_cost(method, shape, plan.device, plan.memory, here=plan.here)

    shape = replace(plan.shape, batch=plan.points)
    whole = cost("exact", shape)
    if not whole.fits and "chunked" in possible():
        chunked = cost("chunked", shape)
        whole = chunked if chunked.fits else whole
    return Costs(whole, {m: cost("sampled", replace(plan.shape, negatives=m)) for m in negatives})


def larger_batch_cost(plan: Plan, best: Candidate | None) -> StepCost | None:
    """The step of a batch `LARGER` times as large, with all its labels as negatives; None unless
    the best scheme uses the whole batch, or where there are too few labels or pairs, or a step
    would take seconds.
    """
    batch = LARGER * plan.shape.batch
    if best is None or not plan.uses_whole_batch(best):
        return None
    if batch >= plan.shape.labels or batch > plan.pairs:
        return None
    if (best.cost.seconds or 0.0) * LARGER**2 > EFFORT.longest_step:
        return None
    shape = replace(plan.shape, batch=batch, negatives=batch)
    return step_cost("sampled", shape, plan.device, plan.memory, here=plan.here)


def uses_all_labels(plan: Plan, costs: Costs) -> bool:
    """Whether the loss over all labels is affordable, or no sampled one is faster: then nothing
    else needs to be known.
    """
    whole = costs.all_labels
    if not plan.here or not whole.fits:
        return False
    faster = (cost.seconds for cost in costs.sampled.values() if cost.fits)
    return plan.allows(whole) or not any((s or 0.0) < (whole.seconds or 0.0) for s in faster)


def numbers(wanted: Iterable[int], labels: int, batch: int) -> list[int]:
    """Numbers of negatives below the number of labels, and the whole batch.

    >>> numbers((64, 256, 1024), 500, 128), numbers((64,), 40, 128)
    ([64, 128, 256], [20])
    """
    few = [m for m in {*wanted, batch} if m < labels]
    return sorted(few if any(m <= batch for m in few) else [*few, max(1, labels // 2)])


def choose(plan: Plan, costs: Costs, candidates: Sequence[Candidate]) -> Advice:
    """All labels if they are affordable; else the first candidate that is: the most negatives from
    the batch, then the one whose gap is expected to be smallest at its upper end.

    Of candidates that are expected to be equally good, the cheapest.
    """
    most = max((one.m for one in candidates if one.sampler == "within-batch"), default=0)
    ranked = tuple(sorted(candidates, key=lambda one: _order(one, most)))
    if uses_all_labels(plan, costs):
        return Advice("all labels", None, ranked)
    fitting = [one for one in ranked if one.cost.fits]
    if not fitting:
        return Advice("nothing fits", None, ranked)
    if not plan.here:
        return Advice("not measured", fitting[0], ranked)
    affordable = [one for one in fitting if plan.allows(one.cost)]
    if affordable:
        return Advice("sampled", affordable[0], ranked)
    return Advice("too slow", min(fitting, key=lambda one: one.cost.seconds or 0.0), ranked)


def _order(candidate: Candidate, most: int) -> tuple[bool, float, float]:
    most_of_batch = candidate.sampler == "within-batch" and candidate.m == most
    return not most_of_batch, candidate.gap.largest.high, candidate.cost.seconds or 0.0
