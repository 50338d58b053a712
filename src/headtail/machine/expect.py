"""The gaps that are expected of sampled schemes after training."""

from __future__ import annotations

from headtail.machine.advise import SAMPLERS, Candidate, Costs
from headtail.machine.fitted import LAW
from headtail.machine.gap_law import ExpectedGap, exponent_of
from headtail.machine.step_cost import StepCost
from headtail.machine.target import Target
from headtail.schemes import parse
from headtail.schemes.grammar import text_of


def candidates_for(
    target: Target, labels: int, batch: int, costs: Costs, recall: float | None = None
) -> list[Candidate]:
    """Schemes that approximate the target, with their expected gaps.

    Args:
        target: the loss over all labels.
        labels: L.
        batch: examples in a batch: within-batch has at most as many negatives.
        costs: steps by number of negatives.
        recall: Recall@10 of the target in percent, if it is known.
    """
    return [
        _candidate(target, sampler, labels, m, cost, recall)
        for sampler in SAMPLERS
        for m, cost in costs.sampled.items()
        if sampler != "within-batch" or m <= batch
    ]


def whole_batch(
    target: Target, cost: StepCost | None, recall: float | None = None
) -> Candidate | None:
    """All labels of a batch as negatives, with its expected gap.

    Args:
        target: the loss over all labels.
        cost: of its step; None if there is none.
        recall: Recall@10 of the target in percent, if it is known.
    """
    if cost is None:
        return None
    shape = cost.shape
    return _candidate(target, "within-batch", shape.labels, shape.negatives, cost, recall)


def _candidate(
    target: Target, sampler: str, labels: int, m: int, cost: StepCost, recall: float | None
) -> Candidate:
    gap = LAW.expected(sampler, target.tau, labels / m, recall).consistent()
    return Candidate(target.sampled(sampler, m), sampler, m, gap, cost)


def expected_of_scheme(name: str, labels: int, m: float) -> ExpectedGap | None:
    """The gap of a named scheme to its target; None where nothing was tested.

    >>> expected_of_scheme("within-batch:tail", 5000, 256) is None
    False
    >>> expected_of_scheme("within-batch:constant", 5000, 256) is None  # has another target
    True
    """
    parsed = parse(name)
    weighting = parsed.weighting
    if parsed.sampler is None or weighting is None or parsed.family != "softmax" or m >= labels:
        return None
    sampler = text_of(parsed.sampler)
    taus = {"importance": 0.0, "tail": 1.0}
    if weighting.name not in taus or weighting.args or exponent_of(sampler) is None:
        return None
    return LAW.expected(sampler, taus[weighting.name], labels / m).consistent()
