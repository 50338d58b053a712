"""The sentences and code that `headtail advise` prints."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Any

from headtail.data.facts import Kind
from headtail.machine.advise import Advice, Candidate, Costs, Plan
from headtail.machine.fitted import LAW
from headtail.machine.gap_law import Interval
from headtail.machine.outside import OUTSIDE
from headtail.machine.target import Target

MINUS = "−"


@dataclass(frozen=True)
class Given:
    """What was given, as far as sentences and code need it.

    Attributes:
        data: path of the data, or None.
        kind: of the data, or None.
        options: of reading the data and of the model, as they were typed.
        unseen: number of labels without training examples.
        smoothing: pseudo-count of every label.
        too_many: numbers of negatives that are not below the number of labels.
    """

    data: str | None = None
    kind: Kind | None = None
    options: tuple[str, ...] = ()
    unseen: int = 0
    smoothing: float = 0.0
    too_many: tuple[int, ...] = ()


@dataclass(frozen=True)
class Answer:
    """Everything that was measured, predicted and decided.

    Attributes:
        target: the loss over all labels.
        plan: of the training.
        costs: of its steps.
        advice: what to train with.
        given: what was given.
        larger: a larger batch as negatives, where the best scheme uses the whole batch.
    """

    target: Target
    plan: Plan
    costs: Costs
    advice: Advice
    given: Given
    larger: Candidate | None = None

    @property
    def in_points(self) -> bool:
        """Whether gaps are in points; else in shares of the target's recall."""
        return any(one.gap.points for one in self.advice.candidates)

    def shown(self, interval: Interval) -> Interval:
        """In points or percent. Points end at 100; shares do not, because a slice may have more
        recall than all labels together.
        """
        return interval.cut(100.0) if self.in_points else interval.times(100.0)


def span(interval: Interval, *, signed: bool) -> str:
    """An interval in few characters.

    >>> span(Interval(-4.21, -1.0, 1.56), signed=True), span(Interval(1.0, 2.0, 13.4), signed=False)
    ('−4.2 to +1.6', '1.0 to 13')
    """
    return " to ".join(ends(interval, signed=signed))


def ends(interval: Interval, *, signed: bool) -> tuple[str, str]:
    """The ends of an interval, with a digit behind the point where they are small."""
    return _digits(interval.low, signed), _digits(interval.high, signed)


def _digits(value: float, signed: bool) -> str:
    text = f"{value:{'+' if signed else ''}.{1 if abs(value) < 9.95 else 0}f}"
    return text.replace("-", MINUS)


def in_words(minutes: float) -> str:
    """A duration.

    >>> [in_words(m) for m in (0.2, 3.4, 80, 3000, 20_000)]
    ['12 s', '3.4 min', '1.3 h', '50 h', '14 days']
    """
    if minutes < 1:
        return f"{60 * minutes:.0f} s"
    if minutes < 60:
        return f"{minutes:.2g} min"
    return f"{minutes / 60:.2g} h" if minutes < 72 * 60 else f"{minutes / 60 / 24:.0f} days"


def recommendation(answer: Answer) -> list[str]:
    """What to use, in a sentence or two."""
    advice = answer.advice
    plan = answer.plan
    whole = answer.costs.all_labels
    minutes = plan.minutes_of(whole)
    loss = f"{answer.target.name} over all labels"
    if advice.verdict == "all labels":
        assert minutes is not None, "it was measured"
        lines = [
            f"Use {loss}, batch {plan.shape.batch:,}: its label head takes about "
            f"{in_words(minutes)}, and it has no gap."
        ]
        if minutes > plan.minutes:
            lines.append(
                f"Nothing keeps to {plan.minutes:g} minutes, and no sampled loss is faster."
            )
        return lines
    if advice.best is None:
        least = min(cost.memory for cost in answer.costs.sampled.values()) / 2**30
        return [
            f"Nothing fits: even the leanest needs {least:,.1f} GiB. Use a smaller `--dim`, or a "
            "machine with more memory."
        ]
    best = advice.best
    why = "does not fit into memory"
    if whole.fits:
        why = "is not measured here" if minutes is None else f"takes about {in_words(minutes)}"
    lines = [f"The loss over all labels {why}."]
    if advice.verdict == "not measured" and whole.fits:
        lines[0] += " Where its time is affordable, use it: it has no gap. Otherwise:"
    if advice.verdict == "too slow":
        lines[0] += f" No scheme keeps to {plan.minutes:g} minutes; this one comes nearest:"
    return [*lines, f"Use {best.scheme}, batch {plan.shape.batch:,}: {_gap_words(best, answer)}."]


def _gap_words(best: Candidate, answer: Answer) -> str:
    largest = answer.shown(best.gap.largest)
    between = span(largest, signed=False)
    of = "points of Recall@10" if answer.in_points else "percent of the target's overall Recall@10"
    return (
        f"its largest gap of head, torso and tail is expected to be {largest.middle:.1f} {of} "
        f"({between} in four of five cases)"
    )


def notes(answer: Answer) -> list[str]:
    """What was left out, and what would give more negatives."""
    best = answer.advice.best
    labels = answer.plan.shape.labels
    lines = []
    if answer.given.too_many:
        numbers = ", ".join(f"{m:,}" for m in answer.given.too_many)
        lines.append(f"Left out: m = {numbers}, because there are only {labels:,} labels.")
    if answer.larger is not None:
        lines.append(_of_larger(answer.larger, answer))
    elif best is not None and answer.plan.uses_whole_batch(best):
        lines.append("The negatives are the whole batch: a larger `--batch` gives more of them.")
    return lines


def _of_larger(larger: Candidate, answer: Answer) -> str:
    """What a larger batch would cost, and what it is expected to gain."""
    plan = answer.plan.with_batch(larger.m)
    begin = f"The negatives are the whole batch. A batch of {larger.m:,}"
    if not larger.cost.fits:
        return f"{begin} does not fit into memory."
    minutes = plan.minutes_of(larger.cost)
    if minutes is None:
        takes = ""
    elif minutes <= plan.minutes:
        takes = f" would take about {in_words(minutes)}"
    else:
        takes = f" would take about {in_words(minutes)}, longer than it may"
    return f"{begin}{takes}: {_gap_words(larger, answer)}. Tune its rate, too."


def how_sure(answer: Answer) -> list[str]:
    """How well such predictions did on data that they were not fitted to."""
    best = answer.advice.best
    if best is None:
        return []
    lines = [
        f"How sure: gaps were missed by a factor of {LAW.typical:.1f} on average on {LAW.sources} "
        f"data sets that were left out, and of {OUTSIDE.typical:.1f} on {OUTSIDE.sources} from "
        "elsewhere."
    ]
    if best is answer.advice.candidates[0]:
        lines.append(
            f"The most negatives from the batch ended {LAW.regret:.2f} and {OUTSIDE.regret:.2f} "
            "points of Recall@10 farther from their target than the best scheme there."
        )
    if not best.gap.inside:
        lines.append(
            "Your labels per negative lie outside the range of those data sets: trust the order "
            "of the schemes more than the numbers."
        )
    if answer.given.kind in ("dense", "images"):
        lines.append("None of them holds images or vectors, as your data do.")
    if 0 < answer.target.tau < 1:
        lines.append("Only τ = 1 was tested; below it, gaps are interpolated.")
    if answer.target.tau > 1:
        lines.append("Only τ = 1 was tested: gaps are shown for it, and may be larger.")
    return lines


def measuring(answer: Answer) -> str | None:
    """The command that measures the gap of the recommended scheme."""
    best = answer.advice.best
    if best is None:
        return None
    given = answer.given
    schemes = ["--schemes", answer.target.name, best.scheme]
    words = [*schemes, "--batch", str(answer.plan.shape.batch), *given.options]
    if answer.plan.labels_per_point > 1:
        words += ["--batching", "pairs"]  # else the two losses would get different batches
    data = "DATA" if given.data is None else shlex.quote(given.data)
    return f"headtail compare {data} {shlex.join(words)}"


def code(answer: Answer) -> list[str]:
    """How to make the loss."""
    best = answer.advice.best
    if best is not None:
        needs_prior = answer.target.tau > 0 or best.sampler.startswith("frequency")
        return _scheme_lines(best.scheme, answer.given, needs_prior)
    if answer.advice.verdict != "all labels":
        return []
    shape = answer.costs.all_labels.shape
    if answer.costs.all_labels.method == "chunked":
        return [
            f"    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size={shape.chunk}, "
            "chunking_method=None)",
            "    loss = torch.nn.functional.linear_cross_entropy(hidden, table, target, "
            "options=options)",
        ]
    return _scheme_lines(answer.target.name, answer.given, answer.target.tau > 0)


def _scheme_lines(scheme: str, given: Given, needs_prior: bool) -> list[str]:
    """The loss; where it needs a prior above 0, with labels that have one."""
    lines = [f'    loss = ht.scheme("{scheme}", labels)']
    if not (needs_prior and given.unseen):
        return lines
    who = "1 label never occurs" if given.unseen == 1 else f"{given.unseen:,} labels never occur"
    labels = f"ht.Labels.from_counts(counts, smoothing={given.smoothing or 1:g})"
    return [f"    labels = {labels}  # {who} in training", *lines]


def answer_dict(answer: Answer) -> dict[str, Any]:
    """For JSON."""
    plan = answer.plan
    best = answer.advice.best
    return {
        "target": answer.target.name,
        "verdict": answer.advice.verdict,
        "scheme": answer.target.name if answer.advice.verdict == "all labels" else None,
        "batch": plan.shape.batch,
        "epochs": plan.epochs,
        "pairs": plan.pairs,
        "steps": plan.steps,
        "all_labels": asdict(answer.costs.all_labels)
        | {"minutes": plan.minutes_of(answer.costs.all_labels)},
        "candidates": [
            asdict(one) | {"minutes": plan.minutes_of(one.cost)} for one in answer.advice.candidates
        ],
        "larger_batch": None if answer.larger is None else _larger_dict(answer.larger, plan),
        "tested_on": LAW.sources,
        "missed_by_a_factor_of": LAW.typical,
        "tested_elsewhere_on": OUTSIDE.sources,
        "missed_there_by_a_factor_of": OUTSIDE.typical,
        "recommendation": recommendation(answer),
        "notes": notes(answer),
        "how_sure": how_sure(answer),
        "measuring": measuring(answer),
    } | ({} if best is None else {"scheme": best.scheme, "m": best.m})


def _larger_dict(larger: Candidate, plan: Plan) -> dict[str, Any]:
    return asdict(larger) | {"minutes": plan.with_batch(larger.m).minutes_of(larger.cost)}
