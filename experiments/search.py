"""Choosing learning rate and epochs, with the same rule for every scheme.

Rates are tried at the first length, and the grid grows where its best rate is at an end. Then the
length is doubled, with the best rate and both neighbours, as long as that lowers the held-out loss;
where it does not at once, the length is halved as long as that does not raise it. Every run decays
its rate to zero, so the length is part of what is chosen. The test set is not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Try = tuple[float, int]
"""A learning rate and the epochs over which it decays."""
STEP = 2.0
"""The ratio of neighbouring rates."""


@dataclass(frozen=True)
class Plan:
    """What to try.

    Attributes:
        rates: learning rates, each twice the one before.
        epochs: the first length.
        longest: no longer one is tried.
        shortest: no shorter one is tried.
        wider: by how many rates the grid may grow at each end at one length.
        gain: the share of the held-out loss that a longer run must save to be worth it.
    """

    rates: tuple[float, ...]
    epochs: int
    longest: int
    wider: int = 2
    gain: float = 0.001
    shortest: int = 1


def next_tries(plan: Plan, tried: Mapping[Try, float]) -> list[Try]:
    """What to try next, given the held-out loss of each try (inf where it diverged); empty when the
    choice is made.

    >>> plan = Plan((0.1, 0.2, 0.4), epochs=4, longest=8)
    >>> next_tries(plan, {})
    [(0.1, 4), (0.2, 4), (0.4, 4)]
    >>> losses = {(0.1, 4): 3.0, (0.2, 4): 2.0, (0.4, 4): 2.5}
    >>> next_tries(plan, losses)
    [(0.1, 8), (0.2, 8), (0.4, 8)]
    """
    epochs = plan.epochs
    rates = plan.rates
    while True:
        missing = _missing(plan, tried, epochs, rates)
        if missing:
            return missing
        best = best_rate(tried, epochs)
        if best is None:  # every rate diverged
            return []
        if 2 * epochs > plan.longest or not _worth_it(plan, tried, epochs):
            return _shorter(plan, tried)
        epochs *= 2
        rates = _around(best)


def _shorter(plan: Plan, tried: Mapping[Try, float]) -> list[Try]:
    """What to try next below the first length, as long as twice the length is not better."""
    epochs = plan.epochs
    while epochs >= 2 * plan.shortest and epochs % 2 == 0 and not _better(plan, tried, epochs):
        best = best_rate(tried, epochs)
        if best is None:
            return []
        epochs //= 2
        missing = _missing(plan, tried, epochs, _around(best))
        if missing:
            return missing
    return []


def _missing(
    plan: Plan, tried: Mapping[Try, float], epochs: int, rates: Sequence[float]
) -> list[Try]:
    """What is left to try at one length: its rates, and more where the best is at an end."""
    missing = [(rate, epochs) for rate in rates if (rate, epochs) not in tried]
    if missing:
        return missing
    best = best_rate(tried, epochs)
    if best is None:
        return _lower(plan, tried, epochs)
    beyond = _beyond(plan, tried, best, epochs)
    return [] if beyond is None else [(beyond, epochs)]


def _around(rate: float) -> tuple[float, float, float]:
    return (rate / STEP, rate, rate * STEP)


def chosen(plan: Plan, tried: Mapping[Try, float]) -> Try | None:
    """The best try: the shortest length that no longer one beats by the gain, and its best rate;
    None where every try diverged.
    """
    lengths = {e for _, e in tried}
    epochs = min(lengths, default=plan.epochs)
    while 2 * epochs in lengths and _better(plan, tried, epochs):
        epochs *= 2
    rate = best_rate(tried, epochs)
    return None if rate is None else (rate, epochs)


def edges(plan: Plan, tried: Mapping[Try, float]) -> list[str]:
    """Which chosen values lie at an edge of what was tried: "rate", "epochs" or both.

    A length that is given is not chosen.
    """
    choice = chosen(plan, tried)
    if choice is None:
        return []
    rate, epochs = choice
    rates = [other for other, e in tried if e == epochs]
    found = ["rate"] if rate in (min(rates), max(rates)) else []
    if plan.shortest == plan.longest:
        return found
    lengths = [e for _, e in tried]
    return found + (["epochs"] if epochs in (min(lengths), max(lengths)) else [])


def best_rate(tried: Mapping[Try, float], epochs: int) -> float | None:
    """The best rate of a length; None where all diverged."""
    losses = {rate: loss for (rate, e), loss in tried.items() if e == epochs}
    rate = min(losses, key=lambda rate: (losses[rate], rate), default=None)
    return None if rate is None or math.isinf(losses[rate]) else rate


def _beyond(plan: Plan, tried: Mapping[Try, float], best: float, epochs: int) -> float | None:
    """The rate beyond the best one, if that is the last on its side and there may be more."""
    rates = [rate for rate, e in tried if e == epochs]
    low = min(plan.rates) / STEP**plan.wider
    high = max(plan.rates) * STEP**plan.wider
    if best == min(rates) and best / STEP >= low * (1 - 1e-9):
        return best / STEP
    if best == max(rates) and best * STEP <= high * (1 + 1e-9):
        return best * STEP
    return None


def _lower(plan: Plan, tried: Mapping[Try, float], epochs: int) -> list[Try]:
    """A lower rate than all that diverged, as long as there may be one."""
    beyond = _beyond(plan, tried, min(rate for rate, e in tried if e == epochs), epochs)
    return [] if beyond is None else [(beyond, epochs)]


def _worth_it(plan: Plan, tried: Mapping[Try, float], epochs: int) -> bool:
    """Whether a longer run may pay: the first length always tries one, later ones had to pay."""
    return epochs == plan.epochs or _better(plan, tried, epochs // 2)


def _better(plan: Plan, tried: Mapping[Try, float], epochs: int) -> bool:
    """Whether twice this length is better by the gain."""
    now = _lowest(tried, epochs)
    longer = _lowest(tried, 2 * epochs)
    return longer < now - plan.gain * abs(now)


def _lowest(tried: Mapping[Try, float], epochs: int) -> float:
    return min((loss for (_, e), loss in tried.items() if e == epochs), default=math.inf)
