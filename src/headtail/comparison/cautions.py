"""What makes the results of a comparison doubtful, in sentences for the table and the report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from headtail.comparison.results import POPULAR, Comparison, Try
from headtail.schemes import parse

BARELY = 1.2
"""A scheme that is less than this many times as good as most-popular has hardly learnt anything."""
NOTHING = 0.005
"""A share of right answers below this is nothing, whatever is best among such numbers."""
SEVERAL = 2.0
"""Labels per point from which it matters whether a batch holds whole points."""
MOST_NAMED = 4
"""Schemes that are named in a sentence; more are counted."""


def cautions_of(comparison: Comparison) -> list[str]:
    """Schemes that barely beat most-popular, that should have been trained for longer, whose
    settings are at the edge of what was tried, or whose batches differ from those of others.

    A scheme is judged by what it is meant for: one that leans to the tail by the tail, all others
    by all labels.
    """
    return [
        *_barely_trained(comparison),
        *_stopped_early(comparison),
        *_at_the_edge(comparison, "lr"),
        *_at_the_edge(comparison, "epochs"),
        *_batched_differently(comparison),
    ]


def named(names: Sequence[str]) -> str:
    """Names in a sentence: a few of them, or their number.

    >>> named(["a", "b", "c"])
    'a, b and c'
    """
    if len(names) > MOST_NAMED:
        return f"{len(names):,} schemes"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _barely_trained(comparison: Comparison) -> list[str]:
    errors = comparison.data.get("task") == "classification"
    metric, what = ("balanced-error", "right answers") if errors else ("recall@10", "Recall@10")
    gathered: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in comparison.rows:
        if row.split == "test" and row.metric == metric and math.isfinite(row.value):
            gathered[row.scheme, row.slice].append(1 - row.value if errors else row.value)
    right = {key: fmean(values) for key, values in gathered.items()}
    weak: dict[str, list[str]] = {"full": [], "tail": []}
    for name, about in comparison.schemes.items():
        judged = "tail" if about.get("leans") == "tail" and (name, "tail") in right else "full"
        least = max(BARELY * right.get((POPULAR, judged), 0.0), NOTHING)
        if right.get((name, judged), math.inf) < least:
            weak[judged].append(name)
    sentences = []
    for names, advice in _with_advice(comparison, weak["full"]):
        best = max(right[name, "full"] for name in names)
        one = len(names) == 1
        base = right.get((POPULAR, "full"), 0.0)
        beat = "barely beats" if one else "barely beat"
        if best <= base:
            beat = "does not beat" if one else "do not beat"
        sentences.append(
            f"{named(names)} {beat} most-popular, which learns nothing ({what} "
            f"{100 * best:.2f}% at best, against {100 * base:.2f}%). {advice}"
        )
    for names, advice in _with_advice(comparison, weak["tail"]):
        lean = "leans" if len(names) == 1 else "lean"
        best = max(right[name, "tail"] for name in names)
        sentences.append(
            f"{named(names)} {lean} to the tail, but learnt nothing there ({what} "
            f"{100 * best:.2f}% at best). {advice}"
        )
    return sentences


def _with_advice(comparison: Comparison, names: Sequence[str]) -> list[tuple[list[str], str]]:
    """Schemes that learnt too little, with what to try: by whether more training would help."""
    worse = [name for name in names if _got_worse(comparison, name)]
    others = [name for name in names if name not in worse]
    groups = [(others, "Try a larger learning rate or more epochs.")]
    if worse:
        best = {epoch for name in worse for epoch in _best_epochs(comparison, name)}
        when = f"after epoch {best.pop():g}" if len(best) == 1 else "early in training"
        more = "more negatives or " if any(parse(name).sampler for name in worse) else ""
        advice = (
            f"Results on held-out points were best {when} and then got worse: more epochs will "
            f"not help. Try {more}a smaller learning rate."
        )
        groups.append((worse, advice))
    return [group for group in groups if group[0]]


def _got_worse(comparison: Comparison, scheme: str) -> bool:
    """Whether held-out points were predicted best after the first of several epochs, or worse and
    worse until training stopped before its last epoch.
    """
    own = [row for row in comparison.rows if row.scheme == scheme]
    last = max((row.epoch for row in own if row.split == "validation"), default=0)
    best = max(_best_epochs(comparison, scheme), default=0)
    allowed = _setting(comparison, "epochs", scheme)
    return 0 < best < last and (best == 1 or (allowed is not None and last < allowed))


def _best_epochs(comparison: Comparison, scheme: str) -> set[float]:
    return {row.epoch for row in comparison.rows if row.split == "test" and row.scheme == scheme}


def _stopped_early(comparison: Comparison) -> list[str]:
    epochs = {name: _setting(comparison, "epochs", name) for name in comparison.schemes}
    validated = {row.scheme for row in comparison.rows if row.split == "validation"}
    last = [
        name
        for name in comparison.schemes
        if name in validated
        and any(
            row.epoch == epochs[name]
            for row in comparison.rows
            if row.split == "test" and row.scheme == name
        )
    ]
    if not last:
        return []
    whose = "every scheme" if set(last) == validated and len(last) > 1 else named(last)
    numbers = {epochs[name] for name in last}
    which = f", epoch {numbers.pop()}" if len(numbers) == 1 else ""
    return [
        f"The best epoch of {whose} is the last one{which}: more epochs may give better numbers."
    ]


def _at_the_edge(comparison: Comparison, name: str) -> list[str]:
    """Schemes for which tuning chose the largest or the smallest value that it tried."""
    what = "learning rate" if name == "lr" else "number of epochs"
    sentences = []
    for end, edge, beyond in ((max, "largest", "larger"), (min, "smallest", "smaller")):
        schemes = []
        for scheme in comparison.schemes:
            tried = {getattr(one, name) for one in comparison.tries if one.scheme == scheme}
            chosen = {
                getattr(one, name)
                for one in comparison.tries
                # Tries of another call may be in the folder.
                if one.scheme == scheme and one.chosen == "yes" and _in_use(comparison, one)
            }
            if len(tried) > 1 and end(tried) in chosen:
                schemes.append(scheme)
        if schemes:
            sentences.append(
                f"The {what} that tuning chose for {named(schemes)} is the {edge} that was tried: "
                f"a {beyond} one may give better numbers."
            )
    return sentences


def _batched_differently(comparison: Comparison) -> list[str]:
    """Losses over all labels beside sampled ones, where the former take whole points."""
    labels = comparison.data.get("labels_per_point", 1.0)
    if labels < SEVERAL or _setting(comparison, "batching", "") != "auto":
        return []
    exact = [name for name in comparison.schemes if not parse(name).sampler]
    if len(exact) in (0, len(comparison.schemes)):
        return []
    takes = "takes" if len(exact) == 1 else "take"
    return [
        f"{named(exact)} {takes} all labels of a point in one batch, {labels:.0f} on average, and "
        "sampled schemes take single labels. That alone can change the results by points: set "
        "batching to pairs to train all alike."
    ]


def _in_use(comparison: Comparison, one: Try) -> bool:
    used = [_setting(comparison, name, one.scheme) for name in ("lr", "epochs")]
    return used == [one.lr, one.epochs]


def _setting(comparison: Comparison, name: str, scheme: str) -> Any:
    """A setting: one for all schemes, or one for each."""
    value = comparison.settings.get(name)
    return value.get(scheme) if isinstance(value, Mapping) else value
